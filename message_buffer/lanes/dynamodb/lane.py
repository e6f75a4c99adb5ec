"""The DynamoDB lane: the methods of a lane, and the operators' commands, on the lane's table.

The first message of a conversation opens a window. The request that opens a window also sends the window's trigger,
and fails if it cannot send it. Later messages join the window and write their facts into it. When the trigger arrives
and the window is not due yet, the DynamoDB processor hides the trigger until then; otherwise it empties the window. A
request that makes the window due earlier sends another trigger.
"""

import time
from collections.abc import Callable
from typing import NamedTuple
from uuid import uuid4

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.items import DROPPED, name_of
from message_buffer.lanes.dynamodb.messages import Contents
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import Triggers
from message_buffer.lanes.dynamodb.window import Note, Window
from message_buffer.lanes.holds import Hold, Holder, end_of, standing, with_hold, without_hold
from message_buffer.limits import (
    CANCEL_LOCK_MS,
    CANCEL_LOCK_PAUSE_SECONDS,
    MAX_CANCEL_LOCK_TRIES,
    MAX_CHANGE_TRIES,
    MAX_CLOCK_STEP_BACK_MS,
    MAX_PAGES_PEEKED,
    MAX_WINDOW_TRIES,
    MINUTE_MS,
    REMEMBERED_MS,
    WINDOW_GRACE_MS,
)
from message_buffer.rules.due_time import Due, due_after_typing
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import RuleName, Timing


class Opened(NamedTuple):
    """An open window and its due time."""

    conversation: str
    due_at_ms: int


class _Noted(NamedTuple):
    """A window after a message was noted."""

    due: Due
    messages: int


class _Changed(NamedTuple):
    behind: int
    """The number of waiting messages that arrived after the changed one."""


