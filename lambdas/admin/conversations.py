"""Shows conversations and shards to operators, and carries out their commands on a conversation."""

import json
from collections.abc import Callable
from typing import Protocol

from lambdas.admin.listing import MAX_CONVERSATIONS_IN_A_PAGE, list_conversations
from lambdas.admin.reply_windows import OUTLASTS_REPLY_WINDOW, reply_until
from lambdas.admin.requests import (
    HoldConversation,
    ListConversations,
    OfConversation,
    Request,
    ShowConversation,
)
from lambdas.operations import OperationRefused, SubjectNotFound
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import MalformedMessage, SendFailed
from message_buffer.events.cancelled import DETAIL_TYPE, cancelled_event
from message_buffer.events.event_bus import Publishes
from message_buffer.json_object import Json
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.holds import shown as shown_holds
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id
from message_buffer.messages.wire_form import decode_fields

# Lambda limits a response to 6 MB. Even 60 messages of the maximum size are smaller than 6 MB.
MAX_MESSAGES_SHOWN = 60


class EndsTakeovers(Protocol):
    def resume(self, conversation: str, *, now_ms: int) -> None: ...


class Conversations:
    """Carries out the operations on conversations, in each lane that the stage has."""

    def __init__(
        self,
        valkey_lane: ValkeyLane | None,
        bus: Publishes,
        takeovers: EndsTakeovers,
        *,
        dynamodb_lane: DynamoDbLane | None = None,
        agent_of: Callable[[ConversationId], str | None] = lambda _conversation: None,
        clock: Clock = system_clock,
    ) -> None:
        self._valkey_lane = valkey_lane
        self._dynamodb_lane = dynamodb_lane
        self._lanes = [lane for lane in (valkey_lane, dynamodb_lane) if lane is not None]
        self._clock = clock
        self._bus = bus
        self._takeovers = takeovers
        self._agent_of = agent_of

    def status(self, _request: Request) -> Json:
        """Return the state of the shards and open windows.

        First put back the conversations whose claim has expired, as the watchdog does.
        """
        lane = self._valkey_lane
        shards = [self._shard(lane, shard) for shard in range(lane.settings.shards)] if lane else []
        due = [shard["nextDueAt"] for shard in shards if shard["nextDueAt"] is not None]
        shown: Json = {
            "pending": sum(shard["pending"] for shard in shards),
            "inflight": sum(shard["inflight"] for shard in shards),
            "nextDueAt": min(due, default=None),
            "overdueMs": max((shard["overdueMs"] for shard in shards), default=0),
            "shards": shards,
        }
        return shown | ({"windows": self._windows(self._dynamodb_lane)} if self._dynamodb_lane else {})

    def _windows(self, dynamodb_lane: DynamoDbLane) -> Json:
        seen = dynamodb_lane.open_windows(limit=MAX_CONVERSATIONS_IN_A_PAGE)
        due_at_ms = seen[0][1] if seen else None
        return {
            "open": len(seen),
            "nextDueAt": due_at_ms,
            "overdueMs": 0 if due_at_ms is None else max(self._clock() - due_at_ms, 0),
        }

    def _shard(self, valkey_lane: ValkeyLane, shard: int) -> Json:
        seen = valkey_lane.recover_expired(shard, limit=MAX_CONVERSATIONS_IN_A_PAGE)
        due_at_ms = seen.oldest_due_at_ms
        return {
            "shard": shard,
            "pending": seen.pending,
            "inflight": seen.inflight,
            "nextDueAt": due_at_ms,
            "overdueMs": 0 if due_at_ms is None else max(self._clock() - due_at_ms, 0),
            "heartbeatAt": seen.heartbeat_at_ms,
        }

    def list(self, request: ListConversations) -> Json:
        """Return a page of the conversations that have messages in any lane, and the cursor of the next page."""
        return list_conversations(request, self._valkey_lane, self._dynamodb_lane)

    def show(self, request: ShowConversation) -> Json:
        """Return the state of a conversation.

        If the stage has both lanes, this is the state in the Valkey lane. If messages of the conversation also wait in
        the DynamoDB lane, the field `dynamodb` has its state there.
        """
        first, *behind = [self._seen(lane, request) for lane in self._lanes]
        waiting = [seen for seen in behind if seen["state"] != "idle"]
        return {"conversation": _name(request), **first, **({"dynamodb": waiting[0]} if waiting else {})}

    def _seen(self, lane: ValkeyLane | DynamoDbLane, request: ShowConversation) -> Json:
        name = _name(request)
        seen = lane.peek_conversation(name, limit=MAX_MESSAGES_SHOWN)
        shown: Json = {
            **({"shard": lane.shard_of(name)} if isinstance(lane, ValkeyLane) else {}),
            "state": seen.state.lower(),
            "count": seen.count,
            "dueAt": seen.due_at_ms,
            "reason": seen.flush_reason,
            "rule": seen.rule,
            "appliedWaitMs": seen.applied_wait_ms,
            "firstAt": seen.first_at_ms,
            "lastAt": seen.last_at_ms,
            "generation": seen.generation,
            "heldUntil": seen.held_until_ms,
            "holds": shown_holds(seen.holds),
            **reply_until(name, seen),
            "batch": seen.batch_id and {"batchId": seen.batch_id, "attempt": seen.attempt, "count": seen.frozen},
        }
        return shown | ({"messages": [_readable(payload) for payload in seen.payloads]} if request.messages else {})

    def flush(self, request: OfConversation) -> Json:
        """Make the conversation's messages due now, in all lanes. Raise SubjectNotFound if it has none."""
        name = _name(request)
        outcomes = [lane.flush_buffer(name) for lane in self._lanes]
        flushed = [each for each in outcomes if isinstance(each, o.BufferFlushed)]
        if not flushed:
            raise SubjectNotFound("Nothing waits in this conversation.")
        return {"dueAt": min(each.due_at_ms for each in flushed), "count": sum(each.count for each in flushed)}

    def cancel(self, request: OfConversation) -> Json:
        """Drop the conversation's messages, in all lanes, and publish the cancel.

        Raise OperationRefused if the cancel could not be published. If Valkey's response was lost, the call was
        repeated. The counts of dropped messages are then null, because the repeated call cannot know what the first
        call dropped.
        """
        name = _name(request)
        outcome, *others = [lane.cancel_buffer(name) for lane in self._lanes]
        for other in others:
            outcome = o.cancelled_in_both(outcome, other)
        conversation = parse_conversation_id(name)
        detail = cancelled_event(
            conversation, outcome, reason="operator", at_ms=self._clock(), agent=self._agent_of(conversation)
        )
        try:
            self._bus.publish(DETAIL_TYPE, detail)
        except SendFailed as error:
            raise OperationRefused(
                f"The buffer is cancelled, but the event was not published ({error}); cancel again to publish it."
            ) from error
        published = json.loads(detail)
        return {name: published[name] for name in ("generation", "dropped", "frozen", "leaving")}

    def hold(self, request: HoldConversation) -> Json:
        """Put the conversation on hold for human agents, in all lanes. Return the time at which the hold ends.

        Add a warning if the hold ends later than the platform's reply window. After that window, the platform refuses
        ordinary replies until the customer writes again.
        """
        name = _name(request)
        *_, last = [
            lane.hold_buffer(name, holder="people", cause=request.cause, hold_ms=request.hold_ms)
            for lane in reversed(self._lanes)  # hold in the DynamoDB lane even if Valkey is unavailable
        ]
        # Return the end of the hold in the lane that `show` reads, so that `show` returns the same time. The hold in
        # the other lane ends a moment earlier.
        held: Json = {"heldUntil": last.held_until_ms}
        peeked = [lane.peek_conversation(name, limit=MAX_MESSAGES_SHOWN) for lane in self._lanes]
        ends: list[int] = [end for seen in peeked for end in reply_until(name, seen).values()]
        if not ends or held["heldUntil"] <= max(ends):
            return held | ({"replyUntil": max(ends)} if ends else {})
        return held | {"replyUntil": max(ends), "warning": OUTLASTS_REPLY_WINDOW}

    def resume(self, request: OfConversation) -> Json:
        """End all holds, in all lanes. Return the messages' due time. Raise SubjectNotFound if there was no hold."""
        name = _name(request)
        # End the takeover first. Otherwise a late delivery of a human agent's earlier reply could hold the conversation
        # again.
        self._takeovers.resume(name, now_ms=self._clock())
        outcomes = [lane.resume_buffer(name) for lane in reversed(self._lanes)]
        if not any(isinstance(each, o.HoldEnded) for each in outcomes):
            raise SubjectNotFound("This conversation is not on hold.")
        due = [each.due_at_ms for each in outcomes if not isinstance(each, o.OnHold) and each.due_at_ms is not None]
        return {"dueAt": min(due, default=None)}


def _name(request: OfConversation) -> str:
    """Return the conversation's id in the form that ingest uses. Raise InvalidId."""
    return str(parse_conversation_id(request.conversation))


def _readable(payload: bytes) -> Json:
    try:
        return decode_fields(payload)
    except MalformedMessage as error:
        return {"unreadable": str(error)}
