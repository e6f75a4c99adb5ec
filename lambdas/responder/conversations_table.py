"""The DynamoDB table of conversations. Its partition key is `id`, its sort key is `part`.

| id | part | item |
|---|---|---|
| a conversation's id | `!` | the record: status, owner, newest turns, the conversation's own settings; or a tombstone |
| a conversation's id | `o#<batchId>` | the outbox of a batch: parts of the reply and their states; it expires |
| a conversation's id | `t#<number>` | a turn for which the record has no room |
| `tenant:<tenant>` | `!` | settings of all conversations of a tenant |
| `tenant:<tenant>` | `h#<hour>` | the number of its replies in an hour of the clock; it expires |

A run that works on a conversation owns the record: it writes a token of its own into it, which each later write
requires. Lists are stored as JSON. All items expire.

The command `forget` replaces the record with a tombstone, which contains the time up to which batches are dropped. A
tombstone is kept as long as an outbox, so that a replay of the bus does not restore the person's words. The next newer
batch turns the tombstone into a record again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from lambdas.responder.gate import ParkedBatch
from lambdas.responder.history import Turn
from message_buffer.aws.dynamodb import Item, Table, Value, Values, expressions, number, text, texts
from message_buffer.errors import LockLost
from message_buffer.json_object import Json
from message_buffer.limits import HOUR_MS

DAY_SECONDS = 86_400
RECORD = "!"
PLANNED, SENDING, SENT, UNCONFIRMED = "planned", "sending", "sent", "unconfirmed"
"""The states of a part. It becomes `planned`, `sending`, and then `sent`.

If the channel certainly did not accept it, it becomes `planned` again. If that is unknown, it becomes `unconfirmed`,
and is never sent again.
"""


class Part(NamedTuple):
    """One message to the customer, with its state."""

    text: str
    state: str = PLANNED


class Outbox(NamedTuple):
    """The parts of a batch's reply, stored before any of them is sent."""

    parts: Sequence[Part] = ()
    """Their texts are removed when the batch is finished, because the conversation's turns then contain the reply."""
    also_answers: Sequence[str] = ()
    """Ids of the parked batches that this reply also answers."""
    input_tokens: int = 0
    output_tokens: int = 0
    answered_by: str | None = None
    """Id of the later batch whose reply also answers this batch."""
    withheld: str | None = None
    """The detail of `messages.reply.withheld`, set before it is published. No later run sends a part."""
    outcome: str | None = None
    """Set when the batch is finished. A run that sees it does nothing more."""


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
    parked: Sequence[ParkedBatch]
    answered: Mapping[str, int]
    """For each lane, the highest generation that has been answered."""
    reply_count: ReplyCount
    forgotten_at_ms: int = 0
    """Batches whose last message arrived at or before this time are dropped."""
    is_tombstone: bool = False


class OwnedByAnother(NamedTuple):
    until_ms: int


class FinishedBatch(NamedTuple):
    """The content of the transaction that finishes a batch."""

    batch_ids: Sequence[str]
    """The batch, and the parked batches that its reply also answers."""
    outcome: str
    reason: str
    record: ConversationRecord
    leaving_turns: Sequence[Turn]
    """The turns to move out of the record, to items of their own."""
    input_tokens: int
    output_tokens: int
    processing_ms: int
    now_ms: int


