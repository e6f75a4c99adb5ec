"""A press is a finished thought. It has a wait of its own, and never cuts off what its author typed before."""

from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import Buffered
from message_buffer.rules.layers import Rules
from tests.support.emission import claim_and_take
from tests.support.engine import Engine, payload

RULES = Rules(silence_ms=1_000, typing_inference_ms=3_000, max_wait_ms=10_000)


def press(engine: Engine, message_id: str, rules: Rules = RULES) -> int:
    """Press a button. Return how long the buffer waits from now."""
    timing = rules.timing_of(is_pressed=True)
    outcome = engine.store.buffer_message("c", message_id, payload=payload(message_id), timing=timing)
    assert isinstance(outcome, Buffered)
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


def test_a_press_may_prolong_the_wait_and_typing_is_not_inferred_from_it(engine: Engine) -> None:
    write(engine, "m1")
    engine.clock.advance(900)
    assert press(engine, "m2", RULES.model_copy(update={"pressed_silence_ms": 700})) == 700
    engine.clock.advance(100)
    assert write(engine, "m3") == 3_000, "what is typed after a press waits as ever"


def test_a_press_is_bounded_by_the_longest_wait_from_the_first_message(engine: Engine) -> None:
    write(engine, "m1", RULES.model_copy(update={"silence_ms": 9_000}))
    engine.clock.advance(8_000)
    assert press(engine, "m2", RULES.model_copy(update={"pressed_silence_ms": 5_000})) == 2_000
    assert engine.store.peek_conversation("c").flush_reason == "max_wait"


def test_a_press_counts_as_a_message(engine: Engine) -> None:
    few = RULES.model_copy(update={"max_messages": 2})
    write(engine, "m1", few)
    engine.clock.advance(100)
    assert press(engine, "m2", few) == 0
    assert engine.store.peek_conversation("c").flush_reason == "max_messages"


def test_a_press_below_the_minimum_waits_for_more_and_one_that_reaches_it_waits_as_if_typed(engine: Engine) -> None:
    pairs = RULES.model_copy(update={"min_messages": 2})
    assert press(engine, "m1", pairs) == 10_000
    engine.clock.advance(100)
    assert press(engine, "m2", pairs) == 3_000
    engine.clock.advance(100)
    assert press(engine, "m3", pairs) == 2_900


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


def test_a_press_teaches_no_rhythm_and_follows_none(engine: Engine) -> None:
    adaptive = RULES.model_copy(update={"adaptive": True})
    write(engine, "m1", adaptive)
    engine.clock.advance(200)
    write(engine, "m2", adaptive)
    learnt = engine.keys()["{b0}:conv:c"].pairs
    engine.clock.advance(300)
    assert press(engine, "m3", adaptive) == 300, "600 ms of the rhythm have begun with the message before"
    assert engine.keys()["{b0}:conv:c"].pairs == learnt


def test_a_press_that_is_delivered_again_changes_nothing(engine: Engine) -> None:
    write(engine, "m1")
    engine.clock.advance(500)
    press(engine, "m2")
    before = engine.settle()
    timing = RULES.timing_of(is_pressed=True)
    engine.store.buffer_message("c", "m2", payload=payload("m2"), timing=timing)
    assert engine.settle() == before


def test_a_press_behind_a_frozen_batch_waits_for_itself(engine: Engine) -> None:
    write(engine, "m1")
    engine.clock.advance(1_000)
    claim_and_take(engine, "c", "t1")
    assert press(engine, "m2", RULES.model_copy(update={"pressed_silence_ms": 400})) == 400
    completed = engine.store.complete_batch("c", "t1")
    assert completed.next_due_at_ms == engine.clock.now_ms + 400  # type: ignore[union-attr]
