"""A typing event makes a buffer wait longer, within max wait."""

from tests.support.emission import Bus, emit_due, run_until_idle
from tests.support.engine import Engine
from tests.support.invariants import assert_invariants
from tests.support.states import (
    waiting_behind_a_frozen_batch,
)


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
