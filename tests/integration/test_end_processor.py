"""If a processor is reported dead, its lease or reservation ends at once. Other processors keep theirs."""

import pytest

from message_buffer.lanes.outcomes import Acquired, LeaseTaken, Lost, ProcessorEnded, Renewed
from message_buffer.lanes.valkey.store import Store
from message_buffer.limits import CALM_AFTER_DEATH_MS
from message_buffer.rules.layers import Rules
from tests.support.engine import SETTINGS, Engine
from tests.support.outcomes import same

NOW = Rules(priority="vip")
LEASE = "s1.first-copy"


def started_as(engine: Engine, start_id: str) -> Store:
    return engine.another_store(new_call_id=lambda: start_id)


def reserve(engine: Engine, start_id: str) -> None:
    """Let a message reserve this start."""
    engine.store = started_as(engine, start_id)
    assert engine.send("c", f"m {start_id}", rules=NOW).start_id == start_id


def end(engine: Engine, dead_id: str, *, start_id: str) -> ProcessorEnded:
    return started_as(engine, start_id).end_processor(0, dead_id)


def test_a_lease_of_a_dead_processor_ends_and_the_next_start_is_reserved(engine: Engine) -> None:
    reserve(engine, "s1")
    engine.store.acquire_lease(0, LEASE)
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(True, 0, "s2"))
    assert same(engine.store.renew_lease(0, LEASE), Lost())
    assert isinstance(engine.store.acquire_lease(0, "s2.run"), Acquired)


def test_a_reservation_whose_processor_died_before_it_came_is_made_again(engine: Engine) -> None:
    reserve(engine, "s1")
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(True, 0, "s2"))
    assert engine.send("d", "m1", rules=NOW).start_id is None, "the new start is reserved"


def test_without_work_no_other_processor_is_started(engine: Engine) -> None:
    engine.store.acquire_lease(0, LEASE)
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(True, 0, None))
    assert engine.send("c", "m1", rules=NOW).start_id, "the next message starts one"


def test_what_the_dead_processor_had_claimed_asks_for_a_successor(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    engine.store.acquire_lease(0, LEASE)
    engine.store.claim_due(0, LEASE)
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(True, 0, "s2"))


def test_a_late_notice_leaves_the_successor_alone(engine: Engine) -> None:
    reserve(engine, "s1")
    engine.clock.advance(SETTINGS.start_ms)
    reserve(engine, "s2")
    assert same(end(engine, "s1", start_id="s3"), ProcessorEnded(False, 0, None)), "its reservation has another name"
    engine.store.acquire_lease(0, "s2.run")
    assert same(end(engine, "s1", start_id="s3"), ProcessorEnded(False, 0, None))
    assert isinstance(engine.store.renew_lease(0, "s2.run"), Renewed)


def test_a_notice_about_an_expired_lease_leaves_the_reservation_of_the_successor(engine: Engine) -> None:
    reserve(engine, "s1")
    engine.store.acquire_lease(0, LEASE)
    engine.clock.advance(SETTINGS.lease_ms)
    reserve(engine, "s2")
    for _ in range(3):
        assert end(engine, "s1", start_id="s3").start_id is None
    assert isinstance(engine.store.acquire_lease(0, "s2.run"), Acquired)


def test_an_id_that_only_begins_like_that_of_the_lease_ends_nothing(engine: Engine) -> None:
    engine.store.acquire_lease(0, "s10.run")
    for forged in ("s1", "s", "", "s10.run", "s10.", "*"):
        assert not end(engine, forged, start_id="s2").ended
    assert isinstance(engine.store.renew_lease(0, "s10.run"), Renewed)


def test_the_next_processor_knows_that_the_last_one_did_not_leave(engine: Engine) -> None:
    reserve(engine, "s1")
    engine.store.acquire_lease(0, LEASE)
    end(engine, "s1", start_id="s2")
    assert engine.keys()["{b0}:processor"].pairs[b"lease_id"] == LEASE.encode()
    lagging = engine.another_store(clock=lambda: engine.clock.now_ms - 5_000)
    assert isinstance(lagging.acquire_lease(0, "s2.run"), Acquired), "by its clock the lease has ended, too"


def test_a_late_notice_of_a_throttled_start_starts_the_missing_processor(engine: Engine) -> None:
    reserve(engine, "s1")
    engine.clock.advance(60_000)
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(True, 0, "s2"))


def test_if_one_copy_of_an_event_dies_the_other_may_come_back_or_leave(engine: Engine) -> None:
    reserve(engine, "s1")
    engine.store.acquire_lease(0, LEASE)
    assert isinstance(engine.store.acquire_lease(0, "s1.second-copy"), LeaseTaken)
    assert end(engine, "s1", start_id="s2").start_id == "s2", "the second copy died, but the notice does not say which"
    assert same(engine.store.claim_due(0, LEASE), Lost())
    assert isinstance(engine.store.acquire_lease(0, LEASE), Acquired)
    assert isinstance(engine.store.acquire_lease(0, "s2.run"), LeaseTaken), "one processor acts on the shard"


def dies_at_once(engine: Engine, nth: int) -> int:
    """Let start `nth` acquire the lease and die within a second. Return how many ms the next start must wait."""
    engine.store.acquire_lease(0, f"s{nth}.run")
    engine.clock.advance(700)
    ended = end(engine, f"s{nth}", start_id=f"s{nth + 1}")
    assert ended.ended
    assert (ended.start_id is None) == (ended.wait_ms > 0)
    return ended.wait_ms


def test_processors_that_die_at_once_are_followed_after_a_growing_pause(engine: Engine) -> None:
    reserve(engine, "s0")
    waits = []
    for nth in range(8):
        waits.append(dies_at_once(engine, nth))
        engine.clock.advance(waits[-1])
    longest_ms = SETTINGS.start_ms * 3 // 2
    assert waits == [0, *(min(each, longest_ms) for each in (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000))]


def test_no_processor_is_started_in_a_pause_and_the_notice_starts_one_after_it(engine: Engine) -> None:
    reserve(engine, "s0")
    dies_at_once(engine, 0)
    wait_ms = dies_at_once(engine, 1)
    engine.clock.advance(wait_ms - 1)
    assert engine.send("c", "m2", rules=NOW).start_id is None
    assert engine.store.recover_expired(0).start_id is None
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(False, 1, None)), "delivered again too early"
    assert same(end(engine, "s7", start_id="s2"), ProcessorEnded(False, 0, None)), "a notice of another run"
    engine.clock.advance(1)
    assert same(end(engine, "s1", start_id="s2"), ProcessorEnded(False, 0, "s2"))


@pytest.mark.parametrize("lived_ms", [CALM_AFTER_DEATH_MS + 1, 3_600_000])
def test_a_processor_that_worked_for_a_while_is_followed_at_once(engine: Engine, lived_ms: int) -> None:
    reserve(engine, "s0")
    dies_at_once(engine, 0)
    engine.clock.advance(lived_ms - 700)
    assert dies_at_once(engine, 1) == 0


def test_a_message_during_a_pause_comes_out_when_it_is_over(engine: Engine) -> None:
    reserve(engine, "s0")
    dies_at_once(engine, 0)
    engine.clock.advance(dies_at_once(engine, 1))
    assert engine.send("c", "m2", rules=NOW).start_id, "after the pause, a message starts a processor, too"
