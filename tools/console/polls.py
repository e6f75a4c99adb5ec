"""Polls the stage while a page is open, for its counts, the conversations that are due next, and its dead letters."""

import threading
import time
from collections.abc import Iterator
from typing import Any

from bufferctl.errors import Failed
from bufferctl.reasons import why_due
from message_buffer.json_object import Json
from message_buffer.limits import MAX_LISTED
from tools.console.history import History
from tools.console.hub import Hub
from tools.console.pace import PAUSE_AFTER_A_PROBLEM_SECONDS, PacedStage

# A sweep reads at most this many pages of open conversations. If there are more, the page says so.
MAX_REQUESTS_IN_A_SWEEP = 20
STATUS_EVERY_SECONDS = 2.0
LETTERS_EVERY_SECONDS = 15.0
LETTERS_SHOWN = 50
PAUSE_BETWEEN_SWEEPS_SECONDS = 0.5
CONVERSATIONS_SHOWN = 200
# A sweep adds an entry to a time line if one of these fields has changed since the previous sweep.
COMPARED = ("state", "count", "dueAt", "rule", "frozen", "lane")
Key = tuple[str, str]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Polls:
    """Keeps the newest state of the stage, which `run` reads in a thread of its own."""

    def __init__(self, stage: PacedStage, hub: Hub, history: History) -> None:
        self._stage = stage
        self._hub = hub
        self._history = history
        self._rows: dict[Key, Json] = {}
        self._more = False
        self._platforms: Json = {}
        self._answers: dict[str, Json] = {}
        self._read_at: dict[str, float] = {}
        self._answered_at_ms: int | None = None
        self._problem: str | None = None
        self._ended = threading.Event()
        self._soon = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            if not self._hub.wait_for_a_reader(timeout_seconds=1):
                continue
            self._soon.clear()
            try:
                self.sweep()
                self._problem = None
            except Failed as error:
                self._problem = str(error)
            except Exception as error:  # noqa: BLE001 - the page shows it, and the next sweep tries again
                self._problem = f"The console failed: {type(error).__name__}"
            self._hub.publish("state", self.state())
            self._soon.wait(PAUSE_AFTER_A_PROBLEM_SECONDS if self._problem else PAUSE_BETWEEN_SWEEPS_SECONDS)

    def end(self) -> None:
        self._ended.set()
        self._soon.set()

    def hurry(self) -> None:
        """Skip the pause before the next sweep, because something has just happened."""
        self._soon.set()

    def sweep(self) -> None:
        """Read the counts and all open conversations once. Publish the state after each response.

        If there are more conversations than a sweep reads, the page does not show the others until a later sweep finds
        them.
        """
        self._platforms = self._stage.platforms
        self._read("status", every_seconds=STATUS_EVERY_SECONDS)
        self._read("dead.list", every_seconds=LETTERS_EVERY_SECONDS, limit=LETTERS_SHOWN)
        seen: set[Key] = set()
        self._more = False
        for at_ms, response in self._pages():
            for row in response["conversations"]:
                key = (row["lane"], row["conversation"])
                seen.add(key)
                known = self._rows.get(key)
                if known is None or any(row.get(name) != known.get(name) for name in COMPARED):
                    facts = {name: row.get(name) for name in COMPARED}
                    self._history.add(row["conversation"], "poll", at_ms, **facts, why=why_due(row))
                self._rows[key] = row
            if response["next"] is not None:
                self._hub.publish("state", self.state())
            self._more = response["more"]
        self._forget_all_but(seen)

    def state(self) -> Json:
        rows = sorted(self._rows.values(), key=lambda row: (row["dueAt"] is None, row["dueAt"] or 0))
        return {
            "problem": self._problem,
            "platforms": self._platforms,
            "conversations": [row | {"why": why_due(row)} for row in rows[:CONVERSATIONS_SHOWN]],
            "open": len(rows),
            "more": self._more,
            "status": self._answers.get("status"),
            "letters": self._answers.get("dead.list"),
            "readAt": self._answered_at_ms,
        }

    def _read(self, operation: str, *, every_seconds: float, **fields: Any) -> None:
        if time.monotonic() - self._read_at.get(operation, -every_seconds) >= every_seconds:
            self._answers[operation] = self._poll(operation, **fields)
            self._read_at[operation] = time.monotonic()

    def _poll(self, operation: str, **fields: Any) -> Json:
        response = self._stage.poll(operation, **fields)
        self._answered_at_ms = now_ms()
        return response

    def open_with(self, text: str) -> list[Json]:
        """Return the open conversations whose ids contain the text."""
        return [row for row in list(self._rows.values()) if text in row["conversation"].lower()]

    def _pages(self) -> Iterator[tuple[int, Json]]:
        """Yield each response with the time at which it came, when what it shows had already happened."""
        cursor = None
        for _ in range(MAX_REQUESTS_IN_A_SWEEP):
            response = self._poll("conversation.list", cursor=cursor, limit=MAX_LISTED)
            yield now_ms(), response
            cursor = response["next"]
            if cursor is None:
                return

    def _forget_all_but(self, seen: set[Key]) -> None:
        still_open = {conversation for _, conversation in seen}
        for gone in self._rows.keys() - seen:
            del self._rows[gone]
            if not self._more and gone[1] not in still_open:
                self._history.add(gone[1], "poll", now_ms(), state="idle", count=0)
