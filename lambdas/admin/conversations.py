"""What an operator does to a conversation, and sees of the shards."""

import json
from typing import Any, Protocol

from lambdas.admin.errors import NotFound, Refused
from lambdas.admin.requests import AskGate, HoldConversation, OfConversation, Request, ShowConversation
from lambdas.shared.cancelled import DETAIL_TYPE, cancelled_event
from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.conversation import parse_conversation_id
from lambdas.shared.errors import MalformedMessage, SendFailed
from lambdas.shared.senders.starter import ProcessorStarter
from lambdas.shared.store import outcomes as o
from lambdas.shared.store.store import Store
from lambdas.shared.wire import decode_fields

Json = dict[str, Any]

# As many as an answer of Lambda surely holds, be each as long as it may be.
MOST_MESSAGES = 60
PAGE = 500


class Bus(Protocol):
    def publish(self, detail_type: str, detail: str) -> None: ...


class Conversations:
    def __init__(self, store: Store, starter: ProcessorStarter, bus: Bus, *, clock: Clock = system_clock) -> None:
        self._store = store
        self._starter = starter
        self._bus = bus
        self._clock = clock

    def status(self, _request: Request) -> Json:
        """As a pass of the watchdog sees the shards, and with what such a pass puts right."""
        shards = [self._shard(shard) for shard in range(self._store.settings.shards)]
        due = [shard["nextDueAt"] for shard in shards if shard["nextDueAt"] is not None]
        return {
            "pending": sum(shard["pending"] for shard in shards),
            "inflight": sum(shard["inflight"] for shard in shards),
            "nextDueAt": min(due, default=None),
            "overdueMs": max(shard["overdueMs"] for shard in shards),
            "shards": shards,
        }

    def _shard(self, shard: int) -> Json:
        seen = self._store.recover_expired(shard, limit=PAGE)
        self._start_if(seen, shard)
        due_at_ms = seen.oldest_due_at_ms
        return {
            "shard": shard,
            "pending": seen.pending,
            "inflight": seen.inflight,
            "nextDueAt": due_at_ms,
            "overdueMs": 0 if due_at_ms is None else max(self._clock() - due_at_ms, 0),
            "heartbeatAt": seen.heartbeat_at_ms,
        }

    def show(self, request: ShowConversation) -> Json:
        name = _name(request)
        seen = self._store.peek_conversation(name, limit=MOST_MESSAGES if request.messages else 0)
        held = seen.held_until_ms is not None and seen.held_until_ms > self._clock()
        shown: Json = {
            "conversation": name,
            "shard": self._store.shard_of(name),
            "state": seen.state.lower(),
            "count": seen.count,
            "dueAt": seen.due_at_ms,
            "why": seen.flush_reason,
            "firstAt": seen.first_at_ms,
            "lastAt": seen.last_at_ms,
            "generation": seen.generation,
            "heldUntil": seen.held_until_ms if held else None,
            "batch": seen.batch_id and {"batchId": seen.batch_id, "attempt": seen.attempt, "count": seen.frozen},
        }
        return shown | ({"messages": [_readable(payload) for payload in seen.payloads]} if request.messages else {})

    def flush(self, request: OfConversation) -> Json:
        name = _name(request)
        outcome = self._store.flush_buffer(name)
        if isinstance(outcome, o.Empty):
            raise NotFound("Nothing waits in this conversation.")
        self._start_if(outcome, self._store.shard_of(name))
        return {"dueAt": outcome.due_at_ms, "count": outcome.count}

    def cancel(self, request: OfConversation) -> Json:
        """If Valkey's first answer is lost, nobody knows any more what was dropped: null."""
        name = _name(request)
        outcome = self._store.cancel_buffer(name)
        detail = cancelled_event(parse_conversation_id(name), outcome, reason="operator", at_ms=self._clock())
        try:
            self._bus.publish(DETAIL_TYPE, detail)
        except SendFailed as error:
            raise Refused(f"It is cancelled, but nobody was told ({error}): cancel again to tell them.") from error
        told = json.loads(detail)
        return {name: told[name] for name in ("generation", "dropped", "frozen", "leaving")}

    def hold(self, request: HoldConversation) -> Json:
        name = _name(request)
        outcome = self._store.hold_buffer(name, hold_ms=request.hold_ms)
        self._start_if(outcome, self._store.shard_of(name))
        return {"heldUntil": outcome.held_until_ms}

    def resume(self, request: OfConversation) -> Json:
        name = _name(request)
        outcome = self._store.resume_buffer(name)
        self._start_if(outcome, self._store.shard_of(name))
        if isinstance(outcome, o.NotHeld):
            raise NotFound("This conversation is not on hold.")
        return {"dueAt": outcome.due_at_ms}

    def gate(self, request: AskGate) -> Json:
        """For consumers: has its author written again since that batch? What comes in a moment later is not seen."""
        current = self._store.peek_conversation(_name(request)).generation
        return {"current": current, "newer": current > request.generation}

    def _start_if(self, outcome: o.Recovered | o.Flushed | o.OnHold | o.Resumed | o.NotHeld, shard: int) -> None:
        if outcome.start_processor:
            self._starter.start(shard)


def _name(request: OfConversation) -> str:
    """The id as ingest writes it; raises InvalidId."""
    return str(parse_conversation_id(request.conversation))


def _readable(payload: bytes) -> Json:
    try:
        return decode_fields(payload)
    except MalformedMessage as error:
        return {"unreadable": str(error)}
