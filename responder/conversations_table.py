"""The responder's table. Its partition key is `id`, its sort key `part`.

| id | part | is |
|---|---|---|
| a conversation's id | `!` | its record: status, owner, newest turns, settings of its own |
| a conversation's id | `o#<batchId>` | the outbox of a batch: what is to be sent, and how far that has come; expires |
| a conversation's id | `t#<number>` | a turn that the record has no room for |
| `tenant:<tenant>` | `!` | settings of all conversations of a tenant |

Whoever writes a record owns it: a token of its own, with a time at which it lapses. What a write says of the owner is
its condition, so an owner that lost the conversation changes nothing any more. Lists are kept as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from message_buffer.aws import clients as aws

RECORD = "!"
PLANNED, SENDING, SENT, UNCONFIRMED = "planned", "sending", "sent", "unconfirmed"

Json = dict[str, Any]
Item = dict[str, dict[str, Any]]


class Record(NamedTuple):
    """As it was when it was acquired, or read."""

    status: str | None
    settings: Json
    hand_off_until_ms: int
    turns: list[Json]
    rolled: int
    """So many older turns are items of their own."""
    parked: list[Json]
    answered: dict[str, int]
    """The newest generation of each lane that has been answered."""


class Locked(NamedTuple):
    until_ms: int


class Unknown(NamedTuple):
    """There is no such conversation, and none was made."""


class Outbox(NamedTuple):
    outcome: str | None
    """Given once the batch is finished; then nothing more is done for it."""
    carried_by: str | None
    """The batch whose reply answers this one, too."""
    carried: list[str]
    """The batches that this one's reply answers, too."""
    parts: list[str]
    states: list[str]
    input_tokens: int
    output_tokens: int


class Finished(NamedTuple):
    """What one write changes when a batch is over."""

    batch_id: str
    outcome: str
    status: str
    reason: str
    turns: list[Json]
    rolled: list[Json]
    rolled_before: int
    parked: list[Json]
    carried: list[str]
    answered: dict[str, int]
    input_tokens: int
    output_tokens: int
    processing_ms: int
    now_ms: int
    expires_at_seconds: int


