"""A cancel drops what is older, and nothing newer."""

import pytest

from message_buffer.lanes.outcomes import (
    MessageBuffered,
    RunStale,
)
from tests.support.emission import Bus, run_until_idle, take
from tests.support.engine import Engine
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import same
from tests.support.states import (
    State,
    claimed,
    held,
    left_by_a_dead_conversation_processor,
    waiting,
    waiting_behind_a_frozen_batch,
    waiting_for_retry,
)

STATES = [
    waiting,
    claimed,
    waiting_for_retry,
    left_by_a_dead_conversation_processor,
    waiting_behind_a_frozen_batch,
    held,
]


@pytest.mark.case(23)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("newer", [False, True])
def test_after_a_cancel_nothing_older_is_emitted_and_newer_is(engine: Engine, state: State, newer: bool) -> None:
    bus = Bus()
    state(engine)
    cancelled = engine.cancel("c")
    assert not cancelled.leaving
    assert cancelled.buffered + cancelled.frozen >= 1
    assert_invariants(engine)
    if newer:
        assert isinstance(engine.send("c", "newer"), MessageBuffered)
    run_until_idle(engine, bus)
    assert bus.ids("c") == (["newer"] if newer else [])
    assert_nothing_left_behind(engine)


@pytest.mark.case(23)
def test_a_cancel_during_the_emission_says_so_and_the_batch_is_not_tried_again(
    engine: Engine,
) -> None:
    bus = Bus()
    claimed(engine)
    take(engine, "c", "t1")
    engine.send("c", "old too")
    cancelled = engine.cancel("c")
    assert (cancelled.leaving, cancelled.frozen, cancelled.buffered) == (True, 1, 1)
    engine.send("c", "newer")
    assert same(engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms), RunStale())
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["newer"]
    assert_nothing_left_behind(engine)
