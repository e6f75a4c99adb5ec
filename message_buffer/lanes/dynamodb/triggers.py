"""The queue of triggers: each names a conversation whose window is over when it arrives."""

import json
from typing import NamedTuple

from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput
from message_buffer.limits import MAX_TRIGGER_DELAY_MS, MAX_TRIGGER_HIDDEN_MS


class Trigger(NamedTuple):
    """One that was received; its receipt is good for putting it back."""

    conversation: str
    receipt: str


class TriggerQueue:
    def __init__(self, url: str, *, patience: aws.Patience = aws.PATIENT) -> None:
        self._url = url
        self._patience = patience

    def send(self, conversation: str, *, delay_ms: int) -> None:
        """It arrives not before, or at the service's limit."""
        with aws.errors_as_ours("send trigger"):
            aws.client("sqs", patience=self._patience).send_message(
                QueueUrl=self._url,
                MessageBody=json.dumps({"conversation_id": conversation}),
                DelaySeconds=_seconds_up(min(delay_ms, MAX_TRIGGER_DELAY_MS)),
            )

    def rest(self, trigger: Trigger, *, for_ms: int) -> None:
        """Nobody else sees it for so long from now."""
        with aws.errors_as_ours("put trigger back"):
            aws.client("sqs", patience=self._patience).change_message_visibility(
                QueueUrl=self._url,
                ReceiptHandle=trigger.receipt,
                VisibilityTimeout=_seconds_up(min(for_ms, MAX_TRIGGER_HIDDEN_MS)),
            )


def read_trigger(body: str, receipt: str) -> Trigger:
    try:
        conversation = json.loads(body)["conversation_id"]
    except (ValueError, KeyError, TypeError):
        conversation = None
    if not isinstance(conversation, str) or not conversation:
        raise InvalidInput("this is no trigger: it names no conversation")
    return Trigger(conversation, receipt)


def _seconds_up(ms: int) -> int:
    return max(-(-ms // 1_000), 0)
