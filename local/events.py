"""Listens to the bus as any consumer would: by a rule of one's own, feeding a queue of one's own."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from local.outputs import Outputs

Event = dict[str, Any]
ALL_BATCHES = {"source": ["message-buffer"], "detail-type": ["messages.batch.ready"]}
LONG_POLL_SECONDS = 1


class Subscription:
    """The events that came since it was made, in the order of arrival."""

    def __init__(self, sqs: Any, queue_url: str) -> None:
        self._sqs = sqs
        self._queue_url = queue_url

    def receive(self, *, timeout_seconds: float) -> Iterator[Event]:
        """Every event that arrives until `timeout_seconds` went by without one."""
        deadline = time.monotonic() + timeout_seconds
        while (left := deadline - time.monotonic()) > 0:
            answer = self._sqs.receive_message(
                QueueUrl=self._queue_url,
                MaxNumberOfMessages=10,
                WaitTimeSeconds=min(LONG_POLL_SECONDS, int(left)),
            )
            for message in answer.get("Messages", []):
                self._sqs.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])
                yield json.loads(message["Body"])
                deadline = time.monotonic() + timeout_seconds

    def first(self, *, timeout_seconds: float) -> Event | None:
        return next(self.receive(timeout_seconds=timeout_seconds), None)


@contextmanager
def subscribe(outputs: Outputs, *, pattern: dict[str, Any] = ALL_BATCHES) -> Iterator[Subscription]:
    """A subscription that begins now and leaves neither rule nor queue behind."""
    name = f"tap-{uuid.uuid4().hex[:12]}"
    sqs, events = outputs.client("sqs"), outputs.client("events")
    queue_url = sqs.create_queue(QueueName=name)["QueueUrl"]
    try:
        attributes = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]
        rule = {"Rule": name, "EventBusName": outputs.EventBusName}
        events.put_rule(Name=name, EventBusName=outputs.EventBusName, EventPattern=json.dumps(pattern))
        try:
            events.put_targets(**rule, Targets=[{"Id": "queue", "Arn": attributes["QueueArn"]}])
            yield Subscription(sqs, queue_url)
            events.remove_targets(**rule, Ids=["queue"])
        finally:
            events.delete_rule(Name=name, EventBusName=outputs.EventBusName, Force=True)
    finally:
        sqs.delete_queue(QueueUrl=queue_url)
