"""A batch that could not be emitted is tried again, or given up."""

import pytest

from message_buffer.lanes.outcomes import (
    MessageBuffered,
    MessageDuplicate,
)
from tests.support.emission import (
    Bus,
    claim_and_take,
    emit_one,
    ids_of,
    run_until_idle,
    take,
)
from tests.support.engine import Engine

FAILURES_BEFORE_SUCCESS = 4


@pytest.mark.case(4)
def test_a_publish_that_fails_then_succeeds_keeps_id_content_and_order(engine: Engine) -> None:
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
        assert isinstance(engine.send("c", f"later{attempt}"), MessageBuffered), "and does not move the retry"
        engine.clock.now_ms = retry_at_ms - 1
        assert engine.claim() == []
        engine.clock.now_ms = retry_at_ms
    run_until_idle(engine, bus)
    assert len(batch_ids) == 1
    assert bus.events[0].batch_id in batch_ids
    assert bus.events[0].attempt == FAILURES_BEFORE_SUCCESS + 1
    assert bus.batches("c") == [["m1", "m2"], [f"later{n}" for n in range(1, FAILURES_BEFORE_SUCCESS + 1)]]


@pytest.mark.case(30)
def test_a_poison_batch_is_given_up_after_n_and_its_lane_goes_on(engine: Engine) -> None:
    """Complete the batch after the last attempt, as the conversation processor does when it has dead-lettered it."""
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
    assert isinstance(engine.send("c", "poison"), MessageDuplicate), "a redelivery does not bring it back"


@pytest.mark.case(30)
def test_a_batch_given_up_can_be_sent_again_under_new_ids(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "poison")
    engine.clock.advance(1000)
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    engine.send("c", "redriven:poison")
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["redriven:poison"]]
