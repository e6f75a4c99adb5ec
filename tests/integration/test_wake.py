"""A sleeping processor is woken once, and only for what falls due before it would look by itself."""

import pytest

from message_buffer.lanes.outcomes import (
    ConversationsClaimed,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine

NOW = Rules(priority="vip")


def woken(engine: Engine) -> int:
    key = engine.keys().get("{b0}:wake")
    return len(key.value) if key else 0


@pytest.mark.promise("P5")
def test_what_falls_due_before_the_planned_wake_wakes_the_processor(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    engine.send("c", "m1", rules=NOW)
    assert woken(engine) == 1


def test_what_falls_due_after_the_planned_wake_does_not_wake_it(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    engine.send("c", "m1", rules=Rules(silence_ms=SETTINGS.max_sleep_ms, typing_inference_ms=0))
    assert woken(engine) == 0, "it looks again by itself before that"


def test_the_wake_list_holds_at_most_one_element(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    for n in range(20):
        engine.send(f"c{n}", "m1", rules=NOW)
        engine.send("c", f"m{n}", rules=Rules(silence_ms=100 - n, typing_inference_ms=0))
        engine.store.flush_buffer(f"c{n}")
    assert woken(engine) == 1


def test_a_processor_between_acquire_and_first_claim_is_not_woken_for_it_will_look(engine: Engine) -> None:
    engine.work()
    engine.send("c", "m1", rules=NOW)
    assert woken(engine) == 0
    claimed = engine.store.claim_due(0, engine.processor)
    assert isinstance(claimed, ConversationsClaimed)
    assert [due.conversation for due in claimed.conversations] == ["c"]
