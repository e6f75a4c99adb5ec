"""A consumer of a FIFO queue, by Lambda's mapping and by polling: one turn of a conversation at a time."""

import json
import time
from collections.abc import Collection
from threading import Barrier, Lock
from typing import Any

import pytest

from message_buffer.aws import clients
from message_buffer.consumer import turns
from message_buffer.consumer.marks import KEPT_MS, TableMarks
from message_buffer.consumer.turns import TryAgain, Turn
from message_buffer.errors import SendFailed
from tests.support.fifo_queue import FakeSqs, FifoQueue

HIDDEN_BY_LAMBDA_MS = 900_000


class Killed(BaseException):
    """Lambda kills the process: no further code runs."""


class KeptMarks:
    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.failures = 0

    def answered(self, batch_ids: Collection[str]) -> set[str]:
        return self.kept & set(batch_ids)

    def mark(self, batch_ids: Collection[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise SendFailed("made to fail")
        self.kept |= set(batch_ids)


class Scene:
    """A queue, and a consumer whose answers a test replaces."""

    def __init__(self, *, by: str = "mapping") -> None:
        self.now_ms = 1_700_000_000_000
        self.queue = FifoQueue("batches", lambda: self.now_ms)
        self.sqs = FakeSqs(self.queue, clock=lambda: self.now_ms)
        self.marks: KeptMarks | None = None
        self.answered: list[list[str]] = []
        self.by = by
        self.answer: turns.Answer = self.record

    def put(self, *batch_ids: str, group: str = "g") -> None:
        for batch_id in batch_ids:
            body = json.dumps({"detail": {"batchId": batch_id}})
            self.queue.put(body, group=group, deduplication_id=batch_id)

    def record(self, turn: Turn) -> None:
        self.answered.append([batch["batchId"] for batch in turn.batches])

    def run(self) -> list[str]:
        """Deliver once. Return the ids of the batches that are left in the queue."""
        self.now_ms = max(self.now_ms, self.queue.next_at_ms())
        if self.by == "polling":
            turns.poll(self.queue.url, self.answer, marks=self.marks)
        else:
            taken = self.queue.take(hidden_ms=HIDDEN_BY_LAMBDA_MS)
            response = turns.handle(
                self.queue.event(taken), self.answer,
                queue_urls=["https://sqs/0/another.fifo", self.queue.url], marks=self.marks,
            )  # fmt: skip
            self.queue.end(taken, response)
        return self.left()

    def left(self) -> list[str]:
        return [json.loads(message.body)["detail"]["batchId"] for message in self.queue.messages]


@pytest.fixture(params=["mapping", "polling"])
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(by=request.param)
    monkeypatch.setattr(clients, "client", lambda _service, **_: made.sqs)
    return made


def test_the_batches_of_a_conversation_are_one_turn_oldest_first(scene: Scene) -> None:
    scene.put("a-1", "a-2", group="a")
    scene.put("b-1", group="b")
    scene.put("a-3", group="a")
    assert scene.run() == []
    assert sorted(scene.answered) == [["a-1", "a-2", "a-3"], ["b-1"]]


def test_conversations_are_answered_side_by_side(scene: Scene) -> None:
    scene.put("a-1", group="a")
    scene.put("b-1", group="b")
    both = Barrier(2, timeout=20)

    def wait(_turn: Turn) -> None:
        both.wait()

    scene.answer = wait
    assert scene.run() == []


def test_an_answered_turn_is_deleted_while_another_one_hangs(scene: Scene) -> None:
    scene.put("a-1", group="a")
    scene.put("b-1", group="b")
    answered = Lock()
    answered.acquire()
    delete = scene.queue.delete

    def deleted(receipt: str) -> bool:
        answered.release()
        return delete(receipt)

    def answer(turn: Turn) -> None:
        if turn.batches[0]["batchId"] == "b-1":
            assert answered.acquire(timeout=20)
            scene.put("a-2", group="a")
            raise TryAgain(1)

    scene.answer = answer
    scene.queue.delete = deleted  # type: ignore[method-assign]
    assert scene.run() == ["b-1", "a-2"]


def test_a_failed_turn_comes_back_whole_and_in_order_after_a_growing_pause(scene: Scene) -> None:
    scene.put("a-1", "a-2")
    began_ms, fails = scene.now_ms, [ValueError("a secret word"), SendFailed("x"), TryAgain(7)]

    def answer(turn: Turn) -> None:
        scene.record(turn)
        if fails:
            raise fails.pop(0)

    scene.answer = answer
    assert scene.run() == ["a-1", "a-2"]
    scene.put("a-3")
    while scene.left():
        scene.run()
    assert scene.answered == [["a-1", "a-2"], *[["a-1", "a-2", "a-3"]] * 3]
    assert scene.now_ms - began_ms == (4 + 8 + 7) * 1_000


def test_another_conversation_is_answered_although_one_fails(scene: Scene) -> None:
    scene.put("a-1", group="a")
    scene.put("b-1", group="b")

    def answer(turn: Turn) -> None:
        if turn.batches[0]["batchId"] == "a-1":
            raise SendFailed("x")

    scene.answer = answer
    assert scene.run() == ["a-1"]


def test_a_turn_whose_process_is_killed_comes_back_after_thirty_seconds(scene: Scene) -> None:
    scene.put("a-1")

    def die(_turn: Turn) -> None:
        raise Killed

    scene.answer = die
    with pytest.raises(Killed):
        scene.run()
    assert scene.queue.next_at_ms() - scene.now_ms == 30_000


def test_entries_that_cannot_be_hidden_are_not_answered(scene: Scene) -> None:
    scene.put("a-1")
    take = scene.queue.take

    def taken(**named: Any) -> Any:
        scene.sqs.failures = 2
        return take(**named)

    scene.queue.take = taken  # type: ignore[method-assign]
    assert scene.run() == ["a-1"]
    assert scene.answered == []


def test_a_run_that_another_one_has_overtaken_sees_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "BEATS_WHILE_HIDDEN", 30_000)
    scene.put("a-1")

    def answer(turn: Turn) -> None:
        scene.now_ms += 31_000
        scene.queue.take(hidden_ms=30_000)
        while True:
            # Until the beat has failed; the test's time-out ends it otherwise.
            turn.require_hidden()

    scene.answer = answer
    assert scene.run() == ["a-1"]
    assert scene.queue.messages[0].visible_at_ms == scene.now_ms + 30_000, "the other run has it"


def test_a_run_that_was_paused_for_too_long_sees_it_before_its_next_beat(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.put("a-1")
    awake = time.monotonic

    def answer(turn: Turn) -> None:
        turn.require_hidden()
        monkeypatch.setattr(time, "monotonic", lambda: awake() + turns.HIDDEN_SECONDS)
        turn.require_hidden()
        scene.record(turn)

    scene.answer = answer
    assert scene.run() == ["a-1"]
    assert scene.answered == []


def test_entries_that_were_finished_do_not_come_back_with_the_rest(scene: Scene) -> None:
    scene.put("a-1", "a-2")

    def answer(turn: Turn) -> None:
        turn.finish(turn.entries[:1])
        turn.hide(seconds=30)
        raise TryAgain(2)

    scene.answer = answer
    assert scene.run() == ["a-2"]
    assert scene.queue.next_at_ms() - scene.now_ms == 2_000


def test_marked_batches_are_left_out_and_answered_ones_are_marked(scene: Scene) -> None:
    scene.marks = KeptMarks()
    scene.put("a-1", "a-2")
    scene.marks.kept = {"a-1"}
    assert scene.run() == []
    assert scene.answered == [["a-2"]]
    scene.put("b-1", group="b")
    scene.marks.kept |= {"b-1"}
    assert scene.run() == []
    assert (scene.answered, scene.marks.kept) == ([["a-2"]], {"a-1", "a-2", "b-1"})


def test_a_turn_that_cannot_be_marked_is_not_answered_again(scene: Scene) -> None:
    scene.marks = KeptMarks()
    scene.marks.failures = 1
    scene.put("a-1")
    assert scene.run() == []
    assert scene.answered == [["a-1"]]


def test_an_empty_queue_is_polled_in_vain(scene: Scene) -> None:
    assert turns.poll(scene.queue.url, scene.answer) == 0


@pytest.mark.parametrize("moment", ["answered", "marked"])
def test_a_kill_after_the_marks_answers_nothing_twice_and_one_before_them_may(scene: Scene, moment: str) -> None:
    scene.marks = marks = KeptMarks()
    scene.put("a-1")
    mark = marks.mark

    def die(batch_ids: Collection[str]) -> None:
        marks.mark = mark  # type: ignore[method-assign]
        if moment == "marked":
            mark(batch_ids)
        raise Killed

    marks.mark = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        scene.run()
    scene.put("a-2")
    assert scene.run() == []
    assert scene.answered == [["a-1"], ["a-2"] if moment == "marked" else ["a-1", "a-2"]]


def test_marks_are_kept_in_a_table_until_they_expire(database: Any) -> None:
    database.create_table(
        TableName="marks",
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    marks = TableMarks("marks", clock=lambda: 1_000)
    marks.mark(["a", "b"])
    marks.mark(["b"])
    assert marks.answered(["b", "c"]) == {"b"}
    assert {item["expiresAt"]["N"] for item in database.scan(TableName="marks")["Items"]} == {str(KEPT_MS // 1_000 + 1)}
