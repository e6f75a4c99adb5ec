"""The DynamoDB lane reads only the bodies of one batch, whatever waits."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from infra.settings_and_defaults import LimitsConfig
from lambdas.dynamodb_processor.service import MAX_BODIES_READ_AT_ONCE
from message_buffer.aws.dynamodb import Values, encode
from message_buffer.errors import SendFailed
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb import windows
from message_buffer.lanes.dynamodb.messages import StoredMessage
from message_buffer.lanes.dynamodb.windows import MAX_STORED_BYTES, MAX_STORED_MESSAGES
from message_buffer.limits import LARGE_MESSAGE_BYTES, MAX_BYTES_IN_A_BATCH, MINUTE_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, payload
from tests.support.window import (
    AMPLE,
    CONVERSATION,
    SILENCE_MS,
    WINDOW_MS,
    Killed,
    WindowScene,
    failing,
    killed,
    settle,
)

PATIENT = Rules(silence_ms=SILENCE_MS, max_messages=1_000, max_wait_ms=600_000)
LARGE = "x" * (60 * 1024 - 200)
PAGE_BYTES = 1024 * 1024


def items(window: WindowScene) -> dict[str, dict[str, Any]]:
    found = window.table.client.scan(TableName="holding")["Items"]
    return {item["item"]["S"]: item for item in found}


def size_of(value: Any) -> int:
    """Return about how many bytes DynamoDB counts for an item."""
    return sum(len(name) + len(str(next(iter(each.values())))) for name, each in value.items())


class Meter:
    """Counts the bytes that queries and reads return until a batch has left."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.most_held_bytes = 0

    @contextmanager
    def counting(self, window: WindowScene) -> Iterator[None]:
        call = window.wire.call

        def measured(request: str, make: Callable[[], Any]) -> Any:
            answer = call(request, make)
            found: list[Any] = []
            if request == "query":
                found = answer["Items"]
            elif request == "batch_get_item":
                found = [each for some in answer["Responses"].values() for each in some]
            self.held_bytes += sum(map(size_of, found))
            self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)
            if request == "batch_write_item":
                self.held_bytes = 0  # the batch has left
            return answer

        with patch.object(window.wire, "call", measured):
            yield


def store(window: WindowScene, count: int, text: str, *, is_apart: bool = True) -> None:
    """Store messages without their notes, with bodies of their own or not."""
    written: list[Values] = []
    for number in range(count):
        name = f"m{number:05}"
        body, message = payload(name, text), {"conversation": CONVERSATION, "item": f"m#{name}"}
        at_ms = window.clock.advance(1)
        if is_apart:
            written.append({**message, "arrived_at": at_ms, "apart": 1})
            written.append({**message, "item": f"p#{name}", "body": body})
        else:
            written.append({**message, "arrived_at": at_ms, "body": body})
    window.table.messages._write_all({"PutRequest": {"Item": encode(item)}} for item in written)


def test_a_large_body_is_an_item_of_its_own_and_leaves_with_its_message(window: WindowScene) -> None:
    window.send("m1", text=LARGE)
    window.send("m2")
    assert "p#m1" in items(window)
    assert "body" not in items(window)["m#m1"]
    assert "p#m2" not in items(window)
    window.pass_time(WINDOW_MS)
    (event,) = window.events()
    assert [message["text"] for message in event["messages"]] == [LARGE, "text of m2"]
    assert sorted(items(window)) == ["!", "m#m1", "m#m2"]
    assert LARGE not in str(items(window))


def test_the_bound_of_a_large_body_is_that_of_the_valkey_lane(window: WindowScene) -> None:
    for number, size in enumerate((LARGE_MESSAGE_BYTES, LARGE_MESSAGE_BYTES + 1)):
        window.table.messages.put_message(CONVERSATION, f"m{number}", body=b"x" * size, arrived_at_ms=1)
    assert [name for name in items(window) if name.startswith("p#")] == ["p#m1"]


