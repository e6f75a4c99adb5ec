"""The DynamoDB lane. It has all methods of `Lane`, and further methods for operators' commands.

The first message of a conversation opens a window, and later messages join it. Each message writes its facts into the
window. The request that opens the window also sends the trigger, and fails if it cannot send it. A request that makes
the window due earlier sends another trigger.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar
from uuid import uuid4

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreUnavailable, TooManyHolds
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.items import BODY, DROPPED, MESSAGE, name_of
from message_buffer.lanes.dynamodb.messages import Contents, StoredMessage, bytes_apart
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.dynamodb.window import Note, Window
from message_buffer.lanes.dynamodb.windows import Held, has_room
from message_buffer.lanes.holds import NO_END_MS, Hold, Holder, end_of, handoff_of, longest, unexpired
from message_buffer.limits import MAX_WINDOW_TRIES, MINUTE_MS, REMEMBERED_MS, WINDOW_GRACE_MS
from message_buffer.messages.wire_form import edited_at_ms
from message_buffer.rules.due_time import Due, due_after_typing
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import RuleName, Timing

# If an instance's clock steps back by less than this, the instance records the next message as 1 ms later than the last
# one. If the clock steps back further, it was wrong before, so the instance uses the new time.
MAX_CLOCK_STEP_BACK_MS = 1_000
# At most this many pages of a megabyte are read to show a conversation to an operator. Waiting messages fill at most 20
# pages; the other pages contain a day's tombstones.
MAX_PAGES_PEEKED = 50
# A cancel locks the window for this long. If the DynamoDB processor has the lock, which it usually needs only for a
# moment, the cancel tries again after a pause.
CANCEL_LOCK_MS = 10_000
MAX_CANCEL_LOCK_TRIES = 5
CANCEL_LOCK_PAUSE_SECONDS = 0.1

T = TypeVar("T")


class DynamoDbLane:
    def __init__(
        self,
        table: MessageTable,
        triggers: TriggerQueue,
        *,
        clock: Clock = system_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._messages, self._windows = table.messages, table.windows
        self._quotas = table.quotas
        self._triggers = triggers
        self._clock = clock
        self._sleep = sleep
        self._last_arrival_ms = 0

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered:
        # `charge` has charged the whole webhook, because each write to a counter costs as much as a message's.
        del charge
        name, arrived_at_ms = name_of(message_id), self._arrival()
        put = self._messages.put_message(conversation, name, body=payload, arrived_at_ms=arrived_at_ms)
        if put == "finished before":
            return o.MessageDuplicate(None, 0)
        # Write a note for a duplicate, too, because the earlier request may have stored the message but opened no
        # window.
        note = Note(arrived_at_ms, timing, is_new=put == "new", id=uuid4().hex, size=len(payload))
        joined = self._join(conversation, name, note)
        if joined is None:
            return o.MessageRefused("waiting", 0)
        due, messages = joined
        if put == "new":
            return o.MessageBuffered(due.due_at_ms, messages, due.rule)
        # The earlier request may have failed, and may have removed the message before this request joined the window.
        # After that it cannot, so store the message again if it is missing.
        if self._messages.put_message(conversation, name, body=payload, arrived_at_ms=arrived_at_ms) == "new":
            due, messages = self._join(conversation, name, note._replace(is_new=True)) or joined
        return o.MessageDuplicate(due.due_at_ms, messages, due.rule)

    def _join(self, conversation: str, name: str, note: Note) -> tuple[Due, int] | None:
        """Let a stored message join the conversation's window, or open one. Return the window's due time and the number
        of its messages. If too many messages or bytes wait already, remove the message and return None."""
        done, before = self._note(conversation, note)
        if not done and before.noted == note.id:
            # The response to the write was lost, and the client has sent the write again. So the message is counted.
            note = note._replace(is_new=False)
            done, before = self._note(conversation, note)
        if not done:
            self._messages.remove_message(conversation, name)
            return None
        after, now_ms = note.in_window(before), self._clock()
        due = after.due_of_waiting
        is_overdue = before.due.due_at_ms < now_ms - WINDOW_GRACE_MS and not before.is_locked(now_ms)
        if not before.is_open:
            try:
                self._send_trigger(conversation, due.due_at_ms)
            except SendFailed:
                # This request fails, and the platform may never send the message again. Remove the message, because
                # otherwise a later window would emit it too late. If another request has joined the window meanwhile,
                # leave the window open, because the sweep sends a trigger for it.
                new, expires_at_ms = name if note.is_new else None, now_ms + REMEMBERED_MS
                self._messages.take_back(conversation, new, window=after, expires_at_ms=expires_at_ms)
                raise
        elif before.frozen is not None:
            # The run that emits the frozen batch sends a trigger for the messages behind the batch. If that run has
            # died, the queue delivers the batch's own trigger again. Send another trigger only if that one seems to be
            # lost.
            if is_overdue:
                self._send_trigger(conversation, now_ms)
        elif due.due_at_ms < before.due.due_at_ms:
            # Fix a due time that has already passed, so that messages do not move it before the trigger comes.
            fixed = due.due_at_ms <= max(now_ms, note.at_ms)
            due = due.moved_to(min(due.due_at_ms, now_ms)) if fixed else due
            self._hasten(conversation, window=after, due=due, fixed=fixed)
        elif not (note.is_new and before.timing):
            # The window may have no trigger, because the request that opened it ended too early, or because all earlier
            # messages were deleted. A second trigger does no harm.
            self._send_trigger(conversation, due.due_at_ms)
        elif is_overdue:
            # The window was due long before this message, so its trigger must be lost. The message joins the overdue
            # batch.
            due = before.due
            self._hasten(conversation, window=after, due=due)
        return due, after.waiting

    def _note(self, conversation: str, note: Note) -> tuple[bool, Window]:
        """Write the note into the window, and return the result of `Windows.note`.

        The due time after a press depends on the window, which this request has not read. So first write the press as
        if the window were closed. If the window is open, this write fails and returns the window. Then write the press
        again, provided that the window has not changed since. Raise StoreUnavailable if other requests keep changing
        the window.
        """
        if not (note.is_new and note.is_pressed):
            return self._windows.note(conversation, note)
        seen = Window()
        for _ in range(MAX_WINDOW_TRIES):
            computed = note.in_window(seen).computed
            done, before = self._windows.note(conversation, note, seen=seen, computed=computed)
            if done or before == seen:
                return done, before
            seen = before
        raise StoreUnavailable("note press: messages keep arriving; try again")

    def charge(self, conversation: str, charge: Charge, *, messages: int, others: int) -> o.Charged | o.MessageRefused:
        del conversation  # this lane does not divide quotas by conversations
        return self._quotas.charge(charge, items=messages + others, now_ms=self._clock())

    def _arrival(self) -> int:
        """Return the time of arrival of the next message. Times grow, so that an instance's messages stay in order."""
        now_ms, last_ms = self._clock(), self._last_arrival_ms
        self._last_arrival_ms = last_ms + 1 if 0 <= last_ms - now_ms < MAX_CLOCK_STEP_BACK_MS else now_ms
        return self._last_arrival_ms

    def flush_buffer(self, conversation: str) -> o.BufferFlushed | o.BufferEmpty:
        window = self._hasten_now(conversation, "flush", rule="flush", hold="ignore")
        return o.BufferFlushed(window.due.due_at_ms, window.waiting) if window.is_open else o.BufferEmpty()

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed:
        if timing.flush_reason:
            reason, rule = timing.flush_reason, timing.silence_rule
            window = self._hasten_now(conversation, reason, rule=rule, hold="obey")
            if not window.is_open:
                return o.BufferEmpty()
            if window.held_until_ms > self._clock():
                return o.BufferUnmoved(window.due.due_at_ms)
            return o.BufferRetimed(window.due.due_at_ms, window.waiting, window.due.rule)
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            before = window.due_of_waiting
            if not window.timing or window.found or before.due_at_ms <= now_ms:
                return o.BufferUnmoved(before.due_at_ms) if window.is_open else o.BufferEmpty()
            if self._windows.retime(conversation, window=window, timing=timing):
                after = window._replace(timing=timing, computed=None)
                # A hold that has ended has no effect on what the new rules say.
                due = (after if window.held_until_ms > now_ms else after._replace(holds=())).due_of_waiting
                if due.due_at_ms < before.due_at_ms and window.frozen is None:
                    due = due.moved_to(max(due.due_at_ms, now_ms))
                    self._hasten(conversation, window=after, due=due, fixed=due.due_at_ms <= now_ms)
                return o.BufferRetimed(due.due_at_ms, window.waiting, due.rule)
        raise StoreUnavailable("retime window: messages keep arriving; try again")

    def _hasten_now(self, conversation: str, due_for: str, *, rule: RuleName, hold: Held) -> Window:
        """Make an open window due now. `due_for` is the flush reason. Return the window after the change."""
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            obeys_hold = hold == "obey" and window.held_until_ms > now_ms
            if not window.is_open or _is_due(window, now_ms) or obeys_hold:
                return window
            due, fixed = Due(now_ms, due_for, rule, now_ms - window.last_arrival_ms), _has_waiting(window)
            if self._hasten(conversation, window=window, due=due, fixed=fixed, hold=hold):
                listed_at_ms = min(window.listed_at_ms, now_ms)
                return window._replace(found=due if fixed else window.found, listed_at_ms=listed_at_ms)
        raise StoreUnavailable("hasten window: another request is changing the conversation; try again")

    def _hasten(self, conversation: str, *, window: Window, due: Due, fixed: bool = True, hold: Held = "obey") -> bool:
        """Make an open window due earlier, as `Windows.hasten` does, and send its trigger."""
        done = self._windows.hasten(conversation, window=window, due=due, fixed=fixed, hold=hold)
        if done:
            self._send_trigger(conversation, due.due_at_ms)
        return done

    def _send_trigger(self, conversation: str, due_at_ms: int) -> None:
        self._triggers.send(conversation, delay_ms=max(due_at_ms - self._clock(), 0))

    def note_reply(self, conversation: str, *, at_ms: int) -> bool:
        return self._windows.note_reply(conversation, at_ms=min(at_ms, self._clock()))

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended:
        window, now_ms = self._windows.read(conversation), self._clock()
        before = window.due_of_waiting
        if not window.timing or window.found:
            return o.BufferUnmoved(before.due_at_ms) if window.is_open else o.BufferEmpty()
        due = due_after_typing(
            before,
            first_at_ms=window.first_at_ms,
            last_at_ms=window.last_arrival_ms,
            extend_ms=extend_ms,
            max_wait_ms=max_wait_ms,
            now_ms=now_ms,
        )
        # `extend` does nothing if a message has arrived since the read, because that message has begun a wait of its
        # own.
        if due == before or not self._windows.extend(conversation, window=window, due=due):
            return o.BufferUnmoved(before.due_at_ms)
        return o.BufferExtended(due.due_at_ms)

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int | None) -> o.OnHold:
        """Hold the conversation. Raise TooManyHolds if consumers have begun too many holds, and have none here."""
        now_ms, is_mark, is_counted = self._clock(), holder == "handoff", holder != "consumers"
        hold = Hold(holder, NO_END_MS if hold_ms is None else now_ms + hold_ms, cause)
        for _ in range(MAX_WINDOW_TRIES):
            window = self._windows.read(conversation)
            if not is_counted and all(each.holder != holder for each in unexpired(window.holds, now_ms)):
                if not self._quotas.count_hold(now_ms):
                    raise TooManyHolds("consumers have begun too many holds in this hour; try again later")
                is_counted = True
            holds = longest(hold, *window.holds)
            # No new trigger is needed: when the pending one arrives, the DynamoDB processor finds the hold in the
            # window.
            if self._windows.set_holds(conversation, window=window, holds=holds, now_ms=now_ms, moves_due=not is_mark):
                mark = handoff_of(holds, now_ms) if is_mark else None
                return o.OnHold(mark.until_ms if mark else end_of(holds))
        raise StoreUnavailable("hold window: another request is changing the conversation; try again")

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.ResumeOutcome:
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            due_at_ms = window.due.due_at_ms if window.is_open else None
            before = unexpired(window.holds, now_ms)
            left = tuple(one for one in before if holder not in (None, one.holder) or cause not in (None, one.cause))
            is_held, end_ms = end_of(left) > 0, end_of(left) or now_ms
            if left == before:
                return o.OnHold(end_ms) if is_held else o.NotOnHold(due_at_ms)
            moves = window.is_open and (not is_held or _has_waiting(window))
            if moves and end_ms < window.held_until_ms and not _is_due(window, end_ms):
                rule: RuleName = "hold" if is_held else "resume"
                due = Due(end_ms, rule, rule, end_ms - window.last_arrival_ms)
                fixed, due_at_ms = not is_held and _has_waiting(window), end_ms
                done = self._hasten(conversation, window=window, due=due, fixed=fixed, hold=left)
            else:
                done = self._windows.set_holds(conversation, window=window, holds=left, now_ms=now_ms)
            if done:
                return o.OnHold(end_ms) if is_held else o.HoldEnded(due_at_ms)
        raise StoreUnavailable("resume window: another request is changing the conversation; try again")

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled:
        """Lock the window and drop all messages. Raise StoreUnavailable if a processor keeps the window locked."""
        owner = uuid4().hex
        window = self._lock(conversation, owner)
        try:
            before = self._messages.find(conversation, name_of(cancel_id)) if cancel_id is not None else ""
            if before and isinstance(before, str):
                return o.AlreadyCancelled(window.generation, lane="dynamodb")
            contents = self._messages.read(conversation)
            mark = [StoredMessage(name_of(cancel_id), 0)] if cancel_id is not None else []
            expires_at_ms = self._clock() + REMEMBERED_MS
            drop = partial(self._messages.write_tombstones, batch_id=DROPPED, expires_at_ms=expires_at_ms)
            drop(conversation, contents.stored)
            # An edit may have given a message a large body since the read.
            dropped = {BODY + each.name for each in contents.stored}
            self._messages.erase(conversation, dropped & {*self._messages.list_items(conversation, after=BODY)})
            # Write the tombstone of the cancel's id last: if a repeated cancel finds it, all messages are already
            # dropped.
            drop(conversation, mark)
            self._windows.close(conversation, owner, generation=window.generation, now_ms=self._clock())
            frozen = len(window.frozen.names) if window.frozen else 0
            return o.BufferCancelled(window.generation, len(contents.waiting), frozen, leaving=False, lane="dynamodb")
        finally:
            self._windows.release(conversation, owner)

    def forget_conversation(self, conversation: str) -> o.ConversationForgotten:
        """Lock the window, and erase all of the conversation's items, also messages that arrive meanwhile. Raise
        StoreUnavailable if messages keep arriving, or if a processor keeps the window locked."""
        owner, waiting, frozen = uuid4().hex, 0, 0
        arrivals: list[int] = []
        try:
            for _ in range(MAX_WINDOW_TRIES):
                window = self._lock(conversation, owner)
                items = self._messages.list_items(conversation)
                contents = self._messages.read(conversation)
                # Do not count a message that arrived after `list_items`, because only the next round erases it.
                contents = contents._replace(stored=[each for each in contents.stored if MESSAGE + each.name in items])
                self._messages.erase(conversation, items)
                arrivals += _arrivals(contents, self._clock())
                waiting += len(contents.waiting)
                frozen += len(contents.stored) - len(contents.waiting)
                if self._windows.delete_window(conversation, owner, window=window):
                    return o.ConversationForgotten(max(arrivals, default=None), waiting, frozen, leaving_until_ms=None)
            raise StoreUnavailable("forget conversation: messages keep arriving; try again")
        finally:
            self._windows.release(conversation, owner)

    def _lock(self, conversation: str, owner: str) -> Window:
        for attempt in range(MAX_CANCEL_LOCK_TRIES):
            now_ms = self._clock()
            window = self._windows.acquire_to_drop(conversation, owner, now_ms=now_ms, until_ms=now_ms + CANCEL_LOCK_MS)
            if window.lock.owner == owner:
                return window
            if attempt + 1 < MAX_CANCEL_LOCK_TRIES:
                self._sleep(CANCEL_LOCK_PAUSE_SECONDS)
        raise StoreUnavailable("the DynamoDB processor is emptying the window; try again")

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited:
        def edit(window: Window, was: StoredMessage) -> o.MessageEdited | o.MessageAbsent | None:
            if edited_at_ms(payload) < was.edited_at_ms:
                return o.MessageEdited(is_newest=False)
            more_bytes = bytes_apart(payload) - was.large_bytes
            if more_bytes > 0 and not has_room(window, more_bytes):
                return o.MessageAbsent(known=True, batch_id=None, lane="dynamodb")
            done = self._messages.edit_message(conversation, was, body=payload)
            return o.MessageEdited(is_newest=was.arrived_at_ms >= window.newest_at_ms) if done else None

        edited: o.Edited = self._changed(conversation, message_id, edit)
        # Retime only if this message is the newest. A later message may wait for its own transcript, and a retime would
        # cut that wait short.
        if timing is not None and isinstance(edited, o.MessageEdited) and edited.is_newest:
            self.retime_buffer(conversation, timing=timing)
        return edited

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted:
        expires_at_ms = self._clock() + REMEMBERED_MS

        def drop(window: Window, was: StoredMessage) -> o.MessageDeleted | None:
            done = self._messages.drop_message(conversation, was.name, window=window, expires_at_ms=expires_at_ms)
            return o.MessageDeleted() if done else None

        return self._changed(conversation, message_id, drop)

    def _changed(
        self, conversation: str, message_id: str, change: Callable[[Window, StoredMessage], T | None]
    ) -> T | o.MessageFrozen | o.MessageAbsent:
        """Change a waiting message, and return the change's outcome, or the outcome that says where the message is. If
        `change` returns None, repeat it, because another request has changed the conversation."""
        for _ in range(MAX_WINDOW_TRIES):
            window, found = self._find(conversation, message_id)
            changed = change(window, found) if isinstance(found, StoredMessage) else found
            if changed is not None:
                return changed
        raise StoreUnavailable("change message: another request is changing the conversation; try again")

    def find_message(self, conversation: str, message_id: str) -> o.Found:
        _, found = self._find(conversation, message_id)
        return o.MessageWaiting(lane="dynamodb") if isinstance(found, StoredMessage) else found

    def _find(
        self, conversation: str, message_id: str
    ) -> tuple[Window, StoredMessage | o.MessageFrozen | o.MessageAbsent]:
        """Return the window, and the message, or the outcome that says where the message is if it does not wait."""
        # Read only these two items, because the conversation may have a great many tombstones.
        window, name = self._windows.read(conversation), name_of(message_id)
        if window.frozen and name in window.frozen.names:
            return window, o.MessageFrozen(window.frozen.batch_id, lane="dynamodb")
        found = self._messages.find(conversation, name)
        if isinstance(found, StoredMessage):
            return window, found
        batch_id = None if found in {"", DROPPED} else found
        return window, o.MessageAbsent(known=bool(found), batch_id=batch_id, lane="dynamodb")

    def peek_conversation(self, conversation: str, *, limit: int = 0) -> o.Conversation:
        """Return the conversation's state, with at most `limit` of the messages that wait. If its items fill more than
        MAX_PAGES_PEEKED pages, take the number of messages from the window."""
        contents = Contents(self._windows.read(conversation))
        if contents.window.is_open:
            contents = self._messages.read(conversation, max_pages=MAX_PAGES_PEEKED if limit else 1)
        window = contents.window
        frozen, waiting = window.frozen, contents.waiting
        newest_at_ms = max(window.newest_at_ms, window.last_at_ms)
        due = window.due if window.is_open else None
        bodies = self._messages.bodies(conversation, waiting[:limit]) if limit else {}
        return o.Conversation(
            state="IDLE" if not window.is_open else "INFLIGHT" if window.is_locked(self._clock()) else "PENDING",
            due_at_ms=due and due.due_at_ms,
            flush_reason=due and due.reason,
            rule=due and due.rule,
            applied_wait_ms=due and due.wait_ms,
            count=len(waiting) if contents.is_whole else max(window.waiting, len(waiting)),
            first_at_ms=waiting[0].arrived_at_ms if waiting else None,
            last_at_ms=waiting[-1].arrived_at_ms if waiting and contents.is_whole else newest_at_ms or None,
            generation=window.generation,
            holds=unexpired(window.holds, self._clock()),
            batch_id=frozen.batch_id if frozen else None,
            attempt=window.attempt if frozen else 0,
            frozen=len(frozen.names) if frozen else 0,
            payloads=[bodies[each.name] for each in waiting[:limit] if each.name in bodies],
        )

    def generation_and_holds(self, conversation: str) -> o.GenerationAndHolds:
        """Return the generation and the holds, without reading messages."""
        window = self._windows.read(conversation)
        return o.GenerationAndHolds(window.generation, unexpired(window.holds, self._clock()))

    def open_windows(self, *, limit: int) -> list[tuple[str, int]]:
        """Return (conversation, due time) of open windows, the most overdue first."""
        now_ms, found = self._clock(), []
        listed = self._windows.open_windows(listed_before_ms=now_ms + REMEMBERED_MS, limit=limit)
        for conversation, due_at_ms in listed:
            # The index may list a window under an earlier time than its due time. If the listed time has passed, read
            # the due time from the window.
            window = self._windows.read(conversation) if due_at_ms <= now_ms else Window()
            found.append((conversation, window.due.due_at_ms if window.is_open else due_at_ms))
        return sorted(found, key=lambda each: each[1])


def _arrivals(contents: Contents, now_ms: int) -> list[int]:
    """Return the known times at which messages arrived. Leave out times far in the future, because they come from a
    wrong clock."""
    window = contents.window
    known = (window.last_at_ms, window.newest_at_ms, *(each.arrived_at_ms for each in contents.stored))
    return [at for at in known if 0 < at < now_ms + MINUTE_MS]


def _is_due(window: Window, at_ms: int) -> bool:
    """Return whether an open window is due, including any messages that wait behind its frozen batch."""
    return max(window.due.due_at_ms, window.due_of_waiting.due_at_ms) <= at_ms


def _has_waiting(window: Window) -> bool:
    """Return whether any messages wait outside the frozen batch."""
    return window.frozen is None or window.timing is not None or (window.frozen.has_more and window.waiting > 0)
