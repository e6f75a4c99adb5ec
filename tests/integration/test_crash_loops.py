"""A simulated bad deployment, in which runs crash for ten minutes while many conversations are due."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import pytest

from infra.settings_and_defaults import LimitsConfig
from message_buffer.lanes.outcomes import BatchCompleted, BatchTaken, ConversationsClaimed
from message_buffer.limits import WATCHDOG_PASS_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine

SOON = Rules(silence_ms=1_000, typing_inference_ms=0)
BAD_MS = 600_000
CRASH_MS = 700
SLOTS = 200
LOOK_MS = 500
MESSAGE_EVERY_MS = 2_000
# Lambda's record of a failed processor is delivered after the lease and a second.
RECORD_MS = SETTINGS.lease_ms + 1_000
MAX_ATTEMPTS = LimitsConfig().max_attempts


class _Step(NamedTuple):
    at_ms: int
    nth: int
    do: Callable[[], None]


class World:
    """Simulates people who write, functions that start and crash, and the watchdog's passes.

    `crashing` contains the roles whose runs crash as soon as they have started, and `after the take` if conversation
    processors crash when they have taken their batch.
    """

    def __init__(self, engine: Engine, *, crashing: set[str], conversations: int) -> None:
        self.engine, self.clock, self.crashing = engine, engine.clock, crashing
        self.store = engine.store = engine.another_store(SETTINGS._replace(slots=SLOTS))
        self.steps: list[_Step] = []
        self.numbers = count()
        self.starts: dict[str, list[int]] = {"processor": [], "conversation_processor": []}
        self.sent = self.came_out = 0
        self.attempts: list[int] = []
        self.batch_ids: set[str] = set()
        self.conversations = conversations
        for _ in range(conversations):
            self.write()
        self.writes_until_ms = self.clock.now_ms + BAD_MS
        self.after(MESSAGE_EVERY_MS, self.goes_on_writing)
        self.after(WATCHDOG_PASS_MS, self.watchdog_passes)

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
        start_id = self.engine.send(f"c{self.sent % self.conversations}", f"m{self.sent}", rules=SOON).start_id
        self.sent += 1
        self.start_processor(start_id)

    def goes_on_writing(self) -> None:
        if self.clock.now_ms < self.writes_until_ms:
            self.write()
            self.after(MESSAGE_EVERY_MS, self.goes_on_writing)

    def watchdog_passes(self) -> None:
        self.one_pass()
        self.after(WATCHDOG_PASS_MS, self.watchdog_passes)

    def one_pass(self) -> None:
        self.start_processor(self.store.recover_expired(0).start_id)

    def start_processor(self, start_id: str | None) -> None:
        if start_id is None:
            return
        self.starts["processor"].append(self.clock.now_ms)
        if "processor" in self.crashing:
            self.after(CRASH_MS + RECORD_MS, self.one_pass)
        else:
            self.after(CRASH_MS, lambda: self.processor_works(start_id))

    def processor_works(self, lease_id: str) -> None:
        self.store.acquire_lease(0, lease_id)
        self.processor_looks(lease_id)

    def processor_looks(self, lease_id: str) -> None:
        self.store.renew_lease(0, lease_id)
        claimed = self.store.claim_due(0, lease_id)
        if isinstance(claimed, ConversationsClaimed):
            for due in claimed.conversations:
                self.start_conversation_processor(due.conversation)
            self.after(LOOK_MS, lambda: self.processor_looks(lease_id))

    def start_conversation_processor(self, conversation: str) -> None:
        self.starts["conversation_processor"].append(self.clock.now_ms)
        if "conversation_processor" not in self.crashing:
            self.after(CRASH_MS, lambda: self.emit(conversation))

    def emit(self, conversation: str) -> None:
        token = f"token {next(self.numbers)}"
        taken = self.store.take_batch(conversation, token)
        if not isinstance(taken, BatchTaken):
            return
        self.attempts.append(taken.attempt)
        if "after the take" not in self.crashing:
            assert taken.batch_id not in self.batch_ids
            self.batch_ids.add(taken.batch_id)
            self.came_out += len(taken.payloads)
            completed = self.store.complete_batch(conversation, token)
            assert isinstance(completed, BatchCompleted)
            self.start_processor(completed.start_id)

    def most_starts_within(self, ms: int) -> int:
        """Return the largest number of conversation processors that were started within this time."""
        starts = self.starts["conversation_processor"]
        return max((sum(at <= each < at + ms for each in starts) for at in set(starts)), default=0)

    def is_repaired_within(self, ms: int) -> bool:
        self.crashing.clear()
        self.run_for(ms)
        return self.came_out == self.sent


@pytest.mark.case(30)
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "crashing", [("processor",), ("conversation_processor",), ("processor", "conversation_processor")], ids="+".join
)
def test_a_deployment_whose_starts_all_crash_makes_no_dead_letter_and_starts_no_more_than_the_slots(
    engine: Engine, crashing: tuple[str, ...]
) -> None:
    world = World(engine, crashing=set(crashing), conversations=5_000)
    world.run_for(BAD_MS)
    if "processor" in crashing:
        assert 10 < len(world.starts["processor"]) <= BAD_MS // SETTINGS.start_ms + 1
    else:
        assert world.most_starts_within(SETTINGS.claim_ms) == SLOTS
    # No run has taken a batch, so no attempt was used up.
    assert world.attempts == []
    assert world.is_repaired_within(SETTINGS.claim_ms + WATCHDOG_PASS_MS + 60_000)


@pytest.mark.case(30)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("conversations", [1, 1_000])
def test_a_deployment_whose_runs_crash_after_the_take_leaves_each_batch_an_attempt(
    engine: Engine, conversations: int
) -> None:
    world = World(engine, crashing={"after the take"}, conversations=conversations)
    world.run_for(BAD_MS)
    assert 2 < max(world.attempts) < MAX_ATTEMPTS
    assert world.most_starts_within(SETTINGS.token_ms) <= SLOTS
    assert world.is_repaired_within(600_000)
