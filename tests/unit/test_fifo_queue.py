"""The queue that other tests use in the place of SQS refuses what SQS refuses."""

from typing import Any

import pytest

from message_buffer.aws.json_client import AwsRefused
from message_buffer.json_object import Json
from tests.support.engine import ManualClock
from tests.support.fifo_queue import DEDUPLICATION_MS, FakeSqs, FifoQueue, run_mapping

URL = "https://sqs/000000000000/turns.fifo"


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.letters = FifoQueue("https://sqs/000000000000/letters.fifo")
        self.queue = FifoQueue(URL, max_receives=3, dead_letters=self.letters)
        self.sqs = FakeSqs(self.clock, self.queue, self.letters)

    def send(self, group: str, *bodies: str) -> None:
        for body in bodies:
            self.sqs.send_message(QueueUrl=URL, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body)

    def receive(self, most: int = 10) -> list[Json]:
        messages: list[Json] = self.sqs.receive_message(QueueUrl=URL, MaxNumberOfMessages=most).get("Messages", [])
        return messages

    def bodies(self, most: int = 10) -> list[str]:
        return [message["Body"] for message in self.receive(most)]

    def delete(self, message: Json) -> None:
        self.sqs.delete_message(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])

    def hide(self, message: Json, seconds: int) -> None:
        self.sqs.change_message_visibility(
            QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_receive_hands_out_the_messages_of_a_group_together_and_in_order(scene: Scene) -> None:
    scene.send("a", "a1")
    scene.send("b", "b1")
    scene.send("a", "a2", "a3")
    assert scene.bodies(3) == ["a1", "a2", "a3"]
    assert scene.bodies() == ["b1"]


def test_nothing_of_a_group_is_handed_out_while_a_message_of_it_is_in_flight(scene: Scene) -> None:
    scene.send("a", "a1", "a2")
    (first,) = scene.receive(1)
    assert scene.bodies() == []
    scene.delete(first)
    assert scene.bodies() == ["a2"]


def test_a_message_that_stays_hidden_hides_the_others_of_its_group(scene: Scene) -> None:
    scene.send("a", "a1", "a2", "a3")
    first, second, third = scene.receive()
    scene.hide(first, 0)
    scene.hide(third, 0)
    scene.hide(second, 5)
    assert scene.bodies() == []
    scene.clock.advance(5_000)
    assert scene.bodies() == ["a1", "a2", "a3"]


def test_a_receipt_hides_and_deletes_while_the_message_is_hidden(scene: Scene) -> None:
    scene.send("a", "a1")
    (message,) = scene.receive()
    scene.clock.advance(29_999)
    scene.hide(message, 30)
    scene.clock.advance(29_999)
    scene.delete(message)
    assert scene.queue.messages == []


def test_a_receipt_is_refused_once_the_message_is_visible_again(scene: Scene) -> None:
    scene.send("a", "a1")
    (message,) = scene.receive()
    scene.clock.advance(30_000)
    with pytest.raises(AwsRefused, match="InvalidParameterValue"):
        scene.hide(message, 30)
    with pytest.raises(AwsRefused, match="InvalidParameterValue"):
        scene.delete(message)
    assert scene.bodies() == ["a1"]


def test_a_repeat_within_five_minutes_is_dropped_by_group_even_if_the_first_was_deleted(scene: Scene) -> None:
    scene.send("a", "same")
    scene.delete(scene.receive()[0])
    scene.clock.advance(DEDUPLICATION_MS - 1)
    scene.send("a", "same")
    assert scene.bodies() == []
    scene.send("b", "same")
    scene.clock.advance(1)
    scene.send("a", "same")
    assert scene.bodies() == ["same", "same"]


def test_a_message_is_buried_when_it_is_visible_again_after_its_last_receive(scene: Scene) -> None:
    scene.send("a", "a1")
    for _ in range(2):
        scene.hide(scene.receive()[0], 0)
    scene.send("a", "a2")
    assert scene.bodies() == ["a1", "a2"]
    assert scene.letters.messages == []
    scene.clock.advance(30_000)
    assert scene.bodies() == ["a2"]
    assert [letter.body for letter in scene.letters.messages] == ["a1"]


@pytest.mark.parametrize("length", [0, 129])
def test_the_ids_of_a_group_and_of_a_message_have_at_most_128_ascii_characters(scene: Scene, length: int) -> None:
    for group, own_id in (("g" * length, "id"), ("group", "i" * length), ("größe", "id")):
        with pytest.raises(AwsRefused, match="InvalidParameterValue"):
            scene.sqs.send_message(
                QueueUrl=URL, MessageBody="body", MessageGroupId=group, MessageDeduplicationId=own_id
            )


def test_a_call_for_several_entries_says_which_failed(scene: Scene) -> None:
    scene.send("a", "a1", "a2")
    first, second = scene.receive()
    scene.hide(first, 5)
    scene.clock.advance(10_000)
    entries = [
        {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]} for number, message in enumerate([first, second])
    ]
    answer = scene.sqs.delete_message_batch(QueueUrl=URL, Entries=entries)
    assert [each["Id"] for each in answer["Successful"]] == ["1"]
    assert [each["Id"] for each in answer["Failed"]] == ["0"]


def failing(*bodies: str) -> Any:
    def handler(event: Json) -> Json:
        return {
            "batchItemFailures": [
                {"itemIdentifier": record["messageId"]} for record in event["Records"] if record["body"] in bodies
            ]
        }

    return handler


def test_the_mapping_deletes_what_the_function_did_not_report(scene: Scene) -> None:
    scene.send("a", "a1", "a2")
    scene.send("b", "b1")
    assert run_mapping(scene.sqs, scene.queue, failing("a2"))
    assert [message.body for message in scene.queue.messages] == ["a2"]
    assert not run_mapping(scene.sqs, scene.queue, failing())


def test_a_function_that_keeps_a_message_must_keep_the_later_ones_of_its_group(scene: Scene) -> None:
    scene.send("a", "a1", "a2")
    with pytest.raises(AssertionError, match="older one of its group"):
        run_mapping(scene.sqs, scene.queue, failing("a1"))
