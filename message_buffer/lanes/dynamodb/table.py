"""The DynamoDB lane's table: one request a method, done or refused on the server, whoever else is at it.

    conversation   item          attributes
    <id>           !             the conversation's window: see `Window`
    <id>           m#<name>      a held message: arrived_at, body
    <id>           m#<name>      what is left of one: batch_id (its batch, or one of ELSEWHERE), expires_at
    <id>           b#<batch id>  a batch that the Valkey lane has taken: names, expires_at

A message's name is its id. What has `expires_at` may be forgotten then; nothing that holds a message has it.
The index `open` holds the windows that are open, in slices, by when they are due.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from hashlib import blake2s
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed

WINDOW, MESSAGE, JOURNAL = "!", "m#", "b#"
OPEN_INDEX = "open"
# An index key takes a thousand writes a second, and every window is opened and closed.
SLICES = 8
FIRST_ATTEMPT = 1
# Instead of the id of a batch of this lane.
VALKEY_LANE, DROPPED = "!main", "!dropped"
ELSEWHERE = {VALKEY_LANE, DROPPED}
# A thousand names have room in one item.
MAX_NAME_BYTES = 256
BATCH_WRITES, BATCH_READS = 25, 100
# What the service leaves undone of a batch is tried again after these.
PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)

Item = dict[str, dict[str, Any]]
T = TypeVar("T")

_PLACEHOLDER = re.compile(r"#(\w+)")


class Put(Enum):
    """What `put_message` found."""

    NEW = "stored now"
    STORED_BEFORE = "stored before, and still there"
    HAD_LEFT = "a tombstone: emitted, dropped, or left to the Valkey lane"


class Frozen(NamedTuple):
    """A batch that has its name: neither that nor its messages change."""

    batch_id: str
    names: tuple[str, ...]
    generation: int
    first_at_ms: int
    last_at_ms: int
    due_at_ms: int
    reason: str


class Window(NamedTuple):
    """A conversation's state in this lane, and the lock of whoever empties it."""

    is_open: bool = False
    """Messages wait, or a batch is on its way."""
    generation: int = 0
    """Grows with each delivery."""
    changes: int = 0
    """Grows when a held message is edited or removed, or the Valkey lane has taken a batch: read again."""
    waiting: int = 0
    """So many messages wait."""
    window_ms: int = 0
    due_at_ms: int = 0
    reason: str = ""
    held_until_ms: int = 0
    owner: str = ""
    owner_until_ms: int = 0
    attempt: int = 0
    frozen: Frozen | None = None


class StoredMessage(NamedTuple):
    name: str
    arrived_at_ms: int
    body: bytes


class Contents(NamedTuple):
    """All there is of a conversation."""

    window: Window
    stored: list[StoredMessage]
    """In order of arrival."""
    tombstones: dict[str, str]
    """Name -> the batch it went into, or one of ELSEWHERE."""
    journaled: frozenset[str]
    """Names of messages that the Valkey lane has taken."""

    @property
    def waiting(self) -> list[StoredMessage]:
        """The messages that are in no batch of either lane, in order of arrival."""
        frozen = set(self.window.frozen.names) if self.window.frozen else set()
        return [each for each in self.stored if each.name not in frozen and each.name not in self.journaled]


def name_of(message_id: str) -> str:
    encoded = message_id.encode()
    return message_id if len(encoded) <= MAX_NAME_BYTES else f"blake2s:{blake2s(encoded).hexdigest()}"


