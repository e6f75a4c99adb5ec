"""The stored messages of the DynamoDB lane: their items, bodies and tombstones."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Value, Values, encode, expressions, number, text
from message_buffer.errors import SendFailed
from message_buffer.lanes.dynamodb.items import BODY, DROPPED, MESSAGE, WINDOW, key_of, seconds
from message_buffer.lanes.dynamodb.window import CLOSE, FACTS, WINDOW_ATTRIBUTES, Window, packed, window_of
from message_buffer.lanes.dynamodb.windows import UNCHANGED, UNLOCKED, version_of
from message_buffer.limits import LARGE_MESSAGE_BYTES
from message_buffer.messages.wire_form import edited_at_ms

# DynamoDB may carry out only some requests of a batch call. Send the others again after these pauses, one call after
# each pause.
UNDONE_PAUSES_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
BATCH_WRITES, BATCH_READS = 25, 100
IS_STORED = "attribute_exists(#arrived_at)"
NOT_FROZEN = "NOT contains(#frozen.#names, :name)"
# The attributes that a query without bodies reads.
LIGHT = ", ".join(f"#{name}" for name in ("item", "arrived_at", "edited_at", "apart", "batch_id", *WINDOW_ATTRIBUTES))

T = TypeVar("T")

Put = Literal["new", "stored before", "finished before"]
"""The result of `put_message`. "finished before" means that the message was already emitted or dropped."""


class StoredMessage(NamedTuple):
    name: str
    arrived_at_ms: int
    body: bytes | None = None
    """None if the query left out the body. `Messages.bodies` reads such a body."""
    large_bytes: int = 0
    """The bytes of a body that is an item of its own, or 0."""
    edited_at_ms: int = 0

    @property
    def is_apart(self) -> bool:
        return self.large_bytes > 0


class Contents(NamedTuple):
    """A conversation's window and stored messages."""

    window: Window
    stored: Sequence[StoredMessage] = ()
    """The stored messages, in order of arrival."""
    is_whole: bool = True
    """False if there are more pages than the caller has asked for."""

    @property
    def waiting(self) -> list[StoredMessage]:
        """Return the messages that are not frozen, in order of arrival."""
        frozen = set(self.window.frozen.names) if self.window.frozen else set()
        return [each for each in self.stored if each.name not in frozen]


