"""Gives a batch up: puts it into the dead-letter queue of its queue."""

from message_buffer.aws import clients as aws
from message_buffer.consumer.turns import Entry

MAX_REASON_CHARACTERS = 200


def put_dead_letter(entry: Entry, url: str, *, reason: str) -> None:
    """Store the entry and the reason. The body and the group are unchanged, so the entry can be moved back."""
    # Cut the reason, because operators read it in a list.
    attribute = {"DataType": "String", "StringValue": reason[:MAX_REASON_CHARACTERS]}
    with aws.errors_as_ours("dead-letter batch"):
        aws.client("sqs").send_message(
            QueueUrl=url,
            MessageBody=entry.body,
            MessageGroupId=entry.group,
            # If the responder is killed now, the next run puts the entry again, and SQS drops the repetition.
            MessageDeduplicationId=entry.id,
            MessageAttributes={"reason": attribute},
        )
