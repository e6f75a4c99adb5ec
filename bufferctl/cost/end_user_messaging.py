"""The bill of the queue through which AWS End User Messaging Social sends WhatsApp's webhooks."""

from bufferctl.cost.facts import MILLION, used
from bufferctl.cost.lines import Line
from bufferctl.cost.traffic import Traffic

PART = "End User Messaging"


def queue(traffic: Traffic) -> list[Line]:
    """Return the lines of the queue, if all webhooks come through it. SNS does not bill what it delivers to SQS."""
    return [
        Line(PART, "SQS: webhooks", "sqs_requests", 3 * traffic.webhooks / MILLION,
             "webhooks x (send, receive, delete), at most"),
        Line(PART, "SQS: webhook queue, polls", "sqs_requests", used("queue_polls") / MILLION, "polls"),
    ]  # fmt: skip
