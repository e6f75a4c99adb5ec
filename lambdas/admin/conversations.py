"""Shows conversations and shards to operators, and carries out their commands on a conversation."""

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from lambdas.admin import requests as r
from lambdas.operations import OperationRefused, SubjectNotFound
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, MalformedMessage, SendFailed
from message_buffer.events.conversation_events import CANCELLED, cancelled_event
from message_buffer.events.event_bus import EventBus
from message_buffer.events.hand_offs import HandOffs, Initiator
from message_buffer.json_object import Json
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.holds import shown as shown_holds
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.lanes.valkey.store import FIRST_PAGE
from message_buffer.messages.conversation_id import ConversationId, escape_part, parse_conversation_id, reply_until_ms
from message_buffer.messages.wire_form import decode_fields, sent_at_ms
from message_buffer.rules.rules_and_defaults import check_platform_names

# Lambda limits a response to 6 MB. Even 60 messages of the maximum size are smaller than 6 MB.
MAX_MESSAGES_SHOWN = 60
# A page is small, because the script that reads it blocks Valkey.
MAX_CONVERSATIONS_IN_A_PAGE = 500
# The index of open windows has no cursor for operators, so a listing has only the 5,000 most overdue windows.
MAX_WINDOWS_IN_A_LISTING = 5_000
# If a filter matches few conversations, a call returns after this many pages, with a cursor, before its time-out.
MAX_PAGES_IN_A_LISTING = 200
# The cursor of the page of open windows. The cursor of a shard's page is `<shard>/<the store's cursor>`.
WINDOWS = "windows"
# The cause of what an operator begins or ends.
OPERATOR = "operator"
_SHARD_CURSOR = re.compile(r"([0-9]{1,5})/([a-z]+:[0-9]+)")


