"""A flush makes a buffer due now."""

from message_buffer.lanes.outcomes import (
    BatchCompleted,
    BufferFlushed,
)
from tests.support.emission import Bus, claim_and_take, emit_due, ids_of, take
from tests.support.engine import Engine
from tests.support.states import (
    claimed,
    waiting_for_retry,
)


def test_a_flush_brings_a_waiting_retry_forward_unchanged(engine: Engine) -> None:
    bus = Bus()
    waiting_for_retry(engine)
    engine.send("c", "m2")
    assert isinstance(engine.store.flush_buffer("c"), BufferFlushed)
    assert emit_due(engine, bus) == ["c"]
    assert bus.batches("c") == [["old"]]
    assert emit_due(engine, bus) == ["c"], "and what was behind it follows at once"
    assert bus.batches("c") == [["old"], ["m2"]]


def test_a_flush_while_a_conversation_processor_works_is_for_what_came_meanwhile(engine: Engine) -> None:
    claimed(engine)
    take(engine, "c", "t1")
    engine.send("c", "m2")
    engine.store.flush_buffer("c")
    assert engine.claim() == []
    completed = engine.store.complete_batch("c", "t1")
    assert isinstance(completed, BatchCompleted)
    assert completed.next_due_at_ms == engine.clock.now_ms
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m2"]
