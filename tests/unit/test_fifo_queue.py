"""The queue that other tests use in the place of SQS refuses what SQS refuses."""

import pytest

from message_buffer.aws.json_client import AwsRefused
from tests.support.engine import ManualClock
from tests.support.fifo_queue import DEDUPLICATION_MS, FakeSqs, FifoQueue

HIDDEN_MS = 30_000


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.letters = FifoQueue("letters", self.clock)
        self.queue = FifoQueue("turns", self.clock, dead_letters=self.letters, max_receives=3)
        self.sqs = FakeSqs(self.queue, clock=self.clock)

    def put(self, group: str, *bodies: str) -> None:
        for body in bodies:
            self.queue.put(body, group=group, deduplication_id=body)

    def take(self) -> list[str]:
        return [message.body for message in self.queue.take(hidden_ms=HIDDEN_MS)]

    def hide(self, body: str, seconds: int) -> bool:
        """Return whether the queue did it."""
        return not self._call("change_message_visibility_batch", body, VisibilityTimeout=seconds)

    def delete(self, body: str) -> bool:
        return not self._call("delete_message_batch", body)

    def _call(self, operation: str, body: str, **fields: int) -> list[object]:
        (receipt,) = [message.receipt for message in self.queue.messages if message.body == body]
        entries = [{"Id": "0", "ReceiptHandle": receipt, **fields}]
        failed: list[object] = getattr(self.sqs, operation)(QueueUrl=self.queue.url, Entries=entries)["Failed"]
        return failed


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_messages_of_a_group_are_handed_out_together_and_in_order(scene: Scene) -> None:
    scene.put("a", "a1")
    scene.put("b", *(f"b{number}" for number in range(8)))
    scene.put("a", "a2")
    scene.put("c", "c1")
    assert scene.take() == ["a1", "a2", *(f"b{number}" for number in range(8))]
    assert scene.take() == ["c1"]


def test_nothing_of_a_group_is_handed_out_while_a_message_of_it_is_in_flight(scene: Scene) -> None:
    scene.put("a", "a1")
    assert scene.take() == ["a1"]
    scene.put("a", "a2")
    assert scene.take() == []
    assert scene.delete("a1")
    assert scene.take() == ["a2"]


def test_a_message_that_stays_hidden_hides_the_others_of_its_group(scene: Scene) -> None:
    scene.put("a", "a1", "a2", "a3")
    scene.take()
    assert scene.hide("a1", 0)
    assert scene.hide("a3", 0)
    assert scene.hide("a2", 5)
    assert scene.take() == []
    scene.clock.advance(5_000)
    assert scene.take() == ["a1", "a2", "a3"]


def test_a_receipt_hides_and_deletes_while_the_message_is_hidden(scene: Scene) -> None:
    scene.put("a", "a1")
    scene.take()
    scene.clock.advance(HIDDEN_MS - 1)
    assert scene.hide("a1", 30)
    scene.clock.advance(HIDDEN_MS - 1)
    assert scene.delete("a1")


def test_a_receipt_is_refused_once_the_message_is_visible_again(scene: Scene) -> None:
    scene.put("a", "a1")
    scene.take()
    scene.clock.advance(HIDDEN_MS)
    assert not scene.hide("a1", 30)
    assert not scene.delete("a1")
    assert scene.take() == ["a1"]


def test_a_repeat_within_five_minutes_is_dropped_by_group_even_if_the_first_was_deleted(scene: Scene) -> None:
    scene.put("a", "same")
    scene.take()
    assert scene.delete("same")
    scene.clock.advance(DEDUPLICATION_MS - 1)
    scene.put("a", "same")
    assert scene.take() == []
    scene.put("b", "same")
    scene.clock.advance(1)
    scene.put("a", "same")
    assert scene.take() == ["same", "same"]


def test_a_message_is_buried_when_it_is_visible_again_after_its_last_receive(scene: Scene) -> None:
    scene.put("a", "a1")
    for _ in range(2):
        scene.take()
        scene.hide("a1", 0)
    scene.put("a", "a2")
    assert scene.take() == ["a1", "a2"]
    assert scene.letters.messages == []
    scene.clock.advance(HIDDEN_MS)
    assert scene.take() == ["a2"]
    assert [letter.body for letter in scene.letters.messages] == ["a1"]


@pytest.mark.parametrize(("group", "own_id"), [("", "i"), ("g", "i" * 129), ("größe", "i")])
def test_the_ids_of_a_group_and_of_a_message_have_at_most_128_ascii_characters(
    scene: Scene, group: str, own_id: str
) -> None:
    with pytest.raises(AwsRefused, match="InvalidParameterValue"):
        scene.queue.put("body", group=group, deduplication_id=own_id)


def test_lambda_keeps_the_messages_that_the_function_reports_and_deletes_the_others(scene: Scene) -> None:
    scene.put("a", "a1", "a2")
    scene.put("b", "b1")
    taken = scene.queue.take(hidden_ms=HIDDEN_MS)
    scene.queue.end(taken, {"batchItemFailures": [{"itemIdentifier": taken[1].id}]})
    assert [message.body for message in scene.queue.messages] == ["a2"]


def test_a_function_that_keeps_a_message_must_keep_the_later_ones_of_its_group(scene: Scene) -> None:
    scene.put("a", "a1", "a2")
    taken = scene.queue.take(hidden_ms=HIDDEN_MS)
    with pytest.raises(AssertionError, match="older one of its group"):
        scene.queue.end(taken, {"batchItemFailures": [{"itemIdentifier": taken[0].id}]})
