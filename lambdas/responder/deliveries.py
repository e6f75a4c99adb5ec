"""Deliveries of the responder's queue."""

from collections.abc import Callable
from typing import NamedTuple

from message_buffer.aws import clients as aws

# The pause before the next attempt doubles from the minimum to the maximum.
MIN_RETRY_SECONDS = 4
MAX_RETRY_SECONDS = 300


class Delivery(NamedTuple):
    body: str
    receives: int
    """How often the queue has delivered this body, including this delivery."""
    time_left_ms: Callable[[], int]
    require_hidden: Callable[[], None]
    """Raises SendFailed if another run may already see the delivery. Call this before each step that has effects."""

    @property
    def retry_seconds(self) -> int:
        """Return how long to wait before the next attempt."""
        return min(MIN_RETRY_SECONDS << (self.receives - 1), MAX_RETRY_SECONDS)


class Deliveries:
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
        """Put the body and the reason into the dead-letter queue. The body is unchanged, so it can be moved back."""
        # Cut the reason, because operators read it in a list.
        attribute = {"DataType": "String", "StringValue": reason[:200]}
        with aws.errors_as_ours("dead-letter delivery"):
            aws.client("sqs").send_message(
                QueueUrl=self._dead_letter_queue_url, MessageBody=body, MessageAttributes={"reason": attribute}
            )
