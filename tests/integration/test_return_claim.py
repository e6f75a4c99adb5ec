"""A claim for which no conversation processor could be started is put back."""

from message_buffer.lanes.outcomes import (
    BatchBusy,
    ClaimReturned,
    RunStale,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import claim_and_take, ids_of
from tests.support.engine import Engine
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same

NOW = Rules(priority="vip")


def test_a_claim_for_which_no_conversation_processor_could_be_sent_is_put_back(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    assert engine.claim() == ["c"]
    again_at_ms = engine.clock.now_ms + 200
    assert same(engine.store.return_claim("c", engine.processor, due_at_ms=again_at_ms), ClaimReturned(again_at_ms))
    assert_invariants(engine)
    assert engine.claim() == []
    engine.clock.now_ms = again_at_ms
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m1"]


def test_a_conversation_processor_that_came_after_all_keeps_its_batch(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    before = engine.settle()
    assert same(engine.store.return_claim("c", engine.processor, due_at_ms=0), BatchBusy(None))
    assert engine.settle() == before


def test_returning_what_is_done_already_is_stale(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    assert same(engine.store.return_claim("c", engine.processor, due_at_ms=0), RunStale())
