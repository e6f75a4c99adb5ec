"""The DynamoDB table of conversations. Its partition key is `id`, its sort key is `part`.

| id | part | item |
|---|---|---|
| a conversation's id | `!` | the record: status, owner, newest turns, the conversation's own settings; or a tombstone |
| a conversation's id | `plan` | the plan of the turn that is being answered: parts of the reply and their states |
| a conversation's id | `o#<batchId>` | the mark of a finished batch, with its outcome |
| a conversation's id | `t#<number>` | a turn for which the record has no room |
| `tenant:<tenant>` | `!` | settings of all conversations of a tenant |
| `tenant:<tenant>` | `h#<hour>` | the number of its replies in an hour of the clock |

The queue hands out a conversation to one run at a time. If a run loses its entries but does not notice, a second run
may work on the conversation. So each run writes a token of its own, the owner, into the record and the plan, and every
later write requires this token: as soon as a second run has begun, the first can write nothing more.

The command `forget` replaces the record with a tombstone, which contains the time up to which batches are dropped. A
tombstone is kept as long as a mark, so that a batch that comes late does not restore the person's words. The next newer
batch turns the tombstone into a record again. Lists are stored as JSON. All items expire.

If the conversation's task is done, the record contains the end of its last episode. Turns from before stay where they
are, but the assistant does not receive them.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from lambdas.responder.history import ASSISTANT, Turn, shorten, trim
from message_buffer.aws.dynamodb import Item, Table, Value, Values, expressions, number, text, texts
from message_buffer.errors import LockLost
from message_buffer.json_object import Json
from message_buffer.limits import HOUR_MS

DAY_SECONDS = 86_400
RECORD, PLAN = "!", "plan"
# The status of a record while there is a plan.
PROCESSING = "processing_reply"
PLANNED, SENDING, SENT, UNCONFIRMED = "planned", "sending", "sent", "unconfirmed"
"""The states of a part. It becomes `planned`, `sending`, and then `sent`.

If the channel certainly did not accept it, it becomes `planned` again. If that is unknown, it becomes `unconfirmed`,
and is never sent again.
"""


class Part(NamedTuple):
    """One message to the customer, or the assistant's use of a tool, with its state."""

    text: str
    """The text for the customer, or the tool's argument."""
    state: str = PLANNED
    message_id: str = ""
    """The provider's id of a sent part, if the channel has returned one."""
    at_ms: int = 0
    """When the part was sent, or the channel was called."""
    tool: str = ""
    """The tool's name. A tool is used at least once, so it never becomes `unconfirmed`."""


class Plan(NamedTuple):
    """The reply to a turn, or why there is none. A run stores it before it sends or publishes anything."""

    question: Sequence[Turn]
    """The customer's words, one turn for each batch."""
    parts: Sequence[Part] = ()
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    withheld: str | None = None
    """The detail of `messages.reply.withheld`. No later run sends a part."""

    @property
    def batch_ids(self) -> list[str]:
        return [turn.batch_id for turn in self.question]

    @property
    def reply_id(self) -> str:
        """Return the id of the reply, which is that of the newest batch."""
        return self.batch_ids[-1]

    @property
    def sent(self) -> list[Part]:
        """Return the parts that the customer was sent, or may have been sent, by this run or an earlier one."""
        return [part for part in self.parts if part.state != PLANNED and not part.tool]

    @property
    def has_effects(self) -> bool:
        """Return whether a part or an event of this plan may have been sent, or a tool may have been used."""
        return self.withheld is not None or any(part.state != PLANNED for part in self.parts)


class ReplyCount(NamedTuple):
    """The number of replies that were planned in the hour from `began_at_ms`."""

    began_at_ms: int
    replies: int

    def at(self, now_ms: int) -> "ReplyCount":
        """Return the count at `now_ms`, which is 0 from an hour after `began_at_ms`."""
        return self if now_ms - self.began_at_ms < HOUR_MS else ReplyCount(now_ms, 0)


class ConversationRecord(NamedTuple):
    """The record as it was when it was acquired or read."""

    status: str | None
    settings: Json
    turns: Sequence[Turn]
    older_turn_count: int
    """The number of turns that are items of their own."""
    reply_count: ReplyCount
    last_reply_id: str
    forgotten_at_ms: int
    """Batches whose last message arrived at or before this time are dropped."""
    episode_from_ms: int
    """Batches whose last message arrived at or before this time belong to an earlier episode."""

    @property
    def has_plan(self) -> bool:
        return self.status == PROCESSING


