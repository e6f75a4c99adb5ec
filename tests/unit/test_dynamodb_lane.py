"""The DynamoDB lane: how long a message waits, which messages leave, and what remains of them."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jsonschema
import pytest

from message_buffer.aws.dynamodb import Table, Updated
from message_buffer.errors import SendFailed, TooManyHolds
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb import messages, quotas
from message_buffer.lanes.dynamodb.items import MAX_NAME_BYTES, name_of
from message_buffer.lanes.dynamodb.messages import Messages, StoredMessage
from message_buffer.lanes.dynamodb.quotas import MAX_QUOTA_OF_AN_ITEM
from message_buffer.limits import DAY_MS, HOUR_MS, MAX_MESSAGE_ID_BYTES, REMEMBERED_MS, WINDOW_GRACE_MS
from message_buffer.rules.quota import Charge, Quota
from tests.support.actors import REFUSE, Actor, take_turns
from tests.support.engine import accepted, payload
from tests.support.window import (
    CONVERSATION,
    RULES,
    SILENCE_MS,
    WINDOW_MS,
    WindowScene,
    lock,
    settle,
)

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.batch.ready.json").read_text())
OTHER = "default/generic/shop/ben"


# -- what a message waits for ------------------------------------------------------------------------


def test_the_event_is_the_one_of_every_lane_and_says_which(window: WindowScene) -> None:
    window.send("m1")
    window.clock.advance(4_000)
    window.send("m2")
    window.pass_time(WINDOW_MS)
    (event,) = window.events()
    jsonschema.Draft4Validator(SCHEMA).validate(event)
    assert (event["lane"], event["flushReason"], event["generation"]) == ("dynamodb", "silence", 2)
    assert event["metadata"]["waitMs"] == 4_000 + SILENCE_MS
    assert event["metadata"]["lastMessageAt"] - event["metadata"]["firstMessageAt"] == 4_000


def test_only_who_opens_a_window_sends_a_trigger(window: WindowScene) -> None:
    for n in range(5):
        window.send(f"m{n}")
    window.send("m0", conversation=OTHER)
    assert [each.trigger.conversation for each in window.triggers.waiting] == [CONVERSATION, OTHER]


def test_ids_with_line_ends_do_not_make_two_batches_one(window: WindowScene) -> None:
    window.send("m1\nm2")
    window.pass_time(WINDOW_MS)
    window.send("m1")
    window.send("m2")
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m1\nm2"], ["m1", "m2"]]


# -- what comes twice --------------------------------------------------------------------------------


def test_what_is_left_of_a_message_holds_none_of_its_words_and_goes_after_a_day(window: WindowScene) -> None:
    window.send("m1", text="what a customer wrote")
    window.pass_time(WINDOW_MS)
    left = window.table.client.scan(TableName="holding")["Items"]
    assert "what a customer wrote" not in str(left)
    emitted_at_ms = window.clock() - 1_000
    assert {int(item["expires_at"]["N"]) for item in left} == {(emitted_at_ms + REMEMBERED_MS) // 1_000}


@pytest.mark.case(29)
def test_nothing_that_holds_a_message_can_expire(window: WindowScene) -> None:
    window.send("m0")
    window.pass_time(WINDOW_MS)
    window.send("m1")
    items = window.table.client.scan(TableName="holding")["Items"]
    assert [item["item"]["S"] for item in items if "expires_at" in item] == ["m#m0"]


def test_an_id_that_is_too_long_for_a_key_is_known_all_the_same(window: WindowScene) -> None:
    long_id = "x" * MAX_MESSAGE_ID_BYTES
    assert len(name_of(long_id)) <= MAX_NAME_BYTES
    window.send(long_id)
    assert isinstance(window.send(long_id), o.MessageDuplicate)
    assert isinstance(window.send(long_id[:-1] + "y"), o.MessageBuffered)
    window.pass_time(WINDOW_MS)
    assert window.batches() == [[long_id, long_id[:-1] + "y"]]


# -- when it fails -----------------------------------------------------------------------------------


def _items(window: WindowScene) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = window.table.client.scan(TableName="holding")["Items"]
    return items


def _fail() -> None:
    raise SendFailed("ThrottlingException")


@pytest.mark.promise("P1")
def test_a_request_that_is_refused_leaves_no_words_and_no_count(window: WindowScene) -> None:
    for number in range(20):
        with window.wire.at("send_message", _fail), pytest.raises(SendFailed):
            window.send(f"refused-{number}")
    assert [item["item"]["S"] for item in _items(window)] == ["!"]
    assert window.table.windows.read(CONVERSATION).waiting == 0
    assert "expires_at" in _items(window)[0]
    assert window.send("m1").count == 1
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m1"]]


@pytest.mark.promise("P1")
def test_a_redelivery_stores_again_what_the_refused_request_takes_back_meanwhile(window: WindowScene) -> None:
    take_turns(window.wire)
    first = Actor("first", lambda: window.send("m1"))
    first.step()
    first.step()
    assert first.request == "send_message"
    again = Actor("again", lambda: window.send("m1"))
    again.step()
    assert again.request == "update_item", "it has found the message stored, and has not opened the window yet"
    first.step(REFUSE)
    first.finish()
    again.finish()
    assert isinstance(first.error, SendFailed)
    assert again.error is None
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m1"]]


def test_a_message_for_a_window_whose_trigger_is_lost_sends_another(window: WindowScene) -> None:
    window.send("m1")
    window.triggers.waiting.clear()
    window.clock.advance(WINDOW_MS + WINDOW_GRACE_MS + 1)
    window.send("m2")
    window.run()
    assert window.batches() == [["m1", "m2"]]


# -- what operators, control words and changes do ----------------------------------------------------


def test_a_hold_is_not_forgotten_with_the_window_before_it(window: WindowScene) -> None:
    window.send("m1")
    window.pass_time(WINDOW_MS)
    window.clock.advance(REMEMBERED_MS - 60_000)
    held = window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=REMEMBERED_MS)
    (expires,) = [item["expires_at"] for item in _items(window) if item["item"]["S"] == "!"]
    assert int(expires["N"]) * 1_000 > held.held_until_ms


def test_a_hold_of_a_conversation_that_nobody_has_seen_is_forgotten_in_the_end(window: WindowScene) -> None:
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=60_000)
    assert ["expires_at" in item for item in _items(window)] == [True]


def test_a_hold_of_an_open_window_does_not_let_it_expire(window: WindowScene) -> None:
    window.send("m1")
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=60_000)
    assert not [item for item in _items(window) if "expires_at" in item]


def test_a_stop_that_got_half_way_drops_the_rest_when_it_comes_again(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    window.send("m1")
    window.send("m2")
    write = Messages._write

    def leave_m2(table: Messages, requests: Sequence[Any]) -> list[Any]:
        left = [each for each in requests if each["PutRequest"]["Item"]["item"]["S"] == "m#m2"]
        return write(table, rest) + left if (rest := [each for each in requests if each not in left]) else left

    monkeypatch.setattr(messages, "UNDONE_PAUSES_SECONDS", ())
    with patch.object(Messages, "_write", leave_m2), pytest.raises(SendFailed):
        window.lane.cancel_buffer(CONVERSATION, cancel_id="stop-1")
    assert isinstance(window.lane.cancel_buffer(CONVERSATION, cancel_id="stop-1"), o.BufferCancelled)
    window.pass_time(2 * WINDOW_MS, sweep=True)
    assert window.events() == []


def test_an_order_that_was_taken_for_a_message_before_can_be_obeyed(window: WindowScene) -> None:
    window.send("m1")
    assert isinstance(cancelled := window.lane.cancel_buffer(CONVERSATION, cancel_id="m1"), o.BufferCancelled)
    assert cancelled.buffered == 1
    window.pass_time(WINDOW_MS)
    assert window.events() == []


def test_a_locked_window_is_in_flight_until_its_lock_runs_out(window: WindowScene) -> None:
    window.send("m1")
    window.clock.advance(WINDOW_MS)
    until_ms = window.clock() + 30_000
    lock(window, "me", until_ms=until_ms)
    assert window.lane.peek_conversation(CONVERSATION).state == "INFLIGHT"
    window.clock.advance(30_001)
    assert window.lane.peek_conversation(CONVERSATION).state == "PENDING"


# -- a conversation with many tombstones -------------------------------------------------------------


# A page of a query has a thousand items of this conversation.
CROWDED = "default/generic/shop/" + "x" * 900


def leave_many(window: WindowScene, count: int) -> None:
    left = [StoredMessage(f"a{number:05}", 0) for number in range(count)]
    expires_at_ms = window.clock() + REMEMBERED_MS
    window.table.messages.write_tombstones(CROWDED, left, batch_id="w-1", expires_at_ms=expires_at_ms)


@contextmanager
def items_of_queries(window: WindowScene) -> Iterator[list[int]]:
    """Yield the number of items that each query returns."""
    call, found = window.wire.call, list[int]()

    def counted(request: str, make: Callable[[], Any]) -> Any:
        answer = call(request, make)
        if request == "query":
            found.append(len(answer["Items"]))
        return answer

    with patch.object(window.wire, "call", counted):
        yield found


@pytest.mark.parametrize("do", ["empty", "cancel", "show"])
def test_only_a_forget_holds_the_tombstones_of_a_conversation(window: WindowScene, do: str) -> None:
    leave_many(window, 2_200)
    window.send("m1", conversation=CROWDED)
    with items_of_queries(window) as found:
        match do:
            case "empty":
                window.pass_time(WINDOW_MS)
                assert window.batches(CROWDED) == [["m1"]]
            case "cancel":
                cancelled = window.lane.cancel_buffer(CROWDED, cancel_id="stop")
                assert isinstance(cancelled, o.BufferCancelled)
            case "show":
                assert window.lane.peek_conversation(CROWDED, limit=1).payloads == [payload("m1")]
    assert len(found) >= 2, "one page has all items"
    assert sum(found) == 2, "the window and its message"


def test_a_change_does_not_read_the_tombstones_of_a_day(window: WindowScene) -> None:
    leave_many(window, 30)
    window.send("m1", conversation=CROWDED)
    window.send("m2", conversation=CROWDED)
    lane = window.lane
    with items_of_queries(window) as found:
        assert lane.find_message(CROWDED, "m1") == o.MessageWaiting(lane="dynamodb")
        assert lane.find_message(CROWDED, "unknown") == o.MessageAbsent(False, None, lane="dynamodb")
        edited = lane.edit_message(CROWDED, "m2", payload=payload("m2", "other"))
        assert edited == o.MessageEdited(is_newest=True)
        assert lane.delete_message(CROWDED, "a00001") == o.MessageAbsent(True, "w-1", lane="dynamodb")
        assert lane.delete_message(CROWDED, "m1") == o.MessageDeleted()
        assert found == []
        # Before the window closes, one page shows whether another message waits that the window has not counted.
        assert lane.delete_message(CROWDED, "m2") == o.MessageDeleted()
        assert len(found) == 1


@pytest.mark.parametrize(("limit", "pages"), [(60, 2), (0, 1)])
def test_a_look_at_a_crowded_conversation_is_bounded(
    window: WindowScene, limit: int, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("message_buffer.lanes.dynamodb.lane.MAX_PAGES_PEEKED", 2)
    leave_many(window, 3_300)
    window.send("a00000-early", conversation=CROWDED)
    due_at_ms = window.send("m1", conversation=CROWDED).due_at_ms
    with items_of_queries(window) as found:
        seen = window.lane.peek_conversation(CROWDED, limit=limit)
    assert len(found) == pages
    assert (seen.state, seen.count, seen.due_at_ms) == ("PENDING", 2, due_at_ms)
    assert seen.last_at_ms == window.table.windows.read(CROWDED).newest_at_ms
    assert seen.payloads == [payload("a00000-early")][:limit]


def test_a_short_list_has_the_most_overdue_of_all_slices_of_the_index(window: WindowScene) -> None:
    names = [f"default/generic/shop/c{number}" for number in range(20)]
    for name in names:
        window.send("m1", conversation=name)
        window.clock.advance(1)
    assert [name for name, _ in window.lane.open_windows(limit=3)] == names[:3]


def test_a_stop_word_that_comes_again_does_not_read_the_conversation(window: WindowScene) -> None:
    window.lane.cancel_buffer(CONVERSATION, cancel_id="stop")
    leave_many(window, 30)
    with items_of_queries(window) as found:
        again = window.lane.cancel_buffer(CONVERSATION, cancel_id="stop")
    assert (again, found) == (o.AlreadyCancelled(2, lane="dynamodb"), [])


def test_a_note_whose_answer_is_lost_counts_its_message_once(window: WindowScene) -> None:
    """The client repeats such a request."""
    rules, update = RULES.model_copy(update={"max_messages": 3}), Table._asked

    def doubled(table: Table, doing: str, call: str, request: dict[str, Any]) -> Updated:
        if doing == "note message":
            update(table, doing, call, request)
        return update(table, doing, call, request)

    with patch.object(Table, "_asked", doubled):
        for n in (1, 2):
            told = window.send(f"m{n}", rules=rules)
            assert (told.count, window.table.windows.read(CONVERSATION).waiting) == (n, n)
            window.clock.advance(1_000)
        pressed = window.lane.buffer_message(
            OTHER, "m1", payload=payload("m1"), timing=rules.timing_of(is_pressed=True)
        )
    assert (accepted(pressed).count, window.table.windows.read(OTHER).waiting) == (1, 1)
    window.pass_time(SILENCE_MS - 2_000)
    assert window.batches() == []
    window.pass_time(2_000)
    assert window.batches() == [["m1", "m2"]]
    settle(window)


# -- hand-off marks ------------------------------------------------------------------------------------


def _expires_at_ms(window: WindowScene) -> int:
    (expires,) = [item["expires_at"] for item in _items(window) if item["item"]["S"] == "!"]
    return int(expires["N"]) * 1_000


@pytest.mark.parametrize("days", [30, None])
@pytest.mark.parametrize("closed_by", ["batch", "stop", "failed trigger"])
def test_a_long_mark_is_not_forgotten_with_the_window(window: WindowScene, closed_by: str, days: int | None) -> None:
    """Whatever closes the window, even if it has not read the mark."""
    hold_ms = days and days * DAY_MS
    window.lane.hold_buffer(CONVERSATION, holder="handoff", cause="handoff", hold_ms=hold_ms)
    ends_at_ms = window.clock() + (hold_ms or 36_500 * DAY_MS)
    assert _expires_at_ms(window) > ends_at_ms
    match closed_by:
        case "failed trigger":
            refused = SendFailed("send trigger: Throttling")
            with patch.object(window.triggers, "send", side_effect=refused), pytest.raises(SendFailed):
                window.send("m1")
        case "stop":
            window.send("m1")
            window.lane.cancel_buffer(CONVERSATION)
        case _:
            window.send("m1")
            window.pass_time(WINDOW_MS)
            assert window.batches() == [["m1"]]
    assert _expires_at_ms(window) > ends_at_ms


def test_the_item_of_a_mark_that_was_ended_is_forgotten_in_the_end(window: WindowScene) -> None:
    for _ in range(2):
        window.lane.hold_buffer(CONVERSATION, holder="handoff", cause="handoff", hold_ms=None)
        window.lane.resume_buffer(CONVERSATION)
        assert _expires_at_ms(window) // 1_000 == (window.clock() + REMEMBERED_MS) // 1_000
        window.send("m1")
        window.pass_time(WINDOW_MS)
        assert _expires_at_ms(window) <= window.clock() + REMEMBERED_MS


def test_a_mark_lets_no_open_window_expire_and_needs_no_second_trigger(window: WindowScene) -> None:
    window.send("m1")
    sent = len(window.triggers.waiting)
    window.lane.hold_buffer(CONVERSATION, holder="handoff", cause="answer", hold_ms=60_000)
    window.lane.resume_buffer(CONVERSATION)
    assert not [item for item in _items(window) if "expires_at" in item]
    assert len(window.triggers.waiting) == sent


def test_a_mark_during_the_read_delays_no_freeze(window: WindowScene) -> None:
    window.send("m1")
    before = window.wire.before

    def mark(request: str) -> None:
        before(request)
        if request == "query":
            window.wire.before = before
            window.lane.hold_buffer(CONVERSATION, holder="handoff", cause="answer", hold_ms=60_000)

    window.wire.before = mark
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m1"]]
    assert window.wire.made.count("query") == 1


# -- holds of consumers ------------------------------------------------------------------------------


def test_consumers_begin_a_bounded_number_of_holds_in_an_hour(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_CONSUMERS_HOLDS_IN_AN_HOUR", 2)
    hold = partial(window.lane.hold_buffer, cause="x", hold_ms=60_000)
    for conversation in ("default/generic/shop/1", "default/generic/shop/2") * 2:
        hold(conversation, holder="consumers")
    with pytest.raises(TooManyHolds):
        hold(OTHER, holder="consumers")
    assert window.lane.generation_and_holds(OTHER).holds == ()
    hold(OTHER, holder="people")
    window.clock.advance(HOUR_MS)
    hold(OTHER, holder="consumers")


# -- quotas ----------------------------------------------------------------------------------------


def test_each_webhook_of_an_account_is_one_update_and_its_messages_count(window: WindowScene) -> None:
    charge = Charge((("generic/shop", Quota(messages_per_minute=5, conversations_per_minute=5)),))
    found = [window.lane.charge(CONVERSATION, charge, messages=2, others=1) for _ in range(3)]
    assert [type(each) for each in found] == [o.Charged, o.Charged, o.MessageRefused]
    assert window.wire.made == ["update_item"] * 3


def test_a_high_quota_is_divided_into_counters_that_together_admit_no_more(window: WindowScene) -> None:
    quota = Quota(2 * MAX_QUOTA_OF_AN_ITEM, 1)
    found = [
        window.lane.charge(CONVERSATION, Charge((("generic/shop", quota),)), messages=1_000, others=0)
        for _ in range(200)
    ]
    assert sum(isinstance(each, o.Charged) for each in found) == 2 * MAX_QUOTA_OF_AN_ITEM // 1_000