class ConversationsTable:
    def __init__(self, table_name: str) -> None:
        self.name = table_name

    # -- the record --------------------------------------------------------------------------------

    def acquire(
        self, conversation: str, owner: str, *, now_ms: int, until_ms: int, create: bool
    ) -> Record | Locked | Unknown:
        """Until then nobody else owns it. The same owner may ask again."""
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
                there = error.response.get("Item")
                return Locked(_number(there, "ownerUntil")) if there else Unknown()
        return _record(answer.get("Attributes") or {})

    def read(self, conversation: str) -> Record | None:
        with aws.errors_as_ours("read conversation"):
            item = self._item(conversation, RECORD)
        return _record(item) if item else None

    def tenant_settings(self, tenant: str) -> Json:
        with aws.errors_as_ours("read tenant"):
            settings: Json = _json(self._item(f"tenant:{tenant}", RECORD) or {}, "settings", {})
        return settings

    def older_turns(self, conversation: str, *, limit: int) -> list[Json]:
        """The newest of those that left the record, in order."""
        with aws.errors_as_ours("read turns"):
            answer = self._client.query(
                TableName=self.name,
                KeyConditionExpression="id = :id AND begins_with(part, :turns)",
                ExpressionAttributeValues={":id": _s(conversation), ":turns": _s("t#")},
                ScanIndexForward=False,
                Limit=limit,
            )
        return [_json(item, "turn", {}) for item in reversed(answer["Items"])]

    def release(self, conversation: str, owner: str, *, status: str, reason: str) -> None:
        """Nothing is changed if it is somebody else's by now."""
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
        """To a person, until then."""
        with aws.errors_as_ours("hand off conversation"):
            self._client.update_item(
                **self._at(conversation, RECORD),
                UpdateExpression="SET handOffUntil = :until, createdAt = if_not_exists(createdAt, :now)",
                ExpressionAttributeValues={":until": _n(until_ms), ":now": _n(now_ms)},
            )

    def hand_back(self, conversation: str) -> None:
        """To the assistant; who was never handed off is not made known by this."""
        with aws.errors_as_ours("hand back conversation"):
            try:
                self._client.update_item(
                    **self._at(conversation, RECORD),
                    UpdateExpression="REMOVE handOffUntil",
                    ConditionExpression="attribute_exists(handOffUntil)",
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return

    # -- the outbox --------------------------------------------------------------------------------

    def outbox(self, conversation: str, batch_id: str) -> Outbox | None:
        with aws.errors_as_ours("read outbox"):
            item = self._item(conversation, _outbox(batch_id))
        if item is None or not item.keys() & {"outcome", "carriedBy", "states"}:
            return None
        return Outbox(
            _text(item, "outcome"),
            _text(item, "carriedBy"),
            _json(item, "carried", []),
            _json(item, "parts", []),
            [state["S"] for state in item.get("states", {"L": []})["L"]],
            _number(item, "inputTokens"),
            _number(item, "outputTokens"),
        )

    def plan(
        self,
        conversation: str,
        owner: str,
        batch_id: str,
        *,
        parts: Sequence[str],
        tokens: tuple[int, int],
        carried: Sequence[str],
        expires_at_seconds: int,
    ) -> bool:
        """Say what is going to be sent, before any of it is. False: somebody else has the conversation."""
        plan = {
            **self._key(conversation, _outbox(batch_id)),
            "parts": _s(json.dumps(parts, ensure_ascii=False)),
            "carried": _s(json.dumps(carried)),
            "states": {"L": [_s(PLANNED)] * len(parts)},
            "inputTokens": _n(tokens[0]),
            "outputTokens": _n(tokens[1]),
            "expiresAt": _n(expires_at_seconds),
        }
        carries = [
            self._update(conversation, _outbox(each), "SET carriedBy = :by, expiresAt = :at", by=_s(batch_id),
                         at=_n(expires_at_seconds))
            for each in carried
        ]  # fmt: skip
        return self._transact(
            "plan reply",
            [self._owned(conversation, owner), {"Put": {"TableName": self.name, "Item": plan}}, *carries],
        )

    def mark(self, conversation: str, owner: str, batch_id: str, *, part: int, before: str, after: str) -> bool:
        """From one state to the next. False: it is not in the state that it should be in."""
        # Who asks again because an answer was lost finds its own mark.
        mine = f"{after}:{owner}"
        with aws.errors_as_ours("mark part"):
            try:
                self._client.update_item(
                    **self._at(conversation, _outbox(batch_id)),
                    UpdateExpression=f"SET states[{part}] = :mine",
                    ConditionExpression=f"begins_with(states[{part}], :before) OR states[{part}] = :mine",
                    ExpressionAttributeValues={":before": _s(before), ":mine": _s(mine)},
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def park(self, conversation: str, owner: str, parked: list[Json]) -> bool:
        """Batches wait for the next one, without an owner. False: somebody else has the conversation."""
        record = self._update(
            conversation,
            RECORD,
            "SET parked = :parked, conversationStatus = :status, reason = :reason REMOVE #owner, ownerUntil",
            parked=_s(json.dumps(parked, ensure_ascii=False)),
            status=_s("reply_parked"),
            reason=_s("newer messages"),
        )
        _only_for(owner, record)
        return self._transact("park reply", [record])

    def let_go(self, conversation: str, batch_id: str, *, carried_by: str) -> None:
        """Of a batch that another one was to answer, and did not."""
        with aws.errors_as_ours("let go of batch"):
            try:
                self._client.update_item(
                    **self._at(conversation, _outbox(batch_id)),
                    UpdateExpression="REMOVE carriedBy",
                    ConditionExpression="carriedBy = :by",
                    ExpressionAttributeValues={":by": _s(carried_by)},
                )
            except self._client.exceptions.ConditionalCheckFailedException:
                return

    def finish(self, conversation: str, owner: str, finished: Finished) -> bool:
        """All that is to be remembered of a batch, at once. False: somebody else has the conversation."""
        s = finished
        record = self._update(
            conversation,
            RECORD,
            "SET turns = :turns, rolled = :rolled, parked = :parked, conversationStatus = :status, reason = :reason, "
            "answered = :answered, processingMs = :ms, updatedAt = :now "
            "REMOVE #owner, ownerUntil ADD inputTokens :in, outputTokens :out",
            turns=_s(json.dumps(s.turns, ensure_ascii=False)),
            rolled=_n(s.rolled_before + len(s.rolled)),
            parked=_s(json.dumps(s.parked, ensure_ascii=False)),
            status=_s(s.status),
            reason=_s(s.reason),
            answered=_s(json.dumps(s.answered)),
            ms=_n(s.processing_ms),
            now=_n(s.now_ms),
            **{"in": _n(s.input_tokens), "out": _n(s.output_tokens)},
        )
        _only_for(owner, record)
        over = [self._over(conversation, each, s.outcome, s.expires_at_seconds) for each in s.carried]
        turns = [
            {"Put": {"TableName": self.name, "Item": {
                **self._key(conversation, f"t#{s.rolled_before + number:010}"),
                "turn": _s(json.dumps(turn, ensure_ascii=False)),
            }}}
            for number, turn in enumerate(s.rolled)
        ]  # fmt: skip
        own = self._over(conversation, s.batch_id, s.outcome, s.expires_at_seconds)
        return self._transact("finish batch", [record, own, *over, *turns])

    def finish_unknown(self, conversation: str, batch_id: str, outcome: str, expires_at_seconds: int) -> None:
        """Of a conversation that has no record."""
        self._transact("finish batch", [self._over(conversation, batch_id, outcome, expires_at_seconds)])

    def _over(self, conversation: str, batch_id: str, outcome: str, expires_at_seconds: int) -> Json:
        return self._update(
            conversation,
            _outbox(batch_id),
            # The history has the words now.
            "SET outcome = :outcome, expiresAt = :at REMOVE parts",
            outcome=_s(outcome),
            at=_n(expires_at_seconds),
        )

    # -- how a call is made ------------------------------------------------------------------------

    def _transact(self, doing: str, writes: list[Json]) -> bool:
        with aws.errors_as_ours(doing):
            try:
                # The SDK gives it a token, so a retry of its own is not a second write.
                self._client.transact_write_items(TransactItems=writes)
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


def _only_for(owner: str, write: Json) -> None:
    write["Update"]["ConditionExpression"] = "#owner = :me"
    write["Update"]["ExpressionAttributeValues"][":me"] = _s(owner)


def _record(item: Item) -> Record:
    return Record(
        _text(item, "conversationStatus"),
        _json(item, "settings", {}),
        _number(item, "handOffUntil"),
        _json(item, "turns", []),
        _number(item, "rolled"),
        _json(item, "parked", []),
        _json(item, "answered", {}),
    )


def _outbox(batch_id: str) -> str:
    return f"o#{batch_id}"


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
