"""One processor a shard: the lease, the start reservation, and what nobody may do without them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from message_buffer.lanes.outcomes import (
    Acquired,
    Completed,
    Flushed,
    LeaseTaken,
    Lost,
    Recovered,
    Released,
    Renewed,
    Resumed,
    Retried,
    WorkIsNear,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, claim_and_take, run_until_idle
from tests.support.engine import SETTINGS, Engine
from tests.support.outcomes import same

NOW = Rules(priority="vip")


LATE = Rules(silence_ms=200_000, max_wait_ms=300_000)


def test_one_processor_holds_the_lease_until_it_runs_out(engine: Engine) -> None:
    expires_at_ms = engine.clock.now_ms + SETTINGS.lease_ms
    assert same(engine.store.acquire_lease(0, "one"), Acquired(expires_at_ms))
    assert same(engine.store.acquire_lease(0, "other"), LeaseTaken(expires_at_ms))
    engine.clock.advance(SETTINGS.lease_ms - 1)
    assert same(engine.store.acquire_lease(0, "other"), LeaseTaken(expires_at_ms))
    engine.clock.advance(1)
    assert isinstance(engine.store.acquire_lease(0, "other"), Acquired)
    assert same(engine.store.renew_lease(0, "one"), Lost())


def test_renewing_prolongs_lease_and_heartbeat_together(engine: Engine) -> None:
    engine.store.acquire_lease(0, "one")
    engine.clock.advance(SETTINGS.lease_ms - 1)
    assert same(engine.store.renew_lease(0, "one"), Renewed(engine.clock.now_ms + SETTINGS.lease_ms))
    assert engine.store.recover_expired(0).heartbeat_at_ms == engine.clock.now_ms
    engine.clock.advance(SETTINGS.lease_ms - 1)
    assert isinstance(engine.store.acquire_lease(0, "other"), LeaseTaken)


def test_a_lease_that_ran_out_is_not_revived_but_may_be_acquired_again(engine: Engine) -> None:
    engine.store.acquire_lease(0, "one")
    engine.clock.advance(SETTINGS.lease_ms)
    assert same(engine.store.renew_lease(0, "one"), Lost())
    assert isinstance(engine.store.acquire_lease(0, "one"), Acquired)


def test_acquiring_again_is_renewing(engine: Engine) -> None:
    engine.store.acquire_lease(0, "one")
    engine.clock.advance(5000)
    assert same(engine.store.acquire_lease(0, "one"), Acquired(engine.clock.now_ms + SETTINGS.lease_ms))


def test_of_fifty_processors_that_come_at_once_one_gets_the_lease(engine: Engine) -> None:
    line = Barrier(50)

    def come(n: int) -> object:
        store = engine.another_store()
        line.wait(timeout=30)
        return store.acquire_lease(0, f"lease-{n}")

    with ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(come, range(50)))
    assert [type(outcome) for outcome in outcomes].count(Acquired) == 1
    assert [type(outcome) for outcome in outcomes].count(LeaseTaken) == 49


def test_shards_have_leases_of_their_own(engine: Engine) -> None:
    store = engine.another_store(SETTINGS._replace(shards=3))
    for shard in range(3):
        assert isinstance(store.acquire_lease(shard, f"lease-{shard}"), Acquired)
    assert isinstance(store.acquire_lease(1, "lease-2"), LeaseTaken)


FENCED: dict[str, Callable[[Engine, str], object]] = {
    "renew_lease": lambda engine, lease: engine.store.renew_lease(0, lease),
    "leave_if_idle": lambda engine, lease: engine.store.leave_if_idle(0, lease),
    "hand_over": lambda engine, lease: engine.store.hand_over(0, lease),
    "claim_due": lambda engine, lease: engine.store.claim_due(0, lease),
    "return_claim": lambda engine, lease: engine.store.return_claim("c", lease, due_at_ms=0),
}


@pytest.mark.parametrize("script", FENCED)
def test_p6_a_processor_that_lost_its_lease_changes_nothing(engine: Engine, script: str) -> None:
    engine.send("c", "m1", rules=NOW)
    engine.send("d", "m1", rules=NOW)
    engine.store.acquire_lease(0, "old")
    engine.store.claim_due(0, "old", limit=1)
    engine.clock.advance(SETTINGS.lease_ms)
    engine.store.acquire_lease(0, "new")
    before = engine.settle()
    assert same(FENCED[script](engine, "old"), Lost())
    assert engine.settle() == before


@pytest.mark.parametrize("script", ["renew_lease", "claim_due", "return_claim"])
def test_p6_a_lease_is_worth_nothing_from_its_last_millisecond_on(engine: Engine, script: str) -> None:
    engine.send("c", "m1", rules=NOW)
    engine.send("d", "m1", rules=NOW)
    engine.store.acquire_lease(0, "old")
    engine.store.claim_due(0, "old", limit=1)
    engine.clock.advance(SETTINGS.lease_ms)
    before = engine.settle()
    assert same(FENCED[script](engine, "old"), Lost())
    assert engine.settle() == before


@pytest.mark.parametrize("script", FENCED)
def test_p6_nobody_acts_on_a_shard_that_was_never_acquired(engine: Engine, script: str) -> None:
    assert same(FENCED[script](engine, "none"), Lost())
    assert engine.keys() == {}


def test_a_processor_that_lost_its_lease_may_leave_when_nobody_came(engine: Engine) -> None:
    engine.store.acquire_lease(0, "old")
    engine.clock.advance(SETTINGS.lease_ms)
    assert same(engine.store.leave_if_idle(0, "old"), Released(None, start_processor=False))


def test_fifty_callers_start_one_processor(engine: Engine) -> None:
    line = Barrier(50)

    def send(n: int) -> bool:
        store = engine.another_store()
        line.wait(timeout=30)
        return store.buffer_message(f"c{n}", "m1", payload=b'"m1"\n{}', timing=NOW.timing).start_processor

    with ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(send, range(50))) == 1


def test_a_start_that_led_to_nothing_is_tried_again_after_the_reservation(engine: Engine) -> None:
    assert engine.send("c", "m1").start_processor
    engine.clock.advance(SETTINGS.start_ms - 1)
    assert not engine.send("c", "m2").start_processor
    assert not engine.store.recover_expired(0).start_processor
    engine.clock.advance(1)
    assert engine.store.recover_expired(0).start_processor
    assert not engine.send("c", "m3").start_processor


def test_a_duplicate_may_be_the_one_that_starts_it(engine: Engine) -> None:
    """The first sender may have died between buffering and starting."""
    assert engine.send("c", "m1").start_processor
    engine.clock.advance(SETTINGS.start_ms)
    assert engine.send("c", "m1").start_processor


def test_a_processor_that_came_ends_the_reservation(engine: Engine) -> None:
    assert engine.send("c", "m1").start_processor
    engine.work()
    assert not engine.send("c", "m2").start_processor
    engine.clock.advance(SETTINGS.lease_ms)
    assert engine.send("c", "m3").start_processor, "it died: no reservation stands in the way"


def schedule_by_complete(engine: Engine) -> bool:
    engine.send("c", "m2")
    completed = engine.store.complete_batch("c", "t1")
    assert isinstance(completed, Completed)
    return completed.start_processor


def schedule_by_retry(engine: Engine) -> bool:
    retried = engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 100)
    assert isinstance(retried, Retried)
    return retried.start_processor


def schedule_by_flush(engine: Engine) -> bool:
    engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 3_600_000)
    flushed = engine.store.flush_buffer("c")
    assert isinstance(flushed, Flushed)
    return flushed.start_processor


def schedule_by_resume(engine: Engine) -> bool:
    engine.store.hold_buffer("d", hold_ms=3_600_000)
    assert not engine.send("d", "m1").start_processor, "held beyond the horizon"
    resumed = engine.store.resume_buffer("d")
    assert isinstance(resumed, Resumed)
    return resumed.start_processor


def schedule_by_recover(engine: Engine) -> bool:
    engine.clock.advance(SETTINGS.token_ms)
    return engine.store.recover_expired(0).start_processor


@pytest.mark.parametrize(
    "schedule",
    [schedule_by_complete, schedule_by_retry, schedule_by_flush, schedule_by_resume, schedule_by_recover],
)
@pytest.mark.parametrize("alive", [False, True])
def test_whoever_schedules_answers_for_a_processor(
    engine: Engine, schedule: Callable[[Engine], bool], alive: bool
) -> None:
    engine.store = engine.another_store(SETTINGS._replace(lease_ms=3_600_000))
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    if not alive:
        engine.store.hand_over(0, engine.processor)
    engine.clock.advance(SETTINGS.start_ms)
    if alive:
        assert not schedule(engine)
    else:
        begun = engine.keys().get("{b0}:processor")
        assert begun is None or b"lease_id" not in begun.pairs
        started = schedule(engine) or b"starting_by" in engine.keys()["{b0}:processor"].pairs
        assert started


def test_p8_work_beyond_the_horizon_starts_no_processor_until_it_is_near(engine: Engine) -> None:
    buffered = engine.send("c", "m1", rules=LATE)
    assert not buffered.start_processor
    assert engine.keys().keys() == {"{b0}:pending", "{b0}:open", "{b0}:msgs:c", "{b0}:seen:c"}
    engine.clock.now_ms = (buffered.due_at_ms or 0) - SETTINGS.horizon_ms - 1
    assert not engine.store.recover_expired(0).start_processor
    engine.clock.advance(1)
    assert engine.store.recover_expired(0).start_processor


def test_p8_an_empty_shard_starts_no_processor(engine: Engine) -> None:
    recovered = engine.store.recover_expired(0)
    assert same(recovered, Recovered(0, 0, None, None, start_processor=False, conversations=[]))
    assert engine.keys() == {}


def test_an_idle_processor_may_leave_and_the_next_message_starts_one(engine: Engine) -> None:
    engine.work()
    assert same(engine.store.leave_if_idle(0, engine.processor), Released(None, start_processor=False))
    assert same(engine.store.renew_lease(0, engine.processor), Lost())
    assert engine.send("c", "m1").start_processor


def test_leaving_is_refused_while_work_is_near(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1").due_at_ms
    engine.work()
    assert same(engine.store.leave_if_idle(0, engine.processor), WorkIsNear(due_at_ms or 0))
    assert isinstance(engine.store.renew_lease(0, engine.processor), Renewed), "it kept the lease"


def test_leaving_is_allowed_when_the_next_due_time_lies_beyond_the_horizon(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1", rules=LATE).due_at_ms
    engine.work()
    assert same(engine.store.leave_if_idle(0, engine.processor), Released(due_at_ms, start_processor=False))
    engine.clock.now_ms = (due_at_ms or 0) - SETTINGS.horizon_ms
    engine.work()
    assert same(engine.store.leave_if_idle(0, engine.processor), WorkIsNear(due_at_ms or 0))


def test_leaving_while_batches_are_in_flight_loses_nothing(engine: Engine) -> None:
    """What is in flight has its conversation processor; if that one dies, the watchdog has it."""
    bus = Bus()
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    assert isinstance(engine.store.leave_if_idle(0, engine.processor), Released)
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["m1"]


def test_a_hand_over_reserves_the_successor(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1").due_at_ms
    engine.work()
    assert same(engine.store.hand_over(0, engine.processor), Released(due_at_ms, start_processor=True))
    assert not engine.send("c", "m2").start_processor, "the successor is on its way"
    assert isinstance(engine.store.acquire_lease(0, "successor"), Acquired)
    assert same(engine.store.claim_due(0, engine.processor), Lost())


def test_a_hand_over_of_nothing_near_starts_no_successor(engine: Engine) -> None:
    engine.send("c", "m1", rules=LATE)
    engine.work()
    released = engine.store.hand_over(0, engine.processor)
    assert isinstance(released, Released)
    assert not released.start_processor
