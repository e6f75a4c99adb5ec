"""Processors and conversation processors that die: at every step, with everything they held."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import (
    Buffered,
    Claimed,
    Duplicate,
    Lost,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import (
    WATCHDOG_PASS_MS,
    Bus,
    claim_and_take,
    emit_due,
    emit_one,
    ids_of,
    run_until_idle,
    take,
)
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants, assert_nothing_expires, assert_nothing_left_behind
from tests.support.outcomes import same

RULES = Rules()


LONGEST_CLAIM_MS = SETTINGS.claim_ms + SETTINGS.token_ms


FAILURES_BEFORE_SUCCESS = 4


def test_case_04_a_publish_that_fails_then_succeeds_keeps_id_content_and_order(engine: Engine) -> None:
    bus = Bus()
    for message_id in ("m1", "m2"):
        engine.send("c", message_id)
    engine.clock.advance(3000)
    batch_ids = set()
    for attempt in range(1, FAILURES_BEFORE_SUCCESS + 1):
        taken = claim_and_take(engine, "c", f"t{attempt}")
        assert (ids_of(taken.payloads), taken.attempt) == (["m1", "m2"], attempt)
        batch_ids.add(taken.batch_id)
        retry_at_ms = engine.clock.now_ms + 500
        engine.store.retry_batch("c", f"t{attempt}", retry_at_ms=retry_at_ms)
        assert isinstance(engine.send("c", f"later{attempt}"), Buffered), "and does not move the retry"
        engine.clock.now_ms = retry_at_ms - 1
        assert engine.claim() == []
        engine.clock.now_ms = retry_at_ms
    run_until_idle(engine, bus)
    assert len(batch_ids) == 1
    assert bus.events[0].batch_id in batch_ids
    assert bus.events[0].attempt == FAILURES_BEFORE_SUCCESS + 1
    assert bus.batches("c") == [["m1", "m2"], [f"later{n}" for n in range(1, FAILURES_BEFORE_SUCCESS + 1)]]


@pytest.mark.parametrize("reached_the_bus", [False, True])
def test_case_05_a_crash_between_take_and_the_answer_brings_the_same_batch_again(
    engine: Engine, reached_the_bus: bool
) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(1000)
    first = claim_and_take(engine, "c")
    if reached_the_bus:
        bus.emit(engine, "c", first)
    engine.send("c", "m2")
    run_until_idle(engine, bus)
    again = [event for event in bus.events if event.batch_id == first.batch_id][-1]
    assert (again.ids, again.attempt) == (["m1"], 2)
    assert bus.ids("c") == ["m1", "m2"]


# Where the machinery dies, as the number of steps it still took: none, claim, take, emit.
DEATHS = range(4)


def die_after(steps: int, engine: Engine, bus: Bus, conversation: str) -> None:
    if steps >= 1:
        assert engine.claim() == [conversation]
    if steps >= 2:
        taken = take(engine, conversation)
        if steps >= 3:
            bus.emit(engine, conversation, taken)


@pytest.mark.parametrize("steps", DEATHS)
@pytest.mark.parametrize("newer", [False, True])
def test_case_06_16_and_p7_after_a_crash_in_any_state_a_watchdog_pass_and_a_new_processor_heal(
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
        if recovered.start_processor or not same(engine.store.renew_lease(0, engine.processor), Lost()):
            emit_due(engine, bus)
        assert engine.clock.now_ms <= crashed_ms + SETTINGS.lease_ms + LONGEST_CLAIM_MS + WATCHDOG_PASS_MS
    assert_nothing_left_behind(engine)


def test_case_06_when_every_processor_dies_the_bound_is_max_wait_claim_timeout_and_a_pass(
    engine: Engine,
) -> None:
    bus, conversations = Bus(), [f"c{n}" for n in range(20)]
    for conversation in conversations:
        engine.send(conversation, "m1")
    sent_ms = engine.clock.now_ms
    engine.clock.advance(RULES.silence_ms)
    engine.work()
    claimed = engine.store.claim_due(0, engine.processor, limit=7)
    assert isinstance(claimed, Claimed)
    assert len(claimed.conversations) == 7

    bound_ms = sent_ms + RULES.max_wait_ms + SETTINGS.claim_ms + WATCHDOG_PASS_MS
    engine.processor = "lease-2"
    while len(bus.events) < len(conversations):
        engine.clock.advance(WATCHDOG_PASS_MS)
        if engine.store.recover_expired(0).start_processor:
            emit_due(engine, bus)
    assert engine.clock.now_ms <= bound_ms


@pytest.mark.parametrize("calls", range(1, 13))
def test_case_12_there_is_no_moment_in_which_a_message_has_no_schedule(engine: Engine, calls: int) -> None:
    """A whole life, cut off after each of its calls: the keys hold, and the rest of the machine finishes."""
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


def test_case_29_nothing_with_a_message_expires_in_any_state(strict: Engine) -> None:
    """Times to live are the server's own, so this store asks for the shortest there is."""
    engine = strict
    engine.store = engine.another_store(SETTINGS._replace(seen_ms=1))
    engine.send("c", "m0", rules=Rules(adaptive=True))
    run_until_idle(engine, Bus())
    steps: list[Callable[[], object]] = [
        lambda: engine.send("c", "m1", rules=Rules(adaptive=True)),
        lambda: engine.store.hold_buffer("c", hold_ms=1),
        lambda: engine.store.resume_buffer("c"),
        lambda: engine.store.extend_wait("c", extend_ms=9000, max_wait_ms=9000),
        lambda: engine.store.retime_buffer("c", timing=Rules(silence_ms=5000).timing),
        lambda: engine.store.flush_buffer("c"),
        engine.claim,
        lambda: take(engine, "c", "t1"),
        lambda: engine.store.hold_buffer("c", hold_ms=1),
        lambda: engine.send("c", "m2", rules=Rules(adaptive=True)),
        lambda: engine.store.delete_message("c", "m2"),
        lambda: engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms),
        lambda: engine.send("c", "m3", rules=Rules(adaptive=True)),
        engine.claim,
        lambda: engine.store.take_batch("c", "t2"),
    ]
    for step in steps:
        step()
        assert_nothing_expires(engine.keys(), "c")


def test_case_29_a_message_that_nobody_fetches_for_weeks_is_still_emitted(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(40 * 86_400_000)
    emit_due(engine, bus)
    assert bus.ids("c") == ["m1"]


def test_case_30_a_poison_batch_is_given_up_after_n_and_its_lane_goes_on(engine: Engine) -> None:
    """The conversation processor sends it to the dead letters, then completes it."""
    bus, give_up_after = Bus(), 3
    engine.send("c", "poison")
    engine.send("d", "m1")
    engine.clock.advance(1000)
    for attempt in range(1, give_up_after + 1):
        claimed = engine.claim()
        if "d" in claimed:
            emit_one(engine, bus, "d")
        taken = take(engine, "c", f"t{attempt}")
        assert taken.attempt == attempt
        if attempt < give_up_after:
            engine.store.retry_batch("c", f"t{attempt}", retry_at_ms=engine.clock.now_ms + 50)
            engine.send("c", f"m{attempt}")
            engine.clock.advance(50)
    assert bus.batches("d") == [["m1"]], "nobody else waited for it"
    engine.store.complete_batch("c", f"t{give_up_after}")
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["m1", "m2"]]
    assert isinstance(engine.send("c", "poison"), Duplicate), "a redelivery does not bring it back"


def test_case_30_a_batch_given_up_can_be_sent_again_under_new_ids(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "poison")
    engine.clock.advance(1000)
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    engine.send("c", "redriven:poison")
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["redriven:poison"]]