class ConversationsTable(Table):
    """A write that requires the ownership raises LockLost if another run has taken the conversation over."""

    def __init__(self, name: str, *, outbox_days: int, turn_days: int) -> None:
        super().__init__(name)
        self._outbox_days = outbox_days
        self._turn_days = turn_days

    # -- the record --------------------------------------------------------------------------------

    def acquire(
        self, conversation: str, owner: str, *, now_ms: int, until_ms: int
    ) -> ConversationRecord | OwnedByAnother:
        """Acquire the conversation until `until_ms`, or extend this run's ownership to that time. Return the record."""
        updated = self._update(
            "acquire conversation",
            _key(conversation, RECORD),
            "SET #owner = :me, #ownerUntil = :until, #conversationStatus = :status, "
            "#createdAt = if_not_exists(#createdAt, :now), #expiresAt = :at",
            {
                "me": owner, "now": now_ms, "until": until_ms, "status": "processing_reply",
                "at": _expires_at(now_ms, self._turn_days), "seconds": now_ms // 1_000,
            },
            only_if="(attribute_not_exists(#owner) OR #ownerUntil < :now OR #owner = :me)"
            " AND (attribute_not_exists(#expiresAt) OR #expiresAt >= :seconds)",
            returns="ALL_OLD",
        )  # fmt: skip
        if updated.done:
            return _to_record(updated.item)
        if _has_expired(updated.item, now_ms) and self._replace_expired(conversation, owner, now_ms, until_ms):
            return _to_record({})
        return OwnedByAnother(number(updated.item, "ownerUntil"))

    def _replace_expired(self, conversation: str, owner: str, now_ms: int, until_ms: int) -> bool:
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
        turns = [Turn(**_json(item, "turn", {})) for item in islice(alive, limit)]
        return turns[::-1]

    def release(self, conversation: str, owner: str, *, status: str, reason: str) -> None:
        """Release the conversation, unless another run owns it by now."""
        do = "SET #conversationStatus = :status, #reason = :reason REMOVE #owner, #ownerUntil"
        self._update_own("release conversation", conversation, owner, do, status=status, reason=reason)

    def park(self, conversation: str, owner: str, parked: Sequence[ParkedBatch]) -> None:
        """Store the parked batches and release the conversation."""
        do = "SET #parked = :parked, #conversationStatus = :status, #reason = :reason REMOVE #owner, #ownerUntil"
        values = {"parked": _to_json(_as_dicts(parked)), "status": "reply_parked", "reason": "newer messages"}
        # This write ends the ownership that it requires. Only a transaction may be repeated after a lost response.
        _require_ownership(self._transact("park reply", [self._change_own(conversation, owner, do, **values)]))

    def _update_own(self, doing: str, conversation: str, owner: str, do: str, **values: Value) -> bool:
        return self._asked(doing, "update_item", self._change_own(conversation, owner, do, **values)["Update"]).done

    def _change_own(self, conversation: str, owner: str, do: str, **values: Value) -> Json:
        """Return an update of the record that fails if another run owns the conversation."""
        return self._change(_key(conversation, RECORD), do, {"me": owner, **values}, only_if="#owner = :me")

    # -- the outbox --------------------------------------------------------------------------------

    def outbox(self, conversation: str, batch_id: str) -> Outbox | None:
        """Return the outbox of a batch, or None if no run has planned, withheld or finished its reply."""
        item = self._get("read outbox", _key(conversation, _outbox_key(batch_id)))
        return _to_outbox(item) if item.keys() & {"outcome", "carriedBy", "states", "withheld"} else None

    def plan(
        self, conversation: str, owner: str, batch_id: str, outbox: Outbox, *, reply_count: ReplyCount, now_ms: int
    ) -> None:
        """Store the planned parts before the first is sent."""
        expires_at = _expires_at(now_ms, self._outbox_days)
        plan: Values = {
            **_key(conversation, _outbox_key(batch_id)),
            "parts": _to_json([part.text for part in outbox.parts]),
            "states": [part.state for part in outbox.parts],
            "carried": _to_json(outbox.also_answers),
            "inputTokens": outbox.input_tokens,
            "outputTokens": outbox.output_tokens,
            "expiresAt": expires_at,
        }
        values: Values = {"by": batch_id, "at": expires_at}
        others = [
            self._change(_key(conversation, _outbox_key(each)), "SET #carriedBy = :by, #expiresAt = :at", values)
            for each in outbox.also_answers
        ]
        do = "SET #repliesSince = :since, #replies = :replies"
        record = self._change_own(conversation, owner, do, since=reply_count.began_at_ms, replies=reply_count.replies)
        _require_ownership(self._transact("plan reply", [record, self._new(plan), *others]))

    def mark(self, conversation: str, owner: str, batch_id: str, *, part: int, before: str, after: str) -> None:
        """Change a part's state from `before` to `after`."""
        # The stored state names its owner. So if a response was lost, the repeated call recognises its own write.
        mine = f"{after}:{owner}"
        marked = self._update(
            "mark part",
            _key(conversation, _outbox_key(batch_id)),
            f"SET #states[{part}] = :mine",
            {"before": before, "mine": mine},
            only_if=f"begins_with(#states[{part}], :before) OR #states[{part}] = :mine",
        )
        _require_ownership(marked.done)

    def withhold(self, conversation: str, owner: str, batch_id: str, detail: str, *, now_ms: int) -> None:
        """Store the event before it is published."""
        record = self._change_own(conversation, owner, "SET #ownerUntil = #ownerUntil")
        values: Values = {"detail": detail, "at": _expires_at(now_ms, self._outbox_days)}
        do = "SET #withheld = :detail, #expiresAt = :at"
        outbox = self._change(_key(conversation, _outbox_key(batch_id)), do, values)
        _require_ownership(self._transact("withhold reply", [record, outbox]))

    def clear_answered_by(self, conversation: str, batch_id: str) -> None:
        """Remove the note that this batch's reply answers parked batches too. They are then answered separately."""
        record = self.read(conversation)
        for each in record.parked if record else ():
            key, do = _key(conversation, _outbox_key(each.batch_id)), "REMOVE #carriedBy"
            self._update("clear answered by", key, do, {"by": batch_id}, only_if="#carriedBy = :by")

    # -- the end of a batch ------------------------------------------------------------------------

    def finish(self, conversation: str, owner: str, finished: FinishedBatch) -> None:
        """Store the batch's turns, outcome and counts, and release the conversation, in one transaction."""
        f, expires_at = finished, _expires_at(finished.now_ms, self._turn_days)
        record = self._change_own(
            conversation,
            owner,
            "SET #turns = :turns, #rolled = :rolled, #parked = :parked, #conversationStatus = :status, "
            "#reason = :reason, #answered = :answered, #processingMs = :ms, #updatedAt = :now, #expiresAt = :at"
            " REMOVE #owner, #ownerUntil ADD #inputTokens :input, #outputTokens :output",
            turns=_to_json(_as_dicts(f.record.turns)),
            rolled=f.record.older_turn_count + len(f.leaving_turns),
            parked=_to_json(_as_dicts(f.record.parked)),
            status=f.outcome,
            reason=f.reason,
            answered=_to_json(f.record.answered),
            ms=f.processing_ms,
            now=f.now_ms,
            at=expires_at,
            input=f.input_tokens,
            output=f.output_tokens,
        )
        # The texts of the parts are removed, because the conversation's turns now contain the reply.
        do = "SET #outcome = :outcome, #expiresAt = :at REMOVE #parts, #withheld"
        values: Values = {"outcome": f.outcome, "at": _expires_at(f.now_ms, self._outbox_days)}
        outboxes = [self._change(_key(conversation, _outbox_key(each)), do, values) for each in f.batch_ids]
        turns = [
            self._new(
                {**_key(conversation, f"t#{number:010}"), "turn": _to_json(turn._asdict()), "expiresAt": expires_at}
            )
            for number, turn in enumerate(f.leaving_turns, f.record.older_turn_count)
        ]
        _require_ownership(self._transact("finish batch", [record, *outboxes, *turns]))

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

    def count(self, conversation: str) -> tuple[int, int]:
        """Return (number of turns, number of outboxes)."""
        record, parts = self.read(conversation), self._parts(conversation)
        turns = (len(record.turns) if record else 0) + sum(part.startswith("t#") for part in parts)
        return turns, sum(part.startswith("o#") for part in parts)

    def erase(self, conversation: str, *, has_time: Callable[[], bool]) -> bool:
        """Delete all items except the record. Return False if time ran out before all were deleted."""
        for part in self._parts(conversation):
            if not has_time():
                return False
            if part != RECORD:
                self._asked("erase conversation", "delete_item", self._delete(_key(conversation, part))["Delete"])
        return True

    def end_forget(self, conversation: str, owner: str) -> None:
        self._update_own("forget conversation", conversation, owner, "REMOVE #owner, #ownerUntil, #erasing")

    def release_tombstone(self, conversation: str, owner: str, *, now_ms: int) -> None:
        """Release a conversation whose record was only a tombstone when it was acquired, and restore the tombstone."""
        do = "SET #expiresAt = :at REMOVE #owner, #ownerUntil, #createdAt, #conversationStatus"
        expires_at = _expires_at(now_ms, self._outbox_days)
        self._update_own("release conversation", conversation, owner, do, at=expires_at)

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
        parked=[ParkedBatch(**each) for each in _json(item, "parked", [])],
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
        withheld=text(item, "withheld") or None,
        outcome=text(item, "outcome") or None,
    )


def _as_dicts(values: Sequence[Turn] | Sequence[ParkedBatch]) -> list[Json]:
    return [each._asdict() for each in values]


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(item: Item, name: str, default: Any) -> Any:
    wire = text(item, name)
    return json.loads(wire) if wire else default
