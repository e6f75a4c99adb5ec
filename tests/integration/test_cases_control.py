"""Cases others met with stop words, flushes, edits, deletes and human takeovers."""

import pytest

from message_buffer.lanes.outcomes import (
    Absent,
    Buffered,
    Cancelled,
    Deleted,
    Duplicate,
    Edited,
    Frozen,
    Stale,
)
from message_buffer.messages.message import decode
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, claim_and_take, emit_due, ids_of, run_until_idle, take
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import same
from tests.support.states import (
    State,
    claimed,
    held,
    left_by_a_dead_conversation_processor,
    waiting,
    waiting_behind_a_frozen_batch,
    waiting_for_retry,
)

PLAIN = Rules(typing_inference_ms=0)


STATES = [
    waiting,
    claimed,
    waiting_for_retry,
    left_by_a_dead_conversation_processor,
    waiting_behind_a_frozen_batch,
    held,
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("newer", [False, True])
def test_case_23_after_a_cancel_nothing_older_is_emitted_and_newer_is(
    engine: Engine, state: State, newer: bool
) -> None:
    bus = Bus()
    state(engine)
    cancelled = engine.cancel("c")
    assert not cancelled.leaving
    assert cancelled.buffered + cancelled.frozen >= 1
    assert_invariants(engine)
    if newer:
        assert isinstance(engine.send("c", "newer"), Buffered)
    run_until_idle(engine, bus)
    assert bus.ids("c") == (["newer"] if newer else [])
    assert_nothing_left_behind(engine)


def test_case_23_a_cancel_during_the_emission_says_so_and_the_batch_is_not_tried_again(
    engine: Engine,
) -> None:
    bus = Bus()
    claimed(engine)
    take(engine, "c", "t1")
    engine.send("c", "old too")
    cancelled = engine.cancel("c")
    assert (cancelled.leaving, cancelled.frozen, cancelled.buffered) == (True, 1, 1)
    engine.send("c", "newer")
    assert same(engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms), Stale())
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["newer"]
    assert_nothing_left_behind(engine)


def test_case_23_after_a_cancel_the_conversation_processor_that_held_the_batch_has_nothing_to_complete(
    engine: Engine,
) -> None:
    bus = Bus()
    claimed(engine)
    take(engine, "c", "t1")
    engine.cancel("c")
    engine.send("c", "newer")
    before = engine.settle()
    assert same(engine.store.take_batch("c", "t1"), Stale())
    assert same(engine.store.complete_batch("c", "t1"), Stale())
    assert engine.settle() == before
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["newer"]]
    assert_nothing_left_behind(engine)


def leave_cancelled_batch_behind(engine: Engine, newer: Rules) -> None:
    """A cancel came during the emission, then a newer message; then the conversation processor died."""
    left_by_a_dead_conversation_processor(engine)
    engine.clock.advance(-1)
    assert engine.cancel("c").leaving
    engine.send("c", "newer", rules=newer)
    engine.clock.advance(1)
    engine.store.recover_expired(0)


def test_case_23_what_is_newer_than_a_cancelled_batch_still_waits_for_its_own_silence(engine: Engine) -> None:
    bus = Bus()
    leave_cancelled_batch_behind(engine, newer=PLAIN)
    sent_ms = engine.clock.now_ms
    emit_due(engine, bus)
    assert bus.events == [], "the author has not fallen silent yet"
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["newer"]]
    assert bus.events[0].at_ms == sent_ms + PLAIN.silence_ms - 1


def test_case_23_what_is_held_behind_a_cancelled_batch_stays_held(engine: Engine) -> None:
    bus = Bus()
    leave_cancelled_batch_behind(engine, newer=PLAIN)
    held_until_ms = engine.store.hold_buffer("c", hold_ms=600_000).held_until_ms
    emit_due(engine, bus)
    assert bus.events == [], "a human has taken over"
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["newer"]]
    assert bus.events[0].at_ms >= held_until_ms


def test_a_cancelled_generation_is_newer_than_the_batch_in_flight(engine: Engine) -> None:
    claimed(engine)
    taken = take(engine, "c", "t1")
    assert engine.cancel("c").generation > taken.generation


def test_cancelling_an_idle_conversation_leaves_nothing(engine: Engine) -> None:
    assert same(engine.cancel("c"), Cancelled(1, 0, 0, leaving=False))
    assert_nothing_left_behind(engine)


def test_case_31_an_edit_replaces_the_message_in_its_place(engine: Engine) -> None:
    for message_id in ("m1", "m2", "m3"):
        engine.send("c", message_id)
    due_at_ms = engine.store.peek_conversation("c").due_at_ms
    assert same(engine.store.edit_message("c", "m2", payload=payload("m2", "corrected")), Edited(position=1, behind=1))
    assert engine.store.peek_conversation("c").due_at_ms == due_at_ms, "an edit is no new message"
    engine.clock.advance(3000)
    taken = claim_and_take(engine, "c")
    assert [decode(p).text for p in taken.payloads] == ["text of m1", "corrected", "text of m3"]


