"""A completion concerns one batch of one conversation processor."""

import pytest

from message_buffer.lanes.outcomes import (
    BatchCompleted,
    RunStale,
)
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
