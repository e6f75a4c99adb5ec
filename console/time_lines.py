"""Remembers what happened to each conversation, as seen in the stage's events and in the looks at the stage."""

import threading
from collections import OrderedDict, deque
from typing import Any

from console.limits import ENTRIES_IN_A_TIME_LINE, TIME_LINES_KEPT

Json = dict[str, Any]

# A look becomes an entry if one of these has changed since the look before.
COMPARED = ("state", "count", "dueAt", "reason", "frozen", "lane")


class TimeLines:
    """The newest entries of the conversations that changed last."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[Json]] = OrderedDict()
        self._seen: dict[str, Json] = {}
        self._whys: dict[str, tuple[int, Json]] = {}
        self._lock = threading.Lock()

    def add(self, conversation: str, kind: str, at_ms: int, **facts: Any) -> None:
        with self._lock:
            self._add(conversation, {"at": at_ms, "kind": kind, **facts})

    def note_look(self, row: Json, at_ms: int) -> None:
        """Add an entry if the conversation has changed since it was last seen."""
        facts = {name: row.get(name) for name in COMPARED}
        with self._lock:
            if self._seen.get(row["conversation"]) != facts:
                cause = self._cause_of(row)
                self._add(row["conversation"], {"at": at_ms, "kind": "look", **facts, "cause": cause})
                self._seen[row["conversation"]] = facts

    def note_why(self, conversation: str, due_at_ms: int, cause: Json) -> None:
        """Remember why the conversation is due at this time, and add that to the looks that saw this due time."""
        with self._lock:
            line = self._lines.get(conversation)
            if line is None:
                return
            self._whys[conversation] = (due_at_ms, cause)
            for entry in line:
                if entry["kind"] == "look" and entry.get("dueAt") == due_at_ms:
                    entry["cause"] = cause

    def cause_of(self, row: Json) -> Json | None:
        """Return why the conversation is due, or None if the console has not looked closely since the time changed."""
        with self._lock:
            return self._cause_of(row)

    def _cause_of(self, row: Json) -> Json | None:
        due_at_ms, cause = self._whys.get(row["conversation"], (None, None))
        return cause if due_at_ms is not None and due_at_ms == row.get("dueAt") else None

    def note_cause(self, conversation: str, batch_id: str, cause: Json) -> None:
        """Replace what the entries of a batch say about why it left."""
        with self._lock:
            for entry in self._lines.get(conversation, ()):
                if entry.get("batchId") == batch_id:
                    entry["cause"] = cause

    def note_absence(self, conversation: str, at_ms: int) -> None:
        """Add an entry for a conversation that was open at the last look and is no longer."""
        with self._lock:
            if self._seen.pop(conversation, None) is not None:
                self._add(conversation, {"at": at_ms, "kind": "look", "state": "idle", "count": 0})

    def of(self, conversation: str) -> list[Json]:
        with self._lock:
            return sorted(map(dict, self._lines.get(conversation, ())), key=lambda entry: int(entry["at"]))

    def _add(self, conversation: str, entry: Json) -> None:
        line = self._lines.setdefault(conversation, deque(maxlen=ENTRIES_IN_A_TIME_LINE))
        self._lines.move_to_end(conversation)
        line.append(entry)
        while len(self._lines) > TIME_LINES_KEPT:
            dropped, _ = self._lines.popitem(last=False)
            self._seen.pop(dropped, None)
            self._whys.pop(dropped, None)
