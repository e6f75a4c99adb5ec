"""A claim hands each due conversation to one processor, and says when the next one is due."""

import pytest

from message_buffer.lanes.outcomes import (
    ConversationsClaimed,
    LeaseLost,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import Engine
from tests.support.outcomes import same


def test_a_claim_of_more_than_a_reply_can_hold_is_cut_not_lost(engine: Engine) -> None:
    for number in range(1200):
        engine.send(f"c{number}", "m", rules=Rules(priority="vip"))
    engine.work()
    first = engine.store.claim_due(0, engine.processor, limit=4500)
    second = engine.store.claim_due(0, engine.processor, limit=4500)
    assert isinstance(first, ConversationsClaimed)
    assert isinstance(second, ConversationsClaimed)
    assert (len(first.conversations), len(second.conversations)) == (1000, 200)


@pytest.mark.case(14)
def test_of_two_processors_only_the_one_with_the_lease_claims(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(priority="vip"))
    engine.work()
    assert same(engine.store.claim_due(0, "another"), LeaseLost())
    assert engine.claim() == ["c"]


@pytest.mark.case(10)
@pytest.mark.parametrize("silence_ms", [1, 7, 250, 999])
def test_sub_second_rules_behave_to_the_millisecond(engine: Engine, silence_ms: int) -> None:
    engine.clock.now_ms += 437
    engine.send("c", "m1", rules=Rules(silence_ms=silence_ms, typing_inference_ms=0, max_wait_ms=1500))
    engine.clock.advance(silence_ms - 1)
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]
