"""Processors and conversation processors die at every step; the watchdog and their successors bring the rest out."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import (
    LeaseLost,
)
from message_buffer.limits import WATCHDOG_PASS_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import (
    Bus,
    emit_due,
    run_until_idle,
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


@pytest.mark.case(12)
@pytest.mark.parametrize("calls", range(1, 13))
def test_there_is_no_moment_in_which_a_message_has_no_schedule(engine: Engine, calls: int) -> None:
    """Cut a whole life off after each of its calls: the keys hold, and the watchdog and new processors finish."""
    bus = Bus()
    life: list[Callable[[], object]] = [
        lambda: engine.send("c", "m1"),
        lambda: engine.send("c", "m2"),
        lambda: engine.clock.advance(3000),
        engine.claim,
        lambda: engine.store.take_batch("c", "t1"),
        lambda: engine.send("c", "m3"),
        lambda: engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 100),
        lambda: engine.clock.advance(100),
        engine.claim,
        lambda: engine.store.take_batch("c", "t2"),
        lambda: bus.emit(engine, "c", take(engine, "c", "t2")),
        lambda: engine.store.complete_batch("c", "t2"),
    ]
    for step in life[:calls]:
        step()
        assert_invariants(engine)
    run_until_idle(engine, bus)
    assert bus.ids("c") == [message_id for at, message_id in ((1, "m1"), (2, "m2"), (6, "m3")) if at <= calls]
    assert_nothing_left_behind(engine)
