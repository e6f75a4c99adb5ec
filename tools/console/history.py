"""Keeps what happened lately: the stage's events, and the other entries of the conversations' time lines."""

import threading
from collections import deque
from typing import Any

from message_buffer.json_object import Json

EVENTS_KEPT = 3_000
OTHER_ENTRIES_KEPT = 20_000
# These may be large, because they have the messages.
WHOLE_EVENTS_KEPT = 100


class History:
    def __init__(self) -> None:
        self._events: deque[Json] = deque(maxlen=EVENTS_KEPT)
        self._others: deque[Json] = deque(maxlen=OTHER_ENTRIES_KEPT)
        self._whole: deque[Json] = deque(maxlen=WHOLE_EVENTS_KEPT)
        self._lock = threading.Lock()

    def add_event(self, event: Json) -> None:
        """Keep an event. Its detail must be small, so it has no messages."""
        with self._lock:
            self._events.append(event)

    def add_whole(self, event: Json) -> None:
        """Keep an event as EventBridge delivers it."""
        with self._lock:
            self._whole.append(event)

    def whole(self, event_id: str) -> Json | None:
        """Return the event with this id as EventBridge delivered it, or None if it is not kept."""
        with self._lock:
            return next((each for each in self._whole if each.get("id") == event_id), None)

    def add(self, conversation: str, kind: str, at_ms: int, **facts: Any) -> None:
        """Add an entry to the time line of a conversation."""
        with self._lock:
            self._others.append({"conversation": conversation, "kind": kind, "at": at_ms, **facts})

    @property
    def events(self) -> list[Json]:
        """Return the kept events, oldest first."""
        with self._lock:
            return list(self._events)

    def of(self, conversation: str) -> list[Json]:
        """Return the time line of a conversation, oldest entry first."""
        with self._lock:
            found = [each for each in (*self._events, *self._others) if each["conversation"] == conversation]
        return sorted(found, key=lambda each: int(each["at"]))

    def batch(self, batch_id: str) -> Json | None:
        """Return the detail of the batch's first event, or None if it is not kept."""
        return next(
            (each["detail"] for each in self.events if each["detail"].get("batchId") == batch_id and "why" in each),
            None,
        )

    def with_text(self, text: str) -> dict[str, int]:
        """Return the conversations whose ids contain the text, newest first, each with the time of its last entry."""
        with self._lock:
            entries = [each for each in (*self._events, *self._others) if text in (each["conversation"] or "").lower()]
        found = {each["conversation"]: each["at"] for each in sorted(entries, key=lambda each: int(each["at"]))}
        return dict(sorted(found.items(), key=lambda item: -item[1]))