class Conversations:
    """Carries out the operations on conversations, in each lane that the stage has."""

    def __init__(
        self,
        valkey_lane: ValkeyLane | None,
        bus: EventBus,
        hand_offs: HandOffs,
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
        self._hand_offs = hand_offs
        self._agent_of = agent_of

    def status(self, _request: r.Request) -> Json:
        """Return the state of the shards and open windows, after putting back conversations whose claim has expired."""
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
        return {"open": len(seen), **self._next(seen[0][1] if seen else None)}

    def _shard(self, valkey_lane: ValkeyLane, shard: int) -> Json:
        seen = valkey_lane.recover_expired(shard, limit=MAX_CONVERSATIONS_IN_A_PAGE)
        counts = {"shard": shard, "pending": seen.pending, "inflight": seen.inflight}
        return {**counts, **self._next(seen.oldest_due_at_ms), "heartbeatAt": seen.heartbeat_at_ms}

    def _next(self, due_at_ms: int | None) -> Json:
        return {"nextDueAt": due_at_ms, "overdueMs": max(self._clock() - due_at_ms, 0) if due_at_ms is not None else 0}

    def list(self, request: r.ListConversations) -> Json:
        """Return a page of `conversations` with their state: those of the shards first, then those of open windows.

        `next` is the cursor of the next page, or None. `more` is True if the page does not show all conversations.

        The list may be longer than `limit`, because the last page of a shard is returned whole. It may be shorter if
        many pages had few matches.
        """
        check_platform_names([request.platform] if request.platform else [])
        valkey_lane, dynamodb_lane = self._valkey_lane, self._dynamodb_lane
        found: dict[tuple[str, str], Json] = {}
        cursor, next_cursor, more = request.cursor or (f"0/{FIRST_PAGE}" if valkey_lane else WINDOWS), None, False
        for _ in range(MAX_PAGES_IN_A_LISTING):
            lane: ValkeyLane | DynamoDbLane
            if cursor == WINDOWS and dynamodb_lane:
                lane, kind = dynamodb_lane, "dynamodb"
                page = _windows(dynamodb_lane, request, room=request.limit - len(found))
            elif valkey_lane:
                lane, kind = valkey_lane, "valkey"
                page = _page_of_shard(valkey_lane, cursor, request, then=WINDOWS if dynamodb_lane else None)
            else:
                raise InvalidInput(f"cursor: no earlier call returned {cursor!r}; leave it out to begin again")
            next_cursor, more = page.next_cursor, page.more
            for name in page.names:
                if row := _row(lane, kind, name):
                    found[kind, name] = row
            if next_cursor is None or len(found) >= request.limit:
                break
            cursor = next_cursor
        return {"conversations": [*found.values()], "next": next_cursor, "more": more or next_cursor is not None}

    def show(self, request: r.ShowConversation) -> Json:
        """Return the first lane's state. If messages also wait in the DynamoDB lane, add its state as `dynamodb`.

        `known` says whether any lane remembers the conversation.
        """
        first, *behind = found = [self._seen(lane, request) for lane in self._lanes]
        waiting = [seen for seen in behind if seen["state"] != "idle"]
        known = any(seen["generation"] or seen["holds"] or seen["state"] != "idle" for seen in found)
        shown = {"conversation": _name(request), "known": known, **first}
        return shown | ({"dynamodb": waiting[0]} if waiting else {})

    def _seen(self, lane: ValkeyLane | DynamoDbLane, request: r.ShowConversation) -> Json:
        name = _name(request)
        seen = lane.peek_conversation(name, limit=MAX_MESSAGES_SHOWN)
        shown: Json = {
            **_in_short(lane, name, seen),
            "firstAt": seen.first_at_ms,
            "lastAt": seen.last_at_ms,
            "generation": seen.generation,
            "heldUntil": seen.held_until_ms,
            "holds": shown_holds(seen.holds),
            "batch": seen.batch_id and {"batchId": seen.batch_id, "attempt": seen.attempt, "count": seen.frozen},
        }
        return shown | ({"messages": [_readable(payload) for payload in seen.payloads]} if request.messages else {})

    def flush(self, request: r.OfConversation) -> Json:
        """Make the conversation's messages due now, in all lanes. Raise SubjectNotFound if it has none."""
        name = _name(request)
        outcomes = [lane.flush_buffer(name) for lane in self._lanes]
        flushed = [each for each in outcomes if isinstance(each, o.BufferFlushed)]
        if not flushed:
            raise SubjectNotFound("Nothing waits in this conversation.")
        return {"dueAt": min(each.due_at_ms for each in flushed), "count": sum(each.count for each in flushed)}

    def cancel(self, request: r.OfConversation) -> Json:
        """Drop the conversation's messages, in all lanes, and publish the cancel.

        If Valkey's response was lost, the call was repeated, and the counts of dropped messages are null. Holds stay.
        """
        name = _name(request)
        ends = [end for lane in self._lanes if (end := lane.peek_conversation(name).held_until_ms)]
        outcome, *others = [lane.cancel_buffer(name) for lane in self._lanes]
        for other in others:
            outcome = o.cancelled_in_both(outcome, other)
        self._hand_offs.table.end_steps(name)
        conversation = parse_conversation_id(name)
        detail = cancelled_event(
            conversation, outcome, reason="operator", at_ms=self._clock(), agent=self._agent_of(conversation)
        )
        try:
            self._bus.publish(CANCELLED, detail)
        except SendFailed as error:
            raise OperationRefused(
                f"The buffer is cancelled, but the event was not published ({error}); cancel again to publish it."
            ) from error
        published = json.loads(detail)
        counts = {name: published[name] for name in ("generation", "dropped", "frozen", "leaving")}
        return counts | ({"heldUntil": max(ends)} if ends else {})

    def hold(self, request: r.HoldConversation) -> Json:
        """Put the conversation on hold for human agents, in all lanes. Return the time at which the hold ends."""
        name = _name(request)
        *_, last = [
            lane.hold_buffer(name, holder="people", cause=OPERATOR, hold_ms=request.hold_ms)
            for lane in reversed(self._lanes)  # hold in the DynamoDB lane even if Valkey is unavailable
        ]
        self._hand_offs.table.end_steps(name)
        # Return the end in the lane that `show` reads. The hold in the other lane ends a moment earlier.
        return {"heldUntil": last.held_until_ms}

    def hand_off(self, request: r.HandOffConversation) -> Json:
        """Hand the conversation to people. Return the end, None if there is no limit.

        In a stage without a queue `handoff` this is a hold, so the response is that of a hold.
        """
        conversation = parse_conversation_id(request.conversation)
        initiator = self._initiator(conversation, request.by, request.reason)
        until_ms = self._hand_offs.begin(conversation, initiator, hold_ms=request.hold_ms)
        return {"handedOffUntil" if self._hand_offs.has_queue else "heldUntil": until_ms}

    def resume(self, request: r.ResumeConversation) -> Json:
        """End all holds and a hand-off, in all lanes. Return the messages' due time. Raise SubjectNotFound if there was
        neither."""
        conversation = parse_conversation_id(request.conversation)
        initiator = self._initiator(conversation, request.by, request.reason)
        outcomes, was_handed_off = self._hand_offs.end(conversation, initiator, [(None, None)])
        if not was_handed_off and not any(isinstance(each, o.HoldEnded) for each in outcomes):
            raise SubjectNotFound("This conversation is not on hold or handed off.")
        due = [each.due_at_ms for each in outcomes if not isinstance(each, o.OnHold) and each.due_at_ms is not None]
        return {"dueAt": min(due, default=None)}

    def complete(self, request: r.CompleteConversation) -> Json:
        """Publish that the conversation's task is done. Return the time."""
        conversation, at_ms = parse_conversation_id(request.conversation), self._clock()
        self._hand_offs.complete(conversation, self._initiator(conversation, request.by, request.summary), at_ms=at_ms)
        return {"at": at_ms}

    def _initiator(self, conversation: ConversationId, by: str, reason: str | None) -> Initiator:
        return Initiator(OPERATOR, by, reason, agent=self._agent_of(conversation))


def _name(request: r.OfConversation) -> str:
    """Return the conversation's id in the form that ingest uses. Raise InvalidId."""
    return str(parse_conversation_id(request.conversation))


def _readable(payload: bytes) -> Json:
    try:
        return decode_fields(payload)
    except MalformedMessage as error:
        return {"unreadable": str(error)}


class _WindowPage(NamedTuple):
    names: list[str]
    next_cursor: str | None
    more: bool = False
    """True if windows were left out. No later call returns these windows."""


def _page_of_shard(
    valkey_lane: ValkeyLane, cursor: str, request: r.ListConversations, *, then: str | None
) -> _WindowPage:
    given, shards = _SHARD_CURSOR.fullmatch(cursor), valkey_lane.settings.shards
    if not given or (shard := int(given[1])) >= shards:
        raise InvalidInput(f"cursor: no earlier call returned {cursor!r}; leave it out to begin again")
    page = valkey_lane.list_conversations(shard, cursor=given[2], limit=MAX_CONVERSATIONS_IN_A_PAGE)
    names = [name for name in page.conversations if _matches(name, request)]
    if page.next_cursor:
        return _WindowPage(names, f"{shard}/{page.next_cursor}")
    return _WindowPage(names, f"{shard + 1}/{FIRST_PAGE}" if shard + 1 < shards else then)


def _windows(dynamodb_lane: DynamoDbLane, request: r.ListConversations, *, room: int) -> _WindowPage:
    opened = dynamodb_lane.open_windows(limit=MAX_WINDOWS_IN_A_LISTING)
    names = [name for name, _ in opened if _matches(name, request)]
    return _WindowPage(names[:room], None, more=len(names) > room or len(opened) >= MAX_WINDOWS_IN_A_LISTING)


def _matches(name: str, request: r.ListConversations) -> bool:
    parts = name.split("/")
    wanted = (request.tenant, request.platform)
    return all(each is None or part == escape_part(each) for part, each in zip(parts, wanted, strict=False))


def _row(lane: ValkeyLane | DynamoDbLane, kind: str, name: str) -> Json | None:
    """Return the conversation's state, or None if its batch was completed after the page was read."""
    seen = lane.peek_conversation(name)
    if seen.state == "IDLE":
        return None
    return {"conversation": name, "lane": kind, "shard": None, "frozen": seen.frozen, **_in_short(lane, name, seen)}


def _in_short(lane: ValkeyLane | DynamoDbLane, name: str, seen: o.Conversation) -> Json:
    return {
        **({"shard": lane.shard_of(name)} if isinstance(lane, ValkeyLane) else {}),
        "state": seen.state.lower(),
        "count": seen.count,
        "dueAt": seen.due_at_ms,
        "reason": seen.flush_reason,
        "rule": seen.rule,
        "appliedWaitMs": seen.applied_wait_ms,
        **_reply_until(name, seen),
    }


def _reply_until(name: str, seen: o.Conversation) -> Json:
    """Return the field `replyUntil`, or no field if the platform has no reply window, or if no message is known."""
    # The window begins when the last message was sent. If its payload was not read, use the time of its arrival.
    at_ms = _last_sent_at_ms(seen) if seen.payloads and len(seen.payloads) == seen.count else seen.last_at_ms
    until_ms = None if at_ms is None else reply_until_ms(parse_conversation_id(name), at_ms)
    return {} if until_ms is None else {"replyUntil": until_ms}


def _last_sent_at_ms(seen: o.Conversation) -> int | None:
    try:
        return max(sent_at_ms(decode_fields(payload)) for payload in seen.payloads)
    except MalformedMessage:
        return seen.last_at_ms
