"""Any history of a consumer of a FIFO queue: runs succeed, fail, are killed, and begin while others are at work."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_buffer.aws import clients
from message_buffer.consumer import turns
from message_buffer.json_object import Json
from tests.support.engine import ManualClock
from tests.support.fifo_queue import FakeSqs, FifoQueue

HIDDEN_BY_LAMBDA_MS = 900_000
CONVERSATIONS = ("a", "b")


class Killed(BaseException):
    """The process ends: no further code of it runs."""


class Send(NamedTuple):
    conversation: str
    batches: int


class Pass(NamedTuple):
    seconds: int


class Run(NamedTuple):
    """A run of the consumer. `fate` is that of each conversation's turn in it."""

    fate: str
    meanwhile: "Sequence[Send | Run]" = ()
    """What happens while the first turn of the run is at work."""


FATES = ("answered", "failed", "again", "killed at work", "killed in marking", "killed after marking")
fates = st.sampled_from(FATES)
sends = st.builds(Send, st.sampled_from(CONVERSATIONS), st.integers(1, 3))
runs = st.builds(Run, fates, st.lists(sends | fates.map(Run), max_size=3))
histories = st.lists(sends | runs | st.builds(Pass, st.sampled_from((2, 10, 31, 901))), max_size=25)


class World:
    """The queue, the consumer and its marks; it checks each turn that begins."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue = FifoQueue("turns", self.clock)
        self.sqs = FakeSqs(self.queue, clock=self.clock)
        self.sent: Counter[str] = Counter()
        self.marked: Counter[str] = Counter()
        self._at_work: set[str] = set()
        self._faults: list[str] = []

    def require(self, holds: bool, what: str) -> None:
        """Note a fault. An error would end the turn only, because the consumer catches it."""
        if not holds:
            self._faults.append(what)

    def do(self, step: Send | Run | Pass) -> None:
        match step:
            case Send(conversation, batches):
                for _ in range(batches):
                    body = json.dumps({"detail": {"batchId": f"{conversation}-{self.sent[conversation]}"}})
                    self.queue.put(body, group=conversation, deduplication_id=str(self.sent[conversation]))
                    self.sent[conversation] += 1
            case Pass(seconds):
                self.clock.advance(seconds * 1_000)
            case Run():
                self._run(step)

    def _run(self, run: Run) -> None:
        taken = self.queue.take(hidden_ms=HIDDEN_BY_LAMBDA_MS)
        event = self.queue.event(taken)
        # One after the other, so that a history has one meaning. Threads are tested elsewhere.
        failed: list[Json] = []
        for group in dict.fromkeys(message.group for message in taken):
            records = [each for each in event["Records"] if each["attributes"]["MessageGroupId"] == group]
            consumer = Consumer(self, run)
            try:
                response = turns.handle(
                    {"Records": records}, consumer.answer, queue_urls=[self.queue.url], marks=consumer
                )
            except Killed:
                self._at_work.discard(group)
                return
            failed += response["batchItemFailures"]
            run = run._replace(meanwhile=())
        self.queue.end(taken, {"batchItemFailures": failed})

    def begin(self, batches: Sequence[Json]) -> str:
        ((conversation, first), *_) = names = [_read(batch["batchId"]) for batch in batches]
        self.require(first == self.marked[conversation], f"{names} begins after {self.marked}")
        self.require(names == [(conversation, first + n) for n in range(len(names))], f"{names} is not in order")
        self.require(conversation not in self._at_work, f"{names} begins while another turn is at work")
        self._at_work.add(conversation)
        return conversation

    def end(self, conversation: str) -> None:
        self._at_work.remove(conversation)

    def drain(self) -> None:
        while self.queue.messages:
            assert self._faults == []
            self.clock.now_ms = max(self.clock.now_ms, self.queue.next_at_ms())
            self.do(Run("answered"))
        assert self._faults == []


class Consumer:
    """The agent of one run, and its store of marks."""

    def __init__(self, world: World, run: Run) -> None:
        self._world, self._run = world, run

    def answer(self, turn: turns.Turn) -> None:
        conversation = self._world.begin(turn.batches)
        for step in self._run.meanwhile:
            self._world.do(step)
        if self._run.fate == "killed at work":
            raise Killed
        self._world.end(conversation)
        if self._run.fate == "failed":
            raise ValueError("the agent failed")
        if self._run.fate == "again":
            raise turns.TryAgain(3)

    def answered(self, batch_ids: Collection[str]) -> set[str]:
        return {each for each in batch_ids if _read(each)[1] < self._world.marked[_read(each)[0]]}

    def mark(self, batch_ids: Collection[str]) -> None:
        for batch_id in batch_ids:
            conversation, number = _read(batch_id)
            self._world.require(number == self._world.marked[conversation], f"{batch_id} after {self._world.marked}")
            self._world.marked[conversation] += 1
            if self._run.fate == "killed in marking":
                raise Killed
        if self._run.fate == "killed after marking":
            raise Killed


def _read(batch_id: str) -> tuple[str, int]:
    conversation, _, number = batch_id.partition("-")
    return conversation, int(number)


@given(history=histories)
def test_every_batch_is_answered_once_in_order_and_one_turn_at_a_time(history: list[Send | Run | Pass]) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clients, "client", lambda *_, **__: world.sqs)
        for step in history:
            world.do(step)
        world.drain()
    assert world.marked == world.sent
