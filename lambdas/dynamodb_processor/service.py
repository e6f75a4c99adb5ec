"""Empties windows: makes the stored messages of a conversation a batch, and emits it as the Valkey lane does.

A run may be killed after any step. The queue then delivers the trigger again.

Messages that the Valkey lane has also taken are disputed, because that lane may lose them before it emits them. They
remain stored, and their trigger remains hidden, until the conversation processor has asked Valkey.

1. lock    the window; if another run has locked it, or it is not due yet, the queue delivers the trigger again later
2. read    all stored messages
3. freeze  the batch's id and messages, so that a retry emits the same messages under the same id
4. emit
5. mark    each message as emitted: a tombstone replaces it, so that it is not taken again
6. close   the window; if messages remain, or one has arrived since step 2, begin the next window instead
"""

import json
from collections.abc import Callable
from hashlib import blake2s
from random import SystemRandom
from typing import NamedTuple
from uuid import uuid4

from lambdas.limits import (
    HEARTBEAT_SECONDS,
    MAX_DISPUTE_MS,
    MAX_DISPUTE_REST_MS,
    MAX_READS_OF_A_WINDOW,
    MAX_TRIGGER_REST_MS,
    MAX_WINDOWS_IN_A_SWEEP,
    MIN_DISPUTE_REST_MS,
    MIN_TRIGGER_REST_MS,
    WINDOW_LOCK_MS,
)
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import LockLost, MessageBufferError, SendFailed
from message_buffer.events.emission import Emission, TimeLeft, back_off_ms, is_failure
from message_buffer.heartbeat import Heartbeat
from message_buffer.lanes.dynamodb.table import (
    DISPUTED,
    FIRST_ATTEMPT,
    Contents,
    Frozen,
    MessageTable,
    StoredMessage,
    Window,
)
from message_buffer.lanes.dynamodb.triggers import Trigger, Triggers
from message_buffer.lanes.outcomes import Taken
from message_buffer.limits import MAX_BYTES_IN_A_BATCH, MAX_MESSAGES_IN_A_BATCH, REMEMBERED_MS, WINDOW_GRACE_MS
from message_buffer.telemetry import Telemetry

_random = SystemRandom().random


class _Locked(NamedTuple):
    conversation: str
    owner: str
    window: Window


