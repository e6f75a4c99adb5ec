"""A typing event makes a buffer wait longer, within max wait."""

import pytest

from message_buffer.errors import InvalidInput
from message_buffer.lanes.outcomes import (
    Empty,
    Extended,
    Unmoved,
)
from message_buffer.rules.layers import Rules
from tests.support.due_times import FIXED
from tests.support.emission import Bus, claim_and_take, emit_due, run_until_idle
from tests.support.engine import Engine
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same
from tests.support.states import (
    waiting_behind_a_frozen_batch,
)

PLAIN = Rules(typing_inference_ms=0)


@pytest.mark.parametrize("wrong", [1500.5, 0, -1, 10**13, True])
def test_times_that_would_not_fit_into_the_buffer_are_refused(engine: Engine, wrong: float) -> None:
    engine.send("c", "m1")
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.extend_wait("c", extend_ms=wrong, max_wait_ms=30_000)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.extend_wait("c", extend_ms=100, max_wait_ms=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=wrong)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("times", [1, 3])
def test_an_extension_moves_due_by_the_millisecond(engine: Engine, times: int) -> None:
    engine.send("c", "m", rules=FIXED)
    for _ in range(times):
        engine.clock.advance(333)
        engine.store.extend_wait("c", extend_ms=1234, max_wait_ms=30_000)
    due_at_ms = engine.clock.now_ms + 1234
    engine.clock.now_ms = due_at_ms - 1
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]
