"""Keeps what happened to each conversation, as the stage's events and the polls show it."""

import threading
from collections import OrderedDict, deque
from typing import Any

from message_buffer.json_object import Json
from tools.console.why import why_due

# If there are more time lines, those that changed longest ago are dropped.
TIME_LINES_KEPT = 500
ENTRIES_IN_A_TIME_LINE = 100
# A poll adds an entry if one of these fields has changed since the previous poll.
COMPARED = ("state", "count", "dueAt", "rule", "frozen", "lane")


def facts_of_row(row: Json) -> Json:
    return {name: row.get(name) for name in COMPARED}


class TimeLines:
    """The newest entries of the conversations that changed most recently."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Json]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, conversation: str, kind: str, at_ms: int, **facts: Any) -> None:
        with self._lock:
            self._add(conversation, {"at": at_ms, "kind": kind, **facts})

    def note_row(self, row: Json, at_ms: int) -> None:
        """Add an entry for a conversation that has changed since the previous poll."""
        with self._lock:
            self._add(row["conversation"], {"at": at_ms, "kind": "poll", **facts_of_row(row), "why": why_due(row)})

    def note_absence(self, conversation: str, at_ms: int) -> None:
        """Add an entry for a conversation that was open at the previous poll and is not open now."""
        self.add(conversation, "poll", at_ms, state="idle", count=0)

    def of(self, conversation: str) -> list[Json]:
        with self._lock:
            return sorted(map(dict, self._lines.get(conversation, ())), key=lambda entry: int(entry["at"]))

    def _add(self, conversation: str, entry: Json) -> None:
        line = self._lines.setdefault(conversation, deque(maxlen=ENTRIES_IN_A_TIME_LINE))
        self._lines.move_to_end(conversation)
        line.append(entry)
        while len(self._lines) > TIME_LINES_KEPT:
            self._lines.popitem(last=False)
