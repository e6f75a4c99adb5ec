"""A completion concerns one batch of one conversation processor."""

import pytest

from message_buffer.lanes.outcomes import (
    BatchCompleted,
    RunStale,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import (
    claim_and_take,
    take,
)
from tests.support.engine import Engine
from tests.support.outcomes import same


@pytest.mark.case(15)
def test_an_old_completion_leaves_the_new_cycle_untouched(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    engine.send("c", "m2")
    engine.clock.advance(1000)
    second = claim_and_take(engine, "c", "t2")
    before = engine.settle()
    engine.store.complete_batch("c", "t1")
    assert same(engine.store.retry_batch("c", "t1", retry_at_ms=0), RunStale())
    assert engine.settle() == before
    assert take(engine, "c", "t2") == second
    assert isinstance(engine.store.complete_batch("c", "t2"), BatchCompleted)
    assert same(engine.store.complete_batch("c", "t1"), RunStale())


@pytest.mark.promise("P3")
def test_the_next_batch_of_a_conversation_is_not_taken_before_the_last_is_done(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(priority="vip"))
    claim_and_take(engine, "c", "t1")
    for n in range(2, 30):
        engine.send("c", f"m{n}", rules=Rules(priority="vip"))
        engine.clock.advance(1000)
        engine.store.renew_token("c", "t1")
        assert engine.claim() == []
    completed = engine.store.complete_batch("c", "t1")
    assert isinstance(completed, BatchCompleted)
    assert completed.count == 28
    assert engine.claim() == ["c"]
