"""The DynamoDB lane's table. DynamoDB carries out each request completely or not at all, whatever other requests do at
the same time.

    conversation   item          attributes
    <id>           !             the conversation's window: see `window.py`
    <id>           m#<name>      a stored message: arrived_at, and body, or `apart`, if the body is an item of its own
    <id>           p#<name>      the body of a large message
    <id>           m#<name>      a tombstone: batch_id (its batch, or DROPPED), expires_at

A message's name is its id, or the hash of a long id. DynamoDB may delete an item after its `expires_at`, so no item
with a message has one. The index `open` contains the open windows, sorted within each of its slices by `due_at`,
a time at or before their due time, which does not move with each message.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2s
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar
from zlib import crc32

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Item, Table, Value, Values, encode, expressions, number, text
from message_buffer.errors import SendFailed
from message_buffer.lanes.dynamodb.window import (
    FACTS,
    TENTHS,
    WINDOW_ATTRIBUTES,
    Frozen,
    Note,
    Window,
    due_item,
    frozen_item,
    timing_text,
    window_of,
)
from message_buffer.limits import (
    INDEX_SLICES,
    LARGE_MESSAGE_BYTES,
    MAX_NAME_BYTES,
    MAX_STORED_BYTES,
    MAX_STORED_MESSAGES,
    UNDONE_PAUSES_SECONDS,
)
from message_buffer.rules.due_time import Due, Rhythm
from message_buffer.rules.timing import Timing

# A query reads a conversation without its `BODY` items, which are sorted after all others.
WINDOW, MESSAGE, BODY = "!", "m#", "p#"
OPEN_INDEX = "open"
FIRST_ATTEMPT = 1
# A tombstone's `batch_id` if the message is in no batch.
DROPPED = "!dropped"
BATCH_WRITES, BATCH_READS = 25, 100

IS_STORED = "attribute_exists(#arrived_at)"
# A condition: no message has arrived since the given generation.
NOTHING_NEW = " AND #generation = :generation"
# A condition: the conversation is not on hold.
NOT_HELD = "(attribute_not_exists(#held_until) OR #held_until <= :now)"
# The attributes that a query without bodies reads.
LIGHT = ("item", "arrived_at", "apart", "batch_id", *WINDOW_ATTRIBUTES)

T = TypeVar("T")


Put = Literal["new", "stored before", "left before"]
"""The result of `put_message`. A message that "left before" was emitted or dropped."""
Hold = Literal["obey", "ignore", "end"]
"""Whether a request that makes a window due obeys a hold, ignores it, or ends it."""


class StoredMessage(NamedTuple):
    name: str
    arrived_at_ms: int
    body: bytes | None = None
    """None if the body was not read: `MessageTable.bodies` reads it."""
    is_apart: bool = False
    """True if the body is an item of its own."""


class Contents(NamedTuple):
    """The items of a conversation."""

    window: Window
    stored: Sequence[StoredMessage] = ()
    """In order of arrival."""
    tombstones: frozenset[str] = frozenset()
    """The names of messages that have left. Empty unless the caller has asked for them."""
    is_whole: bool = True
    """False if the caller has asked for fewer pages than there are."""

    @property
    def waiting(self) -> list[StoredMessage]:
        """Return the messages that are not frozen, in order of arrival."""
        frozen = set(self.window.frozen.names) if self.window.frozen else set()
        return [each for each in self.stored if each.name not in frozen]


def name_of(message_id: str) -> str:
    encoded = message_id.encode()
    return message_id if len(encoded) <= MAX_NAME_BYTES else f"blake2s:{blake2s(encoded).hexdigest()}"


class MessageTable(Table):
    # -- messages ----------------------------------------------------------------------------------------------

    def put_message(self, conversation: str, name: str, *, body: bytes, arrived_at_ms: int) -> Put:
        """Store a message, unless this lane already knows it.

        A large body is an item of its own, so that a query for the stored messages' names does not pay for it.
        """
        is_apart = len(body) > LARGE_MESSAGE_BYTES
        item: Values = {**_key(conversation, MESSAGE + name), "arrived_at": arrived_at_ms}
        content: Values = {"apart": 1} if is_apart else {"body": body}
        put = self._put("store message", {**item, **content}, only_if="attribute_not_exists(#item)")
        if put.done:
            return "new" if not is_apart or self._put_body(conversation, name, body) else "left before"
        if "arrived_at" not in put.item:
            return "left before"
        if "apart" in put.item:
            # The request that stored the message may have ended before it stored the body.
            self._mend_body(conversation, name, body)
        return "stored before"

    def _put_body(self, conversation: str, name: str, body: bytes) -> bool:
        """Store the body of a new message, unless a redelivery or an edit has done so.

        Return False, and leave no body, if the message has left meanwhile: a redelivery may have stored the body, or a
        stop word may have come, while this request was slow.
        """
        key = _key(conversation, BODY + name)
        self._put("store body", {**key, "body": body}, only_if="attribute_not_exists(#item)")
        message = self._get("find message", _key(conversation, MESSAGE + name))
        if "apart" not in message:
            self._transact("remove body", [self._delete(key)])
        return "arrived_at" in message

    def _mend_body(self, conversation: str, name: str, body: bytes) -> None:
        """Store the body of a message that has none, unless the message has left meanwhile."""
        message = self._change(
            _key(conversation, MESSAGE + name), "SET #apart = :one", {"one": 1}, only_if="attribute_exists(#apart)"
        )
        missing = self._new({**_key(conversation, BODY + name), "body": body}, only_if="attribute_not_exists(#item)")
        self._transact("store body", [message, missing])

    def drop_message(self, conversation: str, name: str, *, expires_at_ms: int) -> bool:
        """Remove a stored message. Return False if the message is not stored, or already in a batch."""
        return self._change_stored(
            "drop stored message",
            conversation,
            name,
            do="SET #batch_id = :batch, #expires_at = :expires REMOVE #body, #arrived_at, #apart",
            values={"batch": DROPPED, "expires": _seconds(expires_at_ms)},
            body=self._delete(_key(conversation, BODY + name)),
            less=1,
        )

    def edit_message(self, conversation: str, name: str, *, body: bytes) -> bool:
        """Replace a stored message. Return False if the message is not stored, or already in a batch."""
        key = _key(conversation, BODY + name)
        values: Values
        if len(body) > LARGE_MESSAGE_BYTES:
            do, values, change = "SET #apart = :apart REMOVE #body", {"apart": 1}, self._new({**key, "body": body})
        else:
            do, values, change = "SET #body = :body REMOVE #apart", {"body": body}, self._delete(key)
        return self._change_stored("edit stored message", conversation, name, do=do, values=values, body=change)

    def _change_stored(
        self, doing: str, conversation: str, name: str, *, do: str, values: Values, body: dict[str, Any], less: int = 0
    ) -> bool:
        """Change a message, and count the change, so that a processor cannot freeze the message as it was before."""
        message = self._change(_key(conversation, MESSAGE + name), do, values, only_if=IS_STORED)
        window = self._change(
            _key(conversation, WINDOW),
            "ADD #changes :one, #waiting :less",
            {"one": 1, "less": -less, "name": name},
            only_if="NOT contains(#frozen.#names, :name)",
        )
        return self._transact(doing, [message, window, body])

    def leave_tombstones(
        self,
        conversation: str,
        names: Iterable[str],
        *,
        batch_id: str,
        expires_at_ms: int,
        apart: Collection[str] = (),
    ) -> None:
        """Replace messages with tombstones, which stay for as long as their platform may deliver the messages again.

        First delete the bodies of those that are `apart`, so that no body stays without its message. Delete them again
        at the end, because a slow request may have stored a body when its message was not a tombstone yet.
        """
        self.erase(conversation, bodies=apart)
        left: Values = {"batch_id": batch_id, "expires_at": _seconds(expires_at_ms)}
        self._put_all({**_key(conversation, MESSAGE + name), **left} for name in names)
        self.erase(conversation, bodies=apart)

    def erase(self, conversation: str, *, names: Iterable[str] = (), bodies: Iterable[str] = ()) -> None:
        """Delete bodies, messages and tombstones by their names."""
        items = [*(BODY + name for name in bodies), *(MESSAGE + name for name in names)]
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

    def bodies(self, conversation: str, messages: Iterable[StoredMessage]) -> dict[str, bytes]:
        """Return the bodies by the messages' names. A message that is no longer stored, or not yet, has none."""
        items = {(BODY if each.is_apart else MESSAGE) + each.name: each.name for each in messages}
        found: dict[str, Item] = {}
        attributes = expressions(ProjectionExpression="#item, #body")

        def get(keys: Sequence[Any]) -> list[Any]:
            request = {self.name: {"Keys": keys, "ConsistentRead": True, **attributes}}
            with aws.errors_as_ours("find messages"):
                answer = self._client.batch_get_item(RequestItems=request)
            found.update({text(item, "item"): item for item in answer["Responses"].get(self.name, [])})
            undone: list[Any] = answer.get("UnprocessedKeys", {}).get(self.name, {}).get("Keys", [])
            return undone

        for some in _chunks(list(items), BATCH_READS):
            self._all_of([encode(_key(conversation, item)) for item in some], get)
        return {items[item]: found[item]["body"]["B"] for item in found if "body" in found[item]}

    def names_of_bodies(self, conversation: str) -> list[str]:
        """Return the names of all messages whose body is an item of its own, even of those that are not stored."""
        query = expressions(
            {"id": conversation, "bodies": BODY},
            KeyConditionExpression="#conversation = :id AND begins_with(#item, :bodies)",
            ProjectionExpression="#item",
        )
        items = self._pages("list bodies", "query", {"ConsistentRead": True, **query})
        return [text(item, "item").removeprefix(BODY) for item in items]

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

    def read(
        self,
        conversation: str,
        *,
        with_bodies: bool = False,
        with_tombstones: bool = False,
        max_pages: int | None = None,
    ) -> Contents:
        """Return a conversation without its bodies, and without its tombstones, of which there may be a great many.

        `with_bodies` adds those bodies that come with the first page of the query for the same price, which are all
        bodies of a usual conversation. A page has at most a megabyte, in which DynamoDB counts tombstones even if it
        leaves them out.
        """
        condition = {"KeyConditionExpression": "#conversation = :id AND #item < :bodies"}
        if not with_tombstones:
            condition["FilterExpression"] = "attribute_not_exists(#batch_id)"
        values: Values = {"id": conversation, "bodies": BODY}
        light = expressions(values, ProjectionExpression=_attributes(LIGHT), **condition)
        first = expressions(values, **condition) if with_bodies else light
        pages = self._each_page("read conversation", "query", {"ConsistentRead": True, **first}, later=light)
        is_whole = False

        def items() -> Iterator[Item]:
            nonlocal is_whole
            for page in islice(pages, max_pages):
                is_whole = page.is_last
                yield from page.items

        contents = _contents(items())
        return contents._replace(is_whole=is_whole)

    def tombstone(self, conversation: str, name: str) -> str:
        """Return the id of the batch in which the message has left, DROPPED, or "" if it has not left."""
        return text(self._get("find tombstone", _key(conversation, MESSAGE + name)), "batch_id")

    def window(self, conversation: str) -> Window:
        return window_of(self._get("read window", _key(conversation, WINDOW)))

    def note(self, conversation: str, note: Note, *, seen: Window | None = None) -> tuple[bool, Window]:
        """Write the facts of a delivery into the window, and open the window if it is closed.

        Return the window as it was before. If it was closed then, this call has opened it. Also return False, and
        change nothing, if too much waits for another new message, or if the window is no longer as the caller has
        `seen` it. Only a press needs that, because its due time depends on the window.
        """
        values: dict[str, Value] = {
            "one": 1,
            "none": 0,
            "at": note.at_ms,
            "timing": timing_text(note.timing),
            "slice": _slice_of(conversation),
            "listed": note.listed_at_ms,
        }
        do = (
            "SET #open = if_not_exists(#open, :slice), #due_at = if_not_exists(#due_at, :listed),"
            " #changes = if_not_exists(#changes, :none), #first = if_not_exists(#first, :at)"
        )
        if not note.is_new:
            # The message moves no due time, unless it is the first one that the window knows of.
            do += ", #last = if_not_exists(#last, :at), #timing = if_not_exists(#timing, :timing)"
            do += " REMOVE #expires_at ADD #generation :one"
            return self._noted(conversation, do, values)
        # DynamoDB itself copies the last arrival, so that ingest need not read the window before this write.
        do += ", #last = :at, #prev = if_not_exists(#last, :none)"
        computed = note.in_window(seen).computed if seen else None
        if computed is None:
            do += ", #timing = :timing REMOVE #expires_at, #computed"
        else:
            do += ", #computed = :computed REMOVE #expires_at"
            values["computed"] = due_item(computed)
            del values["timing"]
        do += " ADD #generation :one, #waiting :one"
        only_if = "(attribute_not_exists(#waiting) OR #waiting < :most)"
        values |= {"most": MAX_STORED_MESSAGES}
        if seen is not None and not seen.is_open:
            only_if += " AND attribute_not_exists(#open)"
        elif seen is not None:
            only_if += f" AND {_still_open(seen)} AND #changes = :changes{NOTHING_NEW}"
            values |= {"changes": seen.changes, "generation": seen.generation}
        if note.large_bytes:
            do += ", #large :size"
            only_if += " AND (attribute_not_exists(#large) OR #large <= :most_bytes)"
            values |= {"size": note.large_bytes, "most_bytes": MAX_STORED_BYTES - note.large_bytes}
        return self._noted(conversation, do, values, only_if=only_if)

    def _noted(self, conversation: str, do: str, values: Values, *, only_if: str = "") -> tuple[bool, Window]:
        updated = self._update(
            "note message", _key(conversation, WINDOW), do, values, only_if=only_if, answer="ALL_OLD"
        )
        return updated.done, window_of(updated.item)

    def take_back(self, conversation: str, name: str | None, *, window: Window, expires_at_ms: int) -> bool:
        """Close a window whose trigger could not be sent, and remove the message that opened it.

        Without a name, remove no message. Return False, and change nothing, if another request has joined the window
        since this one opened it, or has edited the message.
        """
        closed = self._change(
            _key(conversation, WINDOW),
            "SET #expires_at = :expires, #waiting = :none, #large = :none ADD #changes :one"
            f" REMOVE #open, #due_at, {FACTS}, #found",
            {
                "generation": window.generation,
                "changes": window.changes,
                "expires": _seconds(expires_at_ms),
                "none": 0,
                "one": 1,
            },
            only_if="#generation = :generation AND #changes = :changes"
            " AND attribute_not_exists(#owner) AND attribute_not_exists(#frozen)",
        )
        return self._transact(
            "take back message", [closed, *([] if name is None else self._removal(conversation, name))]
        )

    def remove_message(self, conversation: str, name: str) -> bool:
        """Remove a message that was stored, but not noted in the window. Return False if it is not stored."""
        return self._transact("remove message", self._removal(conversation, name))

    def _removal(self, conversation: str, name: str) -> list[dict[str, Any]]:
        message = self._delete(_key(conversation, MESSAGE + name), only_if=IS_STORED)
        return [message, self._delete(_key(conversation, BODY + name))]

    def hasten(self, conversation: str, *, window: Window, due: Due, stands: bool = True, hold: Hold = "obey") -> bool:
        """Make an open window due earlier than the caller has seen it.

        If the due time `stands`, later messages do not move it; otherwise only the index is corrected. Return False if
        another run has frozen the batch since the caller read the window, or the window has closed, or its due time
        would stand against a hold. If the hold is ignored, it continues for later messages.
        """
        sets, remove = [], " REMOVE #held_until" if hold == "end" else ""
        values: dict[str, Value] = {"one": 1}
        only_if = _still_open(window)
        if window.listed_at_ms > due.due_at_ms:
            sets.append("#due_at = :due")
            values["due"] = due.due_at_ms
        if stands:
            sets.append("#found = :found, #computed = :found")
            values["found"] = due_item(due)
        if stands and hold == "obey":
            only_if += f" AND {NOT_HELD}"
            values["now"] = due.due_at_ms  # the due time has come, so it may stand for the time now
        if not sets:
            return True
        do = f"SET {', '.join(sets)}{remove} ADD #changes :one"
        return self._update("hasten window", _key(conversation, WINDOW), do, values, only_if=only_if).done

    def list_later(self, conversation: str, *, window: Window, at_ms: int, successor_at_ms: int | None = None) -> bool:
        """List an open window under a later time. Return False if the window has changed since the caller read it.

        Also record when the trigger arrives that the caller has sent in its trigger's place.
        """
        do = "SET #due_at = :at"
        values: dict[str, Value] = {
            "at": at_ms,
            "seen": window.listed_at_ms,
            "generation": window.generation,
            "changes": window.changes,
        }
        if successor_at_ms is not None:
            do, values["successor"] = f"{do}, #successor_at = :successor", successor_at_ms
        return self._update(
            "list window later",
            _key(conversation, WINDOW),
            do,
            values,
            only_if="attribute_exists(#open) AND #due_at = :seen AND #generation = :generation"
            " AND #changes = :changes AND attribute_not_exists(#owner) AND attribute_not_exists(#frozen)",
        ).done

    def extend(self, conversation: str, *, window: Window, due: Due) -> bool:
        """Let the window wait longer, until the next message. Return False if a message has come since the read."""
        return self._update(
            "extend window",
            _key(conversation, WINDOW),
            "SET #computed = :computed ADD #changes :one",
            {"computed": due_item(due), "generation": window.generation, "one": 1},
            only_if="attribute_exists(#open) AND #generation = :generation",
        ).done

    def retime(self, conversation: str, *, window: Window, timing: Timing) -> bool:
        """Let the window wait by other rules. Return False if a message has come since the caller read the window."""
        return self._update(
            "retime window",
            _key(conversation, WINDOW),
            "SET #timing = :timing ADD #changes :one REMOVE #computed",
            {"timing": timing_text(timing), "generation": window.generation, "one": 1},
            only_if="attribute_exists(#open) AND #generation = :generation",
        ).done

    def hold(self, conversation: str, *, until_ms: int, expires_at_ms: int) -> bool:
        """Put the conversation on hold. Return False if it is already on hold until a later time.

        In either case messages and the hold move the due time again, and no run can freeze a batch with what it has
        read before.
        """
        key, longer = _key(conversation, WINDOW), "(attribute_not_exists(#held_until) OR #held_until < :until)"
        until, expires = {"until": until_ms}, {"expires": _seconds(expires_at_ms)}
        counted, unfound = {**until, "one": 1}, "REMOVE #found ADD #changes :one"

        def hold_closed() -> bool:
            # The row of a closed window expires soon, or does not exist yet. The row of an open window never expires.
            do, only_if = "SET #held_until = :until, #expires_at = :expires", "attribute_not_exists(#open)"
            return self._update("hold window", key, do, until | expires, only_if=f"{only_if} AND {longer}").done

        def hold_open() -> bool:
            do, only_if = f"SET #held_until = :until {unfound}", "attribute_exists(#open)"
            return self._update("hold window", key, do, counted, only_if=f"{only_if} AND {longer}").done

        # A window may open or close between the two requests, but it is very unlikely to do so twice.
        if any(hold_closed() or hold_open() for _ in range(2)):
            return True
        self._update("hold window", key, unfound, counted, only_if="attribute_exists(#open) AND #held_until >= :until")
        return False

    def end_hold(self, conversation: str, *, now_ms: int) -> bool:
        """End the hold. Return False if the conversation is not on hold."""
        key, do = _key(conversation, WINDOW), "REMOVE #held_until"
        return self._update("resume window", key, do, {"now": now_ms}, only_if="#held_until > :now").done

    # -- the lock of a window, and the steps of its owner ------------------------------------------------------

    def acquire(self, conversation: str, owner: str, *, window: Window, now_ms: int, until_ms: int) -> Window:
        """Lock a window that the caller has read and found due. Return it; its `owner` is the caller only if locked.

        The due time and the reason stand from now on, and messages that have come since the read join the batch. The
        caller does not get the lock if another run has emptied the window meanwhile. While a conversation is on hold,
        lock its window only if its due time stands, or if a batch is frozen, because that is still emitted.
        """
        due = window.due_of_batch
        values: dict[str, Value] = {}
        change = "ADD #attempt :one"
        only_if = " AND attribute_exists(#open)"
        if window.frozen is not None:
            only_if += " AND attribute_exists(#frozen) AND #due_at <= :now"
        else:
            # The first arrival distinguishes one window from the next.
            only_if += " AND attribute_not_exists(#frozen) AND " + (
                "#first = :seen" if window.first_at_ms else "attribute_not_exists(#first) AND #due_at <= :now"
            )
            only_if += f" AND ({NOT_HELD} OR attribute_exists(#found))"
            change = f", #found = :found {change}"
            values = {"found": due_item(due)}
            if window.first_at_ms:
                values["seen"] = window.first_at_ms
        return self._lock(
            conversation, owner, change=change, only_if=only_if, now_ms=now_ms, until_ms=until_ms, values=values
        )

    def acquire_to_drop(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> Window:
        """Lock a window, due or not, open or not, and raise its generation. Return it as `acquire` does."""
        return self._lock(
            conversation, owner, change="ADD #generation :one", only_if="", now_ms=now_ms, until_ms=until_ms
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
        return window_of(updated.item)

    def keep(self, conversation: str, owner: str, *, until_ms: int) -> bool:
        """Extend the lock. Like all methods of a lock's owner, return False if the lock is lost."""
        return self._owned("keep lock", conversation, owner, do="SET #owner_until = :until", values={"until": until_ms})

    def release(self, conversation: str, owner: str) -> bool:
        return self._owned("release lock", conversation, owner, do="REMOVE #owner, #owner_until")

    def retry(self, conversation: str, owner: str, *, due_at_ms: int) -> bool:
        """Release the lock, and make the window due again at `due_at_ms`."""
        return self._owned(
            "retry window",
            conversation,
            owner,
            do="SET #due_at = :due REMOVE #owner, #owner_until",
            values={"due": due_at_ms},
        )

    def freeze(
        self,
        conversation: str,
        owner: str,
        frozen: Frozen,
        *,
        window: Window,
        large_bytes: int = 0,
        rhythm: Rhythm | None = None,
        now_ms: int,
        may_have_come: bool = False,
    ) -> bool:
        """Freeze a batch, of which `large_bytes` are in bodies of their own. The facts that messages write from now on
        are those of the messages behind it. Those that did not fit into the batch are due now.

        Return False if a stored message was edited or removed, a hold has begun, or a message has come, since the
        caller read the window. If messages `may_have_come`, their facts stay, and the first came now or later.
        """
        # Begin the count with this run, because runs that ended before the freeze do not count.
        do = "SET #frozen = :frozen, #last_at = :last, #attempt = :one"
        values: dict[str, Value] = {
            "frozen": frozen_item(frozen),
            "last": max(frozen.last_at_ms, window.last_at_ms),
            "changes": window.changes,
            "less": -len(frozen.names),
            "one": FIRST_ATTEMPT,
        }
        only_if = " AND attribute_not_exists(#frozen) AND #changes = :changes"
        if rhythm is not None:
            do += ", #gap_mean = :mean, #gap_dev = :dev"
            values |= {"mean": round(rhythm.mean_ms * TENTHS), "dev": round(rhythm.deviation_ms * TENTHS)}
        less = "#waiting :less"
        remove = "#found"
        if frozen.has_left:
            do, remove = f"{do}, #found = :found", ""
            values["found"] = due_item(Due(now_ms, "max_messages", "split", now_ms - window.last_arrival_ms))
        if not may_have_come and not frozen.has_left:
            do += ", #large = :none"
            values["none"] = 0
        elif large_bytes:
            less += ", #large :less_bytes"
            values["less_bytes"] = -large_bytes
        if not may_have_come:
            remove = f"{FACTS}, {remove}"
            only_if += NOTHING_NEW
            values["generation"] = window.generation
        else:
            do += ", #first = :now"
            remove = f"#computed, #successor_at, {remove}"
            values["now"] = now_ms
        do = f"{do} REMOVE {remove.removesuffix(', ')} ADD {less}"
        return self._owned("freeze batch", conversation, owner, do=do, values=values, only_if=only_if)

    def close(self, conversation: str, owner: str, *, generation: int, expires_at_ms: int) -> bool:
        """Close the window. Return False if a message has arrived since the given generation."""
        return self._owned(
            "close window",
            conversation,
            owner,
            do="SET #waiting = :none, #large = :none, #expires_at = :expires"
            f" REMOVE #open, #due_at, #frozen, #owner, #owner_until, #attempt, {FACTS}, #found",
            values={"generation": generation, "none": 0, "expires": _seconds(expires_at_ms)},
            only_if=NOTHING_NEW,
        )

    def delete_window(self, conversation: str, owner: str, *, generation: int) -> bool:
        """Delete the window's item. Return False if a message has arrived since the given generation."""
        values: Values = {"me": owner, "generation": generation}
        request = self._delete(_key(conversation, WINDOW), values, only_if=f"#owner = :me{NOTHING_NEW}")["Delete"]
        return self._asked("delete window", "delete_item", request).done

    def reopen(
        self, conversation: str, owner: str, *, due_at_ms: int, keeps_found: bool, generation: int | None = None
    ) -> bool:
        """Release the lock, and begin the conversation's next window, which is listed at `due_at_ms`.

        Unless `keeps_found`, the messages' facts move its due time. With a generation, also return False if a message
        has come since.
        """
        do = "SET #due_at = :due, #open = :slice"
        values: dict[str, Value] = {"due": due_at_ms, "slice": _slice_of(conversation)}
        remove = "#frozen, #owner, #owner_until, #attempt, #successor_at"
        if not keeps_found:
            remove += ", #found"
        if generation is not None:
            values["generation"] = generation
        return self._owned(
            "reopen window",
            conversation,
            owner,
            do=f"{do} REMOVE {remove}",
            values=values,
            only_if="" if generation is None else NOTHING_NEW,
        )

    def _owned(
        self, doing: str, conversation: str, owner: str, *, do: str, values: Values | None = None, only_if: str = ""
    ) -> bool:
        key, mine = _key(conversation, WINDOW), {"me": owner, **(values or {})}
        return self._update(doing, key, do, mine, only_if=f"#owner = :me{only_if}").done

    # -- all windows -------------------------------------------------------------------------------------------

    def open_windows(self, *, listed_before_ms: int, limit: int) -> list[tuple[str, int]]:
        """Return (conversation, the time under which it is listed) of open windows, the earliest, at most `limit`.

        No window is due before that time. The index lags a little behind the table.
        """
        found: list[tuple[str, int]] = []
        for number_of_slice in range(INDEX_SLICES):
            query = expressions(
                {"slice": str(number_of_slice), "due": listed_before_ms},
                KeyConditionExpression="#open = :slice AND #due_at < :due",
            )
            items = self._pages("list windows", "query", {"IndexName": OPEN_INDEX, "Limit": limit, **query})
            found += [(text(item, "conversation"), number(item, "due_at")) for item in islice(items, limit)]
        return sorted(found, key=lambda each: each[1])[:limit]


def _contents(items: Iterable[Item]) -> Contents:
    window, stored, tombstones = Window(), [], set()
    for item in items:
        kind = text(item, "item")
        name = kind.removeprefix(MESSAGE)
        if kind == WINDOW:
            window = window_of(item)
        elif "arrived_at" in item:
            body = item["body"]["B"] if "body" in item else None
            stored.append(StoredMessage(name, number(item, "arrived_at"), body, is_apart="apart" in item))
        else:
            tombstones.add(name)
    stored.sort(key=lambda each: (each.arrived_at_ms, each.name))
    return Contents(window, stored, frozenset(tombstones))


def _key(conversation: str, item: str) -> dict[str, str]:
    return {"conversation": conversation, "item": item}


def _attributes(names: Iterable[str]) -> str:
    return ", ".join(f"#{name}" for name in names)


def _still_open(window: Window) -> str:
    """Return the condition that the window is open, and has a frozen batch only if the caller has read one."""
    return "attribute_exists(#open) AND " + (
        "attribute_exists(#frozen)" if window.frozen else "attribute_not_exists(#frozen)"
    )


def _slice_of(conversation: str) -> str:
    return str(crc32(conversation.encode()) % INDEX_SLICES)


def _seconds(at_ms: int) -> int:
    """Return a time in seconds, the unit of `expires_at`."""
    return at_ms // 1_000


def _chunks(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (things[start : start + size] for start in range(0, len(things), size))
