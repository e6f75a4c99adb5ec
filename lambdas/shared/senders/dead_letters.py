"""Puts aside what cannot be emitted, for a person to look at."""

from lambdas.shared.senders import aws


class DeadLetterQueue:
    def __init__(self, url: str) -> None:
        self._url = url

    def put(self, body: str) -> None:
        with aws.errors_as_ours("send dead letter"):
            aws.client("sqs").send_message(QueueUrl=self._url, MessageBody=body)
