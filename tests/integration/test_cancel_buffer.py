"""A cancel drops what is older, and nothing newer."""

import pytest

from message_buffer.lanes.outcomes import (
    AlreadyCancelled,
    BufferCancelled,
    MessageBuffered,
    RunStale,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, emit_due, run_until_idle, take
from tests.support.engine import Engine
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


def leave_cancelled_batch_behind(engine: Engine, newer: Rules) -> None:
    """Cancel during the emission, send a newer message, then let the conversation processor die."""
    left_by_a_dead_conversation_processor(engine)
    engine.clock.advance(-1)
    assert engine.cancel("c").leaving
    engine.send("c", "newer", rules=newer)
    engine.clock.advance(1)
    engine.store.recover_expired(0)


@pytest.mark.case(23)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("newer", [False, True])
def test_after_a_cancel_nothing_older_is_emitted_and_newer_is(engine: Engine, state: State, newer: bool) -> None:
    bus = Bus()
    state(engine)
    cancelled = engine.cancel("c")
    assert not cancelled.leaving
    assert cancelled.buffered + cancelled.frozen >= 1
    assert_invariants(engine)
    if newer:
        assert isinstance(engine.send("c", "newer"), MessageBuffered)
    run_until_idle(engine, bus)
    assert bus.ids("c") == (["newer"] if newer else [])
    assert_nothing_left_behind(engine)


@pytest.mark.case(23)
def test_a_cancel_during_the_emission_says_so_and_the_batch_is_not_tried_again(
    engine: Engine,
) -> None:
    bus = Bus()
    claimed(engine)
    take(engine, "c", "t1")
    engine.send("c", "old too")
    cancelled = engine.cancel("c")
    assert (cancelled.leaving, cancelled.frozen, cancelled.buffered) == (True, 1, 1)
    engine.send("c", "newer")
    assert same(engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms), RunStale())
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["newer"]
    assert_nothing_left_behind(engine)


@pytest.mark.case(23)
def test_after_a_cancel_the_conversation_processor_that_held_the_batch_has_nothing_to_complete(
    engine: Engine,
) -> None:
    bus = Bus()
    claimed(engine)
    take(engine, "c", "t1")
    engine.cancel("c")
    engine.send("c", "newer")
    before = engine.settle()
    assert same(engine.store.take_batch("c", "t1"), RunStale())
    assert same(engine.store.complete_batch("c", "t1"), RunStale())
    assert engine.settle() == before
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["newer"]]
    assert_nothing_left_behind(engine)


@pytest.mark.case(23)
def test_what_is_held_behind_a_cancelled_batch_stays_held(engine: Engine) -> None:
    bus = Bus()
    leave_cancelled_batch_behind(engine, newer=PLAIN)
    held_until_ms = engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=600_000).held_until_ms
    emit_due(engine, bus)
    assert bus.events == [], "a human has taken over"
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["newer"]]
    assert bus.events[0].at_ms >= held_until_ms


def test_cancelling_an_idle_conversation_leaves_nothing(engine: Engine) -> None:
    assert same(engine.cancel("c"), BufferCancelled(1, 0, 0, leaving=False))
    assert_nothing_left_behind(engine)


def test_a_cancel_repeated_after_its_answer_was_lost_spares_what_came_since(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.store.cancel_buffer("c", cancel_id="the message that said stop")
    engine.send("c", "m2")
    assert isinstance(engine.store.cancel_buffer("c", cancel_id="the message that said stop"), AlreadyCancelled)
    assert engine.store.peek_conversation("c").count == 1


def test_a_cancel_remembers_the_last_arrival(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.store.cancel_buffer("c")
    assert engine.store.peek_conversation("c").last_at_ms == engine.clock.now_ms
