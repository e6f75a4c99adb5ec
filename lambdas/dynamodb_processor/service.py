"""Empties windows: what a conversation holds becomes a batch, which leaves as it does in every lane.

Any step may be the last one that happens; the trigger then comes again.

1. lock    the conversation; somebody else's lock, or a window that is not over: the trigger comes back later
2. read    what is stored, all of it
3. freeze  name the batch and its messages: a retry emits these under that id
4. emit
5. bury    of each message is left that it was emitted, so that it is not taken again
6. close   the window, unless something came since it was read: then the next window begins
"""

import json
from collections.abc import Callable
from hashlib import blake2s
from random import SystemRandom
from typing import NamedTuple, Protocol
from uuid import uuid4

from lambdas.limits import (
    HEARTBEAT_SECONDS,
    MAX_BYTES_IN_A_BATCH,
    MAX_MESSAGES_IN_A_BATCH,
    MAX_READS_OF_A_WINDOW,
    MAX_TRIGGER_REST_MS,
    MAX_WINDOWS_IN_A_SWEEP,
    MIN_TRIGGER_REST_MS,
    WINDOW_LOCK_MS,
)
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import LockLost, MessageBufferError, SendFailed
from message_buffer.events.emission import Emission, TimeLeft, back_off_ms
from message_buffer.heartbeat import Heartbeat
from message_buffer.lanes.dynamodb.lane import GRACE_MS, REMEMBER_MS
from message_buffer.lanes.dynamodb.table import FIRST_ATTEMPT, Contents, Frozen, MessageTable, StoredMessage, Window
from message_buffer.lanes.dynamodb.triggers import Trigger
from message_buffer.lanes.outcomes import Taken
from message_buffer.telemetry import Telemetry

_random = SystemRandom().random


class Triggers(Protocol):
    def send(self, conversation: str, *, delay_ms: int) -> None: ...

    def rest(self, trigger: Trigger, *, for_ms: int) -> None: ...


class _Locked(NamedTuple):
    conversation: str
    owner: str
    window: Window


class _Batch(NamedTuple):
    frozen: Frozen
    attempt: int
    payloads: list[bytes] | None
    """None: it was emitted before."""
    left: bool
    """More waits than one batch holds."""


