"""Keeps the figures of the batches of the last minutes, for the charts."""

import threading
from collections import deque

from message_buffer.json_object import Json
from tools.console.why import why_left

BATCHES_KEPT = 3_000
BATCHES_KEPT_MS = 15 * 60_000


def figures_of(detail: Json, *, arrived_at_ms: int) -> Json | None:
    """Return the figures of a batch, or None if the event lacks the fields for them."""
    metadata = detail.get("metadata") or {}
    first_at_ms, wait_ms = metadata.get("firstMessageAt"), metadata.get("waitMs")
    if not isinstance(first_at_ms, int) or not isinstance(wait_ms, int):
        return None
    return {
        "batchId": detail.get("batchId"),
        "at": arrived_at_ms,
        "lateMs": max(arrived_at_ms - first_at_ms - wait_ms, 0),
        "waitMs": wait_ms,
        "size": detail.get("messageCount"),
        "why": why["label"] if (why := why_left(detail)) else detail.get("flushReason"),
        "lane": detail.get("lane"),
        "attempt": detail.get("attempt"),
    }


class Batches:
    def __init__(self) -> None:
        self._kept: deque[Json] = deque(maxlen=BATCHES_KEPT)
        self._lock = threading.Lock()

    def add(self, figures: Json) -> None:
        with self._lock:
            self._kept.append(figures)
            while self._kept[0]["at"] < figures["at"] - BATCHES_KEPT_MS:
                self._kept.popleft()

    def all(self) -> list[Json]:
        with self._lock:
            return list(self._kept)