def test_a_request_that_died_before_it_stored_the_body_is_made_good_by_its_redelivery(window: WindowScene) -> None:
    with window.wire.at("put_item", killed, nth=2), pytest.raises(Killed):
        window.send("m1", text=LARGE)
    window.send("m2")
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m2"]], "a message without its body is not emitted"
    assert isinstance(window.send("m1", text=LARGE), o.MessageDuplicate)
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m2"], ["m1"]]
    settle(window)
    assert "p#m1" not in items(window)


def test_a_message_that_never_gets_its_body_keeps_no_other_waiting(window: WindowScene) -> None:
    """Let the request die. It was not answered, but here the platform never sends the message again."""
    with window.wire.at("put_item", killed, nth=2), pytest.raises(Killed):
        window.send("m1", text=LARGE)
    for message_id in ("m2", "m3"):
        window.send(message_id)
        window.pass_time(MINUTE_MS, sweep=True)
        row = window.table.windows.read(CONVERSATION)
        assert (row.is_open, row.lock.owner, row.waiting, window.triggers.waiting) == (False, "", 0, [])
    assert window.batches() == [["m2"], ["m3"]]
    window.lane.forget_conversation(CONVERSATION)
    assert not [name for name in items(window) if "m1" in name]


def test_a_redelivery_during_the_emission_leaves_no_body_behind(window: WindowScene) -> None:
    window.send("m1", text=LARGE)
    window.pass_time(SILENCE_MS - 1_000)
    window.clock.advance(1_000)

    def empty() -> None:
        window.run(window.new_processor())

    with window.wire.at("transact_write_items", empty):
        window.send("m1", text=LARGE)
    settle(window)
    assert window.batches() == [["m1"]]
    assert "p#m1" not in items(window)


@pytest.mark.parametrize("meanwhile", ["redelivery", "stop", "delete", "short edit"])
def test_a_slow_request_leaves_no_body_of_a_message_that_has_left_meanwhile(
    window: WindowScene, meanwhile: str
) -> None:
    """The request stops between its two writes."""
    slow = window.new_lane()

    def overtake() -> None:
        match meanwhile:
            case "redelivery":
                window.send("m1", text=LARGE)
                settle(window)
            case "stop":
                window.lane.cancel_buffer(CONVERSATION)
            case "delete":
                window.lane.delete_message(CONVERSATION, "m1")
            case "short edit":
                window.lane.edit_message(CONVERSATION, "m1", payload=payload("m1", "short"))

    with window.wire.at("put_item", overtake, nth=2):
        slow.buffer_message(CONVERSATION, "m1", payload=payload("m1", LARGE), timing=PATIENT.timing)
    settle(window)
    assert "p#m1" not in items(window)
    expected = {"redelivery": [LARGE], "short edit": ["short"]}
    assert [event["text"] for event in window.events()] == expected.get(meanwhile, [])


def test_a_slow_request_does_not_undo_a_large_edit(window: WindowScene) -> None:
    edited = payload("m1", LARGE + "edited")
    edit = partial(window.lane.edit_message, CONVERSATION, "m1", payload=edited)
    with window.wire.at("put_item", edit, nth=2):
        window.new_lane().buffer_message(CONVERSATION, "m1", payload=payload("m1", LARGE), timing=PATIENT.timing)
    settle(window)
    assert [event["text"] for event in window.events()] == [LARGE + "edited"]


def test_a_body_that_is_stored_while_its_message_is_marked_as_emitted_leaves_too(window: WindowScene) -> None:
    """A redelivery has stored the body of a slow request, and the batch that contains it is being marked."""
    window.send("m1", text=LARGE)
    window.clock.advance(WINDOW_MS)

    def come_late() -> None:
        window.table.messages._put_body(CONVERSATION, "m1", b"words")
        assert "p#m1" in items(window)

    with window.wire.at("batch_write_item", come_late, after=True):
        window.run()
    assert window.batches() == [["m1"]]
    assert "p#m1" not in items(window)


