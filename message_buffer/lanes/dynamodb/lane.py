"""The DynamoDB lane: the methods of a lane, and the operators' commands, on the lane's table.

The first message of a conversation opens a window, and later messages wait until that window ends. The request that
opens a window also sends the window's trigger, and fails if it cannot send it. When the trigger arrives, the DynamoDB
processor empties the window.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import uuid4

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.table import (
    DISPUTED,
    DROPPED,
    VALKEY_LANE,
    Contents,
    MessageTable,
    Window,
    hash_of,
    name_of,
)
from message_buffer.lanes.dynamodb.triggers import Triggers
from message_buffer.limits import (
    CANCEL_LOCK_MS,
    CANCEL_LOCK_PAUSE_SECONDS,
    MAX_CANCEL_LOCK_TRIES,
    MAX_CHANGE_TRIES,
    MAX_CLOCK_STEP_BACK_MS,
    MINUTE_MS,
    REMEMBERED_MS,
    WINDOW_GRACE_MS,
)
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import Timing


class Opened(NamedTuple):
    """An open window and its due time."""

    conversation: str
    due_at_ms: int


class _Changed(NamedTuple):
    """The position of a changed message: `position` messages are before it, `behind` are after it."""

    position: int
    behind: int


class DynamoDbLane:
    def __init__(
        self,
        table: MessageTable,
        triggers: Triggers,
        *,
        clock: Clock = system_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._table = table
        self._triggers = triggers
        self._clock = clock
        self._sleep = sleep
        self._last_arrival_ms = 0

    # -- what a conversation goes through ----------------------------------------------------------------------

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered | o.Duplicate:
        del charge  # this lane has no quotas, because a counter in the table would add half to the cost of a message
        name, arrived_at_ms = name_of(message_id), self._arrival()
        put = self._table.put_message(conversation, name, body=payload, arrived_at_ms=arrived_at_ms)
        if put == "left before":
            return o.Duplicate(None, 0)
        # Open the window for a duplicate too, because the request that stored the message may have failed to open one.
        due_at_ms, count, secret = self._wait(conversation, timing, new=name if put == "new" else None)
        # The conversation was forgotten once. If this message was erased then, it is a redelivery, so erase it again. A
        # processor that reads the message first finds the hash, too.
        if secret and self._table.was_erased(conversation, secret, name):
            self._table.erase(conversation, names=[name])
            return o.Duplicate(None, 0)
        if put == "new":
            return o.Buffered(due_at_ms, count)
        # The request that stored the message may have failed, and removed the message before this request joined the
        # window. It can no longer remove the message now, so store the message if it is missing.
        if self._table.put_message(conversation, name, body=payload, arrived_at_ms=arrived_at_ms) == "new":
            due_at_ms, count, _ = self._wait(conversation, timing, new=name)
        return o.Duplicate(due_at_ms, count)

    def _arrival(self) -> int:
        """Return the time of arrival of the next message. Times grow, so that an instance's messages stay in order."""
        now_ms, last_ms = self._clock(), self._last_arrival_ms
        self._last_arrival_ms = last_ms + 1 if 0 <= last_ms - now_ms < MAX_CLOCK_STEP_BACK_MS else now_ms
        return self._last_arrival_ms

    def _wait(self, conversation: str, timing: Timing, *, new: str | None) -> tuple[int, int, str]:
        """Add the message named `new`, if there is one, to the window, and open the window if needed.

        Return the window's due time, its number of messages, and the key of its hashes.
        """
        now_ms, messages = self._clock(), 0 if new is None else 1
        window_ms = min(timing.window_ms, timing.max_wait_ms)
        due_at_ms = now_ms + (0 if timing.flush_reason else window_ms)
        before = self._table.open_window(
            conversation,
            due_at_ms=due_at_ms,
            reason=timing.flush_reason or "window",
            window_ms=window_ms,
            messages=messages,
        )
        count = before.waiting + messages
        if not before.is_open:
            if before.held_until_ms > due_at_ms:
                due_at_ms = before.held_until_ms
                self._table.delay(conversation, due_at_ms=due_at_ms, reason="hold")
            self._open(conversation, due_at_ms - now_ms, new=new, generation=before.generation + 1)
            return due_at_ms, count, before.id_secret
        if new is None:
            # The request that stored the message may have ended after it opened the window and before it sent the
            # trigger, so send one. A second trigger does no harm.
            self._triggers.send(conversation, delay_ms=max(before.due_at_ms - now_ms, 0))
        elif before.reason == DISPUTED and before.held_until_ms <= now_ms:
            # The window only waits for Valkey's answer. Make it due when a new window of this message would be due.
            reason = timing.flush_reason or "window"
            if self._table.hasten(conversation, due_at_ms=due_at_ms, reason=reason):
                self._triggers.send(conversation, delay_ms=due_at_ms - now_ms)
                return due_at_ms, count, before.id_secret
            if self._table.delay(conversation, due_at_ms=due_at_ms, reason=reason):
                return due_at_ms, count, before.id_secret
        elif before.due_at_ms < now_ms - WINDOW_GRACE_MS and before.owner_until_ms < now_ms:
            self._triggers.send(conversation, delay_ms=0)
        reason = timing.flush_reason or ("max_messages" if count >= timing.max_messages else "")
        if reason and before.due_at_ms > now_ms and before.held_until_ms <= now_ms:
            return self._hurry(conversation, now_ms, reason) or before.due_at_ms, count, before.id_secret
        return before.due_at_ms, count, before.id_secret

    def _open(self, conversation: str, delay_ms: int, *, new: str | None, generation: int) -> None:
        try:
            self._triggers.send(conversation, delay_ms=max(delay_ms, 0))
        except SendFailed:
            # The request fails, and the platform may never send the message again. Remove the message, so that no later
            # window emits it. If another request has joined this window already, leave the window open; the sweep then
            # sends its trigger.
            expires_at_ms = self._clock() + REMEMBERED_MS
            self._table.take_back(conversation, new, generation=generation, expires_at_ms=expires_at_ms)
            raise

    def _hurry(self, conversation: str, now_ms: int, reason: str) -> int | None:
        """Make an open window due now and return that time, or return None if it is closed or due already."""
        if not self._table.hasten(conversation, due_at_ms=now_ms, reason=reason):
            return None
        self._triggers.send(conversation, delay_ms=0)
        return now_ms

    # -- what operators, control words and typing events do to it ----------------------------------------------

    def flush_buffer(self, conversation: str) -> o.Flushed | o.Empty:
        self._table.end_hold(conversation, now_ms=self._clock())
        return self._flush(conversation, "flush")

    def _flush(self, conversation: str, reason: str) -> o.Flushed | o.Empty:
        now_ms = self._clock()
        due_at_ms = self._hurry(conversation, now_ms, reason)
        window = self._table.window(conversation)
        if not window.is_open:
            return o.Empty()
        return o.Flushed(due_at_ms or window.due_at_ms, window.waiting)

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed | o.Unmoved | o.Empty:
        """End an open window if `timing` has a flush reason. Other rules do not change a window that is open."""
        window = self._table.window(conversation)
        if not window.is_open:
            return o.Empty()
        if not timing.flush_reason or window.held_until_ms > self._clock():
            return o.Unmoved(window.due_at_ms)
        flushed = self._flush(conversation, timing.flush_reason)
        if isinstance(flushed, o.Empty):
            return o.Empty()
        return o.Retimed(flushed.due_at_ms, flushed.count)

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Unmoved | o.Empty:
        """Return the window's due time, which typing does not change."""
        del extend_ms, max_wait_ms
        window = self._table.window(conversation)
        return o.Unmoved(window.due_at_ms) if window.is_open else o.Empty()

    def hold_buffer(self, conversation: str, *, hold_ms: int) -> o.OnHold:
        until_ms = self._clock() + hold_ms
        if not self._table.hold(conversation, until_ms=until_ms, expires_at_ms=until_ms + REMEMBERED_MS):
            return o.OnHold(self._table.window(conversation).held_until_ms)
        # When the pending trigger arrives, the DynamoDB processor sees that the window is not due, and hides the
        # trigger in the queue until the window is due.
        self._table.delay(conversation, due_at_ms=until_ms, reason="hold")
        return o.OnHold(until_ms)

    def resume_buffer(self, conversation: str) -> o.Resumed | o.NotOnHold:
        now_ms = self._clock()
        was_held = self._table.end_hold(conversation, now_ms=now_ms)
        if was_held:
            self._hurry(conversation, now_ms, "hold")
        window = self._table.window(conversation)
        outcome = o.Resumed if was_held else o.NotOnHold
        return outcome(window.due_at_ms if window.is_open else None)

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled | o.AlreadyCancelled:
        """Lock the window and drop all messages. Raise StoreUnavailable if a processor keeps the window locked."""
        owner = uuid4().hex
        window = self._lock(conversation, owner, self._table.acquire_to_cancel)
        try:
            contents = self._table.read(conversation)
            if cancel_id is not None and contents.knows(name_of(cancel_id)):
                return o.AlreadyCancelled(window.generation, lane="dynamodb")
            frozen = set(window.frozen.names) if window.frozen else set()
            # The Valkey lane emits or drops the messages that it has taken, except those in this lane's frozen batch.
            theirs = contents.journaled - frozen
            taken = [each.name for each in contents.stored if each.name in theirs]
            dropped = [each.name for each in contents.stored if each.name not in theirs]
            marks = [name_of(cancel_id)] if cancel_id is not None else []
            expires_at_ms = self._clock() + REMEMBERED_MS
            self._table.leave_tombstones(conversation, taken, batch_id=VALKEY_LANE, expires_at_ms=expires_at_ms)
            self._table.leave_tombstones(conversation, dropped, batch_id=DROPPED, expires_at_ms=expires_at_ms)
            # Write the cancel's mark last, so that a repeat that finds the mark has nothing left to drop.
            self._table.leave_tombstones(conversation, marks, batch_id=DROPPED, expires_at_ms=expires_at_ms)
            self._table.close(conversation, owner, generation=window.generation, expires_at_ms=expires_at_ms)
            return o.Cancelled(
                window.generation,
                len([name for name in dropped if name not in frozen]),
                len(frozen),
                leaving=False,
                lane="dynamodb",
            )
        finally:
            self._table.release(conversation, owner)

    def forget_conversation(
        self, conversation: str, *, forget_id: str, secret: str, goes_on: bool = False, at_ms: int | None = None
    ) -> o.Forgotten:
        """Erase all items under the window's lock, and leave hashes of the messages' names.

        `at_ms` is the time until which the Valkey lane has forgotten the conversation. Records of that lane's batches
        whose last message arrived later are kept. A call that continues an earlier one (`goes_on`, or the same
        `forget_id`) erases only what a slow processor of the Valkey lane has recorded since then about older batches.
        Raise StoreUnavailable if a processor has, or gets, the window's lock.
        """
        # Read the clock before the items, so that a message that arrives in between counts as newer.
        owner, now_ms = uuid4().hex, self._clock()
        window = self._lock(conversation, owner, partial(self._table.acquire_to_forget, secret=secret))
        try:
            contents = self._table.read(conversation)
            goes_on, expires_at_ms = goes_on or window.forget_id == forget_id, now_ms + REMEMBERED_MS
            stored = [] if goes_on else contents.stored
            newest_ms = max([now_ms if at_ms is None else at_ms, *_arrivals(contents, now_ms)])
            at_ms = window.forgotten_at_ms if goes_on else newest_ms
            taken = {batch_id: names for batch_id, names in contents.journals.items() if not _is_newer(batch_id, at_ms)}
            of_taken: frozenset[str] = frozenset().union(*taken.values())
            newer, mine = contents.journaled - of_taken, {each.name for each in stored}
            # A call that continues keeps other tombstones, because their messages may be newer than the forgotten ones.
            left = {name for name in contents.tombstones if name in of_taken or not (goes_on or name in newer)}
            # Write the hashes before erasing, so that a run that ends early leaves no erased message without a hash.
            hashes = [hash_of(window.id_secret, name) for name in (left | mine | of_taken) - newer]
            self._table.leave_hashes(conversation, hashes, expires_at_ms=expires_at_ms)
            self._table.erase(conversation, names=left | mine, journals=taken)
            if goes_on:
                return o.Forgotten(at_ms, window.generation, 0, 0, leaving_until_ms=None)
            if not self._table.mark_forgotten(conversation, owner, forget_id, at_ms=at_ms):
                raise StoreUnavailable("the DynamoDB processor has acquired the window's lock; try again")
            # A message that came since the lock keeps the window open.
            self._table.close(conversation, owner, generation=window.generation, expires_at_ms=expires_at_ms)
            frozen = set(window.frozen.names) if window.frozen else set()
            return o.Forgotten(
                at_ms,
                window.generation,
                len([each for each in contents.waiting if not contents.was_erased(each.name)]),
                len(frozen & mine),
                leaving_until_ms=None,
            )
        finally:
            self._table.release(conversation, owner)

    def last_arrival(self, conversation: str) -> int:
        """Return the newest message's time of arrival, up to which a conversation must be forgotten; 0 if none came."""
        return max(_arrivals(self._table.read(conversation), self._clock()))

    def _lock(self, conversation: str, owner: str, acquire: Callable[..., Window]) -> Window:
        for attempt in range(MAX_CANCEL_LOCK_TRIES):
            now_ms = self._clock()
            window = acquire(conversation, owner, now_ms=now_ms, until_ms=now_ms + CANCEL_LOCK_MS)
            if window.owner == owner:
                return window
            if attempt + 1 < MAX_CANCEL_LOCK_TRIES:
                self._sleep(CANCEL_LOCK_PAUSE_SECONDS)
        raise StoreUnavailable("the DynamoDB processor is emptying the window; try again")

    # -- messages that wait ------------------------------------------------------------------------------------

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited | o.Frozen | o.Absent:
        del timing  # an edit does not change when a window ends
        changed = self._changed(
            conversation, message_id, lambda name: self._table.edit_message(conversation, name, body=payload)
        )
        return o.Edited(changed.position, changed.behind) if isinstance(changed, _Changed) else changed

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted | o.Frozen | o.Absent:
        expires_at_ms = self._clock() + REMEMBERED_MS
        changed = self._changed(
            conversation,
            message_id,
            lambda name: self._table.drop_message(conversation, name, expires_at_ms=expires_at_ms),
        )
        return o.Deleted(changed.position + changed.behind) if isinstance(changed, _Changed) else changed

    def _changed(
        self, conversation: str, message_id: str, change: Callable[[str], bool]
    ) -> _Changed | o.Frozen | o.Absent:
        """Change a waiting message, or return the outcome that says why it is too late.

        Raise StoreUnavailable if other requests keep changing the conversation.
        """
        name = name_of(message_id)
        for _ in range(MAX_CHANGE_TRIES):
            contents = self._table.read(conversation)
            found = _find(contents, name)
            if not isinstance(found, o.Waiting):
                if name in {each.name for each in contents.disputed}:
                    # Change the disputed copy, too, because this lane emits it if Valkey has lost the message.
                    change(name)
                return found
            if change(name):
                return _Changed(found.position, len(contents.waiting) - found.position - 1)
        raise StoreUnavailable("change message: another request is changing the conversation; try again")

    def find_message(self, conversation: str, message_id: str) -> o.Waiting | o.Frozen | o.Absent:
        return _find(self._table.read(conversation), name_of(message_id))

    def peek_conversation(self, conversation: str, *, limit: int = 0) -> o.Conversation:
        contents = self._table.read(conversation)
        window, frozen, waiting = contents.window, contents.window.frozen, contents.waiting
        is_locked = bool(window.owner) and window.owner_until_ms >= self._clock()
        due_at_ms = window.due_at_ms if window.is_open else None
        return o.Conversation(
            state="IDLE" if not window.is_open else "INFLIGHT" if is_locked else "PENDING",
            scheduled_at_ms=window.owner_until_ms if is_locked else due_at_ms,
            due_at_ms=due_at_ms,
            flush_reason=window.reason or None,
            count=len(waiting),
            first_at_ms=waiting[0].arrived_at_ms if waiting else None,
            last_at_ms=waiting[-1].arrived_at_ms if waiting else window.last_at_ms or None,
            generation=window.generation,
            held_until_ms=window.held_until_ms or None,
            batch_id=frozen.batch_id if frozen else None,
            attempt=window.attempt if frozen else 0,
            frozen=len(frozen.names) if frozen else 0,
            payloads=[each.body for each in waiting[:limit]],
        )

    def generation(self, conversation: str) -> int:
        """Return the number of the newest window, or 0 if the conversation is unknown, without reading messages."""
        return self._table.window(conversation).generation

    def open_windows(self, *, limit: int) -> list[Opened]:
        """Return open windows, the most overdue first."""
        found = self._table.open_windows(due_before_ms=self._clock() + REMEMBERED_MS, limit=limit)
        return [Opened(conversation, due_at_ms) for conversation, due_at_ms in found]

    def was_used(self, conversation: str) -> bool:
        """Return whether this lane received messages of the conversation within about the last day."""
        return self._table.window(conversation).generation > 0


