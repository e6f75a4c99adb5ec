"""Empties windows: makes the stored messages of a conversation a batch, and emits it as the Valkey lane does.

A run may be killed after any step. The queue then delivers the trigger again.

1. check   when the window is due; if not yet, hide the trigger until then, or send a successor
2. lock    the window: its due time is fixed from now on, and messages that arrive before step 4 join the batch
3. read    the names of the stored messages, and the bodies of one batch
4. freeze  the batch's id and messages, so that a retry emits the same messages under the same id
5. emit    the batch
6. mark    each message as emitted: a tombstone replaces it, so that it is not taken again
7. close   the window; if messages remain, or one has arrived since step 4, begin the next window instead
"""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2s
from math import inf
from random import SystemRandom
from threading import RLock
from typing import Literal, NamedTuple
from uuid import uuid4

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import LockLost, SendFailed
from message_buffer.events.emission import Emission, TimeLeft, back_off_ms, longest_pause_ms
from message_buffer.heartbeat import Heartbeat
from message_buffer.lanes.dynamodb.messages import Contents, StoredMessage, chunks
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import Trigger, TriggerQueue
from message_buffer.lanes.dynamodb.window import FrozenBatch, Window
from message_buffer.lanes.dynamodb.windows import FIRST_ATTEMPT
from message_buffer.lanes.holds import Hold, handoff_of
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import (
    MAX_BYTES_IN_A_BATCH,
    MAX_MESSAGES_IN_A_BATCH,
    MAX_TRIGGER_DELAY_MS,
    MAX_TRIGGER_HIDDEN_MS,
    MAX_WINDOW_TRIES,
    REMEMBERED_MS,
    WINDOW_GRACE_MS,
)
from message_buffer.telemetry import Telemetry

# A run locks the window for this time, and the queue hides the trigger for the same time. A heartbeat extends the lock
# and hides the trigger for longer.
WINDOW_LOCK_MS = 30_000
# If one heartbeat fails, the next one begins before the lock expires.
HEARTBEAT_SECONDS = WINDOW_LOCK_MS / 1_000 / 3
# A returned trigger is hidden for at least MIN_TRIGGER_REST_MS. If another run has locked the window, the trigger is
# hidden for at most MAX_TRIGGER_REST_MS, because that run usually ends soon.
MIN_TRIGGER_REST_MS = 1_000
MAX_TRIGGER_REST_MS = 5_000
# If a message is edited between the read and the freeze, the processor reads again. It reads at most this many times.
MAX_READS_OF_A_WINDOW = 5
# A sweep reads at most this many open windows from the index, those with the earliest times first.
MAX_WINDOWS_IN_A_SWEEP = 500
# EventBridge can start a sweep only once a minute. Each of those sweeps requests another sweep after this time.
SECOND_SWEEP_DELAY_MS = 30_000
# A run reads this many bodies at a time, until the batch is full. If all bodies have the maximum size, this many fill a
# batch.
MAX_BODIES_READ_AT_ONCE = 64
# A run has one window at a time in its memory that has more bytes than this, because an event takes several times the
# memory of its messages.
LARGE_WINDOW_BYTES = 256 * 1024
_random = SystemRandom().random


class _PutOnHold(Exception):
    """Raised if the conversation was put on hold after this run locked it, so that its messages are no longer due."""


class _Locked(NamedTuple):
    conversation: str
    owner: str
    window: Window


class _BatchToEmit(NamedTuple):
    frozen: FrozenBatch
    window: Window
    payloads: list[bytes] | None
    """None if the batch was already emitted."""
    messages: list[StoredMessage]
    """Those messages of the batch that are not yet marked as emitted."""