@pytest.mark.parametrize(("before", "after"), [("short", LARGE), (LARGE, "short"), (LARGE, LARGE + "y")])
def test_an_edit_may_make_a_body_large_or_small(window: WindowScene, before: str, after: str) -> None:
    window.send("m1", text=before)
    assert isinstance(window.lane.edit_message(CONVERSATION, "m1", payload=payload("m1", after)), o.MessageEdited)
    assert ("p#m1" in items(window)) == (len(after) > LARGE_MESSAGE_BYTES)
    window.pass_time(WINDOW_MS)
    assert [event["text"] for event in window.events()] == [after]
    assert "p#m1" not in items(window)


@pytest.mark.parametrize("how", ["delete", "stop", "forget"])
def test_whatever_removes_a_message_removes_its_body(window: WindowScene, how: str) -> None:
    window.send("m1", text=LARGE)
    match how:
        case "delete":
            window.lane.delete_message(CONVERSATION, "m1")
        case "stop":
            window.lane.cancel_buffer(CONVERSATION)
        case "forget":
            window.lane.forget_conversation(CONVERSATION)
    assert "p#m1" not in items(window)
    settle(window)
    assert window.batches() == []


def test_a_large_edit_during_a_stop_leaves_no_body(window: WindowScene) -> None:
    """The edit's text would have stayed without an expiry, since the stop had read a short message."""
    window.send("m1", text="short")
    edit = partial(window.lane.edit_message, CONVERSATION, "m1", payload=payload("m1", LARGE))
    with window.wire.at("batch_write_item", edit):
        window.new_lane().cancel_buffer(CONVERSATION)
    settle(window)
    assert window.batches() == []
    assert "p#m1" not in items(window)


def test_a_forget_also_erases_a_body_that_lost_its_message(window: WindowScene) -> None:
    window.table.messages._put("store body", {"conversation": CONVERSATION, "item": "p#m1", "body": b"words"})
    window.lane.forget_conversation(CONVERSATION)
    assert "p#m1" not in items(window)


def test_a_message_whose_trigger_cannot_be_sent_takes_its_body_back(window: WindowScene) -> None:
    with window.wire.at("send_message", failing()), pytest.raises(SendFailed):
        window.send("m1", text=LARGE)
    assert sorted(items(window)) == ["!"]


@pytest.mark.parametrize("step", range(1, 9))
def test_a_run_that_dies_at_any_step_leaves_no_body_behind(window: WindowScene, step: int) -> None:
    window.send("m1", text=LARGE)
    window.clock.advance(SILENCE_MS)
    with window.wire.at_step(step, killed), pytest.raises(Killed):
        window.run()
    settle(window)
    assert window.batches() == [["m1"]]
    assert "p#m1" not in items(window)
    texts = {event["text"] for event in window.events()}
    assert texts == {LARGE}


@pytest.mark.parametrize("how", ["edit", "delete", "find", "stop", "show"])
def test_edits_and_stop_words_read_no_bodies(window: WindowScene, how: str) -> None:
    window.send("m0")
    window.send("m1", text=LARGE)
    meter = Meter()
    with meter.counting(window):
        match how:
            case "edit":
                window.lane.edit_message(CONVERSATION, "m0", payload=payload("m0", "edited"))
            case "delete":
                window.lane.delete_message(CONVERSATION, "m0")
            case "find":
                window.lane.find_message(CONVERSATION, "m1")
            case "stop":
                window.lane.cancel_buffer(CONVERSATION)
            case "show":
                window.lane.peek_conversation(CONVERSATION)
    assert meter.most_held_bytes < 2_000