class DynamoDbProcessor:
    def __init__(
        self,
        *,
        table: MessageTable,
        triggers: Triggers,
        emission: Emission,
        telemetry: Telemetry,
        clock: Clock = system_clock,
        random: Callable[[], float] = _random,
        beat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._table = table
        self._triggers = triggers
        self._emission = emission
        self._telemetry = telemetry
        self._clock = clock
        self._random = random
        self._beat_seconds = beat_seconds

    def process(self, trigger: Trigger, time: TimeLeft) -> bool:
        """Is it done? Otherwise the trigger comes back."""
        owner = uuid4().hex
        try:
            time.require_a_call()
            window = self._table.acquire(
                trigger.conversation, owner, now_ms=self._clock(), until_ms=self._clock() + WINDOW_LOCK_MS
            )
            if window.owner != owner:
                return self._not_ours(trigger, window)
        except SendFailed as error:
            self._telemetry.warn("window not locked", conversation=trigger.conversation, reason=str(error))
            # An edit of a held message is in the way for a moment, as a busy table is for a while.
            self._rest(trigger, MAX_TRIGGER_REST_MS)
            return False
        return self._work(trigger, _Locked(trigger.conversation, owner, window), time)

    def sweep(self) -> None:
        """Windows whose trigger was lost get another one."""
        now_ms = self._clock()
        windows = self._table.open_windows(due_before_ms=now_ms + REMEMBER_MS, limit=MAX_WINDOWS_IN_A_SWEEP)
        overdue = [conversation for conversation, due_at_ms in windows if due_at_ms < now_ms - GRACE_MS]
        for conversation in overdue:
            self._triggers.send(conversation, delay_ms=0)
            self._telemetry.warn("trigger sent again", conversation=conversation)
        self._telemetry.count("Sweeps")
        self._telemetry.count("TriggersResent", len(overdue))
        self._telemetry.count("OpenWindows", len(windows))
        self._telemetry.measure_ms("OldestWindowOverdueMs", max((now_ms - due for _, due in windows), default=0))
        self._telemetry.info("swept", open=len(windows), resent=len(overdue))

    def _not_ours(self, trigger: Trigger, window: Window) -> bool:
        now_ms = self._clock()
        if not window.is_open:
            self._telemetry.info("nothing waits", conversation=trigger.conversation)
            return True
        rest_ms = window.due_at_ms - now_ms
        if window.held_until_ms > max(window.due_at_ms, now_ms):
            # Whoever rescheduled it did not know of the hold.
            self._table.delay(trigger.conversation, due_at_ms=window.held_until_ms, reason="hold")
        if window.owner_until_ms >= now_ms and window.owner:
            self._telemetry.count("TriggersReturned")
            rest_ms = min(window.owner_until_ms - now_ms, MAX_TRIGGER_REST_MS)
        self._telemetry.info("trigger returned", conversation=trigger.conversation, rest_ms=rest_ms)
        self._rest(trigger, max(rest_ms, MIN_TRIGGER_REST_MS))
        return False

    def _work(self, trigger: Trigger, locked: _Locked, time: TimeLeft) -> bool:
        def beat() -> None:
            if not self._table.keep(locked.conversation, locked.owner, until_ms=self._clock() + WINDOW_LOCK_MS):
                raise LockLost("the lock ran out, and somebody else has the window now")
            self._triggers.rest(trigger, for_ms=WINDOW_LOCK_MS)

        try:
            with Heartbeat(beat, every_seconds=self._beat_seconds) as heartbeat:
                self._empty(locked, heartbeat, time)
        except LockLost as error:
            self._telemetry.count("LockLost")
            self._telemetry.warn("lock lost", conversation=locked.conversation, reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - whatever it was, the window is tried again
            self._try_later(trigger, locked, error)
            return False
        return True

    def _empty(self, locked: _Locked, heartbeat: Heartbeat, time: TimeLeft) -> None:
        batch = self._batch(locked)
        if batch is None:
            return
        conversation, frozen = locked.conversation, batch.frozen
        if batch.payloads is not None:
            heartbeat.check()
            self._emission.send(conversation, _taken(batch, batch.payloads), time)
        expires_at_ms = self._clock() + REMEMBER_MS
        self._table.leave_tombstones(conversation, frozen.names, batch_id=frozen.batch_id, expires_at_ms=expires_at_ms)
        heartbeat.check()
        self._close(locked, generation=frozen.generation, left=batch.left)

    def _batch(self, locked: _Locked) -> _Batch | None:
        """The one that was frozen before, or a new one; None: nothing waited, and the window is closed."""
        for _ in range(MAX_READS_OF_A_WINDOW):
            contents = self._table.read(locked.conversation)
            if contents.window.owner != locked.owner:
                raise LockLost("the lock ran out, and somebody else has the window now")
            if contents.window.frozen is not None:
                # By an earlier attempt; or by this one, whose answer was lost.
                return _again(contents.window.frozen, contents)
            stored = self._ours(locked.conversation, contents)
            if not stored:
                self._telemetry.info("nothing held", conversation=locked.conversation)
                self._close(locked, generation=contents.window.generation, left=False)
                return None
            fit = _fitting(stored)
            frozen = _freeze(locked.conversation, fit, contents.window)
            if self._table.freeze(locked.conversation, locked.owner, frozen, changes=contents.window.changes):
                return _Batch(frozen, FIRST_ATTEMPT, [each.body for each in fit], left=len(fit) < len(stored))
        raise SendFailed("the window could not be frozen: its messages keep being edited")

    def _ours(self, conversation: str, contents: Contents) -> list[StoredMessage]:
        """All that is held but for what the Valkey lane has too, and has said so first."""
        theirs = [each.name for each in contents.stored if each.name in contents.journaled]
        for name in theirs:
            self._table.leave_to_valkey_lane(conversation, name, expires_at_ms=self._clock() + REMEMBER_MS)
        return [each for each in contents.stored if each.name not in contents.journaled]

    def _close(self, locked: _Locked, *, generation: int, left: bool) -> None:
        conversation, owner, window = locked
        expires_at_ms = self._clock() + REMEMBER_MS
        if not left and self._table.close(conversation, owner, generation=generation, expires_at_ms=expires_at_ms):
            return
        # Something came since it was read, and waits for a window of its own.
        now_ms = self._clock()
        due_at_ms = max(now_ms if left else now_ms + window.window_ms, self._table.window(conversation).held_until_ms)
        # The trigger first: a window without one waits for the sweep.
        self._triggers.send(conversation, delay_ms=due_at_ms - now_ms)
        reason = "max_messages" if left else "window"
        if not self._table.reopen(conversation, owner, due_at_ms=due_at_ms, reason=reason):
            raise LockLost("the lock ran out before the window could be closed")

    def _try_later(self, trigger: Trigger, locked: _Locked, error: Exception) -> None:
        conversation, attempt = locked.conversation, locked.window.attempt
        wait_ms = back_off_ms(attempt, self._random)
        if isinstance(error, MessageBufferError):
            self._telemetry.warn("window failed", conversation=conversation, attempt=attempt, reason=str(error))
        else:
            self._telemetry.crash("window failed", error, conversation=conversation, attempt=attempt)
        self._telemetry.count("Retries")
        try:
            self._table.retry(conversation, locked.owner, due_at_ms=self._clock() + wait_ms)
        except SendFailed as failed:
            self._telemetry.warn("window not released", conversation=conversation, reason=str(failed))
        self._rest(trigger, wait_ms)

    def _rest(self, trigger: Trigger, for_ms: int) -> None:
        try:
            self._triggers.rest(trigger, for_ms=for_ms)
        except SendFailed as error:
            # It comes back anyway, when the queue no longer hides it.
            self._telemetry.warn("trigger not put back", conversation=trigger.conversation, reason=str(error))


def _again(frozen: Frozen, contents: Contents) -> _Batch:
    attempt = contents.window.attempt
    bodies = {each.name: each.body for each in contents.stored}
    left = not bodies.keys() <= set(frozen.names)
    if any(name not in bodies for name in frozen.names):
        # It was emitted, for somebody began to bury it.
        return _Batch(frozen, attempt, None, left)
    return _Batch(frozen, attempt, [bodies[name] for name in frozen.names], left)


def _fitting(stored: list[StoredMessage]) -> list[StoredMessage]:
    """As many as one batch holds, but always one."""
    size = 0
    for count, each in enumerate(stored[:MAX_MESSAGES_IN_A_BATCH]):
        size += len(each.body)
        if count and size > MAX_BYTES_IN_A_BATCH:
            return stored[:count]
    return stored[:MAX_MESSAGES_IN_A_BATCH]


def _freeze(conversation: str, stored: list[StoredMessage], window: Window) -> Frozen:
    names = tuple(each.name for each in stored)
    # A message is in one batch only, so these are the names of no other.
    words = json.dumps((conversation, *names))
    return Frozen(
        batch_id=f"w-{blake2s(words.encode(), digest_size=16).hexdigest()}",
        names=names,
        generation=max(window.generation, 1),
        first_at_ms=stored[0].arrived_at_ms,
        last_at_ms=stored[-1].arrived_at_ms,
        due_at_ms=window.due_at_ms,
        reason=window.reason,
    )


def _taken(batch: _Batch, payloads: list[bytes]) -> Taken:
    frozen = batch.frozen
    return Taken(
        batch_id=frozen.batch_id,
        attempt=batch.attempt,
        generation=frozen.generation,
        first_at_ms=frozen.first_at_ms,
        last_at_ms=frozen.last_at_ms,
        due_at_ms=frozen.due_at_ms,
        flush_reason=frozen.reason,
        payloads=payloads,
        lane="window",
    )
