"""A batch is due at once when it has as many messages as the rules allow."""

import pytest

from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import Bus, claim_and_take, emit_due, run_until_idle
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
