"""A sleeping processor is woken once, and only for what falls due before it would look by itself."""

import pytest

from message_buffer.lanes.outcomes import (
    Busy,
    Claimed,
    Returned,
    Stale,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import claim_and_take, ids_of
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same

NOW = Rules(priority="vip")


def woken(engine: Engine) -> int:
    key = engine.keys().get("{b0}:wake")
    return len(key.value) if key else 0


def test_p5_what_falls_due_before_the_planned_wake_wakes_the_processor(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    engine.send("c", "m1", rules=NOW)
    assert woken(engine) == 1


def test_what_falls_due_after_the_planned_wake_does_not_wake_it(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    engine.send("c", "m1", rules=Rules(silence_ms=SETTINGS.look_ms, typing_inference_ms=0))
    assert woken(engine) == 0, "it looks again by itself before that"


def test_the_wake_list_holds_at_most_one_element(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    for n in range(20):
        engine.send(f"c{n}", "m1", rules=NOW)
        engine.send("c", f"m{n}", rules=Rules(silence_ms=100 - n, typing_inference_ms=0))
        engine.store.flush_buffer(f"c{n}")
    assert woken(engine) == 1


def test_a_claim_resets_the_wake(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    for n in range(3):
        engine.send(f"c{n}", "m1", rules=NOW)
        assert woken(engine) == 1
        assert isinstance(engine.store.claim_due(0, engine.processor), Claimed)
        assert woken(engine) == 0


def test_a_processor_between_acquire_and_first_claim_is_not_woken_for_it_will_look(engine: Engine) -> None:
    engine.work()
    engine.send("c", "m1", rules=NOW)
    assert woken(engine) == 0
    claimed = engine.store.claim_due(0, engine.processor)
    assert isinstance(claimed, Claimed)
    assert [due.conversation for due in claimed.conversations] == ["c"]


def test_with_more_due_than_one_claim_takes_the_next_look_is_now(engine: Engine) -> None:
    for n in range(5):
        engine.send(f"c{n}", "m1", rules=NOW)
    engine.work()
    claimed = engine.store.claim_due(0, engine.processor, limit=3)
    assert isinstance(claimed, Claimed)
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
        assert isinstance(claimed, Claimed)
        if claimed.conversations:
            break
        assert claimed.next_due_at_ms is not None
        assert engine.clock.now_ms < claimed.next_due_at_ms <= true_due_at_ms
        engine.clock.now_ms = claimed.next_due_at_ms
    assert engine.clock.now_ms == true_due_at_ms


def test_a_claim_for_which_no_conversation_processor_could_be_sent_is_put_back(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    assert engine.claim() == ["c"]
    again_at_ms = engine.clock.now_ms + 200
    assert same(engine.store.return_claim("c", engine.processor, due_at_ms=again_at_ms), Returned(again_at_ms))
    assert_invariants(engine)
    assert engine.claim() == []
    engine.clock.now_ms = again_at_ms
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m1"]


def test_a_returned_claim_due_before_the_planned_wake_wakes_the_processor(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    assert engine.claim() == ["c"]
    engine.store.return_claim("c", engine.processor, due_at_ms=engine.clock.now_ms)
    assert woken(engine) == 1


def test_a_conversation_processor_that_came_after_all_keeps_its_batch(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    before = engine.settle()
    assert same(engine.store.return_claim("c", engine.processor, due_at_ms=0), Busy(None))
    assert engine.settle() == before


def test_returning_what_is_done_already_is_stale(engine: Engine) -> None:
    engine.send("c", "m1", rules=NOW)
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    assert same(engine.store.return_claim("c", engine.processor, due_at_ms=0), Stale())
