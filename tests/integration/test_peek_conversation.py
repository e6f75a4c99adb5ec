"""Peek returns the state of one conversation."""

from message_buffer.lanes.outcomes import (
    BatchBusy,
    BatchTaken,
    RunStale,
)
from tests.support.emission import Bus, emit_one, ids_of
from tests.support.engine import Engine
from tests.support.states import (
    waiting_behind_a_frozen_batch,
)


def test_peek_tells_each_state(engine: Engine) -> None:
    assert engine.store.peek_conversation("c").state == "IDLE"
    waiting_behind_a_frozen_batch(engine)
    seen = engine.store.peek_conversation("c", limit=10)
    assert (seen.state, seen.frozen, seen.attempt, seen.count) == ("INFLIGHT", 1, 1, 1)
    assert ids_of(seen.payloads) == ["old too"]
    engine.store.recover_expired(0)
    assert engine.store.peek_conversation("c").state == "PENDING"
    assert isinstance(engine.store.take_batch("c", "t9"), RunStale | BatchBusy | BatchTaken)
    assert emit_one(engine, Bus(), "c") is None, "pending: not claimed"


def test_a_peek_reads_64_messages_at_most_whatever_its_limit(engine: Engine) -> None:
    for number in range(70):
        engine.send("c", f"m{number}")
    seen = engine.store.peek_conversation("c", limit=1000)
    assert seen.count == 70
    assert ids_of(seen.payloads) == [f"m{number}" for number in range(64)]
