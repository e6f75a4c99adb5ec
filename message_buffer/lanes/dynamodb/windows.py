"""The windows of the DynamoDB lane. DynamoDB carries out each request completely or not at all, whatever other requests
do at the same time.
"""

from itertools import islice
from typing import Literal
from zlib import crc32

from message_buffer.aws.dynamodb import Table, Value, Values, expressions, number, text
from message_buffer.lanes.dynamodb.items import OPEN_INDEX, WINDOW, key_of, seconds
from message_buffer.lanes.dynamodb.window import CLOSE, FACTS, FrozenBatch, Note, Window, frozen_item, packed, window_of
from message_buffer.lanes.holds import Holds, end_of
from message_buffer.limits import REMEMBERED_MS
from message_buffer.rules.due_time import Due
from message_buffer.rules.timing import Timing

# In one conversation, at most this many messages, and at most this many bytes of large messages, may wait. The Valkey
# lane has the same defaults.
MAX_STORED_MESSAGES = 5_000
MAX_STORED_BYTES = 32 * 1024 * 1024
FIRST_ATTEMPT = 1
# DynamoDB allows 1,000 writes a second per index partition. Each window writes at least twice (open, close), so the
# index of open windows is split into this many slices.
INDEX_SLICES = 8
# A condition: no message has arrived since the given generation.
NOTHING_NEW = " AND #generation = :generation"
# UNCHANGED: the window has not changed since it was read (see `version_of`). UNLOCKED: no run works on the window.
UNCHANGED = "#generation = :generation AND #changes = :changes"
UNLOCKED = "attribute_not_exists(#owner) AND attribute_not_exists(#frozen)"
# A condition: the conversation is not on hold.
NOT_HELD = "(attribute_not_exists(#held_until) OR #held_until <= :now)"

Held = Literal["obey", "ignore"] | Holds
"""A request that makes a window due obeys the window's holds, ignores the holds, or keeps only the holds in a tuple."""
# The time when the last hold ends is an attribute of its own, so that conditions can compare it.
SET_HOLDS = "#held_until = :until, #holds = :holds, #longer = :longer"


def has_room(window: Window, more_bytes: int) -> bool:
    """Return whether `more_bytes` more bytes of large messages may wait."""
    return window.large_bytes + more_bytes <= MAX_STORED_BYTES


