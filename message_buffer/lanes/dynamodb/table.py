"""The DynamoDB lane's table. DynamoDB carries out each request completely or not at all, whatever other requests do at
the same time.

    conversation   item          attributes
    <id>           !             the conversation's window: see `Window`
    <id>           m#<name>      a stored message: arrived_at, body
    <id>           m#<name>      a tombstone: batch_id (its batch, or one of ELSEWHERE), expires_at
    <id>           b#<batch id>  the journal, a batch that the Valkey lane has taken: names, expires_at
    <id>           h#<hash>      what remains of a message's name after its conversation was forgotten: expires_at

A message's name is its id, or the hash of a long id. DynamoDB may delete an item after its `expires_at`, so no item
with a message has one. The index `open` contains the open windows, sorted by due time within each of its slices.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2s
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar
from zlib import crc32

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Values, encode, expressions, number, text, texts
from message_buffer.errors import SendFailed
from message_buffer.limits import INDEX_SLICES, MAX_NAME_BYTES, UNDONE_PAUSES_SECONDS

WINDOW, MESSAGE, JOURNAL, HASHED = "!", "m#", "b#", "h#"
OPEN_INDEX = "open"
FIRST_ATTEMPT = 1
# The reason of a window that only waits until Valkey has answered whether its messages were emitted.
DISPUTED = "disputed"
# Values of a tombstone's `batch_id` that are not batches of this lane.
VALKEY_LANE, DROPPED = "!main", "!dropped"
ELSEWHERE = {VALKEY_LANE, DROPPED}
BATCH_WRITES, BATCH_READS = 25, 100

HAS_BODY = "attribute_exists(#body)"
# A condition: no message has arrived since the given generation.
NOTHING_NEW = " AND #generation = :generation"

T = TypeVar("T")


Put = Literal["new", "stored before", "left before"]
"""The result of `put_message`. A message that "left before" was emitted, dropped, or left to the Valkey lane."""


class Frozen(NamedTuple):
    """A frozen batch: neither its id nor its messages change."""

    batch_id: str
    names: tuple[str, ...]
    generation: int
    first_at_ms: int
    last_at_ms: int
    due_at_ms: int
    reason: str


class Window(NamedTuple):
    """A conversation's state in this lane, and the lock that the DynamoDB processor needs to empty the window."""

    is_open: bool = False
    """True while messages wait or a batch is being emitted."""
    generation: int = 0
    """Grows each time ingest delivers a message, even a repeated one, and with each cancel."""
    changes: int = 0
    """Grows when a stored message is edited or removed, or the Valkey lane takes a batch. A run that finds this number
    changed must read the messages again."""
    waiting: int = 0
    """The number of stored messages."""
    window_ms: int = 0
    due_at_ms: int = 0
    reason: str = ""
    held_until_ms: int = 0
    owner: str = ""
    owner_until_ms: int = 0
    attempt: int = 0
    failures: int = 0
    """How often the frozen batch could not be emitted."""
    unended: int = 0
    """The number of runs that have locked the window since its batch was frozen, and have not released it."""
    frozen: Frozen | None = None
    id_secret: str = ""
    """The key with which names are hashed; empty if the conversation was never forgotten."""
    forget_id: str = ""
    """The id of the last `forget_conversation`, which erased what had arrived until `forgotten_at_ms`."""
    forgotten_at_ms: int = 0
    last_at_ms: int = 0
    """When the newest message of all batches of this lane arrived."""


class StoredMessage(NamedTuple):
    name: str
    arrived_at_ms: int
    body: bytes


class Contents(NamedTuple):
    """All items of a conversation."""

    window: Window
    stored: list[StoredMessage]
    """In order of arrival."""
    tombstones: dict[str, str]
    """A message's name -> the id of its batch, or VALKEY_LANE or DROPPED."""
    journaled: frozenset[str]
    """Names of messages that the Valkey lane has taken."""
    journals: Mapping[str, frozenset[str]] = MappingProxyType({})
    """The id of a batch that the Valkey lane has taken -> the names of its messages."""
    hashes: frozenset[str] = frozenset()

    def was_erased(self, name: str) -> bool:
        """Return whether the message was erased with its conversation. If it is stored, it was delivered again."""
        secret = self.window.id_secret
        return bool(secret) and hash_of(secret, name) in self.hashes

    def knows(self, name: str) -> bool:
        """Return whether the message has left this lane, or was erased."""
        return name in self.tombstones or self.was_erased(name)

    @property
    def waiting(self) -> list[StoredMessage]:
        """Return the messages that are in no batch of either lane, in order of arrival."""
        return [each for each in self._not_frozen if each.name not in self.journaled]

    @property
    def disputed(self) -> list[StoredMessage]:
        """Return the stored messages that the Valkey lane has taken, but may lose before it emits them."""
        return [each for each in self._not_frozen if each.name in self.journaled and not self.was_erased(each.name)]

    @property
    def _not_frozen(self) -> list[StoredMessage]:
        frozen = set(self.window.frozen.names) if self.window.frozen else set()
        return [each for each in self.stored if each.name not in frozen]


