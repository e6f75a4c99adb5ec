"""The DynamoDB table of conversations. Its partition key is `id`, its sort key is `part`.

| id | part | item |
|---|---|---|
| a conversation's id | `!` | the record: status, owner, newest turns, the conversation's own settings; or a tombstone |
| a conversation's id | `o#<batchId>` | the outbox of a batch: parts of the reply and their states; it expires |
| a conversation's id | `t#<number>` | a turn for which the record has no room |
| `tenant:<tenant>` | `!` | settings of all conversations of a tenant |
| `tenant:<tenant>` | `h#<hour>` | the number of its replies in an hour of the clock; it expires |

A run that works on a conversation owns the record. It writes a token of its own into the record, and the time at which
the ownership ends. Each later write requires that token, so a run that has lost the conversation changes nothing. Lists
are stored as JSON.

The command `forget` replaces the record with a tombstone, which contains the time up to which batches are dropped. A
tombstone is kept as long as an outbox, so that a replay of the bus does not restore the person's words. The next newer
batch turns the tombstone into a record again. All items expire. A record expires some time after its last batch. A turn
that has an item of its own is kept for the same time.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from lambdas.responder.gate import ParkedBatch
from lambdas.responder.history import Turn
from lambdas.responder.outbox import Outbox, Part
from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Value, Values, encode, expressions, number, text, texts
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.limits import HOUR_MS

DAY_SECONDS = 86_400
RECORD = "!"
# DynamoDB accepts at most this many writes in a call.
DELETES = 25


class ReplyCount(NamedTuple):
    """The number of replies that were planned in the hour from `began_at_ms`."""

    began_at_ms: int
    replies: int

    def at(self, now_ms: int) -> "ReplyCount":
        """Return the count at this time. After an hour the count begins again at zero."""
        return self if now_ms - self.began_at_ms < HOUR_MS else ReplyCount(now_ms, 0)

    def with_one_more(self) -> "ReplyCount":
        return self._replace(replies=self.replies + 1)


class ConversationRecord(NamedTuple):
    """The record as it was when it was acquired or read."""

    status: str | None
    settings: Json
    turns: Sequence[Turn]
    older_turn_count: int
    """The number of turns that are items of their own."""
    parked: Sequence[ParkedBatch]
    answered: Mapping[str, int]
    """For each lane, the highest generation that has been answered."""
    reply_count: ReplyCount
    forgotten_at_ms: int = 0
    """Batches whose last message arrived at or before this time are dropped."""
    is_tombstone: bool = False


class OwnedByAnother(NamedTuple):
    until_ms: int


class UnknownConversation(NamedTuple):
    """Returned if the conversation has no record, and the caller did not let `acquire` create one."""


class Erased(NamedTuple):
    turns: int
    outboxes: int
    finished: bool = True
    """False if some items are left for another call."""


class FinishedBatch(NamedTuple):
    """The content of the transaction that finishes a batch."""

    batch_id: str
    outcome: str
    status: str
    reason: str
    turns: Sequence[Turn]
    leaving_turns: Sequence[Turn]
    """The turns to move out of the record, to items of their own."""
    older_turn_count: int
    """The number of turns that earlier batches moved out of the record."""
    parked: Sequence[ParkedBatch]
    also_answered: Sequence[str]
    answered: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    processing_ms: int
    now_ms: int


class ConversationsTable(Table):
    def __init__(self, name: str, *, outbox_days: int, turn_days: int) -> None:
        super().__init__(name)
        self._outbox_days = outbox_days
        self._turn_days = turn_days

    # -- the record --------------------------------------------------------------------------------

    def acquire(
        self, conversation: str, owner: str, *, now_ms: int, until_ms: int, create: bool
    ) -> ConversationRecord | OwnedByAnother | UnknownConversation:
        """Acquire the conversation until `until_ms`, or extend this run's ownership to that time. Return the record."""
        known = "(attribute_exists(#id) AND (attribute_not_exists(#forgottenAt) OR attribute_exists(#createdAt)))"
        free = (
            "(attribute_not_exists(#owner) OR #ownerUntil < :now OR #owner = :me)"
            " AND (attribute_not_exists(#expiresAt) OR #expiresAt >= :seconds)"
        )
        updated = self._update(
            "acquire conversation",
            _key(conversation, RECORD),
            "SET #owner = :me, #ownerUntil = :until, #conversationStatus = :status, "
            "#createdAt = if_not_exists(#createdAt, :now), #expiresAt = :at",
            {
                "me": owner, "now": now_ms, "until": until_ms, "status": "processing_reply",
                "at": _expires_at(now_ms, self._turn_days), "seconds": now_ms // 1_000,
            },
            only_if=free if create else f"{known} AND {free}",
            returns="ALL_OLD",
        )  # fmt: skip
        if updated.done:
            return _to_record(updated.item)
        if _has_expired(updated.item, now_ms) and (create or not _to_record(updated.item).is_tombstone):
            if self._replace_expired(conversation, owner, now_ms=now_ms, until_ms=until_ms):
                return _to_record({})
            return self.acquire(conversation, owner, now_ms=now_ms, until_ms=until_ms, create=create)
        return OwnedByAnother(number(updated.item, "ownerUntil")) if "owner" in updated.item else UnknownConversation()

    def _replace_expired(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> bool:
        """Replace an expired record with an empty one that this run owns. Return False if another run has done so."""
        fresh: Values = {
            **_key(conversation, RECORD), "owner": owner, "ownerUntil": until_ms, "createdAt": now_ms,
            "conversationStatus": "processing_reply", "expiresAt": _expires_at(now_ms, self._turn_days),
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

    def count_reply(self, tenant: str, *, now_ms: int, at_most: int) -> bool:
        """Count a reply to the tenant's customers. Return False instead if this hour already has `at_most` replies."""
        return self._update(
            "count reply",
            _key(f"tenant:{tenant}", f"h#{now_ms // HOUR_MS}"),
            "SET #expiresAt = :at ADD #replies :one",
            {"at": _expires_at(now_ms, 1), "one": 1, "most": at_most},
            only_if="attribute_not_exists(#replies) OR #replies < :most",
        ).done

    def older_turns(self, conversation: str, *, limit: int, now_ms: int) -> list[Turn]:
        """Return the newest of the turns that were moved out of the record, in the order in which they were written."""
        query = expressions(
            {"id": conversation, "turns": "t#"}, KeyConditionExpression="#id = :id AND begins_with(#part, :turns)"
        )
        newest_first = self._pages("read turns", "query", {"ScanIndexForward": False, "Limit": limit, **query})
        alive = (item for item in newest_first if not _has_expired(item, now_ms))
        turns = [_to_turn(_json(item, "turn", {})) for item in islice(alive, limit)]
        return turns[::-1]

    def release(self, conversation: str, owner: str, *, status: str, reason: str) -> None:
        """Release the conversation, unless another run owns it by now."""
        do = "SET #conversationStatus = :status, #reason = :reason REMOVE #owner, #ownerUntil"
        values = {"me": owner, "status": status, "reason": reason}
        self._update("release conversation", _key(conversation, RECORD), do, values, only_if="#owner = :me")

    def park(self, conversation: str, owner: str, parked: Sequence[ParkedBatch]) -> bool:
        """Store the parked batches and release the conversation. Return False if another run owns it."""
        record = self._change(
            _key(conversation, RECORD),
            "SET #parked = :parked, #conversationStatus = :status, #reason = :reason REMOVE #owner, #ownerUntil",
            {"me": owner, "parked": _from_parked(parked), "status": "reply_parked", "reason": "newer messages"},
            only_if="#owner = :me",
        )
        return self._transact("park reply", [record])

    # -- the outbox --------------------------------------------------------------------------------

    def outbox(self, conversation: str, batch_id: str) -> Outbox | None:
        """Return the outbox of a batch that is finished or has a planned reply, and None for other batches."""
        item = self._get("read outbox", _key(conversation, _outbox_key(batch_id)))
        return _to_outbox(item) if item.keys() & {"outcome", "carriedBy", "states"} else None

    def plan(
        self, conversation: str, owner: str, batch_id: str, outbox: Outbox, *, reply_count: ReplyCount, now_ms: int
    ) -> bool:
        """Store the planned parts before the first is sent. Return False if another run owns the conversation."""
        expires_at = _expires_at(now_ms, self._outbox_days)
        plan: Values = {
            **_key(conversation, _outbox_key(batch_id)), **_from_outbox(outbox), "expiresAt": expires_at,
        }  # fmt: skip
        do = "SET #carriedBy = :by, #expiresAt = :at"
        others = [
            self._change(_key(conversation, _outbox_key(each)), do, {"by": batch_id, "at": expires_at})
            for each in outbox.also_answers
        ]
        record = self._change(
            _key(conversation, RECORD),
            "SET #repliesSince = :since, #replies = :replies",
            {"me": owner, "since": reply_count.began_at_ms, "replies": reply_count.replies},
            only_if="#owner = :me",
        )
        return self._transact("plan reply", [record, self._new(plan), *others])

    def mark(self, conversation: str, owner: str, batch_id: str, *, part: int, before: str, after: str) -> bool:
        """Change a part's state from `before` to `after`. Return False if the part is in another state."""
        # The stored state names its owner. So if a response was lost, the repeated call recognises its own mark.
        mine = f"{after}:{owner}"
        return self._update(
            "mark part",
            _key(conversation, _outbox_key(batch_id)),
            f"SET #states[{part}] = :mine",
            {"before": before, "mine": mine},
            only_if=f"begins_with(#states[{part}], :before) OR #states[{part}] = :mine",
        ).done

    def clear_answered_by(self, conversation: str, batch_id: str) -> None:
        """Remove the note that this batch's reply answers parked batches too. They are then answered separately."""
        record = self.read(conversation)
        for each in record.parked if record else ():
            key, do = _key(conversation, _outbox_key(each.batch_id)), "REMOVE #carriedBy"
            self._update("clear answered by", key, do, {"by": batch_id}, only_if="#carriedBy = :by")

    # -- the end of a batch ------------------------------------------------------------------------

    def finish(self, conversation: str, owner: str, finished: FinishedBatch) -> bool:
        """Store the batch's turns, outcome and counts, and release the conversation, in one transaction.

        Return False if another run owns the conversation.
        """
        f, expires_at = finished, _expires_at(finished.now_ms, self._turn_days)
        record = self._change(
            _key(conversation, RECORD),
            "SET #turns = :turns, #rolled = :rolled, #parked = :parked, #conversationStatus = :status, "
            "#reason = :reason, #answered = :answered, #processingMs = :ms, #updatedAt = :now, #expiresAt = :at"
            " REMOVE #owner, #ownerUntil ADD #inputTokens :in, #outputTokens :out",
            {
                "me": owner,
                "turns": _to_json([_from_turn(turn) for turn in f.turns]),
                "rolled": f.older_turn_count + len(f.leaving_turns),
                "parked": _from_parked(f.parked),
                "status": f.status,
                "reason": f.reason,
                "answered": _to_json(dict(f.answered)),
                "ms": f.processing_ms,
                "now": f.now_ms,
                "at": expires_at,
                "in": f.input_tokens,
                "out": f.output_tokens,
            },
            only_if="#owner = :me",
        )
        batches = [f.batch_id, *f.also_answered]
        outboxes = [self._close_outbox(conversation, each, f.outcome, now_ms=f.now_ms) for each in batches]
        turns = [
            self._new(
                {
                    **_key(conversation, f"t#{f.older_turn_count + n:010}"),
                    "turn": _to_json(_from_turn(turn)),
                    "expiresAt": expires_at,
                }
            )
            for n, turn in enumerate(f.leaving_turns)
        ]
        return self._transact("finish batch", [record, *outboxes, *turns])

    def finish_unknown(self, conversation: str, batch_id: str, outcome: str, *, now_ms: int) -> None:
        """Store the outcome of a batch whose conversation has no record."""
        self._transact("finish batch", [self._close_outbox(conversation, batch_id, outcome, now_ms=now_ms)])

    def _close_outbox(self, conversation: str, batch_id: str, outcome: str, *, now_ms: int) -> Json:
        # The texts of the parts are removed, because the conversation's turns now contain the reply.
        do = "SET #outcome = :outcome, #expiresAt = :at REMOVE #parts"
        values: Values = {"outcome": outcome, "at": _expires_at(now_ms, self._outbox_days)}
        return self._change(_key(conversation, _outbox_key(batch_id)), do, values)

    # -- the end of a conversation -----------------------------------------------------------------

    def begin_to_forget(self, conversation: str, owner: str, *, at_ms: int, now_ms: int, until_ms: int) -> bool:
        """Replace the record with a tombstone that this run owns. Any other run loses the conversation.

        Return False if an earlier run has done this and erased everything.
        """
        tombstone: Values = {
            **_key(conversation, RECORD), "forgottenAt": at_ms, "erasing": 1, "owner": owner, "ownerUntil": until_ms,
            "expiresAt": _expires_at(now_ms, self._outbox_days),
        }  # fmt: skip
        to_do = "attribute_not_exists(#forgottenAt) OR #forgottenAt < :forgotten OR attribute_exists(#erasing)"
        request = self._new(tombstone, {"forgotten": at_ms}, only_if=to_do)["Put"]
        return self._asked("forget conversation", "put_item", request).done

    def count(self, conversation: str) -> Erased:
        """Count the items that `erase` would delete, and the record's turns."""
        record, parts = self.read(conversation), self._parts(conversation)
        turns = len(record.turns) if record else 0
        return Erased(turns + _count(parts, "t#"), _count(parts, "o#"))

    def erase(self, conversation: str, *, has_time: Callable[[], bool]) -> bool:
        """Delete all items except the record. Return False if time ran out before all were deleted."""
        parts = [part for part in self._parts(conversation) if part != RECORD]
        for start in range(0, len(parts), DELETES):
            if not has_time():
                return False
            some = parts[start : start + DELETES]
            requests = [{"DeleteRequest": {"Key": encode(_key(conversation, part))}} for part in some]
            with aws.errors_as_ours("erase conversation"):
                response = self._client.batch_write_item(RequestItems={self.name: requests})
            if response.get("UnprocessedItems"):
                raise SendFailed("erase conversation: the table is too busy")
        return True

    def end_forget(self, conversation: str, owner: str) -> None:
        do = "REMOVE #owner, #ownerUntil, #erasing"
        self._update("forget conversation", _key(conversation, RECORD), do, {"me": owner}, only_if="#owner = :me")

    def release_tombstone(self, conversation: str, owner: str, *, now_ms: int) -> None:
        """Release a conversation whose record was only a tombstone when it was acquired, and restore the tombstone."""
        do = "SET #expiresAt = :at REMOVE #owner, #ownerUntil, #createdAt, #conversationStatus"
        values: Values = {"me": owner, "at": _expires_at(now_ms, self._outbox_days)}
        self._update("release conversation", _key(conversation, RECORD), do, values, only_if="#owner = :me")

    def _parts(self, conversation: str) -> list[str]:
        query = expressions({"id": conversation}, KeyConditionExpression="#id = :id", ProjectionExpression="#part")
        return [text(item, "part") for item in self._pages("read conversation", "query", query)]


def _count(parts: Sequence[str], prefix: str) -> int:
    return sum(part.startswith(prefix) for part in parts)


def _expires_at(now_ms: int, days: int) -> int:
    return now_ms // 1_000 + days * DAY_SECONDS


def _has_expired(item: Item, now_ms: int) -> bool:
    """Return whether the item has expired. DynamoDB may take days to delete an expired item."""
    return "expiresAt" in item and number(item, "expiresAt") < now_ms // 1_000


def _key(conversation: str, part: str) -> dict[str, str]:
    return {"id": conversation, "part": part}


# -- items and their JSON --------------------------------------------------------------------------
# Existing tables contain these names of attributes and fields, so keep them even if a name in Python changes.


def _to_record(item: Item) -> ConversationRecord:
    return ConversationRecord(
        status=text(item, "conversationStatus") or None,
        settings=_json(item, "settings", {}),
        turns=[_to_turn(each) for each in _json(item, "turns", [])],
        older_turn_count=number(item, "rolled"),
        parked=[_to_parked(each) for each in _json(item, "parked", [])],
        answered=_json(item, "answered", {}),
        reply_count=ReplyCount(number(item, "repliesSince"), number(item, "replies")),
        forgotten_at_ms=number(item, "forgottenAt"),
        is_tombstone="forgottenAt" in item and "createdAt" not in item,
    )


def _outbox_key(batch_id: str) -> str:
    return f"o#{batch_id}"


def _to_outbox(item: Item) -> Outbox:
    words = _json(item, "parts", [])
    states = [state.partition(":")[0] for state in texts(item, "states")]
    return Outbox(
        # The outbox of a finished batch has the states of its parts, but not their texts.
        parts=[Part(each, state) for each, state in zip(words, states, strict=bool(words))],
        also_answers=_json(item, "carried", []),
        input_tokens=number(item, "inputTokens"),
        output_tokens=number(item, "outputTokens"),
        answered_by=text(item, "carriedBy") or None,
        outcome=text(item, "outcome") or None,
    )


def _from_outbox(outbox: Outbox) -> dict[str, Value]:
    return {
        "parts": _to_json([part.text for part in outbox.parts]),
        "states": [part.state for part in outbox.parts],
        "carried": _to_json(list(outbox.also_answers)),
        "inputTokens": outbox.input_tokens,
        "outputTokens": outbox.output_tokens,
    }


def _to_turn(value: Json) -> Turn:
    return Turn(role=value["role"], text=value["text"], at_ms=value["at_ms"], batch_id=value["batch_id"])


def _from_turn(turn: Turn) -> Json:
    return {"role": turn.role, "text": turn.text, "at_ms": turn.at_ms, "batch_id": turn.batch_id}


def _to_parked(value: Json) -> ParkedBatch:
    return ParkedBatch(
        batch_id=value["batch_id"],
        generation=value["generation"],
        lane=value["lane"],
        text=value["text"],
        sent_text=value["said"],
    )


def _from_parked(parked: Sequence[ParkedBatch]) -> str:
    return _to_json(
        [
            {
                "batch_id": each.batch_id,
                "generation": each.generation,
                "lane": each.lane,
                "text": each.text,
                "said": each.sent_text,
            }
            for each in parked
        ]
    )


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(item: Item, name: str, default: Any) -> Any:
    wire = text(item, name)
    return json.loads(wire) if wire else default
