"""Flush, hold, resume, extend and peek: what people and typing events may do to a waiting buffer."""

import pytest

from message_buffer.errors import InvalidInput
from message_buffer.lanes.outcomes import (
    Busy,
    Completed,
    Empty,
    Extended,
    Flushed,
    NotOnHold,
    Resumed,
    Stale,
    Taken,
    Unmoved,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, claim_and_take, emit_due, emit_one, ids_of, run_until_idle, take
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same
from tests.support.states import (
    claimed,
    held,
    waiting_behind_a_frozen_batch,
    waiting_for_retry,
)

PLAIN = Rules(typing_inference_ms=0)


def test_a_flush_makes_it_due_now_with_its_own_reason(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(100)
    flushed = engine.store.flush_buffer("c")
    assert same(flushed, Flushed(engine.clock.now_ms, 1, start_processor=False))
    assert claim_and_take(engine, "c").flush_reason == "flush"


def test_a_flush_of_nothing_is_empty_and_writes_nothing(engine: Engine) -> None:
    assert same(engine.store.flush_buffer("c"), Empty())
    assert engine.keys() == {}


def test_a_flush_brings_a_waiting_retry_forward_unchanged(engine: Engine) -> None:
    bus = Bus()
    waiting_for_retry(engine)
    engine.send("c", "m2")
    assert isinstance(engine.store.flush_buffer("c"), Flushed)
    assert emit_due(engine, bus) == ["c"]
    assert bus.batches("c") == [["old"]]
    assert emit_due(engine, bus) == ["c"], "and what was behind it follows at once"
    assert bus.batches("c") == [["old"], ["m2"]]


def test_a_flush_while_a_conversation_processor_works_is_for_what_came_meanwhile(engine: Engine) -> None:
    claimed(engine)
    take(engine, "c", "t1")
    engine.send("c", "m2")
    engine.store.flush_buffer("c")
    assert engine.claim() == []
    completed = engine.store.complete_batch("c", "t1")
    assert isinstance(completed, Completed)
    assert completed.next_due_at_ms == engine.clock.now_ms
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m2"]


def test_a_hold_keeps_everything_back_until_resumed(engine: Engine) -> None:
    engine.send("c", "m1")
    assert engine.store.hold_buffer("c", hold_ms=600_000).held_until_ms == engine.clock.now_ms + 600_000
    for n in range(2, 30):
        engine.clock.advance(2000)
        engine.send("c", f"m{n}", rules=Rules(max_messages=2))
        assert engine.claim() == []
    resumed = engine.store.resume_buffer("c")
    assert isinstance(resumed, Resumed)
    assert resumed.due_at_ms == engine.clock.now_ms
    taken = claim_and_take(engine, "c")
    assert (taken.flush_reason, len(taken.payloads)) == ("resume", 29)


def test_a_hold_ends_at_its_ceiling(engine: Engine) -> None:
    bus = Bus()
    held(engine)
    assert run_until_idle(engine, bus) == 60_000
    assert bus.events[0].reason == "hold"
    engine.send("c", "m2")
    assert run_until_idle(engine, bus) == 1000


def test_a_hold_calls_a_claimed_conversation_back(engine: Engine) -> None:
    claimed(engine)
    engine.store.hold_buffer("c", hold_ms=60_000)
    assert_invariants(engine)
    assert same(engine.store.take_batch("c", "t1"), Stale())
    assert engine.claim() == []


def test_a_hold_lets_a_frozen_batch_go_and_keeps_what_is_behind_it(engine: Engine) -> None:
    bus = Bus()
    waiting_behind_a_frozen_batch(engine)
    engine.store.recover_expired(0)
    held_until_ms = engine.store.hold_buffer("c", hold_ms=60_000).held_until_ms
    assert emit_due(engine, bus) == ["c"]
    assert bus.ids("c") == ["old"]
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["old", "old too"]
    assert bus.events[-1].at_ms == held_until_ms


def test_a_hold_on_an_idle_conversation_can_neither_expire_nor_be_evicted(engine: Engine) -> None:
    engine.store.hold_buffer("c", hold_ms=60_000)
    assert {name: key.ttl_ms for name, key in engine.keys().items()} == {"{b0}:held": -1}
    assert engine.send("c", "m1").due_at_ms == engine.clock.now_ms + 60_000


def test_a_hold_that_ran_out_is_swept_a_minute_later(engine: Engine) -> None:
    held_until_ms = engine.store.hold_buffer("c", hold_ms=60_000).held_until_ms
    engine.store.hold_buffer("stands", hold_ms=600_000)
    engine.clock.now_ms = held_until_ms + 59_999
    engine.store.recover_expired(0)
    assert engine.store.peek_conversation("c").held_until_ms == held_until_ms
    engine.clock.advance(1)
    engine.store.recover_expired(0)
    assert engine.store.peek_conversation("c").held_until_ms is None
    assert engine.store.peek_conversation("stands").held_until_ms is not None


@pytest.mark.parametrize("become_idle", ["complete", "cancel", "delete"])
def test_a_hold_outlives_the_conversation_becoming_idle(engine: Engine, become_idle: str) -> None:
    held_until_ms = engine.store.hold_buffer("c", hold_ms=SETTINGS.seen_ms).held_until_ms
    engine.send("c", "m1")
    engine.store.flush_buffer("c")
    match become_idle:
        case "complete":
            claim_and_take(engine, "c", "t1")
            engine.store.complete_batch("c", "t1")
        case "cancel":
            engine.store.cancel_buffer("c")
        case _:
            engine.store.delete_message("c", "m1")
    assert engine.send("c", "m2").due_at_ms == held_until_ms


@pytest.mark.parametrize("hold_ms", [0, -1, 86_400_001])
def test_a_hold_longer_than_a_day_is_refused(engine: Engine, hold_ms: int) -> None:
    with pytest.raises(InvalidInput, match="hold_ms is a whole number from 1 to 86400000, not"):
        engine.store.hold_buffer("c", hold_ms=hold_ms)
    assert engine.keys() == {}


def test_a_hold_is_not_made_shorter_by_a_shorter_one(engine: Engine) -> None:
    engine.send("c", "m1")
    long = engine.store.hold_buffer("c", hold_ms=3_600_000)
    assert engine.store.hold_buffer("c", hold_ms=10_000).held_until_ms == long.held_until_ms
    engine.clock.now_ms = long.held_until_ms - 1
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


def test_a_flush_word_does_not_break_a_hold(engine: Engine) -> None:
    held_until_ms = engine.store.hold_buffer("c", hold_ms=60_000).held_until_ms
    assert engine.send("c", "m1", rules=Rules(priority="vip")).due_at_ms == held_until_ms


def test_resuming_what_is_not_held_changes_nothing(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1").due_at_ms
    before = engine.settle()
    assert same(engine.store.resume_buffer("c"), NotOnHold(due_at_ms, start_processor=False))
    assert engine.settle() == before


def test_a_typing_event_makes_it_wait_within_the_bound(engine: Engine) -> None:
    first_at_ms = engine.clock.now_ms
    engine.send("c", "m1", rules=PLAIN)
    engine.clock.advance(500)
    assert same(engine.store.extend_wait("c", extend_ms=2000, max_wait_ms=30_000), Extended(first_at_ms + 2500))
    assert same(engine.store.extend_wait("c", extend_ms=1000, max_wait_ms=30_000), Unmoved(first_at_ms + 2500))
    assert same(engine.store.extend_wait("c", extend_ms=9000, max_wait_ms=4000), Extended(first_at_ms + 4000))
    engine.clock.now_ms = first_at_ms + 3999
    assert engine.claim() == []
    engine.clock.advance(1)
    assert claim_and_take(engine, "c").flush_reason == "max_wait"


def test_a_typing_event_neither_opens_a_buffer_nor_delays_what_is_due(engine: Engine) -> None:
    assert same(engine.store.extend_wait("c", extend_ms=2000, max_wait_ms=30_000), Empty())
    assert engine.keys() == {}
    due_at_ms = engine.send("c", "m1").due_at_ms
    engine.clock.advance(1000)
    assert same(engine.store.extend_wait("c", extend_ms=2000, max_wait_ms=30_000), Unmoved(due_at_ms or 0))
    assert engine.claim() == ["c"]


def test_a_typing_event_behind_a_frozen_batch_delays_only_what_is_behind_it(engine: Engine) -> None:
    bus = Bus()
    waiting_behind_a_frozen_batch(engine)
    sent_ms = engine.clock.now_ms
    engine.store.recover_expired(0)
    engine.store.extend_wait("c", extend_ms=9000, max_wait_ms=30_000)
    assert_invariants(engine)
    assert emit_due(engine, bus) == ["c"]
    run_until_idle(engine, bus)
    assert [event.at_ms for event in bus.events] == [sent_ms, sent_ms + 9000]


def test_peek_tells_each_state(engine: Engine) -> None:
    assert engine.store.peek_conversation("c").state == "IDLE"
    waiting_behind_a_frozen_batch(engine)
    seen = engine.store.peek_conversation("c", limit=10)
    assert (seen.state, seen.frozen, seen.attempt, seen.count) == ("INFLIGHT", 1, 1, 1)
    assert ids_of(seen.payloads) == ["old too"]
    engine.store.recover_expired(0)
    assert engine.store.peek_conversation("c").state == "PENDING"
    assert isinstance(engine.store.take_batch("c", "t9"), Stale | Busy | Taken)
    assert emit_one(engine, Bus(), "c") is None, "pending: not claimed"
