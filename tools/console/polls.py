"""Polls the stage while a page is open, for its counts, the conversations that are due next, and its dead letters."""

import threading
import time
from collections.abc import Callable, Iterator

from bufferctl.errors import Failed
from message_buffer.json_object import Json
from message_buffer.limits import MAX_LISTED
from tools.console.hub import Hub
from tools.console.outage import in_words, is_outage
from tools.console.pace import PAUSE_AFTER_A_PROBLEM_SECONDS, PacedStage
from tools.console.time_lines import TimeLines, facts_of_row
from tools.console.why import why_due

# A sweep reads at most this many pages of open conversations. If there are more, the page says so.
MAX_REQUESTS_IN_A_SWEEP = 20
STATUS_EVERY_SECONDS = 2.0
LETTERS_EVERY_SECONDS = 15.0
LETTERS_SHOWN = 50
OWNERS_EVERY_SECONDS = 30.0
PAUSE_BETWEEN_SWEEPS_SECONDS = 0.5
CONVERSATIONS_SHOWN = 200
Key = tuple[str, str]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Polls:
    """Keeps the newest state of the stage, which `run` reads in a thread of its own."""

    def __init__(
        self, stage: PacedStage, hub: Hub, time_lines: TimeLines, *, clock: Callable[[], int] = now_ms
    ) -> None:
        self._stage = stage
        self._hub = hub
        self._time_lines = time_lines
        self.clock = clock
        self._rows: dict[Key, Json] = {}
        self._more = False
        self._status: Json | None = None
        self._status_read_at = -STATUS_EVERY_SECONDS
        self._letters: Json | None = None
        self._letters_read_at = -LETTERS_EVERY_SECONDS
        self._agents: dict[tuple[str, ...], str] = {}
        self._owners_read_at = -OWNERS_EVERY_SECONDS
        self._problem: str | None = None
        self._is_outage = False
        self._ended = threading.Event()
        self._soon = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            if not self._hub.wait_for_a_reader(timeout_seconds=1):
                continue
            self._soon.clear()
            pause = PAUSE_BETWEEN_SWEEPS_SECONDS
            try:
                self.sweep()
                self._problem, self._is_outage = None, False
            except Failed as error:
                self._problem, self._is_outage = in_words(error, status=self._status), is_outage(error)
                pause = PAUSE_AFTER_A_PROBLEM_SECONDS
            except Exception as error:  # noqa: BLE001 - the page shows it, and the next sweep tries again
                self._problem, self._is_outage = f"The console failed: {type(error).__name__}", False
                pause = PAUSE_AFTER_A_PROBLEM_SECONDS
            self._hub.publish("state", self.state())
            self._soon.wait(pause)

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
        self._read_status()
        seen: set[Key] = set()
        self._more = False
        for at_ms, response in self._pages():
            for row in response["conversations"]:
                key = (row["lane"], row["conversation"])
                seen.add(key)
                if key not in self._rows or facts_of_row(self._rows[key]) != facts_of_row(row):
                    self._time_lines.note_row(row, at_ms)
                self._rows[key] = row
            if response["next"] is not None:
                self._hub.publish("state", self.state())
            self._more = response["more"]
        self._forget_all_but(seen)

    def _forget_all_but(self, seen: set[Key]) -> None:
        still_open = {conversation for _, conversation in seen}
        for gone in self._rows.keys() - seen:
            del self._rows[gone]
            if not self._more and gone[1] not in still_open:
                self._time_lines.note_absence(gone[1], self.clock())

    def _pages(self) -> Iterator[tuple[int, Json]]:
        """Yield each response with the time of its request, because the conversations may have changed since then."""
        cursor = None
        for _ in range(MAX_REQUESTS_IN_A_SWEEP):
            at_ms = self.clock()
            response = self._stage.poll("conversation.list", cursor=cursor, limit=MAX_LISTED)
            yield at_ms, response
            cursor = response["next"]
            if cursor is None:
                return

    def _read_status(self) -> None:
        now = time.monotonic()
        if now - self._status_read_at >= STATUS_EVERY_SECONDS:
            self._status = self._stage.poll("status")
            self._status_read_at = now
        if now - self._letters_read_at >= LETTERS_EVERY_SECONDS:
            self._letters = self._stage.poll("dead.list", limit=LETTERS_SHOWN)
            self._letters_read_at = now
        if now - self._owners_read_at >= OWNERS_EVERY_SECONDS:
            self._agents = _agents(self._stage.poll("rules.list", prefix="account:")["rules"])
            self._owners_read_at = now

    def forget_letters(self) -> None:
        """Read the dead letters again in the next sweep, because the reader has redriven one of them."""
        self._letters_read_at = -LETTERS_EVERY_SECONDS
        self.hurry()

    def state(self) -> Json:
        rows = sorted(self._rows.values(), key=lambda row: (row["dueAt"] is None, row["dueAt"] or 0))
        return {
            "at": self.clock(),
            "problem": self._problem,
            "isOutage": self._is_outage,
            "conversations": [self._completed(row) for row in rows[:CONVERSATIONS_SHOWN]],
            "open": len(rows),
            "more": self._more,
            "status": self._status,
            "letters": self._letters,
        }

    def _completed(self, row: Json) -> Json:
        """Return the row, with the reason for its due time and with the agent that owns the conversation's account.

        A generic webhook may have named a different agent, which the row does not show.
        """
        agent = self._agents.get(tuple(row["conversation"].split("/")[:3]))
        return row | {"agent": agent, "why": why_due(row)}


def _agents(stored: list[Json]) -> dict[tuple[str, ...], str]:
    """Return the agent of each owned account, by tenant, platform and account."""
    return {
        (owner.get("tenant", "default"), *each["scope"].removeprefix("account:").split("/")): owner["agent"]
        for each in stored
        if isinstance(owner := each.get("rules"), dict) and owner.get("agent")
    }
