"""The DynamoDB table of conversations. Its partition key is `id`, its sort key is `part`.

| id | part | item |
|---|---|---|
| a conversation's id | `!` | the record: status, owner, newest turns, the conversation's own settings |
| a conversation's id | `o#<batchId>` | the outbox of a batch: parts of the reply and their states; it expires |
| a conversation's id | `t#<number>` | a turn for which the record has no room |
| `tenant:<tenant>` | `!` | settings of all conversations of a tenant |

A run that works on a conversation owns its record: it writes a token of its own, and a time at which the ownership
lapses. Each later write has the token as its condition, so a run that has lost the conversation changes nothing.
Lists are stored as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from message_buffer.aws import clients as aws
from responder.gate import ParkedBatch
from responder.history import Turn
from responder.limits import DAY_SECONDS
from responder.outbox import Outbox, Part

RECORD = "!"

Json = dict[str, Any]
Item = dict[str, dict[str, Any]]


class ConversationRecord(NamedTuple):
    """The record as it was when it was acquired or read."""

    status: str | None
    settings: Json
    hand_off_until_ms: int
    turns: Sequence[Turn]
    older_turn_count: int
    """The number of turns that are items of their own."""
    parked: Sequence[ParkedBatch]
    answered: Mapping[str, int]
    """By lane, the highest generation that has been answered."""


class OwnedByAnother(NamedTuple):
    until_ms: int


class UnknownConversation(NamedTuple):
    """The conversation has no record, and the caller wanted none made."""


class FinishedBatch(NamedTuple):
    """The changes of the one write that ends a batch."""

    batch_id: str
    outcome: str
    status: str
    reason: str
    turns: Sequence[Turn]
    leaving_turns: Sequence[Turn]
    """The turns that leave the record for items of their own."""
    older_turn_count: int
    """The number of turns that had already left it."""
    parked: Sequence[ParkedBatch]
    also_answered: Sequence[str]
    answered: Mapping[str, int]
    input_tokens: int
    output_tokens: int
    processing_ms: int
    now_ms: int


class ConversationsTable:
    def __init__(self, table_name: str, *, outbox_days: int) -> None:
        self.name = table_name
        self._outbox_days = outbox_days

    # -- the record --------------------------------------------------------------------------------

    def acquire(
        self, conversation: str, owner: str, *, now_ms: int, until_ms: int, create: bool
    ) -> ConversationRecord | OwnedByAnother | UnknownConversation:
        """Acquire the conversation until `until_ms`, and return its record. The same owner may call again."""
        values = {":me": _s(owner), ":now": _n(now_ms), ":until": _n(until_ms), ":status": _s("processing_reply")}
        free = "(attribute_not_exists(#owner) OR ownerUntil < :now OR #owner = :me)"
        with aws.errors_as_ours("acquire conversation"):
            try:
                answer = self._client.update_item(
                    **self._at(conversation, RECORD),
                    UpdateExpression="SET #owner = :me, ownerUntil = :until, conversationStatus = :status, "
                    "createdAt = if_not_exists(createdAt, :now)",
                    ConditionExpression=free if create else f"attribute_exists(id) AND {free}",
                    ExpressionAttributeNames={"#owner": "owner"},
                    ExpressionAttributeValues=values,
                    ReturnValues="ALL_OLD",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self._client.exceptions.ConditionalCheckFailedException as error:
                found = error.response.get("Item")
                return OwnedByAnother(_number(found, "ownerUntil")) if found else UnknownConversation()
        return _to_record(answer.get("Attributes") or {})

    def read(self, conversation: str) -> ConversationRecord | None:
        """Return the conversation's record, or None if it has none."""
        with aws.errors_as_ours("read conversation"):
            item = self._item(conversation, RECORD)
        return _to_record(item) if item else None

    def tenant_settings(self, tenant: str) -> Json:
        with aws.errors_as_ours("read tenant"):
            settings: Json = _json(self._item(f"tenant:{tenant}", RECORD) or {}, "settings", {})
        return settings

    def older_turns(self, conversation: str, *, limit: int) -> list[Turn]:
        """Return the newest turns that have left the record, the oldest of them first."""
        with aws.errors_as_ours("read turns"):
            answer = self._client.query(
                TableName=self.name,
                KeyConditionExpression="id = :id AND begins_with(part, :turns)",
                ExpressionAttributeValues={":id": _s(conversation), ":turns": _s("t#")},
                ScanIndexForward=False,
                Limit=limit,
            )
        return [_to_turn(_json(item, "turn", {})) for item in reversed(answer["Items"])]

    def release(self, conversation: str, owner: str, *, status: str, reason: str) -> None:
        """Release the conversation. Nothing changes if another run owns it by now."""
        with aws.errors_as_ours("release conversation"):
            try:
                self._client.update_item(
                    **self._at(conversation, RECORD),
                    UpdateExpression="SET conversationStatus = :status, reason = :reason REMOVE #owner, ownerUntil",
                    ConditionExpression="#owner = :me",
                    ExpressionAttributeNames={"#owner": "owner"},
                    ExpressionAttributeValues={":me": _s(owner), ":status": _s(status), ":reason": _s(reason)},
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return

    def hand_off(self, conversation: str, *, until_ms: int, now_ms: int) -> None:
        """Record that a person answers the conversation until `until_ms`."""
        with aws.errors_as_ours("hand off conversation"):
            self._client.update_item(
                **self._at(conversation, RECORD),
                UpdateExpression="SET handOffUntil = :until, createdAt = if_not_exists(createdAt, :now)",
                ExpressionAttributeValues={":until": _n(until_ms), ":now": _n(now_ms)},
            )

    def hand_back(self, conversation: str) -> None:
        """End a hand-off. This creates no record for a conversation that never had one."""
        with aws.errors_as_ours("hand back conversation"):
            try:
                self._client.update_item(
                    **self._at(conversation, RECORD),
                    UpdateExpression="REMOVE handOffUntil",
                    ConditionExpression="attribute_exists(handOffUntil)",
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return

    def park(self, conversation: str, owner: str, parked: Sequence[ParkedBatch]) -> bool:
        """Store the parked batches and release the conversation. Return False if another run owns it."""
        record = self._update(
            conversation,
            RECORD,
            "SET parked = :parked, conversationStatus = :status, reason = :reason REMOVE #owner, ownerUntil",
            parked=_s(_from_parked(parked)),
            status=_s("reply_parked"),
            reason=_s("newer messages"),
        )
        _require_owner(owner, record)
        return self._transact("park reply", [record])

    # -- the outbox --------------------------------------------------------------------------------

    def outbox(self, conversation: str, batch_id: str) -> Outbox | None:
        """Return the outbox of a batch, or None if nothing was planned for it and no other batch answers it."""
        with aws.errors_as_ours("read outbox"):
            item = self._item(conversation, _outbox_key(batch_id))
        if item is None or not item.keys() & {"outcome", "carriedBy", "states"}:
            return None
        return _to_outbox(item)

    def plan(self, conversation: str, owner: str, batch_id: str, outbox: Outbox, *, now_ms: int) -> bool:
        """Store what is going to be sent, before any of it is. Return False if another run owns the conversation."""
        expires_at = self._expires_at(now_ms)
        plan = {**self._key(conversation, _outbox_key(batch_id)), **_from_outbox(outbox), "expiresAt": expires_at}
        others = [
            self._update(conversation, _outbox_key(each), "SET carriedBy = :by, expiresAt = :at", by=_s(batch_id),
                         at=expires_at)
            for each in outbox.also_answers
        ]  # fmt: skip
        return self._transact(
            "plan reply",
            [self._owned(conversation, owner), {"Put": {"TableName": self.name, "Item": plan}}, *others],
        )

    def mark(self, conversation: str, owner: str, batch_id: str, *, part: int, before: str, after: str) -> bool:
        """Move a part from one state to the next. Return False if the part is in another state."""
        # The state names its owner, so a caller that repeats a call because the answer was lost finds its own mark.
        mine = f"{after}:{owner}"
        with aws.errors_as_ours("mark part"):
            try:
                self._client.update_item(
                    **self._at(conversation, _outbox_key(batch_id)),
                    UpdateExpression=f"SET states[{part}] = :mine",
                    ConditionExpression=f"begins_with(states[{part}], :before) OR states[{part}] = :mine",
                    ExpressionAttributeValues={":before": _s(before), ":mine": _s(mine)},
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def clear_answered_by(self, conversation: str, batch_id: str) -> None:
        """Let each parked batch that this batch's reply was also going to answer be answered by itself again."""
        record = self.read(conversation)
        for each in record.parked if record else ():
            with aws.errors_as_ours("clear answered by"):
                try:
                    self._client.update_item(
                        **self._at(conversation, _outbox_key(each.batch_id)),
                        UpdateExpression="REMOVE carriedBy",
                        ConditionExpression="carriedBy = :by",
                        ExpressionAttributeValues={":by": _s(batch_id)},
                    )
                except self._client.exceptions.ConditionalCheckFailedException:
                    continue

    # -- the end of a batch ------------------------------------------------------------------------

    def finish(self, conversation: str, owner: str, finished: FinishedBatch) -> bool:
        """Store everything that remains of a batch and release the conversation, in one transaction.

        Return False if another run owns the conversation.
        """
        f = finished
        record = self._update(
            conversation,
            RECORD,
            "SET turns = :turns, rolled = :rolled, parked = :parked, conversationStatus = :status, reason = :reason, "
            "answered = :answered, processingMs = :ms, updatedAt = :now "
            "REMOVE #owner, ownerUntil ADD inputTokens :in, outputTokens :out",
            turns=_s(_to_json([_from_turn(turn) for turn in f.turns])),
            rolled=_n(f.older_turn_count + len(f.leaving_turns)),
            parked=_s(_from_parked(f.parked)),
            status=_s(f.status),
            reason=_s(f.reason),
            answered=_s(_to_json(dict(f.answered))),
            ms=_n(f.processing_ms),
            now=_n(f.now_ms),
            **{"in": _n(f.input_tokens), "out": _n(f.output_tokens)},
        )
        _require_owner(owner, record)
        batches = [f.batch_id, *f.also_answered]
        outboxes = [self._close_outbox(conversation, each, f.outcome, now_ms=f.now_ms) for each in batches]
        turns = [
            {"Put": {"TableName": self.name, "Item": {
                **self._key(conversation, f"t#{f.older_turn_count + number:010}"),
                "turn": _s(_to_json(_from_turn(turn))),
            }}}
            for number, turn in enumerate(f.leaving_turns)
        ]  # fmt: skip
        return self._transact("finish batch", [record, *outboxes, *turns])

    def finish_unknown(self, conversation: str, batch_id: str, outcome: str, *, now_ms: int) -> None:
        """Store the outcome of a batch whose conversation has no record."""
        self._transact("finish batch", [self._close_outbox(conversation, batch_id, outcome, now_ms=now_ms)])

    def _close_outbox(self, conversation: str, batch_id: str, outcome: str, *, now_ms: int) -> Json:
        return self._update(
            conversation,
            _outbox_key(batch_id),
            # The history has the words now.
            "SET outcome = :outcome, expiresAt = :at REMOVE parts",
            outcome=_s(outcome),
            at=self._expires_at(now_ms),
        )

    def _expires_at(self, now_ms: int) -> dict[str, str]:
        return _n(now_ms // 1_000 + self._outbox_days * DAY_SECONDS)

    # -- calls to DynamoDB -------------------------------------------------------------------------

    def _transact(self, doing: str, writes: Sequence[Json]) -> bool:
        with aws.errors_as_ours(doing):
            try:
                # The SDK gives the call a token, so a retry of its own is not a second write.
                self._client.transact_write_items(TransactItems=list(writes))
            except self._client.exceptions.TransactionCanceledException as error:
                codes = [each.get("Code") for each in error.response.get("CancellationReasons", [])]
                if "ConditionalCheckFailed" in codes:
                    return False
                raise
        return True

    def _owned(self, conversation: str, owner: str) -> Json:
        return {
            "ConditionCheck": {
                **self._at(conversation, RECORD),
                "ConditionExpression": "#owner = :me",
                "ExpressionAttributeNames": {"#owner": "owner"},
                "ExpressionAttributeValues": {":me": _s(owner)},
            }
        }

    def _update(self, conversation: str, part: str, expression: str, **values: dict[str, Any]) -> Json:
        update: Json = {**self._at(conversation, part), "UpdateExpression": expression}
        if values:
            update["ExpressionAttributeValues"] = {f":{name}": value for name, value in values.items()}
        if "#owner" in expression:
            update["ExpressionAttributeNames"] = {"#owner": "owner"}
        return {"Update": update}

    def _item(self, conversation: str, part: str) -> Item | None:
        answer = self._client.get_item(**self._at(conversation, part), ConsistentRead=True)
        item: Item | None = answer.get("Item")
        return item

    def _at(self, conversation: str, part: str) -> Json:
        return {"TableName": self.name, "Key": self._key(conversation, part)}

    def _key(self, conversation: str, part: str) -> Item:
        return {"id": _s(conversation), "part": _s(part)}

    @property
    def _client(self) -> Any:
        return aws.client("dynamodb")


def _require_owner(owner: str, write: Json) -> None:
    write["Update"]["ConditionExpression"] = "#owner = :me"
    write["Update"]["ExpressionAttributeValues"][":me"] = _s(owner)


# -- items and their JSON --------------------------------------------------------------------------
#
# Tables in use have these attributes and fields, so their names stay when those in Python change.


def _to_record(item: Item) -> ConversationRecord:
    return ConversationRecord(
        status=_text(item, "conversationStatus"),
        settings=_json(item, "settings", {}),
        hand_off_until_ms=_number(item, "handOffUntil"),
        turns=[_to_turn(each) for each in _json(item, "turns", [])],
        older_turn_count=_number(item, "rolled"),
        parked=[_to_parked(each) for each in _json(item, "parked", [])],
        answered=_json(item, "answered", {}),
    )


def _outbox_key(batch_id: str) -> str:
    return f"o#{batch_id}"


def _to_outbox(item: Item) -> Outbox:
    texts = _json(item, "parts", [])
    states = [state["S"].partition(":")[0] for state in item.get("states", {"L": []})["L"]]
    return Outbox(
        # The states of a finished batch have outlived its texts.
        parts=[Part(text, state) for text, state in zip(texts, states, strict=bool(texts))],
        also_answers=_json(item, "carried", []),
        input_tokens=_number(item, "inputTokens"),
        output_tokens=_number(item, "outputTokens"),
        answered_by=_text(item, "carriedBy"),
        outcome=_text(item, "outcome"),
    )


def _from_outbox(outbox: Outbox) -> Item:
    """Return the attributes of a planned outbox."""
    return {
        "parts": _s(_to_json([part.text for part in outbox.parts])),
        "states": {"L": [_s(part.state) for part in outbox.parts]},
        "carried": _s(_to_json(list(outbox.also_answers))),
        "inputTokens": _n(outbox.input_tokens),
        "outputTokens": _n(outbox.output_tokens),
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


# -- attributes ------------------------------------------------------------------------------------


def _s(text: str) -> dict[str, str]:
    return {"S": text}


def _n(number: int) -> dict[str, str]:
    return {"N": str(number)}


def _text(item: Item, name: str) -> str | None:
    text: str | None = item.get(name, {}).get("S")
    return text


def _number(item: Mapping[str, Any] | None, name: str) -> int:
    return int((item or {}).get(name, {}).get("N", 0))


def _json(item: Item, name: str, default: Any) -> Any:
    text = item.get(name, {}).get("S")
    return default if text is None else json.loads(text)
