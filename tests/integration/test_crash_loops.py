"""A simulated bad deployment, in which every started run crashes for ten minutes, with and without notices."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import pytest

from message_buffer.lanes.outcomes import Claimed, Completed, Taken
from message_buffer.limits import MAX_PAUSE_AFTER_DEATH_MS, WATCHDOG_PASS_MS
from message_buffer.rules.layers import Rules
from tests.support.engine import Engine

SOON = Rules(silence_ms=1_000, typing_inference_ms=0)
BAD_MS = 600_000
CRASH_MS = 700
NOTICE_MS = 30
CONVERSATIONS = 10
MESSAGE_EVERY_MS = 2_000


class _Step(NamedTuple):
    at_ms: int
    nth: int
    do: Callable[[], None]


class World:
    """Simulates people who write, functions that start and crash, notices, and the watchdog's passes."""

    def __init__(self, engine: Engine, *, crashing: set[str], with_notices: bool = True) -> None:
        self.engine, self.store, self.clock = engine, engine.store, engine.clock
        self.crashing, self.with_notices = crashing, with_notices
        self.steps: list[_Step] = []
        self.numbers = count()
        self.starts = {"processor": 0, "conversation_processor": 0}
        self.sent: list[bytes] = []
        self.came_out: list[bytes] = []
        self.batch_ids: set[str] = set()
        self.writes_until_ms = self.clock.now_ms + BAD_MS
        self.after(0, self.write)
        self.after(WATCHDOG_PASS_MS, self.watchdog_pass)

    def after(self, ms: int, do: Callable[[], None]) -> None:
        heappush(self.steps, _Step(self.clock.now_ms + ms, next(self.numbers), do))

    def run_for(self, ms: int) -> None:
        until_ms = self.clock.now_ms + ms
        while self.steps[0].at_ms <= until_ms:
            step = heappop(self.steps)
            self.clock.now_ms = max(self.clock.now_ms, step.at_ms)
            step.do()
        self.clock.now_ms = until_ms

    def write(self) -> None:
        if self.clock.now_ms < self.writes_until_ms:
            nth = len(self.sent)
            self.sent.append(b"text of m%d" % nth)
            self.start_processor(self.engine.send(f"c{nth % CONVERSATIONS}", f"m{nth}", rules=SOON).start_id)
            self.after(MESSAGE_EVERY_MS, self.write)

    def watchdog_pass(self) -> None:
        self.start_processor(self.store.recover_expired(0).start_id)
        self.after(WATCHDOG_PASS_MS, self.watchdog_pass)

    def start_processor(self, start_id: str | None) -> None:
        if start_id is None:
            return
        self.starts["processor"] += 1
        if "processor" in self.crashing:
            self.after(CRASH_MS + NOTICE_MS, lambda: self.processor_reported_dead(start_id))
        else:
            self.after(CRASH_MS, lambda: self.processor_works(start_id))

    def processor_works(self, start_id: str) -> None:
        self.store.acquire_lease(0, f"{start_id}.run")
        self.processor_looks(f"{start_id}.run")

    def processor_looks(self, lease_id: str) -> None:
        self.store.renew_lease(0, lease_id)
        claimed = self.store.claim_due(0, lease_id)
        if not isinstance(claimed, Claimed):
            return
        for due in claimed.conversations:
            self.start_conversation_processor(due.conversation, claimed.deadline_ms)
        self.after(500, lambda: self.processor_looks(lease_id))

    def start_conversation_processor(self, conversation: str, deadline_ms: int) -> None:
        self.starts["conversation_processor"] += 1
        if "conversation_processor" in self.crashing:
            self.after(CRASH_MS + NOTICE_MS, lambda: self.reported_dead(conversation, deadline_ms))
        else:
            self.after(CRASH_MS, lambda: self.emit(conversation, deadline_ms))

    def emit(self, conversation: str, deadline_ms: int) -> None:
        token = f"{deadline_ms}.{next(self.numbers)}"
        taken = self.store.take_batch(conversation, token)
        if isinstance(taken, Taken):
            assert taken.batch_id not in self.batch_ids
            self.batch_ids.add(taken.batch_id)
            self.came_out += taken.payloads
            completed = self.store.complete_batch(conversation, token)
            assert isinstance(completed, Completed)
            self.start_processor(completed.start_id)

    def processor_reported_dead(self, start_id: str) -> None:
        if self.with_notices:
            ended = self.store.end_processor(0, start_id)
            self.start_processor(ended.start_id)
            if ended.wait_ms:
                self.after(-(-ended.wait_ms // 1_000) * 1_000, lambda: self.processor_reported_dead(start_id))

    def reported_dead(self, conversation: str, deadline_ms: int) -> None:
        if self.with_notices:
            self.start_processor(self.store.end_claim(conversation, deadline_ms=deadline_ms).start_id)


@pytest.mark.parametrize("with_notices", [True, False])
@pytest.mark.parametrize(
    "crashing", [("processor",), ("conversation_processor",), ("processor", "conversation_processor")], ids="+".join
)
def test_a_bad_deployment_starts_few_runs_and_loses_nothing(
    engine: Engine, crashing: tuple[str, ...], with_notices: bool
) -> None:
    world = World(engine, crashing=set(crashing), with_notices=with_notices)
    world.run_for(BAD_MS)
    assert world.came_out == []
    if "processor" in crashing:
        assert 10 < world.starts["processor"] <= BAD_MS // engine.store.settings.start_ms + 20
    elif with_notices:
        assert CONVERSATIONS * 5 < world.starts["conversation_processor"] <= CONVERSATIONS * 20
    # No run has taken a batch, so no batch can become a dead letter.
    assert ":taken:" not in "".join(engine.settle())

    world.crashing.clear()
    repaired_at_ms = engine.clock.now_ms
    while len(world.came_out) < len(world.sent):
        world.run_for(1_000)
        assert engine.clock.now_ms - repaired_at_ms <= MAX_PAUSE_AFTER_DEATH_MS + WATCHDOG_PASS_MS
    assert sorted(set(world.came_out)) == sorted(world.came_out)
