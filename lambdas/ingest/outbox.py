"""Publishes the events of a webhook in as few calls as EventBridge allows."""

from collections.abc import Callable
from typing import Self

from message_buffer.events.event_bus import MAX_ENTRIES_IN_A_CALL, EventBus


class Outbox:
    """Publishes events of one type when there are enough for a call, and the rest at the end, even after an error."""

    def __init__(self, bus: EventBus, detail_type: str, count: Callable[[int], None]) -> None:
        self._bus = bus
        self._detail_type = detail_type
        self._count = count
        self._events: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._publish()

    def add(self, event: str) -> None:
        """Publish the event, now or later. Raise SendFailed."""
        self._events.append(event)
        if len(self._events) == MAX_ENTRIES_IN_A_CALL:
            self._publish()

    def _publish(self) -> None:
        events, self._events = self._events, []
        self._bus.publish_all(self._detail_type, events)
        self._count(len(events))
