"""Deliveries of the responder's queue."""

from collections.abc import Callable
from typing import NamedTuple

from message_buffer.aws import clients as aws
from responder.limits import MAX_DEAD_LETTER_REASON_CHARACTERS, MAX_RETRY_SECONDS, MIN_RETRY_SECONDS


class Delivery(NamedTuple):
    body: str
    receives: int
    """How often the queue has delivered this body, including this delivery."""
    time_left_ms: Callable[[], int]
    require_hidden: Callable[[], None]
    """Call this before a step with effects: it raises SendFailed if other runs may already see the delivery."""

    @property
    def retry_seconds(self) -> int:
        """Return how long to wait before the next attempt."""
        return min(MIN_RETRY_SECONDS << (self.receives - 1), MAX_RETRY_SECONDS)


class Later(NamedTuple):
    """Returned if the delivery is not finished: the queue has to deliver it again after `seconds`."""

    seconds: int


class Deliveries:
    """The queue and its dead-letter queue."""

    def __init__(self, queue_url: str, dead_letter_queue_url: str) -> None:
        self._queue_url = queue_url
        self._dead_letter_queue_url = dead_letter_queue_url

    def hide(self, receipt: str, *, seconds: int) -> None:
        """Keep the delivery invisible for `seconds` from now on."""
        with aws.errors_as_ours("hide delivery"):
            aws.client("sqs").change_message_visibility(
                QueueUrl=self._queue_url, ReceiptHandle=receipt, VisibilityTimeout=seconds
            )

    def dead_letter(self, body: str, *, reason: str) -> None:
        """Put the body into the dead-letter queue, unchanged so that it can be moved back, with the reason."""
        attribute = {"DataType": "String", "StringValue": reason[:MAX_DEAD_LETTER_REASON_CHARACTERS]}
        with aws.errors_as_ours("dead-letter delivery"):
            aws.client("sqs").send_message(
                QueueUrl=self._dead_letter_queue_url, MessageBody=body, MessageAttributes={"reason": attribute}
            )