class _Batch(NamedTuple):
    frozen: Frozen
    window: Window
    payloads: list[bytes] | None
    """None if the batch was already emitted."""
    left: bool
    """True if messages are stored that are not in this batch."""


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
        ask_valkey: Callable[[str], None] = lambda _conversation: None,
        beat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._table = table
        self._triggers = triggers
        self._emission = emission
        self._telemetry = telemetry
        self._clock = clock
        self._random = random
        self._ask_valkey = ask_valkey
        self._beat_seconds = beat_seconds

    def process(self, trigger: Trigger, time: TimeLeft) -> bool:
        """Empty the trigger's window. Return whether the trigger is done; otherwise the queue must deliver it again."""
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
            # An edit of a stored message prevents the lock for a moment, and a busy table prevents it for longer.
            self._rest(trigger, MAX_TRIGGER_REST_MS)
            return False
        return self._work(trigger, _Locked(trigger.conversation, owner, window), time)

    def sweep(self) -> None:
        """Send another trigger for each window whose trigger was lost."""
        now_ms = self._clock()
        windows = self._table.open_windows(due_before_ms=now_ms + REMEMBERED_MS, limit=MAX_WINDOWS_IN_A_SWEEP)
        overdue = [conversation for conversation, due_at_ms in windows if due_at_ms < now_ms - WINDOW_GRACE_MS]
        for conversation in overdue:
            self._triggers.send(conversation, delay_ms=0)
            self._telemetry.warn("trigger sent again", conversation=conversation)
        self._telemetry.count("Sweeps")
        # AWS bills a metric for each hour in which it has a value, and only the alarms' metrics need a value of zero.
        if windows:
            self._telemetry.count("TriggersResent", len(overdue))
            self._telemetry.count("OpenWindows", len(windows))
        self._telemetry.measure_ms("OldestWindowOverdueMs", max((now_ms - due for _, due in windows), default=0))
        self._telemetry.info("swept", open=len(windows), resent=len(overdue))

    def _not_ours(self, trigger: Trigger, window: Window) -> bool:
        now_ms = self._clock()
        if not window.is_open:
            self._telemetry.sampled("nothing waits", conversation=trigger.conversation)
            return True
        rest_ms = window.due_at_ms - now_ms
        if window.held_until_ms > max(window.due_at_ms, now_ms):
            # A request has changed the due time without seeing the hold. Make the window due at the end of the hold.
            self._table.delay(trigger.conversation, due_at_ms=window.held_until_ms, reason="hold")
        if window.owner_until_ms >= now_ms and window.owner:
            self._telemetry.count("TriggersReturned")
            rest_ms = min(window.owner_until_ms - now_ms, MAX_TRIGGER_REST_MS)
        self._telemetry.sampled("trigger returned", conversation=trigger.conversation, rest_ms=rest_ms)
        self._rest(trigger, max(rest_ms, MIN_TRIGGER_REST_MS))
        return False

    def _work(self, trigger: Trigger, locked: _Locked, time: TimeLeft) -> bool:
        def beat() -> None:
            if not self._table.keep(locked.conversation, locked.owner, until_ms=self._clock() + WINDOW_LOCK_MS):
                raise LockLost("the lock ran out, and another run has the window now")
            self._triggers.rest(trigger, for_ms=WINDOW_LOCK_MS)

        try:
            with Heartbeat(beat, every_seconds=self._beat_seconds) as heartbeat:
                rest_ms = self._empty(locked, heartbeat, time)
        except LockLost as error:
            self._telemetry.count("LockLost")
            self._telemetry.warn("lock lost", conversation=locked.conversation, reason=str(error))
            return False
        except Exception as error:  # noqa: BLE001 - the window is tried again after any error
            self._try_later(trigger, locked, error)
            return False
        if rest_ms is None:
            return True
        self._rest(trigger, rest_ms)
        return False

    def _empty(self, locked: _Locked, heartbeat: Heartbeat, time: TimeLeft) -> int | None:
        """Emit the window's messages. If they are disputed, return for how long to hide the trigger; else None."""
        batch = self._batch(locked)
        if batch is None or isinstance(batch, int):
            return batch
        conversation, frozen = locked.conversation, batch.frozen
        if batch.payloads is not None:
            heartbeat.check()
            self._emission.send(conversation, _taken(batch, batch.payloads), time)
        expires_at_ms = self._clock() + REMEMBERED_MS
        self._table.leave_tombstones(conversation, frozen.names, batch_id=frozen.batch_id, expires_at_ms=expires_at_ms)
        heartbeat.check()
        self._close(locked, generation=frozen.generation, left=batch.left)
        return None

    def _batch(self, locked: _Locked) -> _Batch | int | None:
        """Return the frozen batch, or freeze a new one.

        If all messages are disputed, return how long to hide the trigger. If no message waits, close the window and
        return None.
        """
        for _ in range(MAX_READS_OF_A_WINDOW):
            contents = self._table.read(locked.conversation)
            if contents.window.owner != locked.owner:
                raise LockLost("the lock ran out, and another run has the window now")
            if contents.window.frozen is not None:
                # An earlier attempt has frozen the batch, or this attempt has, but DynamoDB's response was lost.
                return _again(contents.window.frozen, contents)
            stored, disputed = self._divided(locked.conversation, contents)
            if not stored and disputed:
                return self._dispute(locked, contents.window, disputed)
            if not stored:
                self._telemetry.sampled("nothing stored", conversation=locked.conversation)
                self._close(locked, generation=contents.window.generation, left=False)
                return None
            fit = _fitting(stored)
            frozen = _freeze(locked.conversation, fit, contents.window)
            if self._table.freeze(locked.conversation, locked.owner, frozen, window=contents.window):
                first = contents.window._replace(attempt=FIRST_ATTEMPT, failures=0, unended=1)
                return _Batch(frozen, first, [each.body for each in fit], left=len(fit) < len(stored) + len(disputed))
        raise SendFailed("the window could not be frozen: its messages keep being edited")

    def _divided(self, conversation: str, contents: Contents) -> tuple[list[StoredMessage], list[StoredMessage]]:
        """Return the messages that this lane emits, and those that are disputed.

        Messages that were erased when their conversation was forgotten, and then delivered again, are erased again.
        """
        self._table.erase(conversation, names=[each.name for each in contents.stored if contents.was_erased(each.name)])
        disputed = contents.disputed
        given_up = [each for each in disputed if each.arrived_at_ms <= self._clock() - MAX_DISPUTE_MS]
        if given_up:
            # Valkey has not answered for so long that this lane emits the messages. A duplicate is better than a loss.
            self._telemetry.count("DisputesGivenUp", len(given_up))
            self._telemetry.warn("dispute given up", conversation=conversation, count=len(given_up))
        disputed = [each for each in disputed if each not in given_up]
        names = {each.name for each in disputed}
        ours = [each for each in contents.stored if each.name not in names and not contents.was_erased(each.name)]
        return ours, disputed

    def _dispute(self, locked: _Locked, window: Window, disputed: list[StoredMessage]) -> int:
        """Make the window due again later, and ask Valkey about its messages. Return how long to hide the trigger."""
        conversation, now_ms = locked.conversation, self._clock()
        age_ms = now_ms - disputed[0].arrived_at_ms
        rest_ms = min(max(age_ms, MIN_DISPUTE_REST_MS), MAX_DISPUTE_REST_MS)
        due_at_ms, generation = now_ms + rest_ms, window.generation
        if not self._table.dispute(conversation, locked.owner, due_at_ms=due_at_ms, generation=generation):
            # A message has arrived since the read. It must not wait longer than the length of a window.
            rest_ms = min(rest_ms, window.window_ms)
            if not self._table.reopen(conversation, locked.owner, due_at_ms=now_ms + rest_ms, reason="window"):
                raise LockLost("the lock ran out before the window could be released")
        self._telemetry.count("DisputedMessages", len(disputed))
        self._telemetry.info("messages disputed", conversation=conversation, count=len(disputed), age_ms=age_ms)
        try:
            self._ask_valkey(conversation)
        except SendFailed as error:
            self._telemetry.warn("Valkey not asked", conversation=conversation, reason=str(error))
        return rest_ms

    def _close(self, locked: _Locked, *, generation: int, left: bool) -> None:
        conversation, owner, window = locked
        expires_at_ms = self._clock() + REMEMBERED_MS
        if not left and self._table.close(conversation, owner, generation=generation, expires_at_ms=expires_at_ms):
            return
        # Messages remain: some did not fit into the batch (`left`), or one arrived after the window was read. Reopen
        # the window for them.
        now_ms = self._clock()
        due_at_ms = max(now_ms if left else now_ms + window.window_ms, self._table.window(conversation).held_until_ms)
        # Send the trigger before reopening, because a window without a trigger would wait for the sweep.
        self._triggers.send(conversation, delay_ms=due_at_ms - now_ms)
        reason = "max_messages" if left else "window"
        if not self._table.reopen(conversation, owner, due_at_ms=due_at_ms, reason=reason):
            raise LockLost("the lock ran out before the window could be closed")

    def _try_later(self, trigger: Trigger, locked: _Locked, error: Exception) -> None:
        conversation, attempt = locked.conversation, locked.window.attempt
        failures = 1 if is_failure(error) else 0
        wait_ms = back_off_ms(locked.window.failures + 1 if failures else attempt, self._random)
        fields: dict[str, str | int] = {"conversation": conversation, "attempt": attempt, "retry_in_ms": wait_ms}
        if isinstance(error, MessageBufferError):
            self._telemetry.warn("window failed", **fields, reason=str(error))
        else:
            self._telemetry.crash("window failed", error, **fields)
        self._telemetry.count("Retries")
        try:
            due_at_ms = self._clock() + wait_ms
            self._table.retry(conversation, locked.owner, due_at_ms=due_at_ms, failures=failures)
        except SendFailed as failed:
            self._telemetry.warn("window not released", conversation=conversation, reason=str(failed))
        self._rest(trigger, wait_ms)

    def _rest(self, trigger: Trigger, for_ms: int) -> None:
        try:
            self._triggers.rest(trigger, for_ms=for_ms)
        except SendFailed as error:
            # The queue delivers the trigger again anyway, once it is no longer hidden.
            self._telemetry.warn("trigger not put back", conversation=trigger.conversation, reason=str(error))


