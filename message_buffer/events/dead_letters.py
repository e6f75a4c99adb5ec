"""Puts aside what cannot be emitted, and lets a person look at it and take it out again."""

from typing import NamedTuple

from message_buffer.aws import clients as aws

# The most that one call receives.
PAGE = 10


class Letter(NamedTuple):
    receipt: str
    body: str


class DeadLetterQueue:
    def __init__(self, url: str) -> None:
        self._url = url

    def put(self, body: str) -> None:
        with aws.errors_as_ours("send dead letter"):
            aws.client("sqs").send_message(QueueUrl=self._url, MessageBody=body)

    def receive(self, *, hidden_seconds: int) -> list[Letter]:
        """Some of those that nobody else looks at; none only if there are none."""
        with aws.errors_as_ours("receive dead letters"):
            answer = aws.client("sqs").receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=PAGE,
                VisibilityTimeout=hidden_seconds,
                # All servers of the queue are asked only by who is ready to wait.
                WaitTimeSeconds=1,
            )
        return [Letter(message["ReceiptHandle"], message["Body"]) for message in answer.get("Messages", [])]

    def give_back(self, letters: list[Letter]) -> None:
        # One by one: what a batch of them is refused for is only told in its answer.
        with aws.errors_as_ours("give dead letters back"):
            for letter in letters:
                aws.client("sqs").change_message_visibility(
                    QueueUrl=self._url, ReceiptHandle=letter.receipt, VisibilityTimeout=0
                )

    def delete(self, letter: Letter) -> None:
        with aws.errors_as_ours("delete dead letter"):
            aws.client("sqs").delete_message(QueueUrl=self._url, ReceiptHandle=letter.receipt)

    def count(self) -> int:
        """About how many there are, those that somebody looks at among them."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        with aws.errors_as_ours("count dead letters"):
            answer = aws.client("sqs").get_queue_attributes(QueueUrl=self._url, AttributeNames=names)
        return sum(int(answer["Attributes"][name]) for name in names)
