"""Receives a stage's events from a queue, and notes the millisecond at which each arrived there."""

import json
from dataclasses import dataclass
from typing import Any

LONG_POLL_SECONDS = 1
Event = dict[str, Any]


@dataclass(frozen=True)
class ArrivedEvent:
    """An event with the millisecond at which it arrived, because the event's own time has only whole seconds."""

    event: Event
    at_ms: int

    @property
    def batch(self) -> dict[str, Any]:
        """Return the event's detail, which is a batch."""
        detail = self.event["detail"]
        assert isinstance(detail, dict)
        return detail


class Subscription:
    """Receives the events that the bus delivers after the subscription began."""

    def __init__(self, sqs: Any, queue_url: str) -> None:
        self._sqs = sqs
        self._queue_url = queue_url

    def poll(self, *, wait_seconds: int) -> list[ArrivedEvent]:
        """Return the events that have arrived. If there are none, wait up to `wait_seconds` for the first.

        If the queue becomes unreachable after some events were received, return those. A later call returns the rest.
        """
        response = self._sqs.receive_message(
            QueueUrl=self._queue_url,
            MaxNumberOfMessages=10,
            WaitTimeSeconds=wait_seconds,
            MessageSystemAttributeNames=["SentTimestamp"],
        )
        arrived: list[ArrivedEvent] = []
        for message in response.get("Messages", []):
            try:
                self._sqs.delete_message(QueueUrl=self._queue_url, ReceiptHandle=message["ReceiptHandle"])
            except Exception:
                if arrived:
                    break
                raise
            arrived.append(ArrivedEvent(json.loads(message["Body"]), int(message["Attributes"]["SentTimestamp"])))
        return arrived
