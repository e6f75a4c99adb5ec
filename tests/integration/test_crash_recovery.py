"""Processors and conversation processors die at every step; the watchdog and their successors bring the rest out."""

import pytest

from message_buffer.lanes.outcomes import (
    LeaseLost,
)
from message_buffer.limits import WATCHDOG_PASS_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import (
    Bus,
    emit_due,
    take,
)
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import same

RULES = Rules()


LONGEST_CLAIM_MS = SETTINGS.claim_ms + SETTINGS.token_ms


# The number of steps before the processor or its conversation processor dies: none, claim, take, emit.
DEATHS = range(4)


def die_after(steps: int, engine: Engine, bus: Bus, conversation: str) -> None:
    if steps >= 1:
        assert engine.claim() == [conversation]
    if steps >= 2:
        taken = take(engine, conversation)
        if steps >= 3:
            bus.emit(engine, conversation, taken)


@pytest.mark.case(6, 16)
@pytest.mark.promise("P7")
@pytest.mark.parametrize("steps", DEATHS)
@pytest.mark.parametrize("newer", [False, True])
def test_after_a_crash_in_any_state_a_watchdog_pass_and_a_new_processor_heal(
    engine: Engine, steps: int, newer: bool
) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(RULES.silence_ms)
    engine.work()
    die_after(steps, engine, bus, "c")
    if newer:
        engine.send("c", "m2")
    expected = ["m1", "m2"] if newer else ["m1"]
    crashed_ms = engine.clock.now_ms

    engine.processor = "lease-2"
    while bus.ids("c") != expected or "{b0}:batch:c" in engine.settle():
        engine.clock.advance(WATCHDOG_PASS_MS // 2)
        recovered = engine.store.recover_expired(0)
        assert_invariants(engine)
        if recovered.start_id or not same(engine.store.renew_lease(0, engine.processor), LeaseLost()):
            emit_due(engine, bus)
        assert engine.clock.now_ms <= crashed_ms + SETTINGS.lease_ms + LONGEST_CLAIM_MS + WATCHDOG_PASS_MS
    assert_nothing_left_behind(engine)
