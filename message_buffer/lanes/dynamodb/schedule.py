"""Sends triggers. The trigger of an open window arrives when the window is due, or earlier.

The first message of a conversation opens a window, and later messages join it. Each message writes its facts into the
window. The request that opens the window also sends the trigger, and fails if it cannot send it. If the trigger arrives
before the window is due, the DynamoDB processor hides the trigger until then. Otherwise the processor empties the
window. A request that makes the window due earlier sends another trigger.
"""

from message_buffer.clock import Clock
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.dynamodb.window import Note, Window
from message_buffer.lanes.dynamodb.windows import Held
from message_buffer.lanes.holds import Holder, end_of, unexpired
from message_buffer.limits import MAX_WINDOW_TRIES, REMEMBERED_MS, WINDOW_GRACE_MS
from message_buffer.rules.due_time import Due
from message_buffer.rules.timing import RuleName


class Schedule:
    def __init__(self, table: MessageTable, triggers: TriggerQueue, clock: Clock) -> None:
        self._messages, self._windows = table.messages, table.windows
        self._triggers = triggers
        self._clock = clock

    def join(self, conversation: str, name: str, note: Note) -> tuple[Due, int] | None:
        """Let a stored message join the conversation's window, or open one.

        Return the window's due time and the number of its waiting messages. If too many messages or bytes wait already,
        remove the message and return None.
        """
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
            self.hasten(conversation, window=after, due=due, fixed=fixed)
        elif not (note.is_new and before.timing):
            # The window may have no trigger, because the request that opened it ended too early, or because all earlier
            # messages were deleted. A second trigger does no harm.
            self._send_trigger(conversation, due.due_at_ms)
        elif is_overdue:
            # The window was due long before this message, so its trigger must be lost. The message joins the overdue
            # batch.
            due = before.due
            self.hasten(conversation, window=after, due=due)
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

    def hasten_now(self, conversation: str, due_for: str, *, rule: RuleName, hold: Held) -> Window:
        """Make an open window due now. `due_for` is the flush reason. Return the window after the change.

        Raise StoreUnavailable if other requests keep changing the window.
        """
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            obeys_hold = hold == "obey" and window.held_until_ms > now_ms
            if not window.is_open or _is_due(window, now_ms) or obeys_hold:
                return window
            due, fixed = Due(now_ms, due_for, rule, now_ms - window.last_arrival_ms), _has_waiting(window)
            if self.hasten(conversation, window=window, due=due, fixed=fixed, hold=hold):
                listed_at_ms = min(window.listed_at_ms, now_ms)
                return window._replace(found=due if fixed else window.found, listed_at_ms=listed_at_ms)
        raise StoreUnavailable("hasten window: another request is changing the conversation; try again")

    def end_holds(self, conversation: str, holder: Holder | None, cause: str | None) -> o.ResumeOutcome:
        """End all holds, or only a hold with this holder and this cause. The messages are then due now, or when the
        remaining hold ends.

        Raise StoreUnavailable if other requests keep changing the window.
        """
        for _ in range(MAX_WINDOW_TRIES):
            window, now_ms = self._windows.read(conversation), self._clock()
            due_at_ms = window.due.due_at_ms if window.is_open else None
            before = unexpired(window.holds, now_ms)
            left = tuple(one for one in before if holder not in (None, one.holder) or cause not in (None, one.cause))
            if left == before:
                return o.OnHold(end_of(left)) if left else o.NotOnHold(due_at_ms)
            end_ms, moves = end_of(left) or now_ms, window.is_open and (not left or _has_waiting(window))
            if moves and end_ms < window.held_until_ms and not _is_due(window, end_ms):
                rule: RuleName = "hold" if left else "resume"
                due = Due(end_ms, rule, rule, end_ms - window.last_arrival_ms)
                fixed, due_at_ms = not left and _has_waiting(window), end_ms
                done = self.hasten(conversation, window=window, due=due, fixed=fixed, hold=left)
            else:
                done = self._windows.end_holds(conversation, window=window, holds=left)
            if done:
                return o.OnHold(end_ms) if left else o.HoldEnded(due_at_ms)
        raise StoreUnavailable("resume window: another request is changing the conversation; try again")

    def hasten(self, conversation: str, *, window: Window, due: Due, fixed: bool = True, hold: Held = "obey") -> bool:
        """Make an open window due earlier, as `Windows.hasten` does, and send its trigger."""
        done = self._windows.hasten(conversation, window=window, due=due, fixed=fixed, hold=hold)
        if done:
            self._send_trigger(conversation, due.due_at_ms)
        return done

    def _send_trigger(self, conversation: str, due_at_ms: int) -> None:
        self._triggers.send(conversation, delay_ms=max(due_at_ms - self._clock(), 0))


def _is_due(window: Window, at_ms: int) -> bool:
    """Return whether an open window is due, including any messages that wait behind its frozen batch."""
    return max(window.due.due_at_ms, window.due_of_waiting.due_at_ms) <= at_ms


def _has_waiting(window: Window) -> bool:
    """Return whether any messages wait outside the frozen batch."""
    return window.frozen is None or window.timing is not None or (window.frozen.has_more and window.waiting > 0)
