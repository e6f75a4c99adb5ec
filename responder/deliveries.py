"""What was delivered from a queue: hidden for longer, or put aside for good."""

from message_buffer.aws import clients as aws

MOST_REASON = 200


class Deliveries:
    def __init__(self, queue_url: str, dead_letter_queue_url: str) -> None:
        self._queue_url = queue_url
        self._dead_letter_queue_url = dead_letter_queue_url

    def hide(self, receipt: str, *, seconds: int) -> None:
        """From now on, for so long."""
        with aws.errors_as_ours("hide delivery"):
            aws.client("sqs").change_message_visibility(
                QueueUrl=self._queue_url, ReceiptHandle=receipt, VisibilityTimeout=seconds
            )

    def dead_letter(self, body: str, *, reason: str) -> None:
        """Unchanged, so that it can be moved back; the reason stands beside it."""
        with aws.errors_as_ours("dead-letter delivery"):
            aws.client("sqs").send_message(
                QueueUrl=self._dead_letter_queue_url,
                MessageBody=body,
                MessageAttributes={"reason": {"DataType": "String", "StringValue": reason[:MOST_REASON]}},
            )
