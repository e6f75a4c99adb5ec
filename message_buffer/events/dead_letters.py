"""The dead-letter queue, which keeps batches that could not be emitted, and messages that ingest refused.

An operator redrives or deletes them.
"""

from typing import NamedTuple

from message_buffer.aws import clients as aws

# The kind of a dead letter that contains a single message, which ingest refused, instead of a batch.
MESSAGE_LETTER = "message"
# SQS returns at most this many messages for one call.
PAGE = 10


class Letter(NamedTuple):
    receipt: str
    body: str
    reason: str | None = None
    """Why a consumer gave the batch up, if the letter is one of a queue. A letter of the buffer has it in its body."""


class DeadLetterQueue:
    def __init__(self, url: str) -> None:
        self._url = url

    def put(self, body: str) -> None:
        with aws.errors_as_ours("send dead letter"):
            aws.client("sqs").send_message(QueueUrl=self._url, MessageBody=body)

    def receive(self, *, hidden_seconds: int) -> list[Letter]:
        """Return some dead letters, and hide them from other callers for `hidden_seconds`.

        An empty list means that no visible dead letter is left.
        """
        with aws.errors_as_ours("receive dead letters"):
            response = aws.client("sqs").receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=PAGE,
                VisibilityTimeout=hidden_seconds,
                MessageAttributeNames=["reason"],
                # With a wait time, SQS searches all of the queue's servers. Without one, it may miss letters.
                WaitTimeSeconds=1,
            )
        messages = response.get("Messages", [])
        reasons = [each.get("MessageAttributes", {}).get("reason", {}).get("StringValue") for each in messages]
        return [Letter(each["ReceiptHandle"], each["Body"], why) for each, why in zip(messages, reasons, strict=True)]

    def give_back(self, letters: list[Letter]) -> None:
        # Make the letters visible again one by one, because SQS's batch call succeeds even if SQS refuses some of them.
        with aws.errors_as_ours("give dead letters back"):
            for letter in letters:
                aws.client("sqs").change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=letter.receipt, VisibilityTimeout=0
                )

    def delete(self, letter: Letter) -> None:
        with aws.errors_as_ours("delete dead letter"):
            aws.client("sqs").delete_message(QueueUrl=self._url, ReceiptHandle=letter.receipt)

    def count(self) -> int:
        """Return the approximate number of dead letters, hidden ones included."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        with aws.errors_as_ours("count dead letters"):
            response = aws.client("sqs").get_queue_attributes(QueueUrl=self._url, AttributeNames=names)
        return sum(int(response["Attributes"][name]) for name in names)