def name_of(message_id: str) -> str:
    encoded = message_id.encode()
    return message_id if len(encoded) <= MAX_NAME_BYTES else f"blake2s:{blake2s(encoded).hexdigest()}"


def hash_of(secret: str, name: str) -> str:
    return blake2s(name.encode(), key=secret.encode(), digest_size=16).hexdigest()


class MessageTable(Table):
    # -- messages ----------------------------------------------------------------------------------------------

    def put_message(self, conversation: str, name: str, *, body: bytes, arrived_at_ms: int) -> Put:
        """Store a message, unless this lane already knows it."""
        item: Values = {**_key(conversation, MESSAGE + name), "arrived_at": arrived_at_ms, "body": body}
        put = self._put("store message", item, only_if="attribute_not_exists(#item)")
        if put.done:
            return "new"
        return "stored before" if "body" in put.item else "left before"

    def leave_to_valkey_lane(self, conversation: str, name: str, *, expires_at_ms: int) -> bool:
        """Replace a message with a tombstone, because the Valkey lane has emitted it.

        Return False if the message is not stored, or if a batch of this lane contains it, because without
        its body it would look emitted.
        """
        return self._change_stored(
            "leave message",
            conversation,
            name,
            do="SET #batch_id = :main, #expires_at = :expires REMOVE #body, #arrived_at",
            values={"main": VALKEY_LANE, "expires": _seconds(expires_at_ms)},
        )

    def edit_message(self, conversation: str, name: str, *, body: bytes) -> bool:
        """Replace a stored message. Return False if the message is not stored, or already in a batch."""
        return self._change_stored(
            "edit stored message", conversation, name, do="SET #body = :body", values={"body": body}
        )

    def drop_message(self, conversation: str, name: str, *, expires_at_ms: int) -> bool:
        """Remove a stored message. Return False if the message is not stored, or already in a batch."""
        return self._change_stored(
            "drop stored message",
            conversation,
            name,
            do="SET #batch_id = :dropped, #expires_at = :expires REMOVE #body, #arrived_at",
            values={"dropped": DROPPED, "expires": _seconds(expires_at_ms)},
        )

    def _change_stored(self, doing: str, conversation: str, name: str, *, do: str, values: Values) -> bool:
        """Change a message, and count the change, so that a processor cannot freeze the message as it was before."""
        message = self._change(_key(conversation, MESSAGE + name), do, values, only_if=HAS_BODY)
        window = self._change(
            _key(conversation, WINDOW),
            "ADD #changes :one",
            {"one": 1, "name": name},
            only_if="NOT contains(#frozen.#names, :name)",
        )
        return self._transact(doing, [message, window])

    def leave_tombstones(self, conversation: str, names: Iterable[str], *, batch_id: str, expires_at_ms: int) -> None:
        """Replace messages with tombstones, which stay for as long as their platform may deliver the messages again."""
        left: Values = {"batch_id": batch_id, "expires_at": _seconds(expires_at_ms)}
        self._put_all({**_key(conversation, MESSAGE + name), **left} for name in names)

    def leave_hashes(self, conversation: str, hashes: Iterable[str], *, expires_at_ms: int) -> None:
        expires: Values = {"expires_at": _seconds(expires_at_ms)}
        self._put_all({**_key(conversation, HASHED + each), **expires} for each in hashes)

    def erase(self, conversation: str, *, names: Iterable[str], journals: Iterable[str] = ()) -> None:
        """Delete messages and tombstones by their names, and journals by the ids of their batches."""
        items = [*(MESSAGE + name for name in names), *(JOURNAL + batch_id for batch_id in journals)]
        self._write_all([{"DeleteRequest": {"Key": encode(_key(conversation, item))}} for item in items])

    def _put_all(self, items: Iterable[Values]) -> None:
        self._write_all([{"PutRequest": {"Item": encode(item)}} for item in items])

    def _write_all(self, requests: Sequence[Any]) -> None:
        for some in _chunks(requests, BATCH_WRITES):
            self._all_of(list(some), self._write)

    def _write(self, requests: Sequence[Any]) -> list[Any]:
        with aws.errors_as_ours("write items"):
            answer = self._client.batch_write_item(RequestItems={self.name: requests})
        undone: list[Any] = answer.get("UnprocessedItems", {}).get(self.name, [])
        return undone

    def find(self, conversation: str, names: Sequence[str]) -> dict[str, str | None]:
        """Return the names that this table knows, each with its tombstone's batch_id, or None while it is stored."""
        found = self._get_all(conversation, [MESSAGE + name for name in names])
        return {item.removeprefix(MESSAGE): text(found[item], "batch_id") or None for item in found}

    def erased(self, conversation: str, secret: str, names: Sequence[str]) -> set[str]:
        """Return the names of those messages that were erased when the conversation was forgotten."""
        items = {HASHED + hash_of(secret, name): name for name in names}
        return {items[item] for item in self._get_all(conversation, list(items))}

    def _get_all(self, conversation: str, items: Sequence[str]) -> dict[str, Item]:
        found: dict[str, Item] = {}

        def get(keys: Sequence[Any]) -> list[Any]:
            request = {self.name: {"Keys": keys, "ConsistentRead": True}}
            with aws.errors_as_ours("find messages"):
                answer = self._client.batch_get_item(RequestItems=request)
            found.update({text(item, "item"): item for item in answer["Responses"].get(self.name, [])})
            undone: list[Any] = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            return undone

        for some in _chunks(items, BATCH_READS):
            self._all_of([encode(_key(conversation, item)) for item in some], get)
        return found

    def was_erased(self, conversation: str, secret: str, name: str) -> bool:
        """Return whether the message was erased when the conversation was forgotten."""
        return bool(self._get("find hash", _key(conversation, HASHED + hash_of(secret, name))))

    @staticmethod
    def _all_of(requests: list[Any], call: Callable[[Sequence[Any]], list[Any]]) -> None:
        """Make the requests, and repeat those that DynamoDB did not carry out. Raise SendFailed if some still fail."""
        for pause in (*UNDONE_PAUSES_SECONDS, None):
            requests = call(requests)
            if not requests:
                return
            if pause is not None:
                time.sleep(pause)
        raise SendFailed("the table is too busy")

    # -- windows -----------------------------------------------------------------------------------------------

    def read(self, conversation: str) -> Contents:
        window, stored, tombstones, journals, hashes = Window(), [], {}, {}, set()
        query = expressions({"id": conversation}, KeyConditionExpression="#conversation = :id")
        for item in self._pages("read conversation", "query", {"ConsistentRead": True, **query}):
            kind = text(item, "item")
            name = kind.removeprefix(MESSAGE)
            if kind == WINDOW:
                window = _window(item)
            elif kind.startswith(JOURNAL):
                journals[kind.removeprefix(JOURNAL)] = frozenset(texts(item, "names"))
            elif kind.startswith(HASHED):
                hashes.add(kind.removeprefix(HASHED))
            elif "body" in item:
                stored.append(StoredMessage(name, number(item, "arrived_at"), item["body"]["B"]))
            else:
                tombstones[name] = text(item, "batch_id")
        stored.sort(key=lambda each: (each.arrived_at_ms, each.name))
        journaled: frozenset[str] = frozenset().union(*journals.values())
        return Contents(window, stored, tombstones, journaled, journals, frozenset(hashes))

    def window(self, conversation: str) -> Window:
        return _window(self._get("read window", _key(conversation, WINDOW)))

    def open_window(self, conversation: str, *, due_at_ms: int, reason: str, window_ms: int, messages: int) -> Window:
        """Count the messages that were just stored, and open the window if it is closed.

        Return the window as it was before. If it was closed then, this call has opened it.
        """
        updated = self._update(
            "open window",
            _key(conversation, WINDOW),
            "ADD #generation :one, #waiting :messages"
            " SET #open = if_not_exists(#open, :slice), #due_at = if_not_exists(#due_at, :due),"
            " #reason = if_not_exists(#reason, :reason), #changes = if_not_exists(#changes, :none),"
            " #window_ms = :window"
            " REMOVE #expires_at",
            {
                "one": 1,
                "none": 0,
                "messages": messages,
                "slice": _slice_of(conversation),
                "due": due_at_ms,
                "window": window_ms,
                "reason": reason,
            },
            answer="ALL_OLD",
        )
        return _window(updated.item)

    def take_back(self, conversation: str, name: str | None, *, generation: int, expires_at_ms: int) -> bool:
        """Close a window whose trigger could not be sent, and remove the message that opened it.

        Without a name, remove no message. Return False, and change nothing, if another request has joined the window.
        """
        window = self._change(
            _key(conversation, WINDOW),
            "SET #expires_at = :expires ADD #waiting :less, #changes :one REMOVE #open, #due_at, #reason",
            {
                "generation": generation,
                "expires": _seconds(expires_at_ms),
                "less": 0 if name is None else -1,
                "one": 1,
            },
            only_if="#generation = :generation AND attribute_not_exists(#owner) AND attribute_not_exists(#frozen)",
        )
        stored = [] if name is None else [self._delete(_key(conversation, MESSAGE + name), only_if=HAS_BODY)]
        return self._transact("take back message", [window, *stored])

    def hasten(self, conversation: str, *, due_at_ms: int, reason: str) -> bool:
        """Make an open window due earlier. Return False if the window is not open, or is due by `due_at_ms` anyway."""
        return self._reschedule(conversation, due_at_ms, reason, only_if="#due_at > :due")

    def delay(self, conversation: str, *, due_at_ms: int, reason: str) -> bool:
        """Make an open window due later.

        Return False if no window is open, if the window is due later anyway, or if its batch is frozen.
        """
        return self._reschedule(
            conversation, due_at_ms, reason, only_if="#due_at < :due AND attribute_not_exists(#frozen)"
        )

    def _reschedule(self, conversation: str, due_at_ms: int, reason: str, *, only_if: str) -> bool:
        key, do = _key(conversation, WINDOW), "SET #due_at = :due, #reason = :reason"
        values: Values = {"due": due_at_ms, "reason": reason}
        only_if = f"attribute_exists(#open) AND {only_if}"
        return self._update("reschedule window", key, do, values, only_if=only_if).done

    def hold(self, conversation: str, *, until_ms: int, expires_at_ms: int) -> bool:
        """Put the conversation on hold. Return False if it is already on hold until a later time."""
        key, longer = _key(conversation, WINDOW), "(attribute_not_exists(#held_until) OR #held_until < :until)"
        until, expires = {"until": until_ms}, {"expires": _seconds(expires_at_ms)}

        def hold_closed() -> bool:
            # The row of a closed window expires soon, or does not exist yet. The row of an open window never expires.
            do, only_if = "SET #held_until = :until, #expires_at = :expires", "attribute_not_exists(#open)"
            return self._update("hold window", key, do, until | expires, only_if=f"{only_if} AND {longer}").done

        def hold_open() -> bool:
            do, only_if = "SET #held_until = :until", "attribute_exists(#open)"
            return self._update("hold window", key, do, until, only_if=f"{only_if} AND {longer}").done

        # A window may open or close between the two requests, but it is very unlikely to do so twice.
        return any(hold_closed() or hold_open() for _ in range(2))

    def end_hold(self, conversation: str, *, now_ms: int) -> bool:
        """End the hold. Return False if the conversation is not on hold."""
        key, do = _key(conversation, WINDOW), "REMOVE #held_until"
        return self._update("resume window", key, do, {"now": now_ms}, only_if="#held_until > :now").done

    # -- the lock of a window, and the steps of its owner ------------------------------------------------------

    def acquire(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> Window:
        """Lock a window that is due. Return the window; its `owner` is the caller only if the caller has the lock.

        While a conversation is on hold, lock its window only if a batch is frozen, because that is still emitted.
        """
        return self._lock(
            conversation,
            owner,
            change="ADD #attempt :one, #unended :one",
            only_if=" AND attribute_exists(#open) AND #due_at <= :now AND"
            " (attribute_exists(#frozen) OR attribute_not_exists(#held_until) OR #held_until <= :now)",
            now_ms=now_ms,
            until_ms=until_ms,
        )

    def acquire_to_cancel(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> Window:
        """Lock a window, whether or not it is due or open, and raise its generation. Return it as `acquire` does."""
        return self._lock(
            conversation, owner, change="ADD #generation :one", only_if="", now_ms=now_ms, until_ms=until_ms
        )

    def acquire_to_forget(self, conversation: str, owner: str, *, now_ms: int, until_ms: int, secret: str) -> Window:
        """Lock a window as `acquire_to_cancel` does, and give it the secret unless it has one."""
        return self._lock(
            conversation,
            owner,
            change=", #id_secret = if_not_exists(#id_secret, :secret) ADD #generation :one, #changes :one",
            only_if="",
            now_ms=now_ms,
            until_ms=until_ms,
            values={"secret": secret},
        )

    def _lock(
        self,
        conversation: str,
        owner: str,
        *,
        change: str,
        only_if: str,
        now_ms: int,
        until_ms: int,
        values: Values | None = None,
    ) -> Window:
        updated = self._update(
            "lock window",
            _key(conversation, WINDOW),
            f"SET #owner = :me, #owner_until = :until {change}",
            {"me": owner, "until": until_ms, "now": now_ms, "one": 1, **(values or {})},
            only_if=f"(attribute_not_exists(#owner) OR #owner_until < :now OR #owner = :me){only_if}",
            answer="ALL_NEW",
        )
        return _window(updated.item)

    def keep(self, conversation: str, owner: str, *, until_ms: int) -> bool:
        """Extend the lock. Like all methods of a lock's owner, return False if the lock is lost."""
        return self._owned("keep lock", conversation, owner, do="SET #owner_until = :until", values={"until": until_ms})

    def release(self, conversation: str, owner: str) -> bool:
        return self._owned("release lock", conversation, owner, do="REMOVE #owner, #owner_until")

    def retry(self, conversation: str, owner: str, *, due_at_ms: int, failures: int = 0) -> bool:
        """Release the lock, count `failures`, and make the window due again at `due_at_ms`."""
        return self._owned(
            "retry window",
            conversation,
            owner,
            do="SET #due_at = :due REMOVE #owner, #owner_until ADD #failures :failures, #unended :less",
            values={"due": due_at_ms, "failures": failures, "less": -1},
        )

    def freeze(self, conversation: str, owner: str, frozen: Frozen, *, window: Window) -> bool:
        """Freeze a batch. Return False if a stored message was edited or removed since the caller read the window."""
        return self._owned(
            "freeze batch",
            conversation,
            owner,
            # Begin the counts with this run, because runs that ended before the freeze do not count.
            do="SET #frozen = :frozen, #last_at = :last, #attempt = :first, #failures = :none, #unended = :first"
            " ADD #waiting :less",
            values={
                "frozen": _frozen_item(frozen),
                "last": max(frozen.last_at_ms, window.last_at_ms),
                "changes": window.changes,
                "less": -len(frozen.names),
                "first": FIRST_ATTEMPT,
                "none": 0,
            },
            only_if=" AND attribute_not_exists(#frozen) AND #changes = :changes",
        )

    def close(self, conversation: str, owner: str, *, generation: int, expires_at_ms: int) -> bool:
        """Close the window. Return False if a message has arrived since the given generation."""
        return self._owned(
            "close window",
            conversation,
            owner,
            do="SET #waiting = :none, #expires_at = :expires"
            " REMOVE #open, #due_at, #reason, #frozen, #owner, #owner_until, #attempt, #failures, #unended",
            values={"generation": generation, "none": 0, "expires": _seconds(expires_at_ms)},
            only_if=NOTHING_NEW,
        )

    def mark_forgotten(self, conversation: str, owner: str, forget_id: str, *, at_ms: int) -> bool:
        """Remove the frozen batch and the hold, and record `forget_id` and `at_ms`. The window stays open."""
        return self._owned(
            "forget batch",
            conversation,
            owner,
            do="SET #forget_id = :id, #forgotten_at = :at REMOVE #frozen, #attempt, #failures, #unended, #held_until",
            values={"id": forget_id, "at": at_ms},
        )

    def dispute(self, conversation: str, owner: str, *, due_at_ms: int, generation: int) -> bool:
        """Release the lock; the window is due at `due_at_ms`. Return False if a message has come since `generation`."""
        return self._owned(
            "dispute window",
            conversation,
            owner,
            do="SET #due_at = :due, #reason = :reason REMOVE #owner, #owner_until, #attempt, #failures, #unended",
            values={"due": due_at_ms, "reason": DISPUTED, "generation": generation},
            only_if=NOTHING_NEW,
        )

    def reopen(self, conversation: str, owner: str, *, due_at_ms: int, reason: str) -> bool:
        """Release the lock, and begin the conversation's next window."""
        return self._owned(
            "reopen window",
            conversation,
            owner,
            do="SET #due_at = :due, #reason = :reason, #open = :slice"
            " REMOVE #frozen, #owner, #owner_until, #attempt, #failures, #unended",
            values={"due": due_at_ms, "reason": reason, "slice": _slice_of(conversation)},
        )

    def _owned(
        self, doing: str, conversation: str, owner: str, *, do: str, values: Values | None = None, only_if: str = ""
    ) -> bool:
        key, mine = _key(conversation, WINDOW), {"me": owner, **(values or {})}
        return self._update(doing, key, do, mine, only_if=f"#owner = :me{only_if}").done

    # -- all windows -------------------------------------------------------------------------------------------

    def open_windows(self, *, due_before_ms: int, limit: int) -> list[tuple[str, int]]:
        """Return (conversation, due time) of the most overdue open windows, at most `limit`.

        The index lags a little behind the table.
        """
        found: list[tuple[str, int]] = []
        for number_of_slice in range(INDEX_SLICES):
            query = expressions(
                {"slice": str(number_of_slice), "due": due_before_ms},
                KeyConditionExpression="#open = :slice AND #due_at < :due",
            )
            items = self._pages("list windows", "query", {"IndexName": OPEN_INDEX, "Limit": limit, **query})
            found += [(text(item, "conversation"), number(item, "due_at")) for item in islice(items, limit)]
        return sorted(found, key=lambda each: each[1])[:limit]

    # -- between the lanes -------------------------------------------------------------------------------------

    def journal(self, conversation: str, batch_id: str, names: Sequence[str], *, expires_at_ms: int) -> None:
        """Record that the Valkey lane has taken this batch."""
        key = _key(conversation, JOURNAL + batch_id)
        self._put("journal batch", {**key, "names": names, "expires_at": _seconds(expires_at_ms)})

    def rewrite_journal(self, conversation: str, batch_id: str, names: Sequence[str]) -> None:
        """Replace the names in the journal's record of a batch, if the record still exists."""
        key = _key(conversation, JOURNAL + batch_id)
        self._update(
            "rewrite journal", key, "SET #names = :names", {"names": names}, only_if="attribute_exists(#names)"
        )

    def fence(self, conversation: str) -> Window:
        """Count a change, so that a processor which has read the conversation cannot freeze it. Return the window."""
        key = _key(conversation, WINDOW)
        return _window(self._update("fence window", key, "ADD #changes :one", {"one": 1}, answer="ALL_NEW").item)


def _key(conversation: str, item: str) -> dict[str, str]:
    return {"conversation": conversation, "item": item}


def _slice_of(conversation: str) -> str:
    return str(crc32(conversation.encode()) % INDEX_SLICES)


def _window(item: Item) -> Window:
    return Window(
        is_open="open" in item,
        generation=number(item, "generation"),
        changes=number(item, "changes"),
        waiting=number(item, "waiting"),
        window_ms=number(item, "window_ms"),
        due_at_ms=number(item, "due_at"),
        reason=text(item, "reason"),
        held_until_ms=number(item, "held_until"),
        owner=text(item, "owner"),
        owner_until_ms=number(item, "owner_until"),
        attempt=number(item, "attempt"),
        failures=number(item, "failures"),
        unended=number(item, "unended"),
        frozen=_frozen(item["frozen"]["M"]) if "frozen" in item else None,
        id_secret=text(item, "id_secret"),
        forget_id=text(item, "forget_id"),
        forgotten_at_ms=number(item, "forgotten_at"),
        last_at_ms=number(item, "last_at"),
    )


def _frozen_item(frozen: Frozen) -> Values:
    return {name.removesuffix("_ms"): value for name, value in frozen._asdict().items()}


def _frozen(item: Item) -> Frozen:
    return Frozen(
        batch_id=text(item, "batch_id"),
        names=tuple(texts(item, "names")),
        generation=number(item, "generation"),
        first_at_ms=number(item, "first_at"),
        last_at_ms=number(item, "last_at"),
        due_at_ms=number(item, "due_at"),
        reason=text(item, "reason"),
    )


def _seconds(at_ms: int) -> int:
    """Return a time in seconds, the unit of `expires_at`."""
    return at_ms // 1_000


def _chunks(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[start : start + size] for start in range(0, len(things), size))
