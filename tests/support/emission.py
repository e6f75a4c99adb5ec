"""The processor's and the conversation processor's steps, one at a time, and the bus they emit to."""

import json
from itertools import count
from typing import NamedTuple

from message_buffer.lanes.outcomes import BatchCompleted, BatchTaken, ConversationsClaimed
from message_buffer.limits import WATCHDOG_PASS_MS
from tests.support.engine import Engine

_tokens = count(1)


def new_token() -> str:
    return f"token-{next(_tokens)}"


def ids_of(payloads: list[bytes]) -> list[str]:
    return [json.loads(payload.partition(b"\n")[0]) for payload in payloads]


class Emitted(NamedTuple):
    conversation: str
    batch_id: str
    attempt: int
    reason: str
    ids: list[str]
    at_ms: int


class Bus:
    """The events that consumers received. It fails if a batch id has two contents, or a message two batches."""

    def __init__(self) -> None:
        self.events: list[Emitted] = []
        self._content: dict[str, list[bytes]] = {}
        self._batch_of: dict[tuple[str, str], str] = {}

    def emit(self, engine: Engine, conversation: str, taken: BatchTaken) -> Emitted:
        content = self._content.setdefault(taken.batch_id, taken.payloads)
        assert content == taken.payloads, f"batch {taken.batch_id} came again with another content"
        ids = ids_of(taken.payloads)
        for message_id in ids:
            known = self._batch_of.setdefault((conversation, message_id), taken.batch_id)
            assert known == taken.batch_id, f"{message_id} is in batch {known} and in batch {taken.batch_id}"
        event = Emitted(conversation, taken.batch_id, taken.attempt, taken.flush_reason, ids, engine.clock.now_ms)
        self.events.append(event)
        return event

    def ids(self, conversation: str) -> list[str]:
        """Return the messages in order, as a consumer receives them that ignores repeated batches."""
        seen: dict[str, list[str]] = {}
        for event in self.events:
            if event.conversation == conversation:
                seen.setdefault(event.batch_id, event.ids)
        return [message_id for ids in seen.values() for message_id in ids]

    def batches(self, conversation: str) -> list[list[str]]:
        return [event.ids for event in self.events if event.conversation == conversation]


def take(engine: Engine, conversation: str, token: str | None = None) -> BatchTaken:
    taken = engine.store.take_batch(conversation, token or new_token())
    assert isinstance(taken, BatchTaken), taken
    return taken


def claim_and_take(engine: Engine, conversation: str, token: str | None = None) -> BatchTaken:
    assert conversation in engine.claim()
    return take(engine, conversation, token)


def emit_one(engine: Engine, bus: Bus, conversation: str) -> BatchCompleted | None:
    """Take, emit and complete the batch of a claimed conversation. Return None if there was nothing to take."""
    token = new_token()
    taken = engine.store.take_batch(conversation, token)
    if not isinstance(taken, BatchTaken):
        return None
    bus.emit(engine, conversation, taken)
    completed = engine.store.complete_batch(conversation, token)
    assert isinstance(completed, BatchCompleted)
    return completed


def emit_due(engine: Engine, bus: Bus) -> list[str]:
    """Claim what is due and emit it. Return the claimed conversations."""
    claimed = engine.claim()
    for conversation in claimed:
        emit_one(engine, bus, conversation)
    return claimed


def run_until_idle(engine: Engine, bus: Bus) -> int:
    """Run processor and watchdog until nothing is left. Return how long that took by the engine's clock."""
    began_ms = engine.clock.now_ms
    for _ in range(10_000):
        emit_due(engine, bus)
        claimed = engine.store.claim_due(0, engine.processor, limit=1)
        assert isinstance(claimed, ConversationsClaimed)
        for due in claimed.conversations:
            emit_one(engine, bus, due.conversation)
        recovered = engine.store.recover_expired(0)
        if recovered.pending == recovered.inflight == 0:
            return engine.clock.now_ms - began_ms
        if recovered.pending == 0:
            engine.clock.advance(WATCHDOG_PASS_MS)
        elif claimed.next_due_at_ms is not None:
            engine.clock.now_ms = max(engine.clock.now_ms, claimed.next_due_at_ms)
    raise AssertionError("the engine does not come to rest")