class Messages(Table):
    def put_message(self, conversation: str, name: str, *, body: bytes, arrived_at_ms: int) -> Put:
        """Store a message, unless this lane already knows it."""
        apart = bytes_apart(body)
        content: Values = {"apart": apart} if apart else {"body": body}
        item = {**key_of(conversation, MESSAGE + name), "arrived_at": arrived_at_ms, **content}
        put = self._put("store message", item, only_if="attribute_not_exists(#item)")
        if put.done:
            return "new" if not apart or self._put_body(conversation, name, body) else "finished before"
        if "arrived_at" not in put.item:
            return "finished before"
        if "apart" in put.item:
            # The request that stored the message may have ended before it stored the body.
            self._mend_body(conversation, name, body)
        return "stored before"

    def _put_body(self, conversation: str, name: str, body: bytes) -> bool:
        """Store the body of a new message, unless a redelivery or an edit has already stored one.

        Return False, and store no body, if the message was emitted or dropped while this request was slow.
        """
        key = key_of(conversation, BODY + name)
        self._put("store body", {**key, "body": body}, only_if="attribute_not_exists(#item)")
        message = self._get("find message", key_of(conversation, MESSAGE + name))
        if "apart" not in message:
            self._transact("remove body", [self._delete(key)])
        return "arrived_at" in message

    def _mend_body(self, conversation: str, name: str, body: bytes) -> None:
        """Store the body of a message that has no body, unless the message was emitted or dropped meanwhile."""
        message = self._change(
            key_of(conversation, MESSAGE + name),
            "SET #apart = :size",
            {"size": len(body)},
            only_if="attribute_exists(#apart)",
        )
        missing = self._new({**key_of(conversation, BODY + name), "body": body}, only_if="attribute_not_exists(#item)")
        self._transact("store body", [message, missing])

    def drop_message(self, conversation: str, name: str, *, window: Window, expires_at_ms: int) -> bool:
        """Replace a waiting message with a tombstone, and close a window in which nothing else waits. Return False if
        the message no longer waits, or the window has changed since the caller read it."""
        is_last = window.waiting <= 1 and self._is_alone(conversation, name)
        if window.is_open and is_last and not (window.frozen or window.lock.owner):
            change = self._closing(conversation, window, expires_at_ms)
        else:
            change = self._dropping(conversation, name, window, is_last=is_last)
        do = "SET #batch_id = :batch, #expires_at = :expires REMOVE #body, #arrived_at, #edited_at, #apart"
        left: Values = {"batch": DROPPED, "expires": seconds(expires_at_ms)}
        message = self._change(key_of(conversation, MESSAGE + name), do, left, only_if=IS_STORED)
        body = self._delete(key_of(conversation, BODY + name))
        return self._transact("drop stored message", [message, change, body])

    def _is_alone(self, conversation: str, name: str) -> bool:
        """Return whether no other message waits, or False if that would take more than a page to find out."""
        # The window does not count a message if the request that stored it died before it wrote the message's facts.
        contents = self.read(conversation, max_pages=1)
        return contents.is_whole and all(each.name == name for each in contents.waiting)

    def _dropping(self, conversation: str, name: str, window: Window, *, is_last: bool) -> dict[str, Any]:
        """Return the change that dropping a message makes to the window. The due time of the other messages stays the
        same."""
        do, values, only_if = "ADD #changes :one", dict[str, Value](one=1, name=name), NOT_FROZEN
        if window.is_open:
            values |= version_of(window)
            only_if += f" AND {UNCHANGED}"
        if is_last:
            do = f"SET #waiting = :none, #large = :none REMOVE #found, {FACTS} {do}"
            values["none"] = 0
        else:
            do += ", #waiting :less"
            values["less"] = -1
            if window.timing and not window.found:
                do = f"SET #computed = :computed {do}"
                values["computed"] = packed(window.due_of_waiting)
        return self._change(key_of(conversation, WINDOW), do, values, only_if=only_if)

    def edit_message(self, conversation: str, was: StoredMessage, *, body: bytes) -> bool:
        """Replace a stored message with an edited version. Return False if the message was changed since the caller
        read it, or is already in a batch."""
        name = was.name
        key = key_of(conversation, BODY + name)
        apart = bytes_apart(body)
        change = self._new({**key, "body": body}) if apart else self._delete(key)
        do = "#apart = :new REMOVE #body" if apart else "#body = :new REMOVE #apart"
        new: dict[str, Value] = {"new": apart or body, "at": edited_at_ms(body)}
        only_if = f"{IS_STORED} AND (attribute_not_exists(#edited_at) OR #edited_at <= :at)"
        only_if += " AND #apart = :was" if was.is_apart else " AND attribute_not_exists(#apart)"
        new |= {"was": was.large_bytes} if was.is_apart else {}
        message = self._change(
            key_of(conversation, MESSAGE + name), f"SET #edited_at = :at, {do}", new, only_if=only_if
        )
        # Raise `changes`, so that a processor that has read the old version cannot freeze it.
        counted: Values = {"one": 1, "name": name, "more": apart - was.large_bytes}
        do = "ADD #changes :one, #large :more"
        window = self._change(key_of(conversation, WINDOW), do, counted, only_if=NOT_FROZEN)
        return self._transact("edit stored message", [message, window, change])

    def write_tombstones(
        self, conversation: str, messages: Sequence[StoredMessage], *, batch_id: str, expires_at_ms: int
    ) -> None:
        """Replace messages with tombstones."""
        # Delete the bodies first, so that a crash leaves no body without its message. Delete them again at the end,
        # because a slow request may have stored one in the meantime.
        bodies = [BODY + each.name for each in messages if each.is_apart]
        self.erase(conversation, bodies)
        left: Values = {"batch_id": batch_id, "expires_at": seconds(expires_at_ms)}
        tombstones = ({**key_of(conversation, MESSAGE + each.name), **left} for each in messages)
        self._write_all({"PutRequest": {"Item": encode(item)}} for item in tombstones)
        self.erase(conversation, bodies)

    def erase(self, conversation: str, items: Iterable[str]) -> None:
        self._write_all({"DeleteRequest": {"Key": encode(key_of(conversation, item))}} for item in items)

    def _write_all(self, requests: Iterable[Any]) -> None:
        for some in chunks(list(requests), BATCH_WRITES):
            _carry_out(list(some), self._write)

    def _write(self, requests: Sequence[Any]) -> list[Any]:
        with aws.errors_as_ours("write items"):
            response = self._client.batch_write_item(RequestItems={self.name: requests})
        undone: list[Any] = response.get("UnprocessedItems", {}).get(self.name, [])
        return undone

    def bodies(self, conversation: str, messages: Iterable[StoredMessage]) -> dict[str, bytes]:
        """Return the bodies by the messages' names. Leave out a message whose body is not stored yet, or is already
        deleted."""
        items = {(BODY if each.is_apart else MESSAGE) + each.name: each.name for each in messages}
        found: dict[str, Item] = {}
        attributes = expressions(ProjectionExpression="#item, #body")

        def get(keys: Sequence[Any]) -> list[Any]:
            request = {self.name: {"Keys": keys, "ConsistentRead": True, **attributes}}
            with aws.errors_as_ours("find messages"):
                response = self._client.batch_get_item(RequestItems=request)
            found.update({text(item, "item"): item for item in response["Responses"].get(self.name, [])})
            undone: list[Any] = response.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            return undone

        for some in chunks(list(items), BATCH_READS):
            _carry_out([encode(key_of(conversation, item)) for item in some], get)
        return {items[item]: found[item]["body"]["B"] for item in found if "body" in found[item]}

    def list_items(self, conversation: str, *, after: str = WINDOW) -> list[str]:
        """Return the item names of all messages, tombstones and bodies, or, `after` BODY, of the bodies. Bodies come
        first, so that a caller who erases the items leaves no body without its message."""
        query = expressions(
            {"id": conversation, "after": after},
            KeyConditionExpression="#conversation = :id AND #item > :after",
            ProjectionExpression="#item",
        )
        request = {"ConsistentRead": True, "ScanIndexForward": False, **query}
        return [text(item, "item") for item in self._pages("list items", "query", request)]

    def read(self, conversation: str, *, with_bodies: bool = False, max_pages: int | None = None) -> Contents:
        """Return a conversation's window and messages, without tombstones. With `with_bodies`, include the bodies on
        the query's first page, which costs nothing more, and which usually has all bodies."""
        condition = {
            "KeyConditionExpression": "#conversation = :id AND #item < :bodies",
            "FilterExpression": "attribute_not_exists(#batch_id)",
        }
        values: Values = {"id": conversation, "bodies": BODY}
        light = expressions(values, ProjectionExpression=LIGHT, **condition)
        first = expressions(values, **condition) if with_bodies else light
        pages = self._each_page("read conversation", "query", {"ConsistentRead": True, **first}, later=light)
        window, stored, is_whole = Window(), [], False
        for page in islice(pages, max_pages):
            is_whole = page.is_last
            for each in page.items:
                name = text(each, "item")
                if name == WINDOW:
                    window = window_of(each)
                else:
                    stored.append(_stored(each))
        stored.sort(key=lambda each: (each.arrived_at_ms, each.name))
        return Contents(window, stored, is_whole)

    def find(self, conversation: str, name: str) -> StoredMessage | str:
        """Return the message if it is stored. Otherwise return the id of the batch that contained it, DROPPED, or "" if
        there is no tombstone."""
        item = self._get("find message", key_of(conversation, MESSAGE + name))
        return _stored(item) if "arrived_at" in item else text(item, "batch_id")

    def take_back(self, conversation: str, name: str | None, *, window: Window, expires_at_ms: int) -> bool:
        """Close a window whose trigger could not be sent, and remove the message `name`, which opened the window, if it
        is not None. Return False, and change nothing, if another request has changed the window since."""
        removal = [] if name is None else self._removal(conversation, name)
        return self._transact("take back message", [self._closing(conversation, window, expires_at_ms), *removal])

    def _closing(self, conversation: str, window: Window, expires_at_ms: int) -> dict[str, Any]:
        """Return the change that closes a window, if it has not changed since the read and no run has locked it."""
        values: Values = {**version_of(window), "none": 0, "one": 1, "expires": seconds(expires_at_ms), "tail": ""}
        only_if = f"{UNCHANGED} AND {UNLOCKED}"
        return self._change(key_of(conversation, WINDOW), f"{CLOSE} ADD #changes :one", values, only_if=only_if)

    def remove_message(self, conversation: str, name: str) -> bool:
        """Remove a stored message that has not joined the window. Return False if the message is not stored."""
        return self._transact("remove message", self._removal(conversation, name))

    def _removal(self, conversation: str, name: str) -> list[dict[str, Any]]:
        message = self._delete(key_of(conversation, MESSAGE + name), only_if=IS_STORED)
        return [message, self._delete(key_of(conversation, BODY + name))]


def bytes_apart(body: bytes) -> int:
    """Return the size of a body that is stored in an item of its own, or 0."""
    return len(body) if len(body) > LARGE_MESSAGE_BYTES else 0


def _stored(item: Item) -> StoredMessage:
    return StoredMessage(
        text(item, "item").removeprefix(MESSAGE),
        number(item, "arrived_at"),
        item["body"]["B"] if "body" in item else None,
        number(item, "apart"),
        number(item, "edited_at"),
    )


def _carry_out(requests: list[Any], call: Callable[[Sequence[Any]], list[Any]]) -> None:
    """Make the requests, and repeat those that DynamoDB did not carry out. Raise SendFailed if some still fail."""
    for pause in (*UNDONE_PAUSES_SECONDS, None):
        requests = call(requests)
        if not requests:
            return
        if pause is not None:
            time.sleep(pause)
    raise SendFailed("the table is too busy")


def chunks(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[start : start + size] for start in range(0, len(things), size))
