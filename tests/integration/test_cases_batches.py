"""Cases others met while batches go out: crashes, late conversation processors, new messages at every instant."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from message_buffer.lanes.outcomes import (
    Buffered,
    Busy,
    Claimed,
    Completed,
    Empty,
    Lost,
    Released,
    Stale,
    Taken,
    WorkIsNear,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import (
    Bus,
    claim_and_take,
    run_until_idle,
    take,
)
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import same

RULES = Rules()


def test_case_01_a_message_between_the_last_empty_look_and_the_release_keeps_the_processor(
    engine: Engine,
) -> None:
    assert engine.claim() == []
    engine.send("c", "m1")
    left = engine.store.leave_if_idle(0, engine.processor)
    assert same(left, WorkIsNear(next_due_at_ms=engine.clock.now_ms + RULES.silence_ms))


def test_case_01_a_message_right_after_the_release_starts_a_processor(engine: Engine) -> None:
    assert engine.claim() == []
    assert same(engine.store.leave_if_idle(0, engine.processor), Released(None, start_processor=False))
    assert engine.send("c", "m1").start_processor


def test_case_02_a_late_conversation_processor_is_refused_and_the_frozen_batch_is_emitted(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(1000)
    slow = claim_and_take(engine, "c", "slow")
    engine.send("c", "m2")
    engine.clock.advance(SETTINGS.token_ms)
    assert engine.store.recover_expired(0).conversations == ["c"]
    fast = claim_and_take(engine, "c", "fast")
    assert (fast.batch_id, fast.payloads, fast.attempt) == (slow.batch_id, slow.payloads, 2)
    before = engine.settle()
    assert same(engine.store.complete_batch("c", "slow"), Stale())
    assert same(engine.store.retry_batch("c", "slow", retry_at_ms=0), Stale())
    assert isinstance(engine.store.take_batch("c", "slow"), Busy)
    assert engine.settle() == before
    bus.emit(engine, "c", fast)
    assert isinstance(engine.store.complete_batch("c", "fast"), Completed)
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["m1"], ["m2"]]


def test_case_02_a_conversation_processor_that_is_only_slow_may_finish_until_another_has_taken(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    claim_and_take(engine, "c", "slow")
    engine.clock.advance(SETTINGS.token_ms)
    engine.store.recover_expired(0)
    assert isinstance(engine.store.complete_batch("c", "slow"), Completed)
    assert engine.claim() == []
    engine.clock.advance(1)
    assert_nothing_left_behind(engine)


def test_case_14_two_processors_that_claim_at_once_have_one_winner_each(engine: Engine) -> None:
    names = {f"c{n}" for n in range(200)}
    for name in names:
        engine.send(name, "m1", rules=Rules(priority="vip"))
    engine.work()

    def claim_all(_: int) -> list[str]:
        store, mine = engine.another_store(), list[str]()
        while True:
            claimed = store.claim_due(0, engine.processor, limit=7)
            assert isinstance(claimed, Claimed)
            if not claimed.conversations:
                return mine
            mine += [due.conversation for due in claimed.conversations]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(claim_all, range(2))
    assert len(one) + len(other) == 200
    assert set(one) | set(other) == names


def test_case_14_of_two_processors_only_the_one_with_the_lease_claims(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(priority="vip"))
    engine.work()
    assert same(engine.store.claim_due(0, "another"), Lost())
    assert engine.claim() == ["c"]


def test_case_15_an_old_completion_leaves_the_new_cycle_untouched(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    engine.send("c", "m2")
    engine.clock.advance(1000)
    second = claim_and_take(engine, "c", "t2")
    before = engine.settle()
    engine.store.complete_batch("c", "t1")
    assert same(engine.store.retry_batch("c", "t1", retry_at_ms=0), Stale())
    assert engine.settle() == before
    assert take(engine, "c", "t2") == second
    assert isinstance(engine.store.complete_batch("c", "t2"), Completed)
    assert same(engine.store.complete_batch("c", "t1"), Stale())


@pytest.mark.parametrize("at", range(7))
def test_case_17_a_message_at_any_instant_of_processing_is_in_this_batch_or_the_next(engine: Engine, at: int) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(1000)
    engine.work()
    steps: list[Callable[[], object]] = [
        engine.claim,
        lambda: engine.store.take_batch("c", "t1"),
        lambda: engine.store.take_batch("c", "t1"),
        lambda: bus.emit(engine, "c", take(engine, "c", "t1")),
        lambda: engine.store.complete_batch("c", "t1"),
        lambda: engine.store.complete_batch("c", "t1"),
    ]
    for n, step in enumerate(steps):
        if n == at:
            assert isinstance(engine.send("c", "m2"), Buffered)
        step()
    if at == len(steps):
        assert isinstance(engine.send("c", "m2"), Buffered)
    assert_invariants(engine)
    run_until_idle(engine, bus)
    assert bus.batches("c") == ([["m1", "m2"]] if at <= 1 else [["m1"], ["m2"]])


def test_a_conversation_processor_invoked_twice_emits_once(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda n: engine.another_store().take_batch("c", f"t{n}"), range(8)))
    assert [type(outcome) for outcome in outcomes].count(Taken) == 1
    assert [type(outcome) for outcome in outcomes].count(Busy) == 7


def test_a_claim_that_finds_the_buffer_gone_is_empty_or_stale_and_leaves_nothing(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    engine.store.delete_message("c", "m1")
    assert isinstance(engine.store.take_batch("c", "t1"), Stale | Empty)
    assert_nothing_left_behind(engine)
