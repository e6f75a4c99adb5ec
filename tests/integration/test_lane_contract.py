"""What every lane must do, stated once and run on the Valkey lane (the strict server) and the DynamoDB lane (moto).

What only one lane does is tested where that lane is.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from message_buffer.errors import SendFailed
from message_buffer.events.emission import Emission, TimeLeft
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb import windows
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.holds import NO_END_MS, Hold, Holder, shown
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import DAY_MS
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.rules.timing import Timing
from tests.support.engine import Engine, accepted, payload
from tests.support.lanes import RunningDynamoDbLane, RunningLane, RunningValkeyLane, batches_of, events_of
from tests.support.window import CONVERSATION as C
from tests.support.window import WindowScene, make_message_table

RULES = Rules(silence_ms=2_000, typing_inference_ms=0, max_wait_ms=8_000)
FLUSH = RULES.timing._replace(flush_reason="flush")
# Longer than any message waits in either lane, be it tried again once.
LONG_MS = 12_000


@pytest.fixture(params=["valkey", "dynamodb"])
def running(request: pytest.FixtureRequest) -> RunningLane:
    if request.param == "valkey":
        return RunningValkeyLane(request.getfixturevalue("engine"))
    return RunningDynamoDbLane(request.getfixturevalue("window"))


def send(running: RunningLane, *message_ids: str) -> o.MessageBuffered | o.MessageDuplicate:
    """Send messages in turn; return the outcome of the last."""
    outcomes = [
        accepted(running.lane.buffer_message(C, message_id, payload=payload(message_id), timing=RULES.timing))
        for message_id in message_ids
    ]
    return outcomes[-1]


def told(running: RunningLane, *messages: tuple[str, int], rules: Rules, is_pressed: bool = False) -> int | None:
    """Send messages, each after some milliseconds. Return the due time, as an operator sees it after the last."""
    for message_id, after_ms in messages:
        running.clock.advance(after_ms)
        timing = rules.timing_of(is_pressed=is_pressed)
        running.lane.buffer_message(C, message_id, payload=payload(message_id), timing=timing)
    return running.lane.peek_conversation(C).due_at_ms


def edit(
    running: RunningLane, message_id: str, text: str = "edited"
) -> o.MessageEdited | o.MessageFrozen | o.MessageAbsent:
    return running.lane.edit_message(C, message_id, payload=payload(message_id, text))


# -- messages ----------------------------------------------------------------------------------------------------------


def test_messages_wait_and_leave_together_once_in_order_of_arrival(running: RunningLane) -> None:
    first = send(running, "m3")
    assert isinstance(first, o.MessageBuffered)
    assert first.due_at_ms > running.clock()
    assert isinstance(second := send(running, "m1"), o.MessageBuffered)
    assert (first.count, second.count) == (1, 2)
    running.pass_time(1_000)
    assert batches_of(running) == []
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m3", "m1"]]
    (event,) = events_of(running)
    assert event["lane"] == running.name
    running.pass_time(LONG_MS)
    assert len(events_of(running)) == 1


def test_a_batch_says_when_the_message_before_it_arrived_until_the_conversation_is_forgotten(
    running: RunningLane,
) -> None:
    for message_id in ("m1", "m2"):
        # The event of the first attempt is lost, so a later attempt says the same of the frozen batch.
        running.bus.failures = [SendFailed("put event: Throttling")]
        send(running, message_id)
        running.pass_time(LONG_MS)
    running.lane.forget_conversation(C)
    send(running, "m3")
    running.pass_time(LONG_MS)
    times = [event["metadata"] for event in events_of(running)]
    assert [each["previousMessageAt"] for each in times] == [None, times[0]["lastMessageAt"], None]


def test_what_the_counts_of_a_batch_leave_comes_with_the_next_batch(
    running: RunningLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = []

    def counted(_: Emission, __: str, batch: o.BatchTaken, ___: TimeLeft) -> str:
        came.append(batch.tail)
        return "" if len(came) == 3 else f"left by {len(came)}"

    monkeypatch.setattr(Emission, "send", counted)
    for number in range(5):
        send(running, f"m{number}")
        running.pass_time(LONG_MS)
    assert came == ["", "left by 1", "left by 2", "", "left by 4"], "a batch that leaves nothing clears the text"


def test_what_a_batch_leaves_is_for_messages_that_come_during_its_emission(
    running: RunningLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = []

    def counted(_: Emission, __: str, batch: o.BatchTaken, ___: TimeLeft) -> str:
        came.append(batch.tail)
        if len(came) == 1:
            send(running, "m2")
        return f"left by {len(came)}"

    monkeypatch.setattr(Emission, "send", counted)
    send(running, "m1")
    running.pass_time(2 * LONG_MS)
    assert came == ["", "left by 1"]


@pytest.mark.parametrize("is_deleted", [False, True], ids=["cancelled", "deleted"])
def test_what_a_batch_leaves_is_not_for_messages_after_dropped_ones(
    running: RunningLane, monkeypatch: pytest.MonkeyPatch, *, is_deleted: bool
) -> None:
    came = []

    def counted(_: Emission, __: str, batch: o.BatchTaken, ___: TimeLeft) -> str:
        came.append(batch.tail)
        return "left"

    monkeypatch.setattr(Emission, "send", counted)
    for message_id in ("m1", "m2", "m3"):
        send(running, message_id)
        if message_id == "m2":
            running.lane.delete_message(C, "m2") if is_deleted else running.lane.cancel_buffer(C)
        running.pass_time(LONG_MS)
    assert came == ["", ""]


def test_a_batch_says_when_the_first_reply_since_the_batch_before_was_sent(
    running: RunningLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[o.BatchTaken] = []
    send_batch = Emission.send

    def watched(self: Emission, conversation: str, batch: o.BatchTaken, time: TimeLeft) -> str:
        taken.append(batch)
        return send_batch(self, conversation, batch, time)

    monkeypatch.setattr(Emission, "send", watched)
    noted = None
    assert not running.lane.note_reply(C, at_ms=running.clock())
    for message_id, has_replies in (("m1", False), ("m2", True), ("m3", False), ("m4", True)):
        at_ms = running.clock.advance(1)
        for after_ms in (0, 5, 9_000_000) if has_replies else ():
            running.clock.advance(after_ms)
            assert running.lane.note_reply(C, at_ms=at_ms + after_ms)
        # The first attempt fails, and the second gets the same time.
        running.bus.failures = [SendFailed("put event: Throttling")]
        send(running, message_id)
        running.pass_time(LONG_MS)
        noted = at_ms if has_replies else noted
        seen = [each.replied_at_ms for each in taken]
        assert seen == [noted] * len(seen)
        assert len(seen) > 1
        taken.clear()


def test_no_outcome_leaves_a_start_to_the_caller(running: RunningLane) -> None:
    assert not send(running, "m1").start_id
    lane = running.lane
    for outcome in (
        lane.flush_buffer(C),
        lane.hold_buffer(C, holder="people", cause="operator", hold_ms=1),
        lane.resume_buffer(C),
    ):
        assert not getattr(outcome, "start_id", False)


@pytest.mark.case(26)
def test_a_message_that_comes_again_is_a_duplicate_while_it_waits_and_after_it_left(running: RunningLane) -> None:
    send(running, "m1")
    due_at_ms = running.lane.peek_conversation(C).due_at_ms
    running.clock.advance(500)
    assert isinstance(again := send(running, "m1"), o.MessageDuplicate)
    assert (again.count, again.due_at_ms) == (1, due_at_ms)
    running.pass_time(LONG_MS)
    assert send(running, "m1") == o.MessageDuplicate(None, 0)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1"]]


def test_what_a_quota_refuses_was_not_taken_and_a_repeat_is_a_duplicate_in_spite_of_it(running: RunningLane) -> None:
    """The DynamoDB lane charges a webhook as a whole, with `charge`."""
    charge = Charge((("generic/shop", Quota(messages_per_minute=2, conversations_per_minute=2)),), is_exact=True)

    def charged(message_id: str) -> o.MessageBuffered | o.MessageDuplicate | o.MessageRefused:
        return running.lane.buffer_message(
            C, message_id, payload=payload(message_id), timing=RULES.timing, charge=charge
        )

    taken = [f"m{n}" for n in range(5) if isinstance(charged(f"m{n}"), o.MessageBuffered)]
    assert taken == ["m0", "m1"] if isinstance(running, RunningValkeyLane) else len(taken) == 5
    assert isinstance(charged("m0"), o.MessageDuplicate)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [taken]


def test_an_edit_replaces_a_waiting_message_in_its_place(running: RunningLane) -> None:
    send(running, "m1", "m2", "m3")
    assert edit(running, "m2") == o.MessageEdited(is_newest=False)
    assert edit(running, "m3") == o.MessageEdited(is_newest=True)
    running.pass_time(LONG_MS)
    assert events_of(running)[0]["text"] == "text of m1\nedited\nedited"


def test_a_batch_goes_to_the_queue_of_its_newest_message_with_its_edit_and_after_a_failure_again(
    running: RunningLane,
) -> None:
    running.queues.open("default", "whatsapp")
    for message_id, queue in (("m1", "whatsapp"), ("m2", "default")):
        running.lane.buffer_message(C, message_id, payload=payload(message_id, queue=queue), timing=RULES.timing)
    running.lane.edit_message(C, "m2", payload=payload("m2", "edited", queue="whatsapp"))
    running.queues.failures = [SendFailed("send batch: ServiceUnavailable")]
    running.pass_time(2 * LONG_MS)
    (sent,), events = running.queues.sent, events_of(running)
    assert (sent.queue, sent.detail) == ("whatsapp", events[-1])
    assert [(event["batchId"], event["attempt"]) for event in events] == [(sent.batch_id, 1), (sent.batch_id, 2)]
    assert running.lane.peek_conversation(C).count == 0


@pytest.mark.promise("P3")
def test_the_batches_of_a_conversation_reach_their_queue_in_order_though_some_calls_fail(running: RunningLane) -> None:
    running.queues.open("default")
    refused = SendFailed("ServiceUnavailable")
    for number in range(4):
        send(running, f"m{number}")
        running.bus.failures, running.queues.failures = [refused] * (number % 2), [refused] * (number // 2)
        running.pass_time(3_000)
    running.pass_time(2 * LONG_MS)
    handed_over = {sent.batch_id: [each["id"] for each in sent.detail["messages"]] for sent in running.queues.sent}
    assert [message_id for ids in handed_over.values() for message_id in ids] == ["m0", "m1", "m2", "m3"]


def test_an_older_edit_never_replaces_a_newer_one(running: RunningLane) -> None:
    send(running, "m1")
    for text, edited_at_ms in (("second", 2_000), ("first", 1_999), ("again", 2_000)):
        edited = payload("m1", text, edited_at_ms=edited_at_ms)
        is_newest = edited_at_ms == 2_000
        assert running.lane.edit_message(C, "m1", payload=edited) == o.MessageEdited(is_newest=is_newest)
        if text == "first":
            assert b'"second"' in running.lane.peek_conversation(C, limit=1).payloads[0]
    running.pass_time(LONG_MS)
    assert events_of(running)[0]["text"] == "again"


def test_an_older_edit_moves_no_due_time(running: RunningLane) -> None:
    """A platform may deliver an edit again when a newer one has already changed the message and its wait."""
    send(running, "m1")
    due = []
    for edited_at_ms, silence_ms in ((2_000, 3_000), (1_999, 7_000), (2_000, 4_000)):
        timing = RULES.timing._replace(silence_ms=silence_ms)
        edited = payload("m1", "edited", edited_at_ms=edited_at_ms)
        assert isinstance(running.lane.edit_message(C, "m1", payload=edited, timing=timing), o.MessageEdited)
        due.append((running.lane.peek_conversation(C).due_at_ms or 0) - running.clock())
    assert due == [3_000, 3_000, 4_000]


def test_a_text_that_looks_like_an_edits_time_is_none(running: RunningLane) -> None:
    send(running, "m1")
    edit(running, "m1", '{"v":1,"editedAt":9')
    assert isinstance(edit(running, "m1", "edited"), o.MessageEdited)
    running.pass_time(LONG_MS)
    assert events_of(running)[0]["text"] == "edited"


def test_what_edits_add_counts_as_waiting_and_what_does_not_fit_is_left_to_an_event(
    running: RunningLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, larger = "x" * 9_000, "x" * 11_000
    with_room(running, monkeypatch, max_bytes=2 * len(payload("m1", large)))
    send(running, "m1", "m2", "m3")
    assert isinstance(edit(running, "m1", large), o.MessageEdited)
    assert isinstance(edit(running, "m2", large), o.MessageEdited)
    assert edit(running, "m2", larger) == edit(running, "m3", large) == o.MessageAbsent(True, None, lane=running.name)
    refused = running.lane.buffer_message(C, "m4", payload=payload("m4", large), timing=RULES.timing)
    assert refused == o.MessageRefused("waiting", 0)
    assert isinstance(edit(running, "m1", "short"), o.MessageEdited)
    assert isinstance(edit(running, "m3", large), o.MessageEdited)
    running.pass_time(LONG_MS)
    assert events_of(running)[0]["text"] == f"short\n{large}\n{large}"


def with_room(running: RunningLane, monkeypatch: pytest.MonkeyPatch, *, max_bytes: int) -> None:
    """Let messages over 4 KiB wait only up to so many bytes."""
    monkeypatch.setattr(windows, "MAX_STORED_BYTES", max_bytes)
    if isinstance(running, RunningValkeyLane):
        lane = running.lane
        lane.settings = lane.settings._replace(max_waiting_bytes=max_bytes)


def test_a_deleted_message_never_comes_out_and_none_of_its_deliveries_brings_it_back(running: RunningLane) -> None:
    send(running, "m1", "m2", "m3")
    assert running.lane.delete_message(C, "m2") == o.MessageDeleted()
    assert isinstance(send(running, "m2"), o.MessageDuplicate)
    found = running.lane.find_message(C, "m2")
    assert isinstance(found, o.MessageAbsent)
    assert (found.known, found.batch_id) == (True, None)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1", "m3"]]


@pytest.mark.case(31)
def test_a_buffer_whose_only_message_is_deleted_emits_nothing(running: RunningLane) -> None:
    send(running, "m1")
    assert running.lane.delete_message(C, "m1") == o.MessageDeleted()
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    assert running.lane.peek_conversation(C).state == "IDLE"


@pytest.mark.parametrize("is_behind_a_batch", [False, True])
def test_after_its_only_message_is_deleted_a_buffer_is_closed_and_the_next_message_waits(
    running: RunningLane, *, is_behind_a_batch: bool
) -> None:
    if is_behind_a_batch:
        send(running, "m0")
        running.bus.failures = [SendFailed("put event: Throttling")] * 2
        frozen_batch(running)
    send(running, "m1")
    running.lane.delete_message(C, "m1")
    seen = running.lane.peek_conversation(C)
    assert (seen.count, seen.state) == (0, "PENDING" if is_behind_a_batch else "IDLE")
    running.clock.advance(60_000)  # no function runs, as if its start were lost
    assert send(running, "m2").due_at_ms == running.clock() + RULES.silence_ms
    running.pass_time(LONG_MS)
    assert batches_of(running) == ([["m0"], ["m2"]] if is_behind_a_batch else [["m2"]])


def test_a_message_is_found_where_it_is(running: RunningLane) -> None:
    lane = running.lane
    assert lane.find_message(C, "m1") == o.MessageAbsent(known=False, batch_id=None, lane=running.name)
    send(running, "m0", "m1")
    assert lane.find_message(C, "m1") == o.MessageWaiting(lane=running.name)
    running.bus.failures = [SendFailed("put event: Throttling")]
    batch_id = frozen_batch(running)
    assert lane.find_message(C, "m1") == o.MessageFrozen(batch_id, lane=running.name)
    running.pass_time(LONG_MS)
    assert events_of(running)[0]["batchId"] == batch_id
    assert lane.find_message(C, "m1") == o.MessageAbsent(known=True, batch_id=batch_id, lane=running.name)


@pytest.mark.case(31)
def test_what_has_left_is_neither_edited_nor_deleted(running: RunningLane) -> None:
    for change in (lambda: edit(running, "m1"), lambda: running.lane.delete_message(C, "m1")):
        assert change() == o.MessageAbsent(known=False, batch_id=None, lane=running.name)
    send(running, "m1")
    running.bus.failures = [SendFailed("put event: Throttling")]
    batch_id = frozen_batch(running)
    assert edit(running, "m1") == running.lane.delete_message(C, "m1") == o.MessageFrozen(batch_id, lane=running.name)
    running.pass_time(LONG_MS)
    assert events_of(running)[0]["text"] == "text of m1"
    absent = o.MessageAbsent(known=True, batch_id=batch_id, lane=running.name)
    assert edit(running, "m1") == running.lane.delete_message(C, "m1") == absent


# -- what control words, typing events and operators do -------------------------------------------------------------


@pytest.mark.case(23)
def test_a_cancel_drops_what_waits_and_its_repeat_drops_nothing_newer(running: RunningLane) -> None:
    send(running, "m1", "m2")
    cancelled = running.lane.cancel_buffer(C, cancel_id="stop-1")
    assert isinstance(cancelled, o.BufferCancelled)
    assert (cancelled.buffered, cancelled.frozen, cancelled.leaving) == (2, 0, False)
    assert cancelled.lane == running.name
    send(running, "m3")
    repeated = running.lane.cancel_buffer(C, cancel_id="stop-1")
    assert isinstance(repeated, o.AlreadyCancelled)
    assert repeated.lane == running.name
    assert isinstance(send(running, "m1"), o.MessageDuplicate)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m3"]]


def test_a_cancel_begins_a_generation(running: RunningLane) -> None:
    send(running, "m1")
    before = running.lane.peek_conversation(C).generation
    cancelled = running.lane.cancel_buffer(C)
    assert isinstance(cancelled, o.BufferCancelled)
    assert before < cancelled.generation <= running.lane.peek_conversation(C).generation


def test_a_cancel_drops_a_batch_that_waits_for_its_next_attempt(running: RunningLane) -> None:
    send(running, "m1")
    running.bus.failures = [SendFailed("put event: Throttling")]
    frozen_batch(running)
    cancelled = running.lane.cancel_buffer(C)
    assert isinstance(cancelled, o.BufferCancelled)
    assert (cancelled.buffered, cancelled.frozen) == (0, 1)
    running.pass_time(LONG_MS)
    assert batches_of(running) == []


def test_a_hold_keeps_what_waits_and_what_comes_until_it_is_over(running: RunningLane) -> None:
    send(running, "m1")
    until_ms = running.clock() + 30_000
    assert running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=30_000) == o.OnHold(until_ms)
    assert running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=1_000) == o.OnHold(until_ms), (
        "the longer hold goes on"
    )
    running.pass_time(LONG_MS)
    send(running, "m2")
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    assert running.lane.peek_conversation(C).held_until_ms == until_ms
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1", "m2"]]


def test_after_a_forget_nothing_older_leaves_and_newer_messages_do(running: RunningLane) -> None:
    send(running, "m1", "m2")
    forgotten = running.lane.forget_conversation(C)
    assert (forgotten.waiting, forgotten.frozen, forgotten.leaving_until_ms) == (2, 0, None)
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    assert isinstance(send(running, "m3"), o.MessageBuffered)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m3"]]
    (event,) = events_of(running)
    assert event["metadata"]["firstMessageAt"] > (forgotten.last_at_ms or 0)


def test_an_erased_message_that_comes_again_is_a_new_message(running: RunningLane) -> None:
    send(running, "waiting")
    running.lane.forget_conversation(C)
    assert isinstance(send(running, "waiting"), o.MessageBuffered)
    assert isinstance(send(running, "waiting"), o.MessageDuplicate)
    running.pass_time(LONG_MS)
    running.lane.forget_conversation(C)
    assert isinstance(send(running, "waiting"), o.MessageBuffered)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["waiting"], ["waiting"]]
    assert len({event["batchId"] for event in events_of(running)}) == 2, "consumers drop a batch id that they know"


def test_a_forget_drops_a_frozen_batch_that_waits_for_its_retry(running: RunningLane) -> None:
    running.bus.failures = [SendFailed("put event: Throttling")]
    send(running, "m1")
    frozen_batch(running)
    running.pass_time(100)
    assert running.lane.forget_conversation(C).frozen == 1
    running.pass_time(2 * LONG_MS)
    assert batches_of(running) == []
    assert running.lane.peek_conversation(C).state == "IDLE"


def test_a_forget_may_be_repeated_and_ends_a_hold(running: RunningLane) -> None:
    running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=300_000)
    send(running, "m1")
    assert running.lane.forget_conversation(C).waiting == 1
    assert running.lane.forget_conversation(C) == o.ConversationForgotten(None, 0, 0, None)
    assert running.lane.peek_conversation(C).held_until_ms is None
    assert running.lane.generation_and_holds(C) == o.GenerationAndHolds(0, ())


def test_a_resume_ends_a_hold_and_only_a_hold(running: RunningLane) -> None:
    send(running, "m1")
    running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=60_000)
    running.pass_time(LONG_MS)
    resumed = running.lane.resume_buffer(C)
    assert resumed == o.HoldEnded(running.clock())
    running.pass_time(1_000)
    assert batches_of(running) == [["m1"]]
    assert running.lane.resume_buffer(C) == o.NotOnHold(None)


def hold(running: RunningLane, holder: Holder, cause: str, hold_ms: int) -> Hold:
    """Put the conversation on hold. Return the hold, as it is then told."""
    running.lane.hold_buffer(C, holder=holder, cause=cause, hold_ms=hold_ms)
    return Hold(holder, running.clock() + hold_ms, cause)


def holds_of(running: RunningLane) -> list[Hold]:
    holds = running.lane.peek_conversation(C).holds
    assert running.lane.generation_and_holds(C).holds == holds
    return list(holds)


@pytest.mark.parametrize(("people_ms", "consumers_ms"), [(20_000, 40_000), (40_000, 20_000)])
def test_of_two_holds_the_later_end_applies_and_each_is_told_until_its_own(
    running: RunningLane, people_ms: int, consumers_ms: int
) -> None:
    send(running, "m1")
    consumers = hold(running, "consumers", "crm", consumers_ms)
    people = hold(running, "people", "answer", people_ms)
    until_ms = max(people.until_ms, consumers.until_ms)
    seen = running.lane.peek_conversation(C)
    assert (seen.due_at_ms, seen.held_until_ms, list(seen.holds)) == (until_ms, until_ms, [people, consumers])
    running.pass_time(30_000)
    assert holds_of(running) == [each for each in (people, consumers) if each.until_ms == until_ms]
    send(running, "m2")
    assert batches_of(running) == []
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1", "m2"]]
    assert holds_of(running) == []


def test_a_consumer_ends_its_own_hold_and_nobody_elses(running: RunningLane) -> None:
    send(running, "m1")
    people, consumers = hold(running, "people", "answer", 30_000), hold(running, "consumers", "crm", 60_000)
    on_hold = o.OnHold(consumers.until_ms)
    assert running.lane.resume_buffer(C, holder="consumers", cause="desk") == on_hold, "another's name"
    assert running.lane.resume_buffer(C, holder="consumers", cause="answer") == on_hold, "a cause of people"
    assert holds_of(running) == [people, consumers]
    for _ in range(2):
        assert running.lane.resume_buffer(C, holder="consumers", cause="crm") == o.OnHold(people.until_ms)
        assert holds_of(running) == [people]
    seen = running.lane.peek_conversation(C)
    assert (seen.due_at_ms, seen.rule) == (people.until_ms, "hold")
    running.pass_time(LONG_MS)
    send(running, "m2")
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1", "m2"]]
    assert running.clock() < consumers.until_ms
    assert running.lane.resume_buffer(C, holder="consumers", cause="crm") == o.NotOnHold(None)


@pytest.mark.parametrize("last", ["people", "consumers"])
def test_what_one_holder_kept_is_due_when_the_last_hold_is_ended(running: RunningLane, last: Holder) -> None:
    causes: dict[Holder, str] = {"people": "answer", "consumers": "crm"}
    first: Holder = "people" if last == "consumers" else "consumers"
    for holder, cause in causes.items():
        hold(running, holder, cause, 60_000)
    send(running, "m1")
    running.pass_time(LONG_MS)
    assert isinstance(running.lane.resume_buffer(C, holder=first, cause=causes[first]), o.OnHold)
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    assert running.lane.resume_buffer(C, holder=last, cause=causes[last]) == o.HoldEnded(running.clock())
    running.pass_time(1_000)
    assert batches_of(running) == [["m1"]]


def test_what_waits_behind_a_batch_waits_for_the_hold_that_is_left(running: RunningLane) -> None:
    running.bus.failures = [SendFailed("put event: Throttling")]
    send(running, "m1")
    frozen_batch(running)
    send(running, "m2")
    people = hold(running, "people", "answer", 30_000)
    hold(running, "consumers", "crm", 60_000)
    assert running.lane.resume_buffer(C, holder="consumers", cause="crm") == o.OnHold(people.until_ms)
    running.pass_time(2 * LONG_MS)
    assert batches_of(running) == [["m1"]]
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1"], ["m2"]]


# -- the hand-off mark -------------------------------------------------------------------------------------------------


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Hold | None]]:
    """Return a list that gets the attempt and the mark of each batch that a function sends."""
    seen: list[tuple[int, Hold | None]] = []
    send = Emission.send

    def watched(emission: Emission, conversation: str, taken: o.BatchTaken, time: TimeLeft) -> str:
        seen.append((taken.attempt, taken.handoff))
        return send(emission, conversation, taken, time)

    monkeypatch.setattr(Emission, "send", watched)
    return seen


Marks = list[tuple[int, Hold | None]]


def mark(running: RunningLane, hold_ms: int | None = 60_000, cause: str = "answer") -> Hold:
    until_ms = NO_END_MS if hold_ms is None else running.clock() + hold_ms
    marked = running.lane.hold_buffer(C, holder="handoff", cause=cause, hold_ms=hold_ms)
    assert marked == o.OnHold(until_ms)
    return Hold("handoff", until_ms, cause)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_mark_keeps_nothing_back_and_is_handed_out_with_each_batch(
    running: RunningLane, marks: Marks, is_waiting: bool
) -> None:
    due_at_ms = running.clock() + RULES.silence_ms
    if is_waiting:
        send(running, "m1")
    marked = mark(running)
    if not is_waiting:
        send(running, "m1")
    seen = running.lane.peek_conversation(C)
    assert (seen.due_at_ms, seen.rule, seen.held_until_ms) == (due_at_ms, "silenceMs", None)
    assert holds_of(running) == [marked]
    running.pass_time(LONG_MS)
    send(running, "m2")
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1"], ["m2"]]
    assert marks == [(1, marked), (1, marked)]


def test_a_mark_on_a_due_conversation_leaves_it_due(running: RunningLane, marks: Marks) -> None:
    marked: list[Hold] = []
    send(running, "m1")
    running.meanwhile(lambda: marked.append(mark(running)))
    running.pass_time(LONG_MS)
    assert marks == [(1, marked[0])]


def test_each_attempt_has_the_mark_of_its_own_moment(running: RunningLane, marks: Marks) -> None:
    running.bus.failures = [SendFailed("put event: Throttling")] * 2
    send(running, "m1")
    frozen_batch(running)
    marked = mark(running)
    while len(marks) < 2:
        running.pass_time(100)
    running.lane.resume_buffer(C)
    running.pass_time(LONG_MS)
    assert marks == [(1, None), (2, marked), (3, None)]
    assert batches_of(running) == [["m1"]]


def test_a_mark_that_has_ended_is_neither_handed_out_nor_shown(running: RunningLane, marks: Marks) -> None:
    mark(running, hold_ms=1_000)
    send(running, "m1")
    running.pass_time(LONG_MS)
    assert holds_of(running) == []
    assert marks == [(1, None)]
    assert running.lane.resume_buffer(C) == o.NotOnHold(None)


def test_a_later_mark_prolongs_the_first_and_a_shorter_one_does_not_end_it(running: RunningLane) -> None:
    mark(running, hold_ms=30_000)
    longer = mark(running, hold_ms=60_000)
    running.clock.advance(1_000)
    again = running.lane.hold_buffer(C, holder="handoff", cause="operator", hold_ms=10_000)
    assert again == o.OnHold(longer.until_ms)
    assert holds_of(running) == [longer]


def test_a_mark_without_a_limit_stays_until_it_is_ended(running: RunningLane, marks: Marks) -> None:
    marked = mark(running, hold_ms=None, cause="handoff")
    for message_id in ("m1", "m2"):
        running.clock.advance(7 * DAY_MS)
        send(running, message_id)
        running.pass_time(LONG_MS)
    assert marks == [(1, marked)] * 2
    assert shown(running.lane.peek_conversation(C).holds) == [{"holder": "handoff", "cause": "handoff", "until": None}]
    assert running.lane.resume_buffer(C, holder="handoff", cause="handoff") == o.HoldEnded(None)
    assert holds_of(running) == []


@pytest.mark.parametrize("first", ["handoff", "people"])
def test_a_mark_and_a_hold_end_each_for_itself(running: RunningLane, marks: Marks, first: Holder) -> None:
    send(running, "m1")
    marked, people = mark(running), hold(running, "people", "operator", 60_000)
    assert holds_of(running) == [people, marked]
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    ended = running.lane.resume_buffer(C, holder=first)
    if first == "handoff":
        assert ended == o.OnHold(people.until_ms)
        assert running.lane.resume_buffer(C, holder="people") == o.HoldEnded(running.clock())
    else:
        assert ended == o.HoldEnded(running.clock())
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1"]]
    assert marks == [(1, None if first == "handoff" else marked)]


def test_the_end_of_a_mark_moves_no_due_time(running: RunningLane) -> None:
    mark(running)
    due_at_ms = send(running, "m1").due_at_ms
    running.clock.advance(500)
    assert running.lane.resume_buffer(C) == o.HoldEnded(due_at_ms)
    assert running.lane.peek_conversation(C).due_at_ms == due_at_ms


def test_a_mark_outlasts_a_stop_word_and_is_erased_with_the_conversation(running: RunningLane) -> None:
    marked = mark(running, hold_ms=None)
    send(running, "m1")
    running.lane.cancel_buffer(C)
    assert holds_of(running) == [marked]
    running.lane.forget_conversation(C)
    assert holds_of(running) == []


def test_a_flush_word_flushes_a_marked_conversation(running: RunningLane, marks: Marks) -> None:
    marked = mark(running)
    send(running, "m1")
    assert isinstance(running.lane.retime_buffer(C, timing=FLUSH), o.BufferRetimed)
    running.pass_time(500)
    assert marks == [(1, marked)]


def test_a_flush_word_makes_due_what_waits_unless_it_is_on_hold(running: RunningLane) -> None:
    lane = running.lane
    assert lane.retime_buffer(C, timing=FLUSH) == o.BufferEmpty()
    send(running, "m1", "m2")
    assert lane.retime_buffer(C, timing=FLUSH) == o.BufferRetimed(running.clock(), 2, FLUSH.silence_rule)
    running.pass_time(1_000)
    assert batches_of(running) == [["m1", "m2"]]
    assert events_of(running)[0]["flushReason"] == "flush"
    send(running, "m3")
    lane.hold_buffer(C, holder="people", cause="operator", hold_ms=60_000)
    held = lane.retime_buffer(C, timing=FLUSH)
    assert isinstance(held, o.BufferRetimed | o.BufferUnmoved)
    assert held.due_at_ms > running.clock()
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1", "m2"]]


@pytest.mark.case(32)
def test_new_rules_move_a_buffer_in_both_directions(running: RunningLane) -> None:
    first_at_ms = running.clock()
    send(running, "m1")
    slow = Rules(silence_ms=10_000, max_wait_ms=30_000).timing
    assert running.lane.retime_buffer(C, timing=slow) == o.BufferRetimed(first_at_ms + 10_000, 1, "silenceMs")
    running.pass_time(5_000)
    assert batches_of(running) == []
    assert running.lane.retime_buffer(C, timing=RULES.timing) == o.BufferRetimed(running.clock(), 1, "silenceMs")
    running.pass_time(0)
    assert batches_of(running) == [["m1"]]


@pytest.mark.case(36)
@pytest.mark.promise("P4")
def test_a_burst_across_any_number_of_looks_is_one_batch(running: RunningLane) -> None:
    ids = [f"m{number}" for number in range(4)]
    for message_id in ids:
        assert send(running, message_id).due_at_ms == running.clock() + RULES.silence_ms
        running.pass_time(1_500)
    assert batches_of(running) == []
    running.pass_time(LONG_MS)
    assert batches_of(running) == [ids]
    assert events_of(running)[0]["flushReason"] == "silence"


@pytest.mark.case(7)
@pytest.mark.promise("P4")
def test_steady_writing_ends_with_the_longest_wait(running: RunningLane) -> None:
    first_at_ms = running.clock()
    for number in range(12):
        send(running, f"m{number:02}")
        running.pass_time(1_000)
    (event,) = events_of(running)
    assert (event["flushReason"], event["metadata"]["waitMs"]) == ("max_wait", RULES.max_wait_ms)
    assert event["metadata"]["firstMessageAt"] == first_at_ms
    assert len(event["messages"]) == 8


def test_an_operators_flush_ends_a_wait_but_a_hold_continues_for_later_messages(running: RunningLane) -> None:
    assert running.lane.flush_buffer(C) == o.BufferEmpty()
    until_ms = running.clock() + 60_000
    running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=60_000)
    assert running.lane.flush_buffer(C) == o.BufferEmpty()
    send(running, "m1", "m2")
    for _ in range(2):
        assert running.lane.flush_buffer(C) == o.BufferFlushed(running.clock(), 2)
    running.pass_time(1_000)
    assert batches_of(running) == [["m1", "m2"]]
    assert events_of(running)[0]["flushReason"] == "flush"
    assert running.lane.peek_conversation(C).held_until_ms == until_ms
    assert send(running, "m3").due_at_ms == until_ms
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1", "m2"]]
    assert running.lane.resume_buffer(C) == o.HoldEnded(running.clock())
    running.pass_time(1_000)
    assert batches_of(running) == [["m1", "m2"], ["m3"]]


def test_a_flush_of_a_frozen_batch_alone_flushes_no_later_message(running: RunningLane) -> None:
    send(running, "m1")
    running.bus.failures = [SendFailed("put event: Throttling")]
    frozen_batch(running)
    running.lane.flush_buffer(C)
    send(running, "m2")
    running.pass_time(500)
    assert batches_of(running) == [["m1"]]
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1"], ["m2"]]


def test_a_hold_after_a_flush_keeps_what_has_not_left_yet(running: RunningLane) -> None:
    for hold_ms in (20_000, 1_000):  # a longer hold, and one that is over before the first
        send(running, "m1")
        running.lane.flush_buffer(C)
        running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=hold_ms)
    held_until_ms = running.clock() + 20_000
    running.pass_time(LONG_MS)
    assert batches_of(running) == []
    running.pass_time(LONG_MS)
    (event,) = events_of(running)
    assert (event["flushReason"], event["metadata"]["waitMs"]) == ("hold", 20_000)
    assert event["metadata"]["firstMessageAt"] + 20_000 == held_until_ms


@pytest.mark.promise("P4")
@pytest.mark.parametrize("is_on_hold", [False, True])
def test_a_hold_that_comes_before_the_batch_is_frozen_holds(running: RunningLane, is_on_hold: bool) -> None:
    if is_on_hold:
        running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=20_000)
    send(running, "m1")
    if is_on_hold:
        running.lane.flush_buffer(C)
    due_at_ms = running.lane.peek_conversation(C).due_at_ms
    assert due_at_ms is not None
    held: list[int] = []

    def hold() -> None:
        outcome = running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=15_000)
        held.append(outcome.held_until_ms)

    running.meanwhile(hold)
    running.pass_time(LONG_MS)
    assert held
    assert running.clock() < held[0]
    assert batches_of(running) == []
    running.pass_time(LONG_MS)
    (event,) = events_of(running)
    assert event["flushReason"] == "hold"
    assert event["metadata"]["firstMessageAt"] + event["metadata"]["waitMs"] == held[0]


def test_a_flush_under_a_hold_that_comes_before_the_batch_is_frozen_leaves(running: RunningLane) -> None:
    def hold_and_flush() -> None:
        running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=60_000)
        running.lane.flush_buffer(C)

    send(running, "m1")
    running.meanwhile(hold_and_flush)
    running.pass_time(LONG_MS)
    assert batches_of(running) == [["m1"]]
    assert send(running, "m2").due_at_ms == running.lane.peek_conversation(C).held_until_ms


def test_an_operator_sees_what_a_conversation_is_about(running: RunningLane) -> None:
    peek = running.lane.peek_conversation
    assert (peek(C).state, peek(C).count, peek(C).generation) == ("IDLE", 0, 0)
    due_at_ms = send(running, "m1").due_at_ms
    seen = peek(C, limit=5)
    assert (seen.state, seen.count, seen.due_at_ms, seen.payloads) == ("PENDING", 1, due_at_ms, [payload("m1")])
    assert seen.first_at_ms == seen.last_at_ms == running.clock()
    running.bus.failures = [SendFailed("put event: Throttling")]
    batch_id = frozen_batch(running)
    send(running, "m2")
    seen = peek(C)
    # It waits for its next attempt.
    assert (seen.state, seen.batch_id, seen.frozen) == ("PENDING", batch_id, 1)
    assert (seen.count, seen.payloads) == (1, [])
    running.pass_time(LONG_MS)
    assert peek(C).state == "IDLE"
    assert batches_of(running) == [["m1"], ["m2"]]


@pytest.mark.case(4)
def test_a_batch_that_cannot_be_emitted_is_tried_again_under_its_id(running: RunningLane) -> None:
    running.bus.failures = [SendFailed("put event: Throttling")] * 2
    send(running, "m1")
    running.pass_time(LONG_MS)
    send(running, "m2")
    running.pass_time(2 * LONG_MS)
    assert batches_of(running) == [["m1"], ["m2"]]
    assert events_of(running)[0]["attempt"] == 3


def test_conversations_do_not_wait_for_each_other(running: RunningLane) -> None:
    other = "default/generic/shop/ben"
    send(running, "m1")
    running.lane.hold_buffer(C, holder="people", cause="operator", hold_ms=60_000)
    running.lane.buffer_message(other, "m1", payload=payload("m1"), timing=RULES.timing)
    running.pass_time(LONG_MS)
    assert [event["conversationId"] for event in events_of(running)] == [other]


# -- the same histories make the same batches -----------------------------------------------------------------------


class _Step(NamedTuple):
    """A message, after a silence and perhaps a deed."""

    gap_ms: int
    deed: str
    timing: Timing


# What is done between two messages.
DEEDS: dict[str, Callable[[ValkeyLane | DynamoDbLane, Timing], object]] = {
    "typing": lambda lane, timing: lane.extend_wait(C, extend_ms=3_000, max_wait_ms=timing.max_wait_ms),
    "delete": lambda lane, _: lane.delete_message(C, f"m{lane.peek_conversation(C).count - 1}"),
    "flush": lambda lane, _: lane.flush_buffer(C),
    "new rules": lambda lane, timing: lane.retime_buffer(C, timing=timing._replace(silence_ms=3_000, pressed_ms=None)),
    "hold": lambda lane, _: lane.hold_buffer(C, holder="people", cause="operator", hold_ms=2_000),
    "another holds": lambda lane, _: lane.hold_buffer(C, holder="people", cause="answer", hold_ms=1_000),
    "consumer holds": lambda lane, _: lane.hold_buffer(C, holder="consumers", cause="crm", hold_ms=3_000),
    "mark": lambda lane, _: lane.hold_buffer(C, holder="handoff", cause="answer", hold_ms=2_000),
    "mark without limit": lambda lane, _: lane.hold_buffer(C, holder="handoff", cause="handoff", hold_ms=None),
    "mark ends": lambda lane, _: lane.resume_buffer(C, holder="handoff", cause="answer"),
    "resume": lambda lane, _: lane.resume_buffer(C),
    "consumer resumes": lambda lane, _: lane.resume_buffer(C, holder="consumers", cause="crm"),
    "another resumes": lambda lane, _: lane.resume_buffer(C, holder="consumers", cause="desk"),
}  # fmt: skip


def _typed_and_pressed(rng: Random) -> list[_Step]:
    steps = []
    for _ in range(rng.randint(2, 9)):
        silence_ms = rng.choice((400, 1_800, 2_500))
        steps.append(
            _Step(
                rng.choice((1, 30, 300, 700, rng.randint(1, 3_000))),
                rng.choice((*[""] * 10, *DEEDS, "delete")),
                Timing(
                    silence_ms=silence_ms,
                    typing_ms=rng.choice((0, silence_ms + 700, silence_ms + 5_000)),
                    max_wait_ms=rng.choice((900, 3_500, 20_000, 20_000, 20_000)),
                    max_messages=rng.choice((4, 100, 100, 100)),
                    min_messages=rng.choice((1, 1, 1, 2, 3, 5)),
                    flush_reason="",
                    pressed_ms=rng.choice((None, None, 0, 900, 2_000, 4_000)),
                    silence_rule=rng.choice(("silenceMs", "mediaSilenceMs", "windowMs")),
                    learned=rng.choice(("", "", "".join(f"{rng.choice((300, 1_500, 4_000)):05}" for _ in range(12)))),
                ),
            )
        )
    return steps


@pytest.mark.promise("P4")
@pytest.mark.timeout(300)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(seed=st.integers(0, 2**64 - 1))
@example(seed=100_000_000)  # new rules after the end of a hold
def test_both_lanes_compute_the_same_due_time_by_the_same_rule_after_each_message(
    unwatched: Engine, database: Any, seed: int
) -> None:
    history = _typed_and_pressed(Random(seed))
    unwatched.admin.flushall()
    make_message_table(database)
    scene = WindowScene()
    scene.clock.advance(unwatched.clock() - scene.clock())
    lanes: list[RunningLane] = [RunningValkeyLane(unwatched), RunningDynamoDbLane(scene)]
    for number, step in enumerate(history):
        seen = []
        for running in lanes:
            running.clock.advance(step.gap_ms)
            if step.deed:
                DEEDS[step.deed](running.lane, step.timing)
            running.lane.buffer_message(C, f"m{number}", payload=payload(f"m{number}"), timing=step.timing)
            conversation = running.lane.peek_conversation(C)
            why = conversation.flush_reason, conversation.rule, conversation.applied_wait_ms
            seen.append((conversation.due_at_ms, why, conversation.count, conversation.holds))
        assert seen[0] == seen[1], (number, history)
        due_at_ms, next_gap_ms = seen[0][0], sum(each.gap_ms for each in history[number + 1 : number + 2])
        if due_at_ms is None or due_at_ms <= scene.clock() + next_gap_ms:
            return  # a message that finds its buffer due joins it on the Valkey lane, and may move it on the other


def frozen_batch(running: RunningLane) -> str:
    """Let time pass until a batch is frozen; return its id."""
    for _ in range(40):
        batch_id = running.lane.peek_conversation(C).batch_id
        if batch_id is not None:
            return batch_id
        running.pass_time(500)
    raise AssertionError("no batch was ever frozen")


# -- what a webhook is charged -----------------------------------------------------------------------------------------

FIVE = Charge((("generic/shop", Quota(messages_per_minute=5, conversations_per_minute=5)),), is_exact=True)
OF_TENANT = Charge((("generic/other", Quota(10_000_000, 10_000_000)), ("acme", Quota(5, 5))), is_exact=True)


@pytest.mark.parametrize(
    ("charge", "reason"), [(FIVE, "account_messages"), (OF_TENANT, "tenant_messages")], ids=["account", "tenant"]
)
def test_a_webhook_is_charged_whole_or_refused_whole_and_a_full_quota_admits_any(
    running: RunningLane, charge: Charge, reason: str
) -> None:
    def ask() -> o.Charged | o.MessageRefused:
        return running.lane.charge(C, charge, messages=0, others=9)

    assert isinstance(ask(), o.Charged)
    refused = ask()
    assert isinstance(refused, o.MessageRefused)
    assert refused.reason == reason
    assert 0 < refused.wait_ms <= 120_000
    running.clock.advance(120_000)
    assert isinstance(ask(), o.Charged)


def test_a_webhook_that_one_quota_refuses_is_charged_to_none(running: RunningLane) -> None:
    account, door, tenant = ("custom/shop:1", Quota(10, 10)), ("custom/shop", Quota(10, 10)), ("acme", Quota(5, 5))

    def ask(*quotas: tuple[str, Quota]) -> o.Charged | o.MessageRefused:
        return running.lane.charge(C, Charge(quotas, is_exact=True), messages=0, others=9)

    assert isinstance(ask(tenant), o.Charged)
    assert [ask(account, door, tenant).reason for _ in range(2)] == ["tenant_messages"] * 2  # type: ignore[union-attr]
    assert isinstance(ask(account, door), o.Charged)
    assert isinstance(ask(door, tenant), o.MessageRefused)


def test_accounts_are_charged_apart(running: RunningLane) -> None:
    for account in ("generic/a", "generic/b"):
        assert isinstance(
            running.lane.charge(C, FIVE._replace(quotas=((account, Quota(5, 5)),)), messages=0, others=5), o.Charged
        )