class MessageTable:
    def __init__(self, table: str, *, patience: aws.Patience = aws.PATIENT) -> None:
        self._table = table
        self._patience = patience

    # -- messages ----------------------------------------------------------------------------------------------

    def put_message(self, conversation: str, name: str, *, body: bytes, arrived_at_ms: int) -> Put:
        """Store a message that was never here; say what is known of one that was."""
        item = {**_key(conversation, MESSAGE + name), "arrived_at": _n(arrived_at_ms), "body": {"B": body}}
        before = self._put_new(item, "store message")
        if before is None:
            return Put.NEW
        return Put.STORED_BEFORE if "body" in before else Put.HAD_LEFT

    def leave_to_valkey_lane(self, conversation: str, name: str, *, expires_at_ms: int) -> bool:
        """The Valkey lane emits it. False: this one has, or it was dropped."""
        return self._updated(
            conversation,
            MESSAGE + name,
            "leave message",
            do="SET #batch_id = :main, #expires_at = :expires REMOVE #body, #arrived_at",
            only_if="attribute_exists(#body) OR #batch_id = :main",
            values={"main": _s(VALKEY_LANE), "expires": _seconds(expires_at_ms)},
        )

    def edit_message(self, conversation: str, name: str, *, body: bytes) -> bool:
        """False: it is not held, or already in a batch."""
        change = _expressions({"body": {"B": body}}, UpdateExpression="SET #body = :body")
        return self._change_stored(conversation, name, change, "edit stored message")

    def drop_message(self, conversation: str, name: str, *, expires_at_ms: int) -> bool:
        """False: it is not held, or already in a batch."""
        change = _expressions(
            {"gone": _s(DROPPED), "expires": _seconds(expires_at_ms)},
            UpdateExpression="SET #batch_id = :gone, #expires_at = :expires REMOVE #body, #arrived_at",
        )
        return self._change_stored(conversation, name, change, "drop stored message")

    def _change_stored(self, conversation: str, name: str, change: dict[str, Any], doing: str) -> bool:
        """Together with its window, so that whoever is about to freeze what it read sees that something changed."""
        held = _expressions(ConditionExpression="attribute_exists(#body)")
        message = {**_key_of(conversation, MESSAGE + name), **_joined(change, held)}
        window = {
            **_key_of(conversation, WINDOW),
            **_expressions(
                {"one": _n(1), "name": _s(name)},
                UpdateExpression="ADD #changes :one",
                ConditionExpression="NOT contains(#frozen.#names, :name)",
            ),
        }
        requests = [{"Update": {"TableName": self._table, **each}} for each in (message, window)]
        with aws.errors_as_ours(doing):
            try:
                self._client.transact_write_items(TransactItems=requests)
            except self._client.exceptions.TransactionCanceledException as refused:
                codes = {reason.get("Code") for reason in refused.response.get("CancellationReasons", [])}
                if "ConditionalCheckFailed" not in codes:
                    raise  # somebody else was at it, or the service is busy: the caller may try again
                return False
        return True

    def leave_tombstones(self, conversation: str, names: Iterable[str], *, batch_id: str, expires_at_ms: int) -> None:
        """Of emitted messages is left in which batch they were, for as long as they may come again."""
        left = {"batch_id": _s(batch_id), "expires_at": _seconds(expires_at_ms)}
        items = [{**_key(conversation, MESSAGE + name), **left} for name in names]
        for some in _chunks(items, BATCH_WRITES):
            self._all_of([{"PutRequest": {"Item": item}} for item in some], self._write)

    def _write(self, requests: Sequence[Any]) -> list[Any]:
        with aws.errors_as_ours("leave tombstones"):
            answer = self._client.batch_write_item(RequestItems={self._table: requests})
        undone: list[Any] = answer.get("UnprocessedItems", {}).get(self._table, [])
        return undone

    def find(self, conversation: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return those of these messages that were ever here: name -> where it went, None while it is stored."""
        found: dict[str, str | None] = {}

        def get(keys: Sequence[Any]) -> list[Any]:
            request = {self._table: {"Keys": keys, "ConsistentRead": True}}
            with aws.errors_as_ours("find messages"):
                answer = self._client.batch_get_item(RequestItems=request)
            for item in answer["Responses"].get(self._table, []):
                found[item["item"]["S"].removeprefix(MESSAGE)] = _text(item, "batch_id") or None
            undone: list[Any] = answer.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            return undone

        for some in _chunks(names, BATCH_READS):
            self._all_of([_key(conversation, MESSAGE + name) for name in some], get)
        return found

    @staticmethod
    def _all_of(requests: list[Any], call: Callable[[Sequence[Any]], list[Any]]) -> None:
        """What the service leaves undone is asked for again."""
        for pause in (*PAUSES_SECONDS, None):
            requests = call(requests)
            if not requests:
                return
            if pause is not None:
                time.sleep(pause)
        raise SendFailed("the table is too busy")

    # -- windows -----------------------------------------------------------------------------------------------

    def read(self, conversation: str) -> Contents:
        window, stored, tombstones, journaled = Window(), [], {}, set()
        query = {
            "ConsistentRead": True,
            **_expressions({"id": _s(conversation)}, KeyConditionExpression="#conversation = :id"),
        }
        for item in self._query("read conversation", query):
            kind = item["item"]["S"]
            name = kind.removeprefix(MESSAGE)
            if kind == WINDOW:
                window = _window(item)
            elif kind.startswith(JOURNAL):
                journaled |= _names(item)
            elif "body" in item:
                stored.append(StoredMessage(name, _number(item, "arrived_at"), item["body"]["B"]))
            else:
                tombstones[name] = _text(item, "batch_id")
        stored.sort(key=lambda each: (each.arrived_at_ms, each.name))
        return Contents(window, stored, tombstones, frozenset(journaled))

    def window(self, conversation: str) -> Window:
        return _window(self._get(conversation, WINDOW, "read window"))

    def open_window(self, conversation: str, *, due_at_ms: int, reason: str, window_ms: int, messages: int) -> Window:
        """So many messages were put. Answers the window as it was before: if it was not open, the caller opened it."""
        values = {
            "one": _n(1),
            "none": _n(0),
            "messages": _n(messages),
            "slice": _s(_slice_of(conversation)),
            "due": _n(due_at_ms),
            "window": _n(window_ms),
            "why": _s(reason),
        }
        change = _expressions(
            values,
            UpdateExpression="ADD #generation :one, #waiting :messages"
            " SET #open = if_not_exists(#open, :slice), #due_at = if_not_exists(#due_at, :due),"
            " #reason = if_not_exists(#reason, :why), #changes = if_not_exists(#changes, :none), #window_ms = :window"
            " REMOVE #expires_at",
        )
        with aws.errors_as_ours("open window"):
            answer = self._client.update_item(
                TableName=self._table, **_key_of(conversation, WINDOW), **change, ReturnValues="ALL_OLD"
            )
        return _window(answer.get("Attributes", {}))

    def close_unanswered(self, conversation: str, *, generation: int) -> bool:
        """Nobody is told of what it holds. False: somebody relies on that already."""
        return self._updated(
            conversation,
            WINDOW,
            "close window",
            do="REMOVE #open, #due_at, #reason",
            only_if="#generation = :generation AND attribute_not_exists(#owner) AND attribute_not_exists(#frozen)",
            values={"generation": _n(generation)},
        )

    def hasten(self, conversation: str, *, due_at_ms: int, reason: str) -> bool:
        """False: it is not open, or due by then anyway."""
        return self._reschedule(conversation, due_at_ms, reason, only_if="#due_at > :due")

    def delay(self, conversation: str, *, due_at_ms: int, reason: str) -> bool:
        """False: nothing waits, or it does so for longer. A batch that has its name is not delayed."""
        return self._reschedule(
            conversation, due_at_ms, reason, only_if="#due_at < :due AND attribute_not_exists(#frozen)"
        )

    def _reschedule(self, conversation: str, due_at_ms: int, reason: str, *, only_if: str) -> bool:
        return self._updated(
            conversation,
            WINDOW,
            "reschedule window",
            do="SET #due_at = :due, #reason = :why",
            only_if=f"attribute_exists(#open) AND {only_if}",
            values={"due": _n(due_at_ms), "why": _s(reason)},
        )

    def hold(self, conversation: str, *, until_ms: int, expires_at_ms: int) -> bool:
        """False: it is on hold for longer."""
        longer = "(attribute_not_exists(#held_until) OR #held_until < :until)"
        until, expires = {"until": _n(until_ms)}, {"expires": _seconds(expires_at_ms)}

        def held(do: str, only_if: str, values: Item) -> bool:
            condition = f"{only_if} AND {longer}"
            return self._updated(conversation, WINDOW, "hold window", do=do, only_if=condition, values=values)

        # A window may open or close between the two, but hardly twice.
        return any(
            # The row of a closed one is about to expire, or only now comes to be; that of an open one never expires.
            held("SET #held_until = :until, #expires_at = :expires", "attribute_not_exists(#open)", until | expires)
            or held("SET #held_until = :until", "attribute_exists(#open)", until)
            for _ in range(2)
        )

    def end_hold(self, conversation: str, *, now_ms: int) -> bool:
        return self._updated(
            conversation,
            WINDOW,
            "resume window",
            do="REMOVE #held_until",
            only_if="#held_until > :now",
            values={"now": _n(now_ms)},
        )

    # -- the lock of a window, and what only its owner may do --------------------------------------------------

    def acquire(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> Window:
        """The window; if its `owner` is the caller, it is due and has nobody else who empties it.

        While a conversation is on hold nothing becomes a batch, but what is one already leaves.
        """
        return self._lock(
            conversation,
            owner,
            change="ADD #attempt :one",
            only_if=" AND attribute_exists(#open) AND #due_at <= :now AND"
            " (attribute_exists(#frozen) OR attribute_not_exists(#held_until) OR #held_until <= :now)",
            now_ms=now_ms,
            until_ms=until_ms,
        )

    def acquire_to_cancel(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> Window:
        """The same for a window that need not be due, or open; what was sent before is of an older generation now."""
        return self._lock(
            conversation, owner, change="ADD #generation :one", only_if="", now_ms=now_ms, until_ms=until_ms
        )

    def _lock(self, conversation: str, owner: str, *, change: str, only_if: str, now_ms: int, until_ms: int) -> Window:
        request = _expressions(
            {"me": _s(owner), "until": _n(until_ms), "now": _n(now_ms), "one": _n(1)},
            UpdateExpression=f"SET #owner = :me, #owner_until = :until {change}",
            ConditionExpression=f"(attribute_not_exists(#owner) OR #owner_until < :now OR #owner = :me){only_if}",
        )
        with aws.errors_as_ours("lock window"):
            try:
                answer = self._client.update_item(
                    TableName=self._table,
                    **_key_of(conversation, WINDOW),
                    **request,
                    ReturnValues="ALL_NEW",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except self._client.exceptions.ConditionalCheckFailedException as refused:
                return _window(refused.response.get("Item", {}))
        return _window(answer["Attributes"])

    def keep(self, conversation: str, owner: str, *, until_ms: int) -> bool:
        return self._owned(
            conversation, owner, "keep lock", do="SET #owner_until = :until", values={"until": _n(until_ms)}
        )

    def release(self, conversation: str, owner: str) -> bool:
        return self._owned(conversation, owner, "release lock", do="REMOVE #owner, #owner_until")

    def retry(self, conversation: str, owner: str, *, due_at_ms: int) -> bool:
        """Released, and due again then."""
        return self._owned(
            conversation,
            owner,
            "retry window",
            do="SET #due_at = :due REMOVE #owner, #owner_until",
            values={"due": _n(due_at_ms)},
        )

    def freeze(self, conversation: str, owner: str, frozen: Frozen, *, changes: int) -> bool:
        """False: the lock is lost, or a held message was edited or removed since they were read."""
        return self._owned(
            conversation,
            owner,
            "freeze batch",
            # Attempts before there was a batch are none of its own.
            do="SET #frozen = :frozen, #attempt = :first ADD #waiting :less",
            only_if=" AND attribute_not_exists(#frozen) AND #changes = :changes",
            values={
                "frozen": _frozen_item(frozen),
                "changes": _n(changes),
                "less": _n(-len(frozen.names)),
                "first": _n(FIRST_ATTEMPT),
            },
        )

    def close(self, conversation: str, owner: str, *, generation: int, expires_at_ms: int) -> bool:
        """Nothing came since. False: something did, or the lock is lost."""
        return self._owned(
            conversation,
            owner,
            "close window",
            do="SET #waiting = :none, #expires_at = :expires"
            " REMOVE #open, #due_at, #reason, #frozen, #owner, #owner_until, #attempt",
            only_if=" AND #generation = :generation",
            values={"generation": _n(generation), "none": _n(0), "expires": _seconds(expires_at_ms)},
        )

    def reopen(self, conversation: str, owner: str, *, due_at_ms: int, reason: str) -> bool:
        return self._owned(
            conversation,
            owner,
            "reopen window",
            do="SET #due_at = :due, #reason = :why, #open = :slice REMOVE #frozen, #owner, #owner_until, #attempt",
            values={"due": _n(due_at_ms), "why": _s(reason), "slice": _s(_slice_of(conversation))},
        )

    def _owned(
        self, conversation: str, owner: str, doing: str, *, do: str, only_if: str = "", values: Item | None = None
    ) -> bool:
        """False: the lock is somebody else's, or the condition fails."""
        mine = {"me": _s(owner), **(values or {})}
        return self._updated(conversation, WINDOW, doing, do=do, only_if=f"#owner = :me{only_if}", values=mine)

    # -- all windows -------------------------------------------------------------------------------------------

    def open_windows(self, *, due_before_ms: int, limit: int) -> list[tuple[str, int]]:
        """(conversation, when it is due), the most overdue of each slice first. The index lags a little behind."""
        found: list[tuple[str, int]] = []
        for number in range(SLICES):
            query = {
                "IndexName": OPEN_INDEX,
                "Limit": limit,
                **_expressions(
                    {"slice": _s(str(number)), "due": _n(due_before_ms)},
                    KeyConditionExpression="#open = :slice AND #due_at < :due",
                ),
            }
            for item in self._query("list windows", query):
                found.append((item["conversation"]["S"], _number(item, "due_at")))
                if len(found) >= limit:
                    break
        return sorted(found, key=lambda each: each[1])[:limit]

    # -- between the lanes -------------------------------------------------------------------------------------

    def journal(self, conversation: str, batch_id: str, names: Sequence[str], *, expires_at_ms: int) -> None:
        """The Valkey lane has taken this batch."""
        item = {
            **_key(conversation, JOURNAL + batch_id),
            "names": {"L": [_s(name) for name in names]},
            "expires_at": _seconds(expires_at_ms),
        }
        with aws.errors_as_ours("journal batch"):
            self._client.put_item(TableName=self._table, Item=item)

    def fence(self, conversation: str) -> Window:
        """Who has read the conversation before freezes nothing of it. Answers the window as it is now."""
        change = _expressions({"one": _n(1)}, UpdateExpression="ADD #changes :one")
        with aws.errors_as_ours("fence window"):
            answer = self._client.update_item(
                TableName=self._table, **_key_of(conversation, WINDOW), **change, ReturnValues="ALL_NEW"
            )
        return _window(answer["Attributes"])

    # -- how a request is made ---------------------------------------------------------------------------------

    def _get(self, conversation: str, item: str, doing: str) -> Item:
        with aws.errors_as_ours(doing):
            answer = self._client.get_item(TableName=self._table, **_key_of(conversation, item), ConsistentRead=True)
        found: Item = answer.get("Item", {})
        return found

    def _put_new(self, item: Item, doing: str) -> Item | None:
        """The one that was there before, and still is."""
        condition = _expressions(ConditionExpression="attribute_not_exists(#item)")
        with aws.errors_as_ours(doing):
            try:
                self._client.put_item(
                    TableName=self._table, Item=item, **condition, ReturnValuesOnConditionCheckFailure="ALL_OLD"
                )
            except self._client.exceptions.ConditionalCheckFailedException as refused:
                before: Item = refused.response.get("Item", {})
                return before
        return None

    def _updated(
        self, conversation: str, item: str, doing: str, *, do: str, only_if: str = "", values: Item | None = None
    ) -> bool:
        """False: the condition fails."""
        expressions = {"UpdateExpression": do} | ({"ConditionExpression": only_if} if only_if else {})
        request = {**_key_of(conversation, item), **_expressions(values, **expressions)}
        with aws.errors_as_ours(doing):
            try:
                self._client.update_item(TableName=self._table, **request)
            except self._client.exceptions.ConditionalCheckFailedException:
                return False
        return True

    def _query(self, doing: str, request: dict[str, Any]) -> Iterator[Item]:
        with aws.errors_as_ours(doing):
            while True:
                page = self._client.query(TableName=self._table, **request)
                yield from page["Items"]
                if "LastEvaluatedKey" not in page:
                    return
                request = {**request, "ExclusiveStartKey": page["LastEvaluatedKey"]}

    @property
    def _client(self) -> Any:
        return aws.client("dynamodb", patience=self._patience)


def _key(conversation: str, item: str) -> Item:
    return {"conversation": _s(conversation), "item": _s(item)}


def _key_of(conversation: str, item: str) -> dict[str, Any]:
    return {"Key": _key(conversation, item)}


def _expressions(values: dict[str, dict[str, Any]] | None = None, **expressions: str) -> dict[str, Any]:
    """What an expression refers to: `#name` is that attribute, whatever words the service reserves; `:name` a value."""
    names = {f"#{name}": name for text in expressions.values() for name in _PLACEHOLDER.findall(text)}
    request: dict[str, Any] = {**expressions, "ExpressionAttributeNames": names}
    if values:
        request["ExpressionAttributeValues"] = {f":{name}": value for name, value in values.items()}
    return request


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    names = one["ExpressionAttributeNames"] | other["ExpressionAttributeNames"]
    return {**one, **other, "ExpressionAttributeNames": names}


def _slice_of(conversation: str) -> str:
    return str(crc32(conversation.encode()) % SLICES)


def _window(item: Item) -> Window:
    return Window(
        is_open="open" in item,
        generation=_number(item, "generation"),
        changes=_number(item, "changes"),
        waiting=_number(item, "waiting"),
        window_ms=_number(item, "window_ms"),
        due_at_ms=_number(item, "due_at"),
        reason=_text(item, "reason"),
        held_until_ms=_number(item, "held_until"),
        owner=_text(item, "owner"),
        owner_until_ms=_number(item, "owner_until"),
        attempt=_number(item, "attempt"),
        frozen=_frozen(item["frozen"]["M"]) if "frozen" in item else None,
    )


def _frozen_item(frozen: Frozen) -> dict[str, Any]:
    return {
        "M": {
            "batch_id": _s(frozen.batch_id),
            "names": {"L": [_s(name) for name in frozen.names]},
            "generation": _n(frozen.generation),
            "first_at": _n(frozen.first_at_ms),
            "last_at": _n(frozen.last_at_ms),
            "due_at": _n(frozen.due_at_ms),
            "reason": _s(frozen.reason),
        }
    }


def _frozen(item: Item) -> Frozen:
    return Frozen(
        batch_id=_text(item, "batch_id"),
        names=tuple(each["S"] for each in item["names"]["L"]),
        generation=_number(item, "generation"),
        first_at_ms=_number(item, "first_at"),
        last_at_ms=_number(item, "last_at"),
        due_at_ms=_number(item, "due_at"),
        reason=_text(item, "reason"),
    )


def _names(item: Item) -> set[str]:
    return {each["S"] for each in item.get("names", {}).get("L", [])}


def _s(text: str) -> dict[str, Any]:
    return {"S": text}


def _n(number: int) -> dict[str, Any]:
    return {"N": str(number)}


def _seconds(at_ms: int) -> dict[str, Any]:
    return _n(at_ms // 1_000)


def _text(item: Item, name: str) -> str:
    return str(item.get(name, {}).get("S", ""))


def _number(item: Item, name: str) -> int:
    return int(item.get(name, {}).get("N", 0))


def _chunks(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[start : start + size] for start in range(0, len(things), size))
