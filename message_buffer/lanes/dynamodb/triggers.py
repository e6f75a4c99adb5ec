"""The queue of triggers. Each trigger names a conversation, and arrives when the conversation's window may be due.

Messages of another kind in this queue ask for a sweep, because EventBridge starts a sweep only once a minute.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from message_buffer.aws import clients as aws
from message_buffer.errors import InvalidInput
from message_buffer.limits import MAX_TRIGGER_DELAY_MS, MAX_TRIGGER_HIDDEN_MS

SWEEP = {"sweep": True}


class Trigger(NamedTuple):
    """A received trigger, and the receipt that is needed to hide it in the queue again."""

    conversation: str
    receipt: str


class TriggerQueue:
    def __init__(self, url: str, *, patience: aws.Patience = aws.PATIENT) -> None:
        self._url = url
        self._patience = patience

    def send(self, conversation: str, *, delay_ms: int) -> None:
        """Send a trigger that arrives after the delay, but no later than the longest delay that the queue allows."""
        self._send("send trigger", {"conversation_id": conversation}, delay_ms)

    def send_sweep(self, *, delay_ms: int) -> None:
        self._send("send sweep", SWEEP, delay_ms)

    def _send(self, doing: str, body: Mapping[str, object], delay_ms: int) -> None:
        with aws.errors_as_ours(doing):
            aws.client("sqs", patience=self._patience).send_message(
                QueueUrl=self._url,
                MessageBody=json.dumps(body),
                DelaySeconds=_seconds_up(min(delay_ms, MAX_TRIGGER_DELAY_MS)),
            )

    def hide(self, trigger: Trigger, *, for_ms: int) -> None:
        """Hide a received trigger for `for_ms` from now; then the queue delivers it again."""
        with aws.errors_as_ours("put trigger back"):
            aws.client("sqs", patience=self._patience).change_message_visibility(
                QueueUrl=self._url,
                ReceiptHandle=trigger.receipt,
                VisibilityTimeout=_seconds_up(min(for_ms, MAX_TRIGGER_HIDDEN_MS)),
            )


def read_message(body: str, receipt: str) -> Trigger | None:
    """Return the trigger in a queue's message, or None if the message asks for a sweep. Raise InvalidInput."""
    try:
        content = json.loads(body)
        conversation = None if content == SWEEP else content["conversation_id"]
    except (ValueError, KeyError, TypeError):
        conversation = ""
    if conversation is None:
        return None
    if not isinstance(conversation, str) or not conversation:
        raise InvalidInput("this trigger does not name a conversation")
    return Trigger(conversation, receipt)


def _seconds_up(ms: int) -> int:
    return max(-(-ms // 1_000), 0)
