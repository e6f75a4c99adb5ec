"""Listens to the bus as any consumer would: by a rule of one's own, feeding a queue of one's own."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from local.outputs import Outputs

Event = dict[str, Any]
ALL_BATCHES = {"source": ["message-buffer"], "detail-type": ["messages.batch.ready"]}
LONG_POLL_SECONDS = 1
SHORT_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Arrival:
    """An event, and when the bus delivered it: the envelope's own time is in whole seconds."""

    event: Event
    at_ms: int

    @property
    def batch(self) -> dict[str, Any]:
        """The event's detail."""
        detail = self.event["detail"]
        assert isinstance(detail, dict)
        return detail


class Subscription:
    """The events that came since it was made, in the order of arrival."""

    def __init__(self, sqs: Any, queue_url: str) -> None:
        self._sqs = sqs
        self._queue_url = queue_url

    def receive(self, *, timeout_seconds: float) -> Iterator[Event]:
        """Every event that arrives until `timeout_seconds` went by without one."""
        return (arrival.event for arrival in self.arrivals(timeout_seconds=timeout_seconds))

    def first(self, *, timeout_seconds: float) -> Event | None:
        return next(self.receive(timeout_seconds=timeout_seconds), None)

    def arrivals(self, *, timeout_seconds: float) -> Iterator[Arrival]:
        """As `receive`, with the times."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            left = deadline - time.monotonic()
            arrived = self.look(wait_seconds=LONG_POLL_SECONDS if left > LONG_POLL_SECONDS else 0)
            yield from arrived
            if arrived:
                deadline = time.monotonic() + timeout_seconds
            elif left <= 0:
                return
            elif left <= LONG_POLL_SECONDS:
                time.sleep(min(SHORT_POLL_SECONDS, left))

    def look(self, *, wait_seconds: int) -> list[Arrival]:
        """What is there, or comes first within the time."""
        answer = self._sqs.receive_message(
            QueueUrl=self._queue_url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_seconds,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        arrived = []
        for message in answer.get("Messages", []):
            self._sqs.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])
            arrived.append(Arrival(json.loads(message["Body"]), int(message["Attributes"]["SentTimestamp"])))
        return arrived


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


class Inbox:
    """What arrived so far, kept by a thread in the background."""

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []
        self._changed = threading.Condition()

    @property
    def arrivals(self) -> list[Arrival]:
        with self._changed:
            return list(self._arrivals)

    def wait_until(self, enough: Callable[[Sequence[Arrival]], bool], *, timeout_seconds: float) -> bool:
        """Wait until what arrived is enough; says whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: enough(self._arrivals), timeout_seconds)

    def put(self, arrival: Arrival) -> None:
        with self._changed:
            self._arrivals.append(arrival)
            self._changed.notify_all()


@contextmanager
def collect(outputs: Outputs, *, pattern: dict[str, Any] = ALL_BATCHES) -> Iterator[Inbox]:
    """An inbox that fills while one does something else."""
    inbox = Inbox()
    done = threading.Event()

    def fill(subscription: Subscription) -> None:
        while not done.is_set():
            for arrival in subscription.look(wait_seconds=LONG_POLL_SECONDS):
                inbox.put(arrival)

    with subscribe(outputs, pattern=pattern) as subscription:
        filler = threading.Thread(target=fill, args=(subscription,), daemon=True)
        filler.start()
        try:
            yield inbox
        finally:
            done.set()
            filler.join()
