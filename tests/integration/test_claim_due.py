"""A claim hands each due conversation to one processor, and says when the next one is due."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from message_buffer.lanes.outcomes import (
    ConversationsClaimed,
    LeaseLost,
)
from message_buffer.rules.layers import Rules
from tests.support.engine import Engine
from tests.support.outcomes import same

NOW = Rules(priority="vip")


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
def test_two_processors_that_claim_at_once_have_one_winner_each(engine: Engine) -> None:
    names = {f"c{n}" for n in range(200)}
    for name in names:
        engine.send(name, "m1", rules=Rules(priority="vip"))
    engine.work()

    def claim_all(_: int) -> list[str]:
        store, mine = engine.another_store(), list[str]()
        while True:
            claimed = store.claim_due(0, engine.processor, limit=7)
            assert isinstance(claimed, ConversationsClaimed)
            if not claimed.conversations:
                return mine
            mine += [due.conversation for due in claimed.conversations]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(claim_all, range(2))
    assert len(one) + len(other) == 200
    assert set(one) | set(other) == names


@pytest.mark.case(14)
def test_of_two_processors_only_the_one_with_the_lease_claims(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(priority="vip"))
    engine.work()
    assert same(engine.store.claim_due(0, "another"), LeaseLost())
    assert engine.claim() == ["c"]


def test_with_more_due_than_one_claim_takes_the_next_look_is_now(engine: Engine) -> None:
    for n in range(5):
        engine.send(f"c{n}", "m1", rules=NOW)
    engine.work()
    claimed = engine.store.claim_due(0, engine.processor, limit=3)
    assert isinstance(claimed, ConversationsClaimed)
    assert len(claimed.conversations) == 3
    assert claimed.next_due_at_ms == engine.clock.now_ms


@pytest.mark.parametrize("lazily_moved", [False, True])
def test_the_next_due_time_a_claim_answers_is_never_late(engine: Engine, lazily_moved: bool) -> None:
    first_due_at_ms = engine.send("c", "m1").due_at_ms or 0
    true_due_at_ms = first_due_at_ms
    if lazily_moved:
        engine.clock.advance(900)
        true_due_at_ms = engine.send("c", "m2").due_at_ms or 0
    engine.work()
    for _ in range(4):
        claimed = engine.store.claim_due(0, engine.processor)
        assert isinstance(claimed, ConversationsClaimed)
        if claimed.conversations:
            break
        assert claimed.next_due_at_ms is not None
        assert engine.clock.now_ms < claimed.next_due_at_ms <= true_due_at_ms
        engine.clock.now_ms = claimed.next_due_at_ms
    assert engine.clock.now_ms == true_due_at_ms