class End(NamedTuple):
    """How a turn ended."""

    outcome: str
    reason: str
    batch_ids: Sequence[str]
    """The batches to mark as finished."""
    processing_ms: int
    now_ms: int


class ConversationsTable(Table):
    """A write that requires the ownership raises LockLost if another run has acquired the conversation since."""

    def __init__(self, name: str, *, outbox_days: int, turn_days: int) -> None:
        super().__init__(name)
        self._outbox_days = outbox_days
        self._turn_days = turn_days

    # -- the record --------------------------------------------------------------------------------

    def acquire(self, conversation: str, owner: str, *, now_ms: int) -> ConversationRecord:
        """Make this run the owner, instead of any earlier one. Return the record.

        Raise LockLost while the conversation is being erased.
        """
        values: Values = {
            "me": owner, "now": now_ms, "at": _expires_at(now_ms, self._turn_days), "seconds": now_ms // 1_000,
        }  # fmt: skip
        updated = self._update(
            "acquire conversation",
            _key(conversation, RECORD),
            "SET #owner = :me, #createdAt = if_not_exists(#createdAt, :now), "
            "#expiresAt = if_not_exists(#expiresAt, :at)",
            values,
            only_if="attribute_not_exists(#erasing) AND (attribute_not_exists(#expiresAt) OR #expiresAt >= :seconds)",
            returns="ALL_OLD",
        )
        if updated.done:
            return _to_record(updated.item)
        if _has_expired(updated.item, now_ms) and self._replace_expired(conversation, owner, now_ms):
            return _to_record({})
        raise LockLost("the conversation is being erased")

    def _replace_expired(self, conversation: str, owner: str, now_ms: int) -> bool:
        """Replace an expired record with an empty one that this run owns. Return False if another run has done so."""
        fresh: Values = {
            **_key(conversation, RECORD), "owner": owner, "createdAt": now_ms,
            "expiresAt": _expires_at(now_ms, self._turn_days),
        }  # fmt: skip
        request = self._new(fresh, {"seconds": now_ms // 1_000}, only_if="#expiresAt < :seconds")["Put"]
        return self._asked("replace conversation", "put_item", request).done

    def read(self, conversation: str) -> ConversationRecord | None:
        """Return the conversation's record, or None if it has none."""
        item = self._get("read conversation", _key(conversation, RECORD))
        return _to_record(item) if item else None

    def tenant_settings(self, tenant: str) -> Json:
        item = self._get("read tenant", _key(f"tenant:{tenant}", RECORD))
        settings: Json = _json(item, "settings", {})
        return settings

    def put_tenant_settings(self, tenant: str, settings: Json) -> None:
        """Replace all settings of the tenant."""
        self._put("write tenant", {**_key(f"tenant:{tenant}", RECORD), "settings": json.dumps(settings)})

    def count_reply(self, tenant: str, *, now_ms: int, at_most: int) -> bool:
        """Count a reply to the tenant's customers. Return False instead if this hour already has `at_most` replies."""
        return self._update(
            "count reply",
            _key(f"tenant:{tenant}", f"h#{now_ms // HOUR_MS}"),
            "SET #expiresAt = :at ADD #replies :one",
            {"at": _expires_at(now_ms, 1), "one": 1, "most": at_most},
            only_if="attribute_not_exists(#replies) OR #replies < :most",
        ).done

    def end_episode(self, conversation: str, *, at_ms: int, now_ms: int) -> None:
        """Leave out of later prompts the batches whose last message arrived at or before `at_ms`."""
        self._update(
            "end episode",
            _key(conversation, RECORD),
            "SET #episodeFrom = :from, #expiresAt = if_not_exists(#expiresAt, :at)",
            {"from": at_ms, "at": _expires_at(now_ms, self._turn_days)},
            only_if="attribute_not_exists(#episodeFrom) OR #episodeFrom < :from",
        )

    def older_turns(self, conversation: str, *, limit: int, now_ms: int) -> list[Turn]:
        """Return the newest of the turns that were moved out of the record, in the order in which they were written."""
        query = expressions(
            {"id": conversation, "turns": "t#"}, KeyConditionExpression="#id = :id AND begins_with(#part, :turns)"
        )
        newest_first = self._pages("read turns", "query", {"ScanIndexForward": False, "Limit": limit, **query})
        alive = (item for item in newest_first if not _has_expired(item, now_ms))
        turns = [Turn(**_json(item, "turn", {})) for item in islice(alive, limit)]
        return turns[::-1]

    def _change_own(self, conversation: str, owner: str, do: str, **values: Value) -> Json:
        """Return an update of the record that fails if another run owns the conversation."""
        return self._change(_key(conversation, RECORD), do, {"me": owner, **values}, only_if="#owner = :me")

    # -- a turn ------------------------------------------------------------------------------------

    def finished(self, conversation: str, batch_ids: Iterable[str]) -> set[str]:
        """Return those of the batches that were finished before."""
        return {each for each in batch_ids if self._get("read mark", _key(conversation, f"o#{each}"))}

    def take_plan(self, conversation: str, owner: str) -> Plan | None:
        """Return the plan that an earlier run has left unfinished, or None. Only this run can change it from now on."""
        taken = self._update(
            "take plan",
            _key(conversation, PLAN),
            "SET #owner = :me",
            {"me": owner},
            only_if="attribute_exists(#id)",
            returns="ALL_NEW",
        )
        return _to_plan(taken.item) if taken.done else None

    def plan(self, conversation: str, owner: str, plan: Plan, *, reply_count: ReplyCount, now_ms: int) -> None:
        """Store the plan instead of an earlier one."""
        item: Values = {
            **_key(conversation, PLAN),
            "owner": owner,
            "question": _to_json([turn.fields() for turn in plan.question]),
            "parts": [_to_json(part) for part in plan.parts],
            "model": plan.model,
            "inputTokens": plan.input_tokens,
            "outputTokens": plan.output_tokens,
            "withheld": plan.withheld or "",
            "expiresAt": _expires_at(now_ms, self._outbox_days),
        }
        do = "SET #conversationStatus = :status, #repliesSince = :since, #replies = :replies"
        values: Values = {
            "status": PROCESSING,
            "since": reply_count.began_at_ms,
            "replies": reply_count.replies,
        }
        record = self._change_own(conversation, owner, do, **values)
        _require_ownership(self._transact("plan reply", [record, self._new(item)]))

    def mark(self, conversation: str, owner: str, *, number: int, part: Part) -> None:
        """Replace a part of the plan."""
        do, values = f"SET #parts[{number}] = :part", {"part": _to_json(part), "me": owner}
        marked = self._update("mark part", _key(conversation, PLAN), do, values, only_if="#owner = :me")
        _require_ownership(marked.done)

    def finish(
        self, conversation: str, owner: str, plan: Plan, *, record: ConversationRecord, end: End
    ) -> ConversationRecord:
        """Add the plan's turns to the record, mark the batches, and delete the plan, in one transaction."""
        new = list(plan.question)
        if plan.sent:
            new.append(_reply(plan, end.processing_ms))
            record = record._replace(last_reply_id=plan.reply_id)
        recent, older = trim([*record.turns, *new])
        count_before, expires_at = record.older_turn_count, _expires_at(end.now_ms, self._turn_days)
        record = record._replace(turns=recent, older_turn_count=count_before + len(older))
        changed = self._change_own(
            conversation,
            owner,
            "SET #turns = :turns, #rolled = :rolled, #conversationStatus = :status, #reason = :reason, "
            "#lastReplyId = :reply, #updatedAt = :now, #expiresAt = :at ADD #inputTokens :input, #outputTokens :output",
            turns=_to_json([turn.fields() for turn in record.turns]),
            rolled=record.older_turn_count,
            status=end.outcome,
            reason=end.reason,
            reply=record.last_reply_id,
            now=end.now_ms,
            at=expires_at,
            input=plan.input_tokens,
            output=plan.output_tokens,
        )
        marked_until = _expires_at(end.now_ms, self._outbox_days)
        marks = [
            self._new({**_key(conversation, f"o#{each}"), "outcome": end.outcome, "expiresAt": marked_until})
            for each in end.batch_ids
        ]
        turns = [
            self._new(
                {**_key(conversation, f"t#{number:010}"), "turn": _to_json(turn.fields()), "expiresAt": expires_at}
            )
            for number, turn in enumerate(older, count_before)
        ]
        writes = [changed, self._delete(_key(conversation, PLAN)), *marks, *turns]
        _require_ownership(self._transact("finish turn", writes))
        return record

    # -- the end of a conversation -----------------------------------------------------------------

    def begin_to_forget(self, conversation: str, owner: str, *, at_ms: int, now_ms: int) -> bool:
        """Replace the record with a tombstone that this run owns. Until `end_forget` no other run can acquire it.

        Return False if an earlier run has done this and erased everything.
        """
        tombstone: Values = {
            **_key(conversation, RECORD), "forgottenAt": at_ms, "erasing": 1, "owner": owner,
            "expiresAt": _expires_at(now_ms, self._outbox_days),
        }  # fmt: skip
        to_do = "attribute_not_exists(#forgottenAt) OR #forgottenAt < :forgotten OR attribute_exists(#erasing)"
        request = self._new(tombstone, {"forgotten": at_ms}, only_if=to_do)["Put"]
        return self._asked("forget conversation", "put_item", request).done

    def count(self, conversation: str) -> Mapping[str, int]:
        """Return the numbers of its turns and marks."""
        record, parts = self.read(conversation), self._parts(conversation)
        turns = (len(record.turns) if record else 0) + sum(part.startswith("t#") for part in parts)
        return {"turns": turns, "marks": sum(part.startswith("o#") for part in parts)}

    def erase(self, conversation: str, *, has_time: Callable[[], bool]) -> bool:
        """Delete all items except the record. Return False if time ran out before all were deleted."""
        for part in self._parts(conversation):
            if not has_time():
                return False
            if part != RECORD:
                self._asked("erase conversation", "delete_item", self._delete(_key(conversation, part))["Delete"])
        return True

    def end_forget(self, conversation: str, owner: str) -> None:
        request = self._change_own(conversation, owner, "REMOVE #owner, #erasing")["Update"]
        self._asked("forget conversation", "update_item", request)

    def _parts(self, conversation: str) -> list[str]:
        query = expressions({"id": conversation}, KeyConditionExpression="#id = :id", ProjectionExpression="#part")
        return [text(item, "part") for item in self._pages("read conversation", "query", query)]


def _require_ownership(is_owner: bool) -> None:  # noqa: FBT001 - the result of a write
    if not is_owner:
        raise LockLost("another run owns the conversation")


def _expires_at(now_ms: int, days: int) -> int:
    return now_ms // 1_000 + days * DAY_SECONDS


def _has_expired(item: Item, now_ms: int) -> bool:
    """Return whether the item has expired. DynamoDB deletes it days later."""
    return "expiresAt" in item and number(item, "expiresAt") < now_ms // 1_000


def _key(conversation: str, part: str) -> dict[str, str]:
    return {"id": conversation, "part": part}


def _to_record(item: Item) -> ConversationRecord:
    return ConversationRecord(
        status=text(item, "conversationStatus") or None,
        settings=_json(item, "settings", {}),
        turns=[Turn(**each) for each in _json(item, "turns", [])],
        older_turn_count=number(item, "rolled"),
        reply_count=ReplyCount(number(item, "repliesSince"), number(item, "replies")),
        last_reply_id=text(item, "lastReplyId"),
        forgotten_at_ms=number(item, "forgottenAt"),
        episode_from_ms=number(item, "episodeFrom"),
    )


def _to_plan(item: Item) -> Plan:
    return Plan(
        question=[Turn(**each) for each in _json(item, "question", [])],
        parts=[Part(*json.loads(each)) for each in texts(item, "parts")],
        model=text(item, "model"),
        input_tokens=number(item, "inputTokens"),
        output_tokens=number(item, "outputTokens"),
        withheld=text(item, "withheld") or None,
    )


def _reply(plan: Plan, processing_ms: int) -> Turn:
    """Return the assistant's turn, which contains the parts of the reply that were sent."""
    said = shorten("\n".join(part.text for part in plan.sent))
    ids = [part.message_id for part in plan.sent if part.message_id]
    tokens = (plan.input_tokens, plan.output_tokens)
    return Turn(ASSISTANT, said, plan.sent[-1].at_ms, plan.reply_id, ids, plan.model, *tokens, processing_ms)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(item: Item, name: str, default: Any) -> Any:
    wire = text(item, name)
    return json.loads(wire) if wire else default