def test_too_many_messages_are_refused_and_leave_no_trace(window: WindowScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MAX_STORED_MESSAGES", 3)
    for number in range(3):
        window.send(f"m{number}")
    before = window.table.windows.read(CONVERSATION)
    window.clock.advance(1_000)
    refused = window.lane.buffer_message(CONVERSATION, "m3", payload=payload("m3"), timing=PATIENT.timing)
    assert refused == o.MessageRefused("waiting", 0)
    assert window.table.windows.read(CONVERSATION) == before
    assert "m#m3" not in items(window)
    assert isinstance(window.send("m0"), o.MessageDuplicate), "a redelivery of what waits is no new message"
    window.pass_time(WINDOW_MS)
    window.send("m3")
    settle(window)
    assert window.batches() == [["m0", "m1", "m2"], ["m3"]]


def test_what_did_not_fit_into_a_batch_still_counts(window: WindowScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three leave, so two more may come, and a third may not."""
    size = len(payload("m0", LARGE))
    monkeypatch.setattr(windows, "MAX_STORED_BYTES", 3 * size)
    monkeypatch.setattr("lambdas.dynamodb_processor.service.MAX_BYTES_IN_A_BATCH", 2 * size)
    for number in range(3):
        window.send(f"m{number}", text=LARGE, rules=PATIENT)
    window.clock.advance(WINDOW_MS)
    (trigger,) = [each.trigger for each in window.triggers.waiting]
    window.processor.process(trigger, AMPLE)
    assert window.batches() == [["m0", "m1"]]
    window.send("m3", text=LARGE, rules=PATIENT)
    window.send("m4", text=LARGE, rules=PATIENT)
    refused = window.lane.buffer_message(CONVERSATION, "m5", payload=payload("m5", LARGE), timing=PATIENT.timing)
    assert refused == o.MessageRefused("waiting", 0)
    settle(window)
    assert window.batches() == [["m0", "m1"], ["m2", "m3"], ["m4"]]
    assert window.table.windows.read(CONVERSATION).large_bytes == 0


def test_as_much_may_wait_as_in_the_valkey_lane_by_default() -> None:
    assert (LimitsConfig().max_waiting_messages, SETTINGS.max_waiting_bytes) == (MAX_STORED_MESSAGES, MAX_STORED_BYTES)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("count", "is_apart"), [(10_000, True), (2_000, False)])
def test_a_batch_of_ten_thousand_large_messages_holds_only_its_own_bodies(
    window: WindowScene, count: int, is_apart: bool
) -> None:
    text, a_batch = LARGE, MAX_BYTES_IN_A_BATCH
    store(window, count, text, is_apart=is_apart)
    window.send("m99999", rules=PATIENT)
    window.clock.advance(SILENCE_MS)
    (trigger,) = [each.trigger for each in window.triggers.waiting]
    meter = Meter()
    with meter.counting(window):
        window.processor.process(trigger, AMPLE)
    left = window.table.messages.read(CONVERSATION)
    assert 0.9 * a_batch < (count + 1 - len(left.stored)) * len(text) <= a_batch
    assert meter.most_held_bytes < PAGE_BYTES + 2 * a_batch + count * 120
    assert left.window.is_open, "the rest is due at once"


def test_a_batch_reads_its_own_bodies_and_no_others(window: WindowScene) -> None:
    store(window, 500, LARGE)
    window.send("m99999", rules=PATIENT)
    read: list[int] = []
    bodies = window.table.messages.bodies

    def counted(conversation: str, messages: list[StoredMessage]) -> dict[str, bytes]:
        read.append(len(messages))
        return bodies(conversation, messages)

    window.clock.advance(SILENCE_MS)
    with patch.object(window.table.messages, "bodies", counted):
        (trigger,) = [each.trigger for each in window.triggers.waiting]
        window.processor.process(trigger, AMPLE)
    assert sum(read) <= 2 * MAX_BODIES_READ_AT_ONCE
    content = json.loads(window.objects.kept[window.events()[0]["messagesRef"]["key"]])
    size = sum(len(message["text"]) for message in content["messages"])
    assert MAX_BYTES_IN_A_BATCH * 0.95 < size <= MAX_BYTES_IN_A_BATCH
