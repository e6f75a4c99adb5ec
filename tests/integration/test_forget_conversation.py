"""A forget erases everything of a conversation in one call."""

import pytest

from message_buffer.lanes.outcomes import RunStale
from tests.support.emission import Bus, run_until_idle, take
from tests.support.engine import Engine


def of_shard(engine: Engine) -> set[str]:
    """Return the keys that belong to no conversation."""
    return {name for name in iter(engine.keys()) if name.count(":") == 1}


def test_waiting_messages_and_a_frozen_batch_are_gone_and_nothing_is_emitted(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=1)
    engine.send("c", "m1", "a word")
    engine.clock.advance(10_000)
    engine.claim()
    take(engine, "c")
    engine.send("c", "m2", "a word")
    forgotten = engine.store.forget_conversation("c")
    assert (forgotten.waiting, forgotten.frozen) == (1, 1)
    assert forgotten.leaving_until_ms is not None
    keys = engine.keys()
    assert set(iter(keys)) == of_shard(engine)
    assert not any(b"c" in key.value for key in keys.values())
    bus = Bus()
    run_until_idle(engine, bus)
    assert bus.events == []


@pytest.mark.parametrize("writes_again", [False, True])
def test_a_run_at_work_finds_the_batch_gone_and_makes_nothing_anew(engine: Engine, *, writes_again: bool) -> None:
    engine.send("c", "m1")
    engine.clock.advance(10_000)
    engine.claim()
    engine.store.take_batch("c", "t1")
    engine.store.forget_conversation("c")
    if writes_again:
        engine.send("c", "m1")
    left = engine.settle()
    assert engine.store.renew_token("c", "t1") == RunStale()
    assert engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms) == RunStale()
    assert engine.store.complete_batch("c", "t1") == RunStale()
    assert engine.store.take_batch("c", "t2") == RunStale()
    assert engine.settle() == left