def _arrivals(contents: Contents, now_ms: int) -> list[int]:
    """Return the messages' known times of arrival. Leave out those a minute ahead, because they are wrong."""
    emitted = [contents.window.last_at_ms, contents.window.forgotten_at_ms]
    return [at for at in (*emitted, *(each.arrived_at_ms for each in contents.stored)) if at < now_ms + MINUTE_MS]


def _is_newer(batch_id: str, at_ms: int) -> bool:
    """Return whether the last message of the Valkey lane's batch arrived after `at_ms`, according to the batch's id."""
    _, _, rest = batch_id.rpartition("-")[0].rpartition("-")
    return rest.isdecimal() and int(rest) > at_ms


def _find(contents: Contents, name: str) -> o.Waiting | o.Frozen | o.Absent:
    frozen = contents.window.frozen
    if frozen and name in frozen.names:
        return o.Frozen(frozen.batch_id, lane="dynamodb")
    went = contents.tombstones.get(name)
    if name in contents.journaled or went == VALKEY_LANE:
        # The Valkey lane has emitted the message, or will emit it.
        return o.Absent(known=True, batch_id=None)
    for position, each in enumerate(contents.waiting):
        if each.name == name:
            return o.Waiting(position, lane="dynamodb")
    return o.Absent(known=contents.knows(name), batch_id=None if went == DROPPED else went, lane="dynamodb")
