"""A press is a finished thought. It has a wait of its own, and never cuts off what its author typed before."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import MessageBuffered
from message_buffer.rules.layers import Rules
from tests.support.emission import claim_and_take
from tests.support.engine import Engine, payload

RULES = Rules(silence_ms=1_000, typing_inference_ms=3_000, max_wait_ms=10_000)


def press(engine: Engine, message_id: str, rules: Rules = RULES) -> int:
    """Press a button. Return how long the buffer waits from now."""
    timing = rules.timing_of(is_pressed=True)
    outcome = engine.store.buffer_message("c", message_id, payload=payload(message_id), timing=timing)
    assert isinstance(outcome, MessageBuffered)
    assert outcome.due_at_ms == engine.store.peek_conversation("c").due_at_ms
    return outcome.due_at_ms - engine.clock.now_ms


def write(engine: Engine, message_id: str, rules: Rules = RULES) -> int:
    """Type a message. Return how long the buffer waits from now."""
    return (engine.send("c", message_id, rules=rules).due_at_ms or 0) - engine.clock.now_ms


def test_a_press_alone_is_due_at_once_unless_the_rules_say_otherwise(engine: Engine) -> None:
    assert press(engine, "m1", RULES.model_copy(update={"pressed_silence_ms": 700})) == 700
    engine.cancel("c")
    assert press(engine, "m2") == 0
    assert claim_and_take(engine, "c").flush_reason == "silence"


@pytest.mark.parametrize("pressed_silence_ms", [0, 500, 2_900])
def test_fragments_and_a_press_wait_until_the_fragments_are_due(engine: Engine, pressed_silence_ms: int) -> None:
    write(engine, "m1")
    engine.clock.advance(800)
    assert write(engine, "m2") == 3_000, "typing is inferred"
    engine.clock.advance(100)
    assert press(engine, "m3", RULES.model_copy(update={"pressed_silence_ms": pressed_silence_ms})) == 2_900


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (lambda engine: engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000), "hold"),
        (lambda engine: write(engine, "m0", Rules(priority="vip")), "priority"),
        (lambda engine: (write(engine, "m0"), engine.store.flush_buffer("c")), "flush"),
    ],
)
def test_a_hold_a_vip_and_a_flush_go_before_a_press(
    engine: Engine, before: Callable[[Engine], object], reason: str
) -> None:
    before(engine)
    assert press(engine, "m1") == (60_000 if reason == "hold" else 0)
    assert engine.store.peek_conversation("c").flush_reason == reason


def test_a_press_behind_a_frozen_batch_waits_for_itself(engine: Engine) -> None:
    write(engine, "m1")
    engine.clock.advance(1_000)
    claim_and_take(engine, "c", "t1")
    assert press(engine, "m2", RULES.model_copy(update={"pressed_silence_ms": 400})) == 400
    completed = engine.store.complete_batch("c", "t1")
    assert completed.next_due_at_ms == engine.clock.now_ms + 400  # type: ignore[union-attr]