class DynamoDbLane:
    def __init__(
        self,
        table: MessageTable,
        triggers: Triggers,
        *,
        clock: Clock = system_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._messages, self._windows, self._locks = table.messages, table.windows, table.locks
        self._triggers = triggers
        self._clock = clock
        self._sleep = sleep
        self._last_arrival_ms = 0

    # -- what a conversation goes through ----------------------------------------------------------------------

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered | o.Duplicate | o.Refused:
        del charge  # this lane has no quotas, because a counter in the table would add half to the cost of a message
        name, arrived_at_ms = name_of(message_id), self._arrival()
        put = self._messages.put_message(conversation, name, body=payload, arrived_at_ms=arrived_at_ms)
        if put == "left before":
            return o.Duplicate(None, 0)
        # Note a duplicate too, because the request that stored the message may have failed to open a window.
        note = Note(arrived_at_ms, timing, is_new=put == "new", size=len(payload))
        noted = self._note(conversation, name, note)
        if noted is None:
            return o.Refused("waiting", 0)
        if put == "new":
            return o.Buffered(noted.due.due_at_ms, noted.messages, noted.due.rule)
        # The request that stored the message may have failed, and removed the message before this request joined the
        # window. It can no longer remove the message now, so store the message if it is missing.
        if self._messages.put_message(conversation, name, body=payload, arrived_at_ms=arrived_at_ms) == "new":
            noted = self._note(conversation, name, note._replace(is_new=True)) or noted
        return o.Duplicate(noted.due.due_at_ms, noted.messages, noted.due.rule)

    def _arrival(self) -> int:
        """Return the time of arrival of the next message. Times grow, so that an instance's messages stay in order."""
        now_ms, last_ms = self._clock(), self._last_arrival_ms
        self._last_arrival_ms = last_ms + 1 if 0 <= last_ms - now_ms < MAX_CLOCK_STEP_BACK_MS else now_ms
        return self._last_arrival_ms

    def _note(self, conversation: str, name: str, note: Note) -> _Noted | None:
        """Let the window know of the message, and send the trigger that this requires.

        Return None, and remove the message, if too much waits in the conversation.
        """
        done, before = self._written(conversation, note)
        if not done:
            self._messages.remove_message(conversation, name)
            return None
        after, now_ms = note.in_window(before), self._clock()
        due = after.due_of_waiting
        if not before.is_open:
            self._open(conversation, due.due_at_ms - now_ms, new=name if note.is_new else None, window=after)
        elif before.frozen is not None:
            # The run that emits the frozen batch sends a trigger for the messages behind it. If that run has ended, the
            # batch's own trigger comes again.
            if self._is_overdue(before, now_ms):
                self._triggers.send(conversation, delay_ms=0)
        elif due.due_at_ms < before.due.due_at_ms:
            # The window's trigger may come too late. Messages do not move a due time that has come.
            stands = due.due_at_ms <= max(now_ms, note.at_ms)
            due = due.moved_to(min(due.due_at_ms, now_ms)) if stands else due
            if self._windows.hasten(conversation, window=after, due=due, stands=stands):
                self._triggers.send(conversation, delay_ms=max(due.due_at_ms - now_ms, 0))
        elif not note.is_new:
            # The request that stored the message may have ended after it opened the window and before it sent the
            # trigger, so send one. A second trigger does no harm.
            self._triggers.send(conversation, delay_ms=max(due.due_at_ms - now_ms, 0))
        elif self._is_overdue(before, now_ms):
            # The window was due long before this message, which joins its batch.
            self._windows.hasten(conversation, window=after, due=before.due)
            self._triggers.send(conversation, delay_ms=0)
            due = before.due
        return _Noted(due, after.waiting)

    def _written(self, conversation: str, note: Note) -> tuple[bool, Window]:
        """Write the note, and return as `MessageTable.note` does.

        The due time after a press depends on the window, so write a press on the condition that the window is closed,
        and then that it is as it was found. Raise StoreUnavailable if other requests keep changing the window.
        """
        if not (note.is_new and note.is_pressed):
            return self._windows.note(conversation, note)
        seen = Window()
        for _ in range(MAX_WINDOW_TRIES):
            done, before = self._windows.note(conversation, note, seen=seen)
            if done or before == seen:
                return done, before
            seen = before
        raise StoreUnavailable("note press: messages keep arriving; try again")

    @staticmethod
    def _is_overdue(window: Window, now_ms: int) -> bool:
        """Return whether the window must have lost its trigger."""
        return window.due.due_at_ms < now_ms - WINDOW_GRACE_MS and not window.is_locked(now_ms)

    def _open(self, conversation: str, delay_ms: int, *, new: str | None, window: Window) -> None:
        try:
            self._triggers.send(conversation, delay_ms=max(delay_ms, 0))
        except SendFailed:
            # The request fails, and the platform may never send the message again. Remove the message, so that no later
            # window emits it. If another request has joined this window already, leave the window open; the sweep then
            # sends its trigger.
            expires_at_ms = self._clock() + REMEMBERED_MS
            self._messages.take_back(conversation, new, window=window, expires_at_ms=expires_at_ms)
            raise

    def _hurry(self, conversation: str, due_for: str, *, rule: RuleName, ignores_hold: bool = False) -> Window:
        """Make an open window due now for this reason by this rule, and return it as it is then.

        Raise StoreUnavailable if other requests keep changing the window.
        """
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            is_held = window.held_until_ms > now_ms
            # On hold, messages behind a batch whose next attempt is due are not due yet.
            is_due = window.due.due_at_ms <= now_ms and (not is_held or window.due_of_waiting.due_at_ms <= now_ms)
            if not window.is_open or is_due or (is_held and not ignores_hold):
                return window
            due = Due(now_ms, due_for, rule, now_ms - window.last_arrival_ms)
            if self._windows.hasten(conversation, window=window, due=due, ignores_hold=ignores_hold):
                self._triggers.send(conversation, delay_ms=0)
                return window._replace(found=due, listed_at_ms=min(window.listed_at_ms, now_ms))
        raise StoreUnavailable("hasten window: another request is changing the conversation; try again")

    # -- what operators, control words and typing events do to it ----------------------------------------------

    def flush_buffer(self, conversation: str) -> o.Flushed | o.Empty:
        window = self._hurry(conversation, "flush", rule="flush", ignores_hold=True)
        return o.Flushed(window.due.due_at_ms, window.waiting) if window.is_open else o.Empty()

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed | o.Unmoved | o.Empty:
        if timing.flush_reason:
            reason, rule = timing.flush_reason, timing.silence_rule
            window = self._hurry(conversation, reason, rule=rule)
            if not window.is_open:
                return o.Empty()
            if window.held_until_ms > self._clock():
                return o.Unmoved(window.due.due_at_ms)
            return o.Retimed(window.due.due_at_ms, window.waiting, window.due.rule)
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            if not window.is_open or not window.has_facts:
                return o.Unmoved(window.due.due_at_ms) if window.is_open else o.Empty()
            before = window.due_of_waiting
            if before.due_at_ms <= now_ms or window.found:
                return o.Unmoved(before.due_at_ms)
            if self._windows.retime(conversation, window=window, timing=timing):
                after = window.retimed(timing)
                due = after.due_of_waiting
                if due.due_at_ms < before.due_at_ms and window.frozen is None:
                    due = due.moved_to(max(due.due_at_ms, now_ms))
                    stands = due.due_at_ms <= now_ms
                    if self._windows.hasten(conversation, window=after, due=due, stands=stands):
                        self._triggers.send(conversation, delay_ms=max(due.due_at_ms - now_ms, 0))
                return o.Retimed(due.due_at_ms, window.waiting, due.rule)
        raise StoreUnavailable("retime window: messages keep arriving; try again")

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended | o.Unmoved | o.Empty:
        window, now_ms = self._windows.read(conversation), self._clock()
        if not window.is_open:
            return o.Empty()
        before = window.due_of_waiting
        if window.found or not window.has_facts:
            return o.Unmoved(before.due_at_ms)
        due = due_after_typing(
            before,
            first_at_ms=window.first_at_ms,
            last_at_ms=window.last_arrival_ms,
            extend_ms=extend_ms,
            max_wait_ms=max_wait_ms,
            now_ms=now_ms,
        )
        # A message that has come since the read tells more about its author than the typing before it.
        if due == before or not self._windows.extend(conversation, window=window, due=due):
            return o.Unmoved(before.due_at_ms)
        return o.Extended(due.due_at_ms)

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int) -> o.OnHold:
        hold = Hold(holder, self._clock() + hold_ms, cause)
        for _ in range(MAX_WINDOW_TRIES):
            window = self._windows.read(conversation)
            holds = with_hold(window.holds, hold)
            # When the pending trigger arrives, the DynamoDB processor finds the hold in the window.
            if self._windows.hold(conversation, window=window, holds=holds):
                return o.OnHold(end_of(holds))
        raise StoreUnavailable("hold window: another request is changing the conversation; try again")

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.Resumed | o.OnHold | o.NotOnHold:
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            holds = standing(window.holds, now_ms)
            left = without_hold(holds, holder, cause)
            due_at_ms = window.due.due_at_ms if window.is_open else None
            if left == holds:
                return o.OnHold(end_of(left)) if left else o.NotOnHold(due_at_ms)
            waiting_until_ms, end_ms = window.due_of_waiting.due_at_ms, end_of(left) or now_ms
            rule: RuleName = "hold" if left else "resume"
            due = Due(end_ms, rule, rule, end_ms - window.last_arrival_ms)
            if left:
                moves = window.is_open and end_ms < window.held_until_ms == waiting_until_ms
            else:
                moves = window.is_open and end_ms < max(window.due.due_at_ms, waiting_until_ms)
            if moves and not left:
                done = self._windows.hasten(conversation, window=window, due=due, holds=left)
            else:
                done = self._windows.end_holds(conversation, window=window, holds=left, due=due if moves else None)
            if done and moves:
                # The run that emits a frozen batch sends the trigger for the messages behind it. Another does no harm.
                self._triggers.send(conversation, delay_ms=end_ms - now_ms)
                due_at_ms = end_ms
            if done:
                return o.OnHold(end_ms) if left else o.Resumed(due_at_ms)
        raise StoreUnavailable("resume window: another request is changing the conversation; try again")

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled | o.AlreadyCancelled:
        """Lock the window and drop all messages. Raise StoreUnavailable if a processor keeps the window locked."""
        owner = uuid4().hex
        window = self._lock(conversation, owner)
        try:
            contents = self._messages.read(conversation)
            if cancel_id is not None and self._messages.tombstone(conversation, name_of(cancel_id)):
                return o.AlreadyCancelled(window.generation, lane="dynamodb")
            frozen = set(window.frozen.names) if window.frozen else set()
            dropped = [each.name for each in contents.stored]
            marks = [name_of(cancel_id)] if cancel_id is not None else []
            expires_at_ms = self._clock() + REMEMBERED_MS
            self._messages.erase(conversation, bodies=[each.name for each in contents.stored if each.is_apart])
            self._messages.leave_tombstones(conversation, dropped, batch_id=DROPPED, expires_at_ms=expires_at_ms)
            # Write the cancel's mark last, so that a repeat that finds the mark has nothing left to drop.
            self._messages.leave_tombstones(conversation, marks, batch_id=DROPPED, expires_at_ms=expires_at_ms)
            self._locks.close(conversation, owner, generation=window.generation, expires_at_ms=expires_at_ms)
            return o.Cancelled(
                window.generation,
                len([name for name in dropped if name not in frozen]),
                len(frozen),
                leaving=False,
                lane="dynamodb",
            )
        finally:
            self._locks.release(conversation, owner)

    def forget_conversation(self, conversation: str) -> o.Forgotten:
        """Erase all items under the window's lock, and at last the window, so that a run at work has lost its lock.

        A message that comes before the window is gone is erased, too. Raise StoreUnavailable if messages keep coming,
        or a processor has, or gets, the window's lock.
        """
        owner, waiting, frozen = uuid4().hex, 0, 0
        arrivals: list[int] = []
        try:
            for _ in range(MAX_WINDOW_TRIES):
                window = self._lock(conversation, owner)
                contents = self._messages.read(conversation, with_tombstones=True)
                mine = {each.name for each in contents.stored}
                names = contents.tombstones | mine
                self._messages.erase(conversation, names=names, bodies=self._messages.names_of_bodies(conversation))
                arrivals += _arrivals(contents, self._clock())
                waiting += len(contents.waiting)
                frozen += len(mine.intersection(window.frozen.names if window.frozen else ()))
                if self._locks.delete_window(conversation, owner, generation=window.generation):
                    return o.Forgotten(max(arrivals, default=None), waiting, frozen, leaving_until_ms=None)
            raise StoreUnavailable("forget conversation: messages keep arriving; try again")
        finally:
            self._locks.release(conversation, owner)

    def _lock(self, conversation: str, owner: str) -> Window:
        for attempt in range(MAX_CANCEL_LOCK_TRIES):
            now_ms = self._clock()
            window = self._locks.acquire_to_drop(conversation, owner, now_ms=now_ms, until_ms=now_ms + CANCEL_LOCK_MS)
            if window.owner == owner:
                return window
            if attempt + 1 < MAX_CANCEL_LOCK_TRIES:
                self._sleep(CANCEL_LOCK_PAUSE_SECONDS)
        raise StoreUnavailable("the DynamoDB processor is emptying the window; try again")

    # -- messages that wait ------------------------------------------------------------------------------------

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited | o.Frozen | o.Absent:
        changed = self._changed(
            conversation, message_id, lambda name: self._messages.edit_message(conversation, name, body=payload)
        )
        if not isinstance(changed, _Changed):
            return changed
        # Retime only if no message arrived after this one: a later message may wait for a transcript of its own.
        if timing is not None and changed.behind == 0:
            self.retime_buffer(conversation, timing=timing)
        return o.Edited(changed.behind)

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted | o.Frozen | o.Absent:
        expires_at_ms = self._clock() + REMEMBERED_MS
        changed = self._changed(
            conversation,
            message_id,
            lambda name: self._messages.drop_message(conversation, name, expires_at_ms=expires_at_ms),
        )
        return o.Deleted() if isinstance(changed, _Changed) else changed

    def _changed(
        self, conversation: str, message_id: str, change: Callable[[str], bool]
    ) -> _Changed | o.Frozen | o.Absent:
        """Change a waiting message, or return the outcome that says why it is too late.

        Raise StoreUnavailable if other requests keep changing the conversation.
        """
        name = name_of(message_id)
        for _ in range(MAX_CHANGE_TRIES):
            contents = self._messages.read(conversation)
            found = self._find(conversation, name, contents)
            if not isinstance(found, o.Waiting):
                return found
            if change(name):
                return _Changed(len(contents.waiting) - found.position - 1)
        raise StoreUnavailable("change message: another request is changing the conversation; try again")

    def find_message(self, conversation: str, message_id: str) -> o.Waiting | o.Frozen | o.Absent:
        return self._find(conversation, name_of(message_id), self._messages.read(conversation))

    def _find(self, conversation: str, name: str, contents: Contents) -> o.Waiting | o.Frozen | o.Absent:
        frozen = contents.window.frozen
        if frozen and name in frozen.names:
            return o.Frozen(frozen.batch_id, lane="dynamodb")
        for position, each in enumerate(contents.waiting):
            if each.name == name:
                return o.Waiting(position, lane="dynamodb")
        left_in = self._messages.tombstone(conversation, name)
        return o.Absent(known=bool(left_in), batch_id=None if left_in in {"", DROPPED} else left_in, lane="dynamodb")

    def peek_conversation(self, conversation: str, *, limit: int = 0) -> o.Conversation:
        """Return the conversation's state, with at most `limit` of the messages that wait.

        A conversation may have a great many tombstones, among which its messages are searched. After some pages, return
        the number that the window counts, and the messages found by then.
        """
        window = self._windows.read(conversation)
        contents = Contents(window)
        if window.is_open:
            contents = self._messages.read(conversation, max_pages=MAX_PAGES_PEEKED if limit else 1)
            window = contents.window
        frozen, waiting = window.frozen, contents.waiting
        newest_at_ms = max(window.newest_at_ms, window.last_at_ms)
        is_locked = window.is_locked(self._clock())
        due = window.due if window.is_open else None
        bodies = self._messages.bodies(conversation, waiting[:limit]) if limit else {}
        return o.Conversation(
            state="IDLE" if not window.is_open else "INFLIGHT" if is_locked else "PENDING",
            scheduled_at_ms=window.owner_until_ms if is_locked else due and due.due_at_ms,
            due_at_ms=due and due.due_at_ms,
            flush_reason=due and due.reason,
            rule=due and due.rule,
            applied_wait_ms=due and due.wait_ms,
            count=len(waiting) if contents.is_whole else max(window.waiting, len(waiting)),
            first_at_ms=waiting[0].arrived_at_ms if waiting else None,
            last_at_ms=waiting[-1].arrived_at_ms if waiting and contents.is_whole else newest_at_ms or None,
            generation=window.generation,
            held_until_ms=window.held_until_ms or None,
            holds=standing(window.holds, self._clock()),
            batch_id=frozen.batch_id if frozen else None,
            attempt=window.attempt if frozen else 0,
            frozen=len(frozen.names) if frozen else 0,
            payloads=[bodies[each.name] for each in waiting[:limit] if each.name in bodies],
        )

    def standing(self, conversation: str) -> o.Standing:
        """Return what a consumer may know, without reading messages."""
        window = self._windows.read(conversation)
        return o.Standing(window.generation, standing(window.holds, self._clock()))

    def open_windows(self, *, limit: int) -> list[Opened]:
        """Return open windows, the most overdue first."""
        now_ms = self._clock()
        found = self._windows.open_windows(listed_before_ms=now_ms + REMEMBERED_MS, limit=limit)
        opened = [Opened(conversation, self._due_at(conversation, at_ms, now_ms)) for conversation, at_ms in found]
        return sorted(opened, key=lambda each: each.due_at_ms)

    def _due_at(self, conversation: str, listed_at_ms: int, now_ms: int) -> int:
        """Return when a listed window is due. Only if the time under which it is listed has passed, read the window."""
        if listed_at_ms > now_ms:
            return listed_at_ms
        window = self._windows.read(conversation)
        return window.due.due_at_ms if window.is_open else listed_at_ms

    def list_open(self, *, limit: int) -> list[str]:
        """Return the conversations with open windows, in the order of the index, at most `limit`."""
        found = self._windows.open_windows(listed_before_ms=self._clock() + REMEMBERED_MS, limit=limit)
        return [conversation for conversation, _ in found]

    def was_used(self, conversation: str) -> bool:
        """Return whether this lane received messages of the conversation within about the last day."""
        return self._windows.read(conversation).generation > 0


def _arrivals(contents: Contents, now_ms: int) -> list[int]:
    """Return the messages' known times of arrival. Leave out those a minute ahead, because they are wrong."""
    window = contents.window
    known = (window.last_at_ms, window.newest_at_ms, *(each.arrived_at_ms for each in contents.stored))
    return [at for at in known if 0 < at < now_ms + MINUTE_MS]
