"""One processor acts on a shard: the lease, and how a processor leaves or hands over."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import (
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    WorkIsNear,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine
from tests.support.outcomes import same

RULES = Rules()


NOW = Rules(priority="vip")


def test_one_processor_holds_the_lease_until_it_runs_out(engine: Engine) -> None:
    expires_at_ms = engine.clock.now_ms + SETTINGS.lease_ms
    assert same(engine.store.acquire_lease(0, "one"), LeaseAcquired(expires_at_ms))
    assert same(engine.store.acquire_lease(0, "other"), LeaseTaken(expires_at_ms))
    engine.clock.advance(SETTINGS.lease_ms - 1)
    assert same(engine.store.acquire_lease(0, "other"), LeaseTaken(expires_at_ms))
    engine.clock.advance(1)
    assert isinstance(engine.store.acquire_lease(0, "other"), LeaseAcquired)
    assert same(engine.store.renew_lease(0, "one"), LeaseLost())


def test_a_lease_that_ran_out_is_not_revived_but_may_be_acquired_again(engine: Engine) -> None:
    engine.store.acquire_lease(0, "one")
    engine.clock.advance(SETTINGS.lease_ms)
    assert same(engine.store.renew_lease(0, "one"), LeaseLost())
    assert isinstance(engine.store.acquire_lease(0, "one"), LeaseAcquired)


FENCED: dict[str, Callable[[Engine, str], object]] = {
    "renew_lease": lambda engine, lease: engine.store.renew_lease(0, lease),
    "release_lease when idle": lambda engine, lease: engine.store.release_lease(0, lease, reason="idle"),
    "release_lease to hand over": lambda engine, lease: engine.store.release_lease(0, lease, reason="handover"),
    "claim_due": lambda engine, lease: engine.store.claim_due(0, lease),
    "return_claim": lambda engine, lease: engine.store.return_claim("c", lease, due_at_ms=0),
}


@pytest.mark.promise("P6")
@pytest.mark.parametrize("script", FENCED)
def test_a_processor_that_lost_its_lease_changes_nothing(engine: Engine, script: str) -> None:
    engine.send("c", "m1", rules=NOW)
    engine.send("d", "m1", rules=NOW)
    engine.store.acquire_lease(0, "old")
    engine.store.claim_due(0, "old", limit=1)
    engine.clock.advance(SETTINGS.lease_ms)
    engine.store.acquire_lease(0, "new")
    before = engine.settle()
    assert same(FENCED[script](engine, "old"), LeaseLost())
    assert engine.settle() == before


@pytest.mark.promise("P6")
@pytest.mark.parametrize("script", ["renew_lease", "claim_due", "return_claim"])
def test_a_lease_is_worth_nothing_from_its_last_millisecond_on(engine: Engine, script: str) -> None:
    engine.send("c", "m1", rules=NOW)
    engine.send("d", "m1", rules=NOW)
    engine.store.acquire_lease(0, "old")
    engine.store.claim_due(0, "old", limit=1)
    engine.clock.advance(SETTINGS.lease_ms)
    before = engine.settle()
    assert same(FENCED[script](engine, "old"), LeaseLost())
    assert engine.settle() == before


@pytest.mark.promise("P6")
@pytest.mark.parametrize("script", FENCED)
def test_nobody_acts_on_a_shard_that_was_never_acquired(engine: Engine, script: str) -> None:
    assert same(FENCED[script](engine, "none"), LeaseLost())
    assert engine.keys() == {}


def test_a_hand_over_reserves_the_successor(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1").due_at_ms
    engine.work()
    released = engine.store.release_lease(0, engine.processor, reason="handover")
    assert isinstance(released, LeaseReleased)
    assert released.next_due_at_ms == due_at_ms
    assert released.start_id is not None
    assert not engine.send("c", "m2").start_id, "the successor is on its way"
    assert isinstance(engine.store.acquire_lease(0, "successor"), LeaseAcquired)
    assert same(engine.store.claim_due(0, engine.processor), LeaseLost())


@pytest.mark.case(1)
def test_a_message_between_the_last_empty_claim_and_the_release_keeps_the_processor(
    engine: Engine,
) -> None:
    assert engine.claim() == []
    engine.send("c", "m1")
    left = engine.store.release_lease(0, engine.processor, reason="idle")
    assert same(left, WorkIsNear(next_due_at_ms=engine.clock.now_ms + RULES.silence_ms))


@pytest.mark.case(1)
def test_a_message_right_after_the_release_starts_a_processor(engine: Engine) -> None:
    assert engine.claim() == []
    assert same(engine.store.release_lease(0, engine.processor, reason="idle"), LeaseReleased(None, start_id=None))
    assert engine.send("c", "m1").start_id
