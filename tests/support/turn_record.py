"""Records and judges the turns of many consumers, kills one at a chosen moment, and is the store of their marks.

Everything happens in the order in which this record gets to know of it. A turn is at work from `begin` to `mark` or
`fail`, or until its process is killed.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import urllib3

from message_buffer.json_object import Json
from tests.support.web_server import Answer, Request

BEGIN, MARK = "begin", "mark"


class Begun(NamedTuple):
    pid: int
    numbers: list[int]


class Kill(NamedTuple):
    moment: str
    then: Callable[[str], None] | None


class TurnRecord:
    """A batch is named after its conversation and its number in it: `c7-0`, `c7-1`, …"""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._at_work: dict[str, Begun] = {}
        self._kill_at: Kill | None = None
        self._killed: set[int] = set()
        self.marked: dict[str, int] = {}
        """Conversation -> how many of its batches were marked, which are its oldest ones."""
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    # -- told by the test ------------------------------------------------------------------------------------

    @property
    def awaits_a_kill(self) -> bool:
        return self._kill_at is not None

    def kill(self, moment: str | None, chance: random.Random, *, then: Callable[[str], None] | None = None) -> None:
        """Kill the process of the next turn that begins or is marked, and call `then` with its conversation. Without
        a moment, kill one now that has a turn at work, if there is one; else the one of the next turn that begins."""
        with self._lock:
            pids = sorted({begun.pid for begun in self._at_work.values()})
            if moment is None and pids:
                self._kill(chance.choice(pids))
            else:
                self._kill_at = Kill(moment or BEGIN, then)

    # -- told by the consumers -------------------------------------------------------------------------------

    def begin(self, pid: int, batch_ids: Collection[str]) -> None:
        conversation, numbers = _read(batch_ids)
        if other := self._at_work.get(conversation):
            self.wrong.append(f"{conversation}: {numbers} begins while {other} is at work")
        first = self.marked.get(conversation, 0)
        if numbers != list(range(first, first + len(numbers))):
            self.wrong.append(f"{conversation}: {numbers} begins after {first} batches were answered")
        self._at_work[conversation] = Begun(pid, numbers)
        self.counts["begun"] += 1
        self.counts["merged"] += len(numbers) > 1
        self._perhaps_kill(BEGIN, pid, conversation)

    def fail(self, pid: int, batch_ids: Collection[str]) -> None:
        del self._at_work[_read(batch_ids)[0]]
        self.counts["failed"] += 1

    def answered(self, pid: int, batch_ids: Collection[str]) -> list[str]:
        conversation, numbers = _read(batch_ids)
        found = [number for number in numbers if number < self.marked.get(conversation, 0)]
        self.counts["left out"] += bool(found)
        self.counts["left out of a turn"] += 0 < len(found) < len(numbers)
        return [f"{conversation}-{number}" for number in found]

    def mark(self, pid: int, batch_ids: Collection[str]) -> None:
        conversation, numbers = _read(batch_ids)
        begun = self._at_work.pop(conversation, None)
        if begun != Begun(pid, numbers):
            self.wrong.append(f"{conversation}: {numbers} of {pid} is marked while {begun} is at work")
        if numbers[0] != self.marked.get(conversation, 0):
            self.wrong.append(f"{conversation}: {numbers} is marked after {self.marked.get(conversation, 0)} batches")
        self.marked[conversation] = numbers[-1] + 1
        self._perhaps_kill(MARK, pid, conversation)

    def serve(self, request: Request) -> Answer:
        """Answer a call of a consumer. What a process says after it was killed has never been said."""
        told = request.json
        with self._lock:
            if told["pid"] in self._killed:
                return 410, {}
            found: Any = getattr(self, told.pop("call"))(**told)
            return 200, {"found": found}

    def _perhaps_kill(self, moment: str, pid: int, conversation: str) -> None:
        if self._kill_at and self._kill_at.moment == moment:
            self._kill(pid)
            if self._kill_at.then:
                self._kill_at.then(conversation)
            self._kill_at = None

    def _kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._killed.add(pid)
        self.counts["killed"] += 1
        self._at_work = {name: begun for name, begun in self._at_work.items() if begun.pid != pid}


def _read(batch_ids: Collection[str]) -> tuple[str, list[int]]:
    """Return the conversation of these batches, and their numbers in the order in which they were named."""
    (conversation,) = {batch_id.rpartition("-")[0] for batch_id in batch_ids}
    return conversation, [int(batch_id.rpartition("-")[2]) for batch_id in batch_ids]


class RecordClient:
    """The record as a consumer sees it. It is also its store of marks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = urllib3.PoolManager(maxsize=10)

    def tell(self, call: str, batch_ids: Collection[str]) -> Any:
        told: Json = {"call": call, "pid": os.getpid(), "batch_ids": list(batch_ids)}
        return self._http.request("POST", self._url, json=told).json()["found"]

    def answered(self, batch_ids: Collection[str]) -> set[str]:
        return set(self.tell("answered", batch_ids))

    def mark(self, batch_ids: Collection[str]) -> None:
        self.tell("mark", batch_ids)
