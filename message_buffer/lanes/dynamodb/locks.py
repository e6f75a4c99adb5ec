"""The locks of windows, and the requests of a lock's owner, which return False if the lock is lost."""

from message_buffer.aws.dynamodb import Table, Value, Values
from message_buffer.lanes.dynamodb.items import WINDOW, key_of, seconds
from message_buffer.lanes.dynamodb.window import FACTS, TENTHS, Frozen, Window, due_item, frozen_item, window_of
from message_buffer.lanes.dynamodb.windows import NOT_HELD, NOTHING_NEW, slice_of
from message_buffer.rules.due_time import Due, Rhythm

FIRST_ATTEMPT = 1


class Locks(Table):
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
            key_of(conversation, WINDOW),
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
            values={"generation": generation, "none": 0, "expires": seconds(expires_at_ms)},
            only_if=NOTHING_NEW,
        )

    def delete_window(self, conversation: str, owner: str, *, generation: int) -> bool:
        """Delete the window's item. Return False if a message has arrived since the given generation."""
        values: Values = {"me": owner, "generation": generation}
        request = self._delete(key_of(conversation, WINDOW), values, only_if=f"#owner = :me{NOTHING_NEW}")["Delete"]
        return self._asked("delete window", "delete_item", request).done

    def reopen(
        self, conversation: str, owner: str, *, due_at_ms: int, keeps_found: bool, generation: int | None = None
    ) -> bool:
        """Release the lock, and begin the conversation's next window, which is listed at `due_at_ms`.

        Unless `keeps_found`, the messages' facts move its due time. With a generation, also return False if a message
        has come since.
        """
        do = "SET #due_at = :due, #open = :slice"
        values: dict[str, Value] = {"due": due_at_ms, "slice": slice_of(conversation)}
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
        key, mine = key_of(conversation, WINDOW), {"me": owner, **(values or {})}
        return self._update(doing, key, do, mine, only_if=f"#owner = :me{only_if}").done
