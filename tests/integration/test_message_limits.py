"""A batch is due at once when it has as many messages as the rules allow."""

import pytest

from message_buffer.lanes.outcomes import RunStale
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, claim_and_take, emit_due, ids_of, run_until_idle, take
from tests.support.engine import Engine


@pytest.mark.case(18)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_batch_is_due_with_exactly_the_nth_message(engine: Engine, limit: int) -> None:
    rules = Rules(max_messages=limit)
    for n in range(limit):
        assert engine.claim() == []
        buffered = engine.send("c", f"m{n}", rules=rules)
        assert (buffered.due_at_ms == engine.clock.now_ms) == (n == limit - 1)
    taken = claim_and_take(engine, "c")
    assert (len(taken.payloads), taken.flush_reason) == (limit, "max_messages")


@pytest.mark.case(18)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_burst_of_one_more_than_the_limit_is_emitted_whole(engine: Engine, limit: int) -> None:
    rules, bus = Rules(max_messages=limit), Bus()
    for n in range(limit):
        engine.send("c", f"m{n}", rules=rules)
    claim_and_take(engine, "c", "t1")
    engine.send("c", "one more", rules=rules)
    engine.store.complete_batch("c", "t1")
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["one more"]]


@pytest.mark.case(19)
def test_limit_and_timer_in_the_same_millisecond_make_one_batch(engine: Engine) -> None:
    rules, bus = Rules(typing_inference_ms=0, max_messages=2), Bus()
    engine.send("c", "m1", rules=rules)
    engine.clock.advance(rules.silence_ms)
    engine.send("c", "m2", rules=rules)
    assert emit_due(engine, bus) == ["c"]
    assert emit_due(engine, bus) == []
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["m1", "m2"]]


@pytest.mark.case(19)
def test_limit_reached_while_the_timer_has_already_claimed_makes_one_batch(engine: Engine) -> None:
    rules = Rules(typing_inference_ms=0, max_messages=2)
    engine.send("c", "m1", rules=rules)
    engine.clock.advance(rules.silence_ms)
    assert engine.claim() == ["c"]
    engine.send("c", "m2", rules=rules)
    engine.store.flush_buffer("c")
    assert engine.claim() == []
    assert ids_of(take(engine, "c", "t1").payloads) == ["m1", "m2"]
    engine.store.complete_batch("c", "t1")
    assert engine.claim() == []
    assert isinstance(engine.store.take_batch("c", "t2"), RunStale)


@pytest.mark.case(28)
def test_a_flood_is_flushed_early_and_nothing_is_dropped(engine: Engine) -> None:
    rules, bus = Rules(max_messages=20), Bus()
    for n in range(500):
        engine.send("c", f"m{n}", rules=rules)
        if n % 23 == 22:
            assert emit_due(engine, bus) == ["c"], "the cap makes it due at once"
            assert bus.events[-1].reason == "max_messages"
    run_until_idle(engine, bus)
    assert bus.ids("c") == [f"m{n}" for n in range(500)]