def test_case_31_a_delete_removes_the_message_and_a_redelivery_does_not_bring_it_back(engine: Engine) -> None:
    for message_id in ("m1", "m2", "m3"):
        engine.send("c", message_id)
    assert same(engine.store.delete_message("c", "m2"), Deleted(remaining=2))
    assert isinstance(engine.send("c", "m2"), Duplicate)
    engine.clock.advance(3000)
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m1", "m3"]


@pytest.mark.parametrize("state", [waiting, claimed, held])
def test_case_31_when_the_last_message_is_deleted_no_batch_is_emitted(engine: Engine, state: State) -> None:
    bus = Bus()
    state(engine)
    assert same(engine.store.delete_message("c", "old"), Deleted(remaining=0))
    assert_invariants(engine)
    run_until_idle(engine, bus)
    assert bus.events == []
    assert_nothing_left_behind(engine)


def test_case_31_deleting_what_came_behind_a_frozen_batch_keeps_that_batch(engine: Engine) -> None:
    bus = Bus()
    waiting_behind_a_frozen_batch(engine)
    assert same(engine.store.delete_message("c", "old too"), Deleted(remaining=0))
    assert_invariants(engine)
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["old"]
    assert_nothing_left_behind(engine)


def test_case_31_a_frozen_message_can_neither_be_edited_nor_deleted(engine: Engine) -> None:
    claimed(engine)
    taken = take(engine, "c", "t1")
    assert same(engine.store.edit_message("c", "old", payload=payload("old", "late")), Frozen(taken.batch_id))
    assert same(engine.store.delete_message("c", "old"), Frozen(taken.batch_id))
    assert take(engine, "c", "t1") == taken


def test_case_31_what_is_gone_or_never_came_is_absent(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "m1")
    run_until_idle(engine, bus)
    engine.send("c", "m2")
    for act in (
        lambda message_id: engine.store.edit_message("c", message_id, payload=b"x"),
        lambda message_id: engine.store.delete_message("c", message_id),
    ):
        assert same(act("m1"), Absent(known=True, batch_id=bus.events[0].batch_id))
        assert same(act("never"), Absent(known=False, batch_id=None))


def test_case_31_after_the_emission_a_message_names_the_batch_it_came_out_in(engine: Engine) -> None:
    bus = Bus()
    for n in range(20):
        engine.send("c", f"m{n}")
        engine.clock.advance(100 if n % 3 else 1)
        engine.send("c", f"edited {n}")
        run_until_idle(engine, bus)
        engine.clock.advance(1)
    assert len(bus.events) == 20
    for event in bus.events:
        for message_id in event.ids:
            assert same(engine.store.delete_message("c", message_id), Absent(known=True, batch_id=event.batch_id))


def test_case_31_an_emitted_batch_is_named_while_its_conversation_goes_on(engine: Engine) -> None:
    claimed(engine)
    batch_id = take(engine, "c", "t1").batch_id
    engine.clock.advance(1)
    engine.send("c", "newer")
    engine.store.complete_batch("c", "t1")
    assert same(engine.store.edit_message("c", "old", payload=b"x"), Absent(known=True, batch_id=batch_id))
    assert same(engine.store.edit_message("c", "newer", payload=b"x"), Edited(position=0, behind=0))


def test_case_31_of_batches_that_may_be_forgotten_none_is_named(engine: Engine) -> None:
    bus = Bus()
    engine.store = engine.another_store(SETTINGS._replace(max_emitted=3))
    for n in range(5):
        engine.send("c", f"m{n}")
        run_until_idle(engine, bus)
    named = [engine.store.delete_message("c", f"m{n}") for n in range(5)]
    expected = [None, None, None, bus.events[3].batch_id, bus.events[4].batch_id]
    assert named == [Absent(known=True, batch_id=batch_id) for batch_id in expected]


def test_case_31_an_id_that_begins_like_another_does_not_match_it(engine: Engine) -> None:
    for message_id in ("m1", 'm1"', "m", "m11"):
        engine.send("c", message_id)
    assert same(engine.store.delete_message("c", "m1"), Deleted(remaining=3))
    engine.clock.advance(3000)
    assert ids_of(claim_and_take(engine, "c").payloads) == ['m1"', "m", "m11"]


def test_case_31_the_search_for_a_message_is_bounded_and_begins_with_the_newest(engine: Engine) -> None:
    for n in range(12):
        engine.send("c", f"m{n}")
    store = engine.another_store(SETTINGS._replace(max_search=5))
    assert same(store.edit_message("c", "m7", payload=payload("m7", "new")), Edited(position=7, behind=4))
    assert same(store.edit_message("c", "m6", payload=payload("m6", "new")), Absent(known=True, batch_id=None))