def _again(frozen: Frozen, contents: Contents) -> _Batch:
    window = contents.window
    bodies = {each.name: each.body for each in contents.stored}
    left = not bodies.keys() <= set(frozen.names)
    if any(name not in bodies for name in frozen.names):
        # Some messages are already marked as emitted, so an earlier run has emitted the batch.
        return _Batch(frozen, window, None, left)
    return _Batch(frozen, window, [bodies[name] for name in frozen.names], left)


def _fitting(stored: list[StoredMessage]) -> list[StoredMessage]:
    """Return as many messages as one batch may have, but at least one."""
    size = 0
    for count, each in enumerate(stored[:MAX_MESSAGES_IN_A_BATCH]):
        size += len(each.body)
        if count and size > MAX_BYTES_IN_A_BATCH:
            return stored[:count]
    return stored[:MAX_MESSAGES_IN_A_BATCH]


def _freeze(conversation: str, stored: list[StoredMessage], window: Window) -> Frozen:
    names = tuple(each.name for each in stored)
    # These words identify the batch, because a message is in only one batch.
    words = json.dumps((conversation, *names))
    return Frozen(
        batch_id=f"w-{blake2s(words.encode(), digest_size=16).hexdigest()}",
        names=names,
        generation=max(window.generation, 1),
        first_at_ms=stored[0].arrived_at_ms,
        # Must be after the forgotten time, even if the host's clock lags, because consumers drop earlier batches.
        last_at_ms=max(stored[-1].arrived_at_ms, window.forgotten_at_ms + 1),
        due_at_ms=window.due_at_ms,
        reason="window" if window.reason == DISPUTED else window.reason,
    )


def _taken(batch: _Batch, payloads: list[bytes]) -> Taken:
    frozen = batch.frozen
    return Taken(
        batch_id=frozen.batch_id,
        attempt=batch.window.attempt,
        generation=frozen.generation,
        first_at_ms=frozen.first_at_ms,
        last_at_ms=frozen.last_at_ms,
        due_at_ms=frozen.due_at_ms,
        flush_reason=frozen.reason,
        payloads=payloads,
        lane="dynamodb",
        failures=batch.window.failures,
        # Do not count this run, which has not ended either.
        deaths=max(batch.window.unended - 1, 0),
    )
