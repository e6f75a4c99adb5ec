"""A typing event makes a buffer wait longer, within max wait."""

import pytest

from message_buffer.errors import InvalidInput
from tests.support.emission import Bus, emit_due, run_until_idle
from tests.support.engine import Engine
from tests.support.invariants import assert_invariants
from tests.support.states import (
    waiting_behind_a_frozen_batch,
)


@pytest.mark.parametrize("wrong", [1500.5, 0, -1, 10**13, True])
def test_times_that_would_not_fit_into_the_buffer_are_refused(engine: Engine, wrong: float) -> None:
    engine.send("c", "m1")
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.extend_wait("c", extend_ms=wrong, max_wait_ms=30_000)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.extend_wait("c", extend_ms=100, max_wait_ms=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=wrong)  # type: ignore[arg-type]


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
