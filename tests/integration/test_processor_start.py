"""One caller starts the processor, and a start that led to nothing is made again."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from message_buffer.lanes.outcomes import (
    BatchCompleted,
    BatchRetried,
    BufferFlushed,
    HoldEnded,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import (
    claim_and_take,
)
from tests.support.engine import SETTINGS, Engine, accepted

NOW = Rules(priority="vip")


def schedule_by_complete(engine: Engine) -> str | None:
    engine.send("c", "m2")
    completed = engine.store.complete_batch("c", "t1")
    assert isinstance(completed, BatchCompleted)
    return completed.start_id


def schedule_by_retry(engine: Engine) -> str | None:
    retried = engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 100)
    assert isinstance(retried, BatchRetried)
    return retried.start_id


def schedule_by_flush(engine: Engine) -> str | None:
    engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 3_600_000)
    flushed = engine.store.flush_buffer("c")
    assert isinstance(flushed, BufferFlushed)
    return flushed.start_id


def schedule_by_resume(engine: Engine) -> str | None:
    engine.store.hold_buffer("d", holder="people", cause="operator", hold_ms=3_600_000)
    assert not engine.send("d", "m1").start_id, "a conversation on hold needs no processor yet"
    resumed = engine.store.resume_buffer("d")
    assert isinstance(resumed, HoldEnded)
    return resumed.start_id


def schedule_by_recover(engine: Engine) -> str | None:
    engine.clock.advance(SETTINGS.token_ms)
    return engine.store.recover_expired(0).start_id


def test_fifty_callers_start_one_processor(engine: Engine) -> None:
    line = Barrier(50)

    def send(n: int) -> bool:
        store = engine.another_store()
        line.wait(timeout=30)
        outcome = accepted(store.buffer_message(f"c{n}", "m1", payload=b'"m1"\n{}', timing=NOW.timing))
        return outcome.start_id is not None

    with ThreadPoolExecutor(50) as pool:
        assert sum(pool.map(send, range(50))) == 1


def test_a_start_that_led_to_nothing_is_tried_again_after_the_reservation(engine: Engine) -> None:
    assert engine.send("c", "m1").start_id
    engine.clock.advance(SETTINGS.start_ms - 1)
    assert not engine.send("c", "m2").start_id
    assert not engine.store.recover_expired(0).start_id
    engine.clock.advance(1)
    assert engine.store.recover_expired(0).start_id
    assert not engine.send("c", "m3").start_id


def test_a_duplicate_may_be_the_one_that_starts_it(engine: Engine) -> None:
    """Send it again: the first sender may have died between buffering and starting."""
    assert engine.send("c", "m1").start_id
    engine.clock.advance(SETTINGS.start_ms)
    assert engine.send("c", "m1").start_id


def test_a_processor_that_came_ends_the_reservation(engine: Engine) -> None:
    assert engine.send("c", "m1").start_id
    engine.work()
    assert not engine.send("c", "m2").start_id
    engine.clock.advance(SETTINGS.lease_ms)
    assert engine.send("c", "m3").start_id, "the processor died, and no reservation prevents a start"


@pytest.mark.parametrize(
    "schedule",
    [schedule_by_complete, schedule_by_retry, schedule_by_flush, schedule_by_resume, schedule_by_recover],
)
@pytest.mark.parametrize("alive", [False, True])
def test_whoever_schedules_answers_for_a_processor(
    engine: Engine, schedule: Callable[[Engine], str | None], alive: bool
) -> None:
    engine.store = engine.another_store(SETTINGS._replace(lease_ms=3_600_000))
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    if not alive:
        engine.store.release_lease(0, engine.processor, reason="handover")
    engine.clock.advance(SETTINGS.start_ms)
    if alive:
        assert not schedule(engine)
    else:
        begun = engine.keys().get("{b0}:processor")
        assert begun is None or b"lease_id" not in begun.pairs
        started = schedule(engine) or b"starting_by" in engine.keys()["{b0}:processor"].pairs
        assert started
