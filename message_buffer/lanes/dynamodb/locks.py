"""The locks of windows, and the requests that only the owner of a lock may make. Such a request returns False if the
owner has lost the lock."""

from message_buffer.aws.dynamodb import Table, Value, Values
from message_buffer.lanes.dynamodb.items import WINDOW, key_of, seconds
from message_buffer.lanes.dynamodb.window import CLOSE, FACTS, FrozenBatch, Window, frozen_item, packed, window_of
from message_buffer.lanes.dynamodb.windows import NOT_HELD, NOTHING_NEW, same_holds, slice_of
from message_buffer.rules.due_time import Due, Rhythm

FIRST_ATTEMPT = 1


class Locks(Table):
    def acquire(self, conversation: str, owner: str, *, window: Window, now_ms: int, until_ms: int) -> Window:
        """Lock a window that the caller has read and found due. Return the stored window; its `lock` names `owner` if
        the call succeeded.

        The lock fixes the due time and the reason. Messages that have arrived since the read join the batch. The call
        fails if another run has locked or emptied the window meanwhile. It also fails if the conversation is on hold,
        unless the due time was already fixed, or the window has a frozen batch, which a hold does not stop.
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
        rhythm: Rhythm | None = None,
        now_ms: int,
        may_have_arrived: bool = False,
    ) -> bool:
        """Freeze a batch. `large_bytes` is the size of the batch's large messages. Return False if `window` is out of
        date.

        `window` is out of date if, since the caller read it, a stored message was edited or removed, or a hold has
        begun. It is also out of date if a message has arrived, unless `may_have_arrived` is true. In that case, the
        facts of messages that have arrived stay in the item, and the first of these messages counts as arrived now.

        From now on, the facts of new messages belong to the next batch. Stored messages that did not fit into this
        batch are due now.
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
        if rhythm is not None:
            do += ", #rhythm = :rhythm"
            values["rhythm"] = packed(rhythm)
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
        do = f"{do} REMOVE {remove} ADD {add}"
        return self._owned("freeze batch", conversation, owner, do=do, values=values, only_if=only_if)

    def close(self, conversation: str, owner: str, *, generation: int, expires_at_ms: int) -> bool:
        """Close the window. Return False if a message has arrived since the given generation."""
        values: dict[str, Value] = {"generation": generation, "none": 0, "expires": seconds(expires_at_ms)}
        return self._owned("close window", conversation, owner, do=CLOSE, values=values, only_if=NOTHING_NEW)

    def delete_window(self, conversation: str, owner: str, *, window: Window) -> bool:
        """Delete the window's item. Return False if a message has arrived, or the holds have changed, since the caller
        read the window."""
        values: Values = {"me": owner, "generation": window.generation, "seen": packed(window.holds)}
        only_if = f"#owner = :me{NOTHING_NEW} AND {same_holds(window)}"
        request = self._delete(key_of(conversation, WINDOW), values, only_if=only_if)["Delete"]
        return self._asked("delete window", "delete_item", request).done

    def reopen(
        self, conversation: str, owner: str, *, due_at_ms: int, keeps_found: bool, generation: int | None = None
    ) -> bool:
        """Release the lock, and begin the conversation's next window, which the index lists under `due_at_ms`. Return
        False, and change nothing, if the lock is lost, or if a message has arrived since `generation`.

        If `generation` is None, messages that have arrived do not matter. If `keeps_found` is true, the due time stays
        fixed; otherwise messages can move it again.
        """
        values: dict[str, Value] = {"due": due_at_ms, "slice": slice_of(conversation)}
        do = "SET #due_at = :due, #open = :slice REMOVE #frozen, #owner, #owner_until, #attempt, #successor_at"
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
