"""A cancel and a forget leave nothing that could come out, whatever state the conversation is in."""

import pytest

from tests.support.emission import Bus, run_until_idle
from tests.support.engine import Engine
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.scenes import (
    State,
    claimed,
    held,
    open_buffer,
    taken_and_abandoned,
    taken_and_more,
    waiting_for_retry,
)

STATES = (open_buffer, held, claimed, taken_and_more, taken_and_abandoned, waiting_for_retry)
in_any_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)


@pytest.mark.case(23)
@in_any_state
def test_after_a_cancel_nothing_older_is_emitted_and_newer_is(engine: Engine, state: State) -> None:
    bus = Bus()
    state(engine)
    engine.cancel("c")
    assert_invariants(engine)
    assert engine.keys().get("{b0}:inflight") is None
    engine.send("c", "newer")
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["newer"]
    assert_nothing_left_behind(engine)


@in_any_state
def test_after_a_forget_no_key_names_the_conversation(engine: Engine, state: State) -> None:
    state(engine)
    engine.store.forget_conversation("c")
    for name, key in engine.keys().items():
        assert not name.endswith(":c")
        assert b"c" not in key.value, f"{name} names the conversation"
