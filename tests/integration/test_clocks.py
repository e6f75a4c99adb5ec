"""Hosts whose clocks run apart: order, bounds and starts of processors stay right."""

import pytest

from lambdas.conversation_processor.service import TOKEN_RENEWALS
from message_buffer.lanes.outcomes import (
    ConversationsClaimed,
    LeaseAcquired,
    LeaseTaken,
    MessageBuffered,
    Renewed,
)
from message_buffer.limits import LEASE_RENEWALS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.due_times import FIXED, TYPING
from tests.support.emission import Bus, claim_and_take, run_until_idle
from tests.support.engine import SETTINGS, Engine, ManualClock, payload
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same

DEFAULT = Rules()


@pytest.mark.case(13)
def test_a_reservation_made_by_a_clock_far_ahead_blocks_nobody(engine: Engine) -> None:
    engine.work()
    engine.clock.advance(60_000)
    assert engine.send("c", "m1").start_id
    engine.clock.advance(-60_000)
    engine.store.acquire_lease(0, "other")
    engine.clock.advance(1)
    engine.store.release_lease(0, engine.processor, reason="handover")
    engine.clock.advance(20_000)
    assert engine.store.recover_expired(0).start_id


@pytest.mark.case(13)
def test_one_message_of_a_host_an_hour_ahead_does_not_delay_the_next_ones(engine: Engine) -> None:
    engine.clock.advance(3_600_000)
    engine.send("c", "m1")
    engine.clock.advance(-3_600_000)
    outcome = engine.send("c", "m2", rules=Rules(silence_ms=1000, typing_inference_ms=0))
    assert isinstance(outcome, MessageBuffered)
    assert outcome.due_at_ms == engine.clock.now_ms + 1000


@pytest.mark.case(13)
@pytest.mark.parametrize("ahead_ms", [-60_000, -1001, -1, 1, 999, 60_000])
def test_hosts_whose_clocks_run_apart_keep_order_and_bounds(engine: Engine, ahead_ms: int) -> None:
    """Send by a second host whose clock is off. Time inside a conversation goes by the later of the two clocks."""
    other = ManualClock()
    store = engine.another_store(clock=other)
    first_at_ms = engine.clock.now_ms
    for n in range(6):
        other.now_ms = engine.clock.now_ms + ahead_ms
        if n % 2:
            store.buffer_message("c", f"m{n}", payload=f'"m{n}"\n'.encode(), timing=TYPING.timing)
        else:
            engine.send("c", f"m{n}", rules=TYPING)
        assert_invariants(engine)
        seen = engine.store.peek_conversation("c")
        assert seen.first_at_ms is not None
        assert seen.last_at_ms is not None
        assert seen.due_at_ms is not None
        assert first_at_ms == seen.first_at_ms <= seen.last_at_ms
        assert seen.due_at_ms <= seen.first_at_ms + TYPING.max_wait_ms
        engine.clock.advance(300)
    bus = Bus()
    run_until_idle(engine, bus)
    assert bus.batches("c") == [[f"m{n}" for n in range(6)]]


TOLERATED_SKEW_MS = 2_500


@pytest.mark.promise("P6")
def test_a_host_ahead_within_the_tolerated_skew_takes_no_living_lease_for_dead(engine: Engine) -> None:
    """Let the processor renew as late as it may, just before a message comes from a host that is ahead."""
    ahead = ManualClock()
    store = engine.another_store(clock=ahead)
    engine.work()
    engine.clock.advance(SETTINGS.lease_ms // LEASE_RENEWALS + SETTINGS.max_sleep_ms)
    ahead.now_ms = engine.clock.now_ms + TOLERATED_SKEW_MS
    outcome = store.buffer_message("c", "m1", payload=payload("m1"), timing=DEFAULT.timing)
    assert isinstance(outcome, MessageBuffered)
    assert outcome.start_id is None
    assert isinstance(store.acquire_lease(0, "another"), LeaseTaken)


@pytest.mark.promise("P7")
def test_a_processor_ahead_within_the_tolerated_skew_puts_no_living_batch_back(engine: Engine) -> None:
    """Let the conversation processor renew its token as late as it may after a renewal that failed."""
    engine.send("c", "m1", rules=Rules(priority="vip"))
    claim_and_take(engine, "c", "t1")
    ahead = ManualClock()
    store = engine.another_store(clock=ahead)
    for _ in range(10):
        engine.clock.advance(2 * SETTINGS.token_ms // TOKEN_RENEWALS)
        ahead.now_ms = engine.clock.now_ms + TOLERATED_SKEW_MS
        store.acquire_lease(0, "ahead")
        claimed = store.claim_due(0, "ahead")
        assert isinstance(claimed, ConversationsClaimed)
        assert claimed.expired == 0
        assert isinstance(engine.store.renew_token("c", "t1"), Renewed)


@pytest.mark.parametrize(("seconds", "superfluous"), [(4, 0), (7, 1)])
def test_a_start_as_slow_as_a_new_connection_leads_to_one_superfluous_start(
    engine: Engine, seconds: int, superfluous: int
) -> None:
    """A processor starts within 1 s, and connects once or twice, in up to 3 s each."""
    starts = []
    for n in range(seconds * 10):
        starts.append(engine.send("c", f"m{n}").start_id)
        engine.clock.advance(100)
    assert isinstance(engine.store.acquire_lease(0, "first"), LeaseAcquired)
    assert len([start_id for start_id in starts if start_id]) == 1 + superfluous
    assert isinstance(engine.store.acquire_lease(0, "second"), LeaseTaken)
    assert engine.send("c", "last").start_id is None


@pytest.mark.case(13)
def test_a_processor_whose_clock_lags_is_late_and_loses_nothing(engine: Engine) -> None:
    lagging = ManualClock()
    store = engine.another_store(clock=lagging)
    engine.send("c", "m1", rules=FIXED)
    lagging.now_ms = engine.clock.now_ms - 60_000
    store.acquire_lease(0, "lagging")
    assert same(
        store.claim_due(0, "lagging"),
        ConversationsClaimed(engine.clock.now_ms + 1000, [], lagging.now_ms + SETTINGS.claim_ms),
    )
    lagging.now_ms = engine.clock.now_ms + 1000
    engine.processor = "lagging"
    bus = Bus()
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["m1"]