class Windows(Table):
    def read(self, conversation: str) -> Window:
        return window_of(self._get("read window", key_of(conversation, WINDOW)))

    def note(
        self, conversation: str, note: Note, *, seen: Window | None = None, computed: Due | None = None
    ) -> tuple[bool, Window]:
        """Write the facts of a delivery into the window, and open the window if it is closed.

        Return True, and the window as it was before this call. Return False, and change nothing, if too many messages
        or bytes wait already, if the window has this note already, or if it is no longer as the caller has `seen` it.
        Only a press needs `seen`, because its due time, `computed`, depends on the window.
        """
        values: dict[str, Value] = {
            "one": 1, "none": 0, "at": note.at_ms, "slice": slice_of(conversation), "listed": note.listed_at_ms,
        }  # fmt: skip
        do = (
            "SET #open = if_not_exists(#open, :slice), #due_at = if_not_exists(#due_at, :listed),"
            " #changes = if_not_exists(#changes, :none), #first = if_not_exists(#first, :at)"
        )
        values |= {"computed": packed(computed)} if computed else {"timing": packed(note.timing)}
        only_if = ""
        if not note.is_new:
            # A repeated message moves no due time, unless the window has no facts of any message yet.
            do += ", #last = if_not_exists(#last, :at), #timing = if_not_exists(#timing, :timing)"
            do += " REMOVE #expires_at ADD #generation :one"
        else:
            # Let DynamoDB copy the time of the last arrival, so that ingest need not read the window before this write.
            do += ", #last = :at, #prev = if_not_exists(#last, :none), "
            do += "#computed = :computed REMOVE" if computed else "#timing = :timing REMOVE #computed,"
            do = do.replace("SET", "SET #noted = :noted,") + " #expires_at ADD #generation :one, #waiting :one"
            only_if = "(attribute_not_exists(#waiting) OR #waiting < :most)"
            only_if += " AND (attribute_not_exists(#noted) OR #noted <> :noted)"
            values |= {"most": MAX_STORED_MESSAGES, "noted": note.id}
        if seen is not None and not seen.is_open:
            only_if += " AND attribute_not_exists(#open)"
        elif seen is not None:
            only_if += f" AND {_still_open(seen)} AND {UNCHANGED}"
            values |= version_of(seen)
        if note.large_bytes:
            do += ", #large :size"
            only_if += " AND (attribute_not_exists(#large) OR #large <= :most_bytes)"
            values |= {"size": note.large_bytes, "most_bytes": MAX_STORED_BYTES - note.large_bytes}
        key = key_of(conversation, WINDOW)
        updated = self._update("note message", key, do, values, only_if=only_if, returns="ALL_OLD")
        return updated.done, window_of(updated.item)

    def hasten(self, conversation: str, *, window: Window, due: Due, fixed: bool = True, hold: Held = "obey") -> bool:
        """Make an open window due earlier than it was when the caller read it.

        If the due time is `fixed`, later messages do not move it. Otherwise change only the time under which the index
        lists the window. Return False if, since the read, the window has closed or another run has frozen its batch, or
        if a hold forbids a fixed due time.

        If `hold` is a tuple, end all holds that are not in it, but return False if the holds have changed since the
        read. If any hold remains, the waiting messages are due at `due`.
        """
        sets, is_left = [], isinstance(hold, tuple) and end_of(hold) > 0
        values: dict[str, Value] = {"one": 1}
        only_if = _still_open(window)
        if window.listed_at_ms > due.due_at_ms and not (is_left and window.frozen):
            sets.append("#due_at = :due")
            values["due"] = due.due_at_ms
        if fixed:
            sets.append("#found = :found, #computed = :found")
            values["found"] = packed(due)
        if isinstance(hold, tuple):
            sets.append(SET_HOLDS)
            # `due` is at most a hold's length from now, which is no longer than the item outlasts what it remembers.
            of_holds, same_holds = _leaving(window, hold, due.due_at_ms)
            values, only_if = values | of_holds, f"{only_if} AND {same_holds}"
            if is_left:
                sets.append("#computed = :computed")
                values |= {"computed": packed(due), "generation": window.generation}
                only_if += NOTHING_NEW
        elif fixed and hold == "obey":
            only_if += f" AND {NOT_HELD}"
            values["now"] = due.due_at_ms  # the due time has passed, so use it as the time now
        if not sets:
            return True
        do = f"SET {', '.join(sets)} ADD #changes :one"
        return self._update("hasten window", key_of(conversation, WINDOW), do, values, only_if=only_if).done

    def list_later(self, conversation: str, *, window: Window, at_ms: int, successor_at_ms: int | None = None) -> None:
        """List an open window under a later time, unless it has changed since the caller read it. If the caller has
        replaced the window's trigger with a successor, also record when that successor arrives."""
        values: Values = {"at": at_ms, "seen": window.listed_at_ms, **version_of(window)}
        do = "SET #due_at = :at"
        if successor_at_ms is not None:
            do, values = f"{do}, #successor_at = :successor", {**values, "successor": successor_at_ms}
        only_if = f"attribute_exists(#open) AND #due_at = :seen AND {UNCHANGED} AND {UNLOCKED}"
        self._update("list window later", key_of(conversation, WINDOW), do, values, only_if=only_if)

    def extend(self, conversation: str, *, window: Window, due: Due) -> bool:
        """Make the window due later. The new due time is valid until the next message. Return False if a message has
        arrived since the read."""
        do = "SET #computed = :new ADD #changes :one"
        return self._change_wait("extend window", conversation, window, do=do, new=packed(due))

    def retime(self, conversation: str, *, window: Window, timing: Timing) -> bool:
        """Replace the rules that decide the window's due time. Return False if a message has arrived since the read."""
        do = "SET #timing = :new ADD #changes :one REMOVE #computed"
        return self._change_wait("retime window", conversation, window, do=do, new=packed(timing))

    def note_reply(self, conversation: str, *, at_ms: int) -> bool:
        """Record the first reply since the last batch. Return whether the conversation has had a batch."""
        key, do = key_of(conversation, WINDOW), "SET #replied_at = :at"
        is_first = "#last_at < :at AND (attribute_not_exists(#replied_at) OR #replied_at <= #last_at)"
        updated = self._update("note reply", key, do, {"at": at_ms}, only_if=is_first)
        return updated.done or "last_at" in updated.item

    def _change_wait(self, doing: str, conversation: str, window: Window, *, do: str, new: str) -> bool:
        values: Values = {"new": new, "generation": window.generation, "one": 1}
        only_if = f"attribute_exists(#open){NOTHING_NEW}"
        return self._update(doing, key_of(conversation, WINDOW), do, values, only_if=only_if).done

    def set_holds(
        self, conversation: str, *, window: Window, holds: Holds, now_ms: int, moves_due: bool = False
    ) -> bool:
        """Replace the holds. Return False if the window has opened or closed, or its holds have changed, since the
        read. If `moves_due`, later messages and holds can change the due time again, even if it was final."""
        values, same_holds = _leaving(window, holds, now_ms)
        do, only_if = "", "attribute_exists(#open)"
        if not window.is_open:
            # Set an expiry, because this write may create the item.
            do, only_if = ", #expires_at = :expires", "attribute_not_exists(#open)"
            ends_at_ms = max(now_ms, 0, *(each.until_ms for each in holds))
            values["expires"] = seconds(ends_at_ms + REMEMBERED_MS)
        elif moves_due:
            # Because of `changes`, a run that read the window before the hold cannot freeze a batch.
            do = " REMOVE #found ADD #changes :one"
            values["one"] = 1
        key, do = key_of(conversation, WINDOW), f"SET {SET_HOLDS}{do}"
        return self._update("set holds", key, do, values, only_if=f"{only_if} AND {same_holds}").done

    def open_windows(self, *, listed_before_ms: int, limit: int) -> list[tuple[str, int]]:
        """Return at most `limit` open windows as (conversation, listed time), the earliest first. No window is due
        before its listed time. The index lags a little behind the table."""
        found: list[tuple[str, int]] = []
        for number_of_slice in range(INDEX_SLICES):
            query = expressions(
                {"slice": str(number_of_slice), "due": listed_before_ms},
                KeyConditionExpression="#open = :slice AND #due_at < :due",
            )
            items = self._pages("list windows", "query", {"IndexName": OPEN_INDEX, "Limit": limit, **query})
            found += [(text(item, "conversation"), number(item, "due_at")) for item in islice(items, limit)]
        return sorted(found, key=lambda each: each[1])[:limit]

    # -- the window's lock, and the requests that only its owner may make: they return False if the lock is lost

    def acquire(self, conversation: str, owner: str, *, window: Window, now_ms: int, until_ms: int) -> Window:
        """Lock a window that the caller has read and found due, which fixes its due time. Return the stored window; its
        `lock` names `owner` if the call succeeded.

        The call fails if another run has locked or emptied the window meanwhile. It also fails if the conversation is
        on hold, unless the due time was already fixed, or the window has a frozen batch, which a hold does not stop.
        """
        do, values = "ADD #attempt :one", dict[str, Value](now=now_ms, until=until_ms)
        only_if = " AND attribute_exists(#open)"
        if window.frozen is not None:
            only_if += " AND attribute_exists(#frozen) AND #due_at <= :now"
        else:
            do = f", #found = :found {do}"
            values["found"] = packed(window.due_of_batch)
            only_if += f" AND attribute_not_exists(#frozen) AND ({NOT_HELD} OR attribute_exists(#found)) AND "
            # The time of the first arrival distinguishes this window from the conversation's next one.
            if window.first_at_ms:
                only_if += "#first = :seen"
                values["seen"] = window.first_at_ms
            else:
                only_if += "attribute_not_exists(#first) AND #due_at <= :now"
        return self._lock(conversation, owner, do, values, only_if=only_if)

    def acquire_to_drop(self, conversation: str, owner: str, *, now_ms: int, until_ms: int) -> Window:
        """Lock a window, even if it is closed or not due, and raise its generation. Return the stored window; its
        `lock` names `owner` if the call succeeded."""
        return self._lock(conversation, owner, "ADD #generation :one", {"now": now_ms, "until": until_ms})

    def _lock(self, conversation: str, owner: str, do: str, values: Values, *, only_if: str = "") -> Window:
        updated = self._update(
            "lock window",
            key_of(conversation, WINDOW),
            f"SET #owner = :me, #owner_until = :until {do}",
            {**values, "me": owner, "one": 1},
            only_if=f"(attribute_not_exists(#owner) OR #owner_until < :now OR #owner = :me){only_if}",
            returns="ALL_NEW",
        )
        return window_of(updated.item)

    def keep(self, conversation: str, owner: str, *, until_ms: int) -> bool:
        """Extend the lock."""
        return self._owned("keep lock", conversation, owner, do="SET #owner_until = :until", values={"until": until_ms})

    def release(self, conversation: str, owner: str) -> bool:
        return self._owned("release lock", conversation, owner, do="REMOVE #owner, #owner_until")

    def retry(self, conversation: str, owner: str, *, due_at_ms: int) -> bool:
        """Release the lock, and make the window due again at `due_at_ms`."""
        do = "SET #due_at = :due REMOVE #owner, #owner_until"
        return self._owned("retry window", conversation, owner, do=do, values={"due": due_at_ms})

    def freeze(
        self,
        conversation: str,
        owner: str,
        frozen: FrozenBatch,
        *,
        window: Window,
        large_bytes: int = 0,
        now_ms: int,
        may_have_arrived: bool = False,
    ) -> bool:
        """Freeze a batch, with `large_bytes` of large messages. Stored messages that did not fit into it are due now.

        Return False if, since the caller read `window`, a stored message was edited or removed, a hold has begun, or a
        message has arrived. If `may_have_arrived` is true, the facts of messages that have arrived stay in the item
        instead, and the first of these messages counts as arrived now.
        """
        # This run is the first attempt. Runs that ended before the freeze do not count.
        do = "SET #frozen = :frozen, #last_at = :last, #attempt = :one"
        remove, add = "#computed, #successor_at" if may_have_arrived else FACTS, "#waiting :less"
        values: dict[str, Value] = {
            "frozen": frozen_item(frozen),
            "last": max(frozen.last_at_ms, window.last_at_ms),
            "changes": window.changes,
            "less": -len(frozen.names),
            "one": FIRST_ATTEMPT,
        }
        only_if = " AND attribute_not_exists(#frozen) AND #changes = :changes"
        if frozen.has_more:
            do += ", #found = :found"
            values["found"] = packed(Due(now_ms, "max_messages", "split", now_ms - window.last_arrival_ms))
        else:
            remove += ", #found"
        if may_have_arrived or frozen.has_more:
            add += ", #large :less_bytes"
            values["less_bytes"] = -large_bytes
        else:
            do += ", #large = :none"
            values["none"] = 0
        if may_have_arrived:
            do += ", #first = :now"
            values["now"] = now_ms
        else:
            only_if += NOTHING_NEW
            values["generation"] = window.generation
        do = f"{do} REMOVE #tail, {remove} ADD {add}"
        return self._owned("freeze batch", conversation, owner, do=do, values=values, only_if=only_if)

    def close(self, conversation: str, owner: str, *, generation: int, now_ms: int, tail: str = "") -> bool:
        """Close the window. Return False if a message has arrived since the given generation."""
        values: Values = {"generation": generation, "none": 0, "expires": seconds(now_ms + REMEMBERED_MS), "tail": tail}
        return self._owned("close window", conversation, owner, do=CLOSE, values=values, only_if=NOTHING_NEW)

    def delete_window(self, conversation: str, owner: str, *, window: Window) -> bool:
        """Delete the window's item. Return False if a message has arrived or the holds have changed since the read."""
        values: Values = {"me": owner, "generation": window.generation, "seen": packed(window.holds)}
        only_if = f"#owner = :me{NOTHING_NEW} AND {same_holds(window)}"
        request = self._delete(key_of(conversation, WINDOW), values, only_if=only_if)["Delete"]
        return self._asked("delete window", "delete_item", request).done

    def reopen(
        self, conversation: str, owner: str, *, due_at_ms: int, tail: str, keeps_found: bool, generation: int | None
    ) -> bool:
        """Release the lock, and begin the conversation's next window, which the index lists under `due_at_ms`. Return
        False if a message has arrived since `generation`, if that is given. Unless `keeps_found` is true, messages can
        move the due time again.
        """
        values: dict[str, Value] = {"due": due_at_ms, "slice": slice_of(conversation), "tail": tail}
        do = "SET #due_at = :due, #open = :slice, #tail = :tail"
        do += " REMOVE #frozen, #owner, #owner_until, #attempt, #successor_at"
        if not keeps_found:
            do += ", #found"
        if generation is not None:
            values["generation"] = generation
        only_if = "" if generation is None else NOTHING_NEW
        return self._owned("reopen window", conversation, owner, do=do, values=values, only_if=only_if)

    def _owned(
        self, doing: str, conversation: str, owner: str, *, do: str, only_if: str = "", values: Values | None = None
    ) -> bool:
        mine = {**(values or {}), "me": owner}
        return self._update(doing, key_of(conversation, WINDOW), do, mine, only_if=f"#owner = :me{only_if}").done


def _leaving(window: Window, holds: Holds, now_ms: int) -> tuple[dict[str, Value], str]:
    """Return the values for SET_HOLDS, and the condition that the holds are still those of `window`."""
    values: dict[str, Value] = {
        "until": end_of(holds), "holds": packed(holds), "seen": packed(window.holds),
        "longer": seconds(max(0, 0, *(each.until_ms - now_ms for each in holds))),
    }  # fmt: skip
    return values, same_holds(window)


def same_holds(window: Window) -> str:
    """Return the condition that the stored holds are still those of `window`, which the value `:seen` contains."""
    return "#holds = :seen" if window.holds else "(attribute_not_exists(#holds) OR #holds = :seen)"


def version_of(window: Window) -> Values:
    return {"generation": window.generation, "changes": window.changes}


def _still_open(window: Window) -> str:
    """Return the condition that the window is open, and has a frozen batch if and only if `window` has one."""
    return "attribute_exists(#open) AND " + (
        "attribute_exists(#frozen)" if window.frozen else "attribute_not_exists(#frozen)"
    )


def slice_of(conversation: str) -> str:
    return str(crc32(conversation.encode()) % INDEX_SLICES)