class DynamoDbProcessor:
    """Empties windows. Several threads may share a processor, and each thread processes one trigger."""

    def __init__(
        self,
        *,
        table: MessageTable,
        triggers: TriggerQueue,
        emission: Emission,
        telemetry: Telemetry,
        clock: Clock = system_clock,
        random: Callable[[], float] = _random,
        beat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._messages, self._windows = table.messages, table.windows
        self._triggers = triggers
        self._emission = emission
        self._telemetry = telemetry
        self._clock = clock
        self._random = random
        self._beat_seconds = beat_seconds
        self._large_window = RLock()

    def process(self, trigger: Trigger, time: TimeLeft, *, max_tries: float = inf) -> bool | None:
        """Empty the trigger's window. Return False if the queue must deliver the trigger again.

        Return None, and do nothing, if more than `max_tries` earlier runs have failed to empty the window, or died.
        """
        owner = uuid4().hex
        try:
            time.require_a_call()
            window = self._windows.read(trigger.conversation)
            now_ms = self._clock()
            if not window.is_open or window.is_locked(now_ms) or window.due.due_at_ms > now_ms:
                return self._not_ours(trigger, window)
            if window.attempt > max_tries:
                return None
            until_ms = now_ms + _lock_ms(window.attempt + 1)
            window = self._windows.acquire(trigger.conversation, owner, window=window, now_ms=now_ms, until_ms=until_ms)
            if window.lock.owner != owner:
                return self._not_ours(trigger, window)
        except Exception as error:  # noqa: BLE001 - the triggers of the same delivery must not fail with this one
            self._telemetry.failed("window not locked", error, conversation=trigger.conversation)
            # Locking fails for a moment while a stored message is edited, and for longer while the table is busy.
            return self._hide(trigger, MAX_TRIGGER_REST_MS)
        return self._work(trigger, _Locked(trigger.conversation, owner, window), time)

    def sweep(self, time: TimeLeft, *, is_second: bool = False) -> None:
        """Send another trigger for each window whose trigger was lost. If this is the first sweep, request a second."""
        if not is_second:
            self._triggers.send_sweep(delay_ms=SECOND_SWEEP_DELAY_MS)
        now_ms = self._clock()
        windows = self._windows.open_windows(listed_before_ms=now_ms + REMEMBERED_MS, limit=MAX_WINDOWS_IN_A_SWEEP)
        overdue_ms, resent = 0, 0
        for conversation, listed_at_ms in windows:
            if listed_at_ms > now_ms:
                continue  # no window is due before its time in the index
            if not time.has_a_call():
                break  # a sweep that is killed would end the run of the triggers in the same delivery, too
            window = self._windows.read(conversation)
            if not window.is_open:
                continue  # the index lags behind the table
            due_at_ms = window.due.due_at_ms
            overdue_ms = max(overdue_ms, now_ms - due_at_ms)
            if due_at_ms < now_ms - WINDOW_GRACE_MS and not window.is_locked(now_ms):
                self._triggers.send(conversation, delay_ms=0)
                self._telemetry.warn("trigger sent again", conversation=conversation)
                resent += 1
            elif due_at_ms > now_ms and listed_at_ms < now_ms - WINDOW_GRACE_MS:
                # Move the window's time in the index, so that later sweeps do not read the window before it may be due.
                self._windows.list_later(conversation, window=window, at_ms=due_at_ms)
        self._telemetry.count("Sweeps")
        # Publish no zeros of these metrics, because AWS bills a metric for each hour in which it has a value. Only the
        # metrics of alarms need a value of zero.
        if resent:
            self._telemetry.count("Recovered", resent)
        if windows:
            self._telemetry.count("Pending", len(windows))
        self._telemetry.measure_ms("OldestOverdueMs", overdue_ms)
        self._telemetry.info("swept", open=len(windows), resent=resent)

    def _not_ours(self, trigger: Trigger, window: Window) -> bool:
        now_ms, conversation = self._clock(), trigger.conversation
        if not window.is_open:
            self._telemetry.info("nothing waits", conversation=conversation)
            return True
        hidden_ms = window.due.due_at_ms - now_ms
        if window.is_locked(now_ms):
            hidden_ms = min(window.lock.until_ms - now_ms, MAX_TRIGGER_REST_MS)
        elif hidden_ms > MAX_TRIGGER_HIDDEN_MS:
            return self._send_successor(trigger, window, hidden_ms)
        self._telemetry.info("trigger returned", conversation=conversation, hidden_ms=hidden_ms)
        return self._hide(trigger, max(hidden_ms, MIN_TRIGGER_REST_MS))

    def _send_successor(self, trigger: Trigger, window: Window, hidden_ms: int) -> bool:
        """Send a delayed trigger instead of hiding this one, because SQS limits how many messages a queue hides."""
        now_ms, conversation, due_at_ms = self._clock(), trigger.conversation, window.due.due_at_ms
        # Send no successor if an earlier one is still to come. If this trigger arrives within a minute of that
        # successor's time, it may be the successor itself.
        if now_ms + MAX_TRIGGER_HIDDEN_MS < window.successor_at_ms <= due_at_ms:
            return True
        delay_ms = min(hidden_ms, MAX_TRIGGER_DELAY_MS)
        try:
            self._triggers.send(conversation, delay_ms=delay_ms)
        except SendFailed:
            return self._hide(trigger, MAX_TRIGGER_HIDDEN_MS)
        # Record that this window's next trigger was sent, so that no other run sends it again.
        self._windows.list_later(
            conversation, window=window, at_ms=due_at_ms, successor_at_ms=now_ms + -(-delay_ms // 1_000) * 1_000
        )
        return True

    def _work(self, trigger: Trigger, locked: _Locked, time: TimeLeft) -> bool:
        lock_ms = _lock_ms(locked.window.attempt)

        def beat() -> None:
            if not self._windows.keep(locked.conversation, locked.owner, until_ms=self._clock() + lock_ms):
                raise LockLost("the lock ran out, and another run has the window now")
            self._triggers.hide(trigger, for_ms=WINDOW_LOCK_MS)

        try:
            with Heartbeat(beat, every_seconds=self._beat_seconds) as heartbeat:
                self._empty(locked, heartbeat, time)
        except LockLost as error:
            self._telemetry.warn("lock lost", conversation=locked.conversation, reason=str(error))
            return False
        except _PutOnHold:
            return self._hide(trigger, MIN_TRIGGER_REST_MS)
        except Exception as error:  # noqa: BLE001 - the window is tried again after any error
            return self._try_later(trigger, locked, error)
        self._emission.write_counts(time)
        return True

    def _empty(self, locked: _Locked, heartbeat: Heartbeat, time: TimeLeft) -> None:
        """Emit the window's messages."""
        with ExitStack() as turn:
            batch = self._batch(locked, turn, time)
            if batch is None:
                return
            conversation, frozen, tail = locked.conversation, batch.frozen, ""
            if batch.payloads is not None:
                heartbeat.check()
                handoff = handoff_of(batch.window.holds, self._clock())
                tail = self._emission.send(conversation, _taken(batch, batch.payloads, handoff), time)
        heartbeat.check()
        self._require_lock(locked, until_ms=batch.window.lock.until_ms)
        self._messages.write_tombstones(
            conversation, batch.messages, batch_id=frozen.batch_id, expires_at_ms=self._clock() + REMEMBERED_MS
        )
        self._close(locked, generation=frozen.generation, left=frozen.has_more, tail=tail)

    def _require_lock(self, locked: _Locked, *, until_ms: int) -> None:
        """Renew the lock if its end `until_ms` has passed. Raise LockLost if another run has the window now."""
        # Without this check, a run that was paused for long would write tombstones of a forgotten conversation.
        now_ms = self._clock()
        if now_ms >= until_ms and not self._windows.keep(
            locked.conversation, locked.owner, until_ms=now_ms + _lock_ms(locked.window.attempt)
        ):
            raise LockLost("the lock ran out while the batch was emitted, and another call has the window now")

    def _batch(self, locked: _Locked, turn: ExitStack, time: TimeLeft) -> _BatchToEmit | None:
        """Return the frozen batch, or freeze a new one. If no message waits, close the window and return None.

        If the window is large, first wait for the lock of large windows. Closing `turn` releases the lock.
        """
        conversation, owner = locked.conversation, locked.owner
        for read in range(MAX_READS_OF_A_WINDOW):
            now_ms = self._clock()
            contents = self._messages.read(conversation, with_bodies=True)
            window = contents.window
            if window.lock.owner != owner:
                raise LockLost("the lock ran out, and another run has the window now")
            if window.frozen is None and window.found is None:
                self._windows.release(conversation, owner)
                raise _PutOnHold
            bodies = [each.body for each in contents.stored]
            if None in bodies or sum(len(each or b"") for each in bodies) > LARGE_WINDOW_BYTES:
                turn.enter_context(self._large_window)
                time.require_a_call()  # the wait for the turn may have used up the time
            if window.frozen is not None:
                # An earlier attempt froze the batch. Or this attempt froze it, and DynamoDB's response was lost.
                return self._again(conversation, window.frozen, contents)
            messages, payloads, left = self._fitting(conversation, contents.stored)
            if not messages:
                self._telemetry.info("nothing waits", conversation=conversation)
                self._close(locked, generation=window.generation)
                return None
            frozen = _freeze(conversation, messages, window, left=left)
            if self._windows.freeze(
                conversation,
                owner,
                frozen,
                window=window,
                large_bytes=sum(each.large_bytes for each in messages),
                # If a message arrived during the read, the freeze fails, and the run reads again, so that the message
                # joins the batch. The last try freezes the batch without such messages.
                now_ms=now_ms,
                may_have_arrived=read + 1 == MAX_READS_OF_A_WINDOW,
            ):
                first = window._replace(attempt=FIRST_ATTEMPT)
                return _BatchToEmit(frozen, first, payloads, messages)
        raise SendFailed("the window could not be frozen: its messages keep being edited")

    def _again(self, conversation: str, frozen: FrozenBatch, contents: Contents) -> _BatchToEmit:
        """Return a batch that an earlier attempt has frozen."""
        stored = {each.name: each for each in contents.stored}
        # Leave out messages that have arrived since the freeze. They belong to the next window, which has its own due
        # time.
        messages = [stored[name] for name in frozen.names if name in stored]
        bodies = self._bodies(conversation, messages)
        # If some messages are already marked as emitted, an earlier run has emitted the batch.
        payloads = [bodies[name] for name in frozen.names] if bodies.keys() >= set(frozen.names) else None
        return _BatchToEmit(frozen, contents.window, payloads, messages)

    def _fitting(
        self, conversation: str, stored: Sequence[StoredMessage]
    ) -> tuple[list[StoredMessage], list[bytes], bool]:
        """Return (messages, their bodies, True if more are stored): as many as fit into one batch, but at least one,
        and none whose body is not stored yet."""
        messages: list[StoredMessage] = []
        found: list[bytes] = []
        size = 0
        # Read the bodies in portions, because it is a waste to read bodies that do not fit.
        for piece in chunks(stored, MAX_BODIES_READ_AT_ONCE):
            bodies = self._bodies(conversation, piece)
            for each in piece:
                if each.name not in bodies:
                    continue
                size += len(bodies[each.name])
                if messages and (size > MAX_BYTES_IN_A_BATCH or len(messages) >= MAX_MESSAGES_IN_A_BATCH):
                    return messages, found, True
                messages.append(each)
                found.append(bodies[each.name])
        return messages, found, False

    def _bodies(self, conversation: str, messages: Iterable[StoredMessage]) -> dict[str, bytes]:
        """Return each message's body by the message's name. Read the bodies that were not read with the messages."""
        known = {each.name: each.body for each in messages if each.body is not None}
        unread = [each for each in messages if each.body is None]
        return known | (self._messages.bodies(conversation, unread) if unread else {})

    def _close(self, locked: _Locked, *, generation: int, left: bool = False, tail: str = "") -> None:
        """Close the window, or begin the next one if messages did not fit into the batch (`left`), or arrived after the
        freeze."""
        conversation, owner, _ = locked
        if left or not self._windows.close(conversation, owner, generation=generation, now_ms=self._clock(), tail=tail):
            self._reopen(locked, tail)

    def _reopen(self, locked: _Locked, tail: str) -> None:
        """Release the lock and begin the next window. Raise LockLost if another run has the window now."""
        conversation, owner, _ = locked
        for attempt in range(MAX_WINDOW_TRIES):
            now_ms, window = self._clock(), self._windows.read(conversation)
            if window.lock.owner != owner:
                break
            rest = window._replace(frozen=None)
            if window.frozen is None:
                # Drop the due time that the lock has fixed, because it belongs to messages that are already emitted.
                rest = rest._replace(found=None, listed_at_ms=now_ms)
            due_at_ms = rest.due.due_at_ms
            # Send the trigger before reopening, because a window without a trigger would wait for the sweep.
            self._triggers.send(conversation, delay_ms=max(due_at_ms - now_ms, 0))
            if self._windows.reopen(
                conversation,
                owner,
                due_at_ms=due_at_ms,
                tail=tail,
                keeps_found=window.frozen is not None,
                generation=window.generation if attempt + 1 < MAX_WINDOW_TRIES else None,
            ):
                return
        raise LockLost("the lock ran out before the window could be closed")

    def _try_later(self, trigger: Trigger, locked: _Locked, error: Exception) -> Literal[False]:
        conversation, attempt = locked.conversation, locked.window.attempt
        wait_ms = back_off_ms(attempt, self._random)
        self._telemetry.failed("window failed", error, conversation=conversation, attempt=attempt, retry_in_ms=wait_ms)
        self._telemetry.count("Retries")
        with suppress(SendFailed):  # the lock ends by itself
            self._windows.retry(conversation, locked.owner, due_at_ms=self._clock() + wait_ms)
        return self._hide(trigger, wait_ms)

    def _hide(self, trigger: Trigger, for_ms: int) -> Literal[False]:
        """Let the queue deliver the trigger again after this time. Return False, as `process` then does."""
        with suppress(SendFailed):  # the queue delivers the trigger again anyway, once it is no longer hidden
            self._triggers.hide(trigger, for_ms=for_ms)
        return False


def _lock_ms(attempt: int) -> int:
    """Return for how long a run locks the window: longer with each attempt, so that the pauses between attempts grow
    even if every run is killed."""
    return WINDOW_LOCK_MS + longest_pause_ms(attempt - 1)


def _freeze(conversation: str, stored: list[StoredMessage], window: Window, *, left: bool) -> FrozenBatch:
    names = tuple(each.name for each in stored)
    # Names and arrivals identify the batch. Names alone do not, because a message with the same name may arrive again
    # after the first was forgotten.
    words = json.dumps((conversation, *((each.name, each.arrived_at_ms) for each in stored)))
    return FrozenBatch(
        batch_id=f"w-{blake2s(words.encode(), digest_size=16).hexdigest()}",
        names=names,
        generation=max(window.generation, 1),
        first_at_ms=stored[0].arrived_at_ms,
        last_at_ms=stored[-1].arrived_at_ms,
        due=window.due_of_batch,
        has_more=left,
        previous_at_ms=window.last_at_ms,
        replied_at_ms=window.replied_at_ms,
    )


def _taken(batch: _BatchToEmit, payloads: list[bytes], handoff: Hold | None) -> BatchTaken:
    frozen, due = batch.frozen, batch.frozen.due
    return BatchTaken(
        batch_id=frozen.batch_id, attempt=batch.window.attempt, generation=frozen.generation,
        first_at_ms=frozen.first_at_ms, last_at_ms=frozen.last_at_ms,
        due_at_ms=due.due_at_ms, flush_reason=due.reason, rule=due.rule, applied_wait_ms=due.wait_ms,
        payloads=payloads, lane="dynamodb", handoff=handoff, previous_at_ms=frozen.previous_at_ms or None,
        replied_at_ms=frozen.replied_at_ms or None, tail=batch.window.tail,
    )  # fmt: skip
