"""Hosts whose clocks run apart: order, bounds and starts of processors stay right."""

import pytest

from lambdas.conversation_processor.service import TOKEN_RENEWALS
from message_buffer.lanes.outcomes import (
    ConversationsClaimed,
    LeaseTaken,
    MessageBuffered,
    Renewed,
)
from message_buffer.limits import LEASE_RENEWALS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import claim_and_take
from tests.support.engine import SETTINGS, Engine, ManualClock, payload

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
