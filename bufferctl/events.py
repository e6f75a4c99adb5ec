"""Listens to the bus as any consumer does: through a rule and a queue of its own."""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lambdas.canary.listening import ArrivedEvent, Event, Subscription

__all__ = ["EVERYTHING", "ArrivedEvent", "Event", "Subscription", "subscribe"]

# If `tail` is killed, its queue remains and keeps events for this long. It is short because events contain what people
# wrote. A running `tail` reads each event within a second.
EVENT_RETENTION_SECONDS = 300
EVERYTHING = {"source": ["message-buffer"]}


@contextmanager
def subscribe(
    client: Callable[[str], Any], bus: str, *, pattern: dict[str, Any], prefix: str
) -> Iterator[Subscription]:
    """Yield a subscription that begins now. At the end, remove its rule and its queue."""
    name = f"{prefix}-{uuid.uuid4().hex[:12]}"
    sqs, events = client("sqs"), client("events")
    kept = {"MessageRetentionPeriod": str(EVENT_RETENTION_SECONDS)}
    queue_url = sqs.create_queue(QueueName=name, Attributes=kept)["QueueUrl"]
    try:
        attributes = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]
        rule = {"Rule": name, "EventBusName": bus}
        rule_arn = events.put_rule(Name=name, EventBusName=bus, EventPattern=json.dumps(pattern))["RuleArn"]
        try:
            policy = _only_from(rule_arn, to=attributes["QueueArn"])
            sqs.set_queue_attributes(QueueUrl=queue_url, Attributes={"Policy": json.dumps(policy)})
            events.put_targets(**rule, Targets=[{"Id": "queue", "Arn": attributes["QueueArn"]}])
            try:
                yield Subscription(sqs, queue_url)
            finally:
                events.remove_targets(**rule, Ids=["queue"])
        finally:
            events.delete_rule(Name=name, EventBusName=bus, Force=True)
    finally:
        sqs.delete_queue(QueueUrl=queue_url)


def _only_from(rule_arn: str, *, to: str) -> dict[str, Any]:
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "events.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": to,
                "Condition": {"ArnEquals": {"aws:SourceArn": rule_arn}},
            }
        ],
    }
