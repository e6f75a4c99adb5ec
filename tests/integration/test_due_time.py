"""When a batch is due: the formula, to the millisecond."""

import pytest

from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import Engine


@pytest.mark.case(10)
@pytest.mark.parametrize("silence_ms", [1, 7, 250, 999])
def test_sub_second_rules_behave_to_the_millisecond(engine: Engine, silence_ms: int) -> None:
    engine.clock.now_ms += 437
    engine.send("c", "m1", rules=Rules(silence_ms=silence_ms, typing_inference_ms=0, max_wait_ms=1500))
    engine.clock.advance(silence_ms - 1)
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]
