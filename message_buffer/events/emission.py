"""Sends a taken batch of either lane to the bus and its queue, or to the dead-letter queue if it cannot be emitted.

A run may be killed after any step, so any step may run twice. Until the lane has recorded the emission, the batch keeps
its id and its messages. At worst, the batch is sent twice, and consumers recognise it by its `batchId`.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from message_buffer.aws.object_store import ObjectStore
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import InvalidInput, SendFailed, TooLittleTime
from message_buffer.events import batch_ready as batch
from message_buffer.events.batch_queues import BatchQueues, acceptable
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus, entry_bytes
from message_buffer.events.idle import IdleTable
from message_buffer.json_object import Json, to_json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import MAX_CALL_MS, MAX_RETRY_MS, MIN_RETRY_MS, SECOND_MS
from message_buffer.messages.conversation_id import is_trial
from message_buffer.settings import EmissionSettings
from message_buffer.telemetry import Telemetry
from message_buffer.tuning.counts import GapCounts
from message_buffer.tuning.tuning_table import TuningTable

# The time that a conversation processor needs at its end to complete its batch or to put it back. Both tries of a call
# on an open connection fit into this time, even with the largest `timings.answer_ms`.
RELEASE_MS = 2 * SECOND_MS
# The largest message that SQS accepts in every account. The payloads of a larger dead letter are stored in the bucket.
MAX_DEAD_LETTER_BYTES = 256 * 1024


class TimeLeft:
    """The time left until Lambda kills a processor. Before then, the processor must put its batch back.

    Even the slowest two AWS calls fit into the default time-out of 24 seconds. If a third call does not fit, it waits
    for the next attempt to emit the batch. If the time-out is shorter, as in tests, a call may begin while at least
    half of the time-out is left.
    """

    def __init__(self, remaining_ms: Callable[[], int]) -> None:
        self._remaining_ms = remaining_ms
        self._needed_ms = min(MAX_CALL_MS + RELEASE_MS, remaining_ms() // 2)

    def has_a_call(self) -> bool:
        return self._remaining_ms() >= self._needed_ms

    def require_a_call(self) -> None:
        if not self.has_a_call():
            raise TooLittleTime("too little time is left for another call")


class Emission:
    def __init__(  # noqa: PLR0913 - `open_emission` makes each of them
        self,
        bus: EventBus,
        objects: ObjectStore,
        dead_letters: DeadLetterQueue,
        telemetry: Telemetry,
        *,
        queues: BatchQueues,
        idle: IdleTable,
        max_event_bytes: int,
        max_attempts: int,
        gap_counts: GapCounts,
        clock: Clock = system_clock,
    ) -> None:
        self._bus = bus
        self._objects = objects
        self._dead_letters = dead_letters
        self._telemetry = telemetry
        self._queues = queues
        self._idle = idle
        self._max_event_bytes = max_event_bytes
        self._max_attempts = max_attempts
        self._gap_counts = gap_counts
        self._clock = clock

    def connect(self) -> None:
        self._bus.connect()
        if self._queues:
            self._queues.connect()

    def send(self, conversation: str, taken: BatchTaken, time: TimeLeft) -> str:
        """Emit a batch, or dead-letter it. Return the conversation's unfinished turn.

        Raise SendFailed if the caller must try the batch again later.
        """
        if taken.attempt > self._max_attempts:
            # The last attempt sent no dead letter: its run died, had an unexpected error, or could not reach the queue.
            self._dead_letter(conversation, taken, time, reason="attempts exhausted")
            return ""
        try:
            return self._emit(conversation, taken, time)
        except InvalidInput as error:
            self._dead_letter(conversation, taken, time, reason=f"unreadable: {error}")
        except TooLittleTime:
            # Earlier calls have used up the time. A dead letter would need a further call.
            raise
        except SendFailed as error:
            if taken.attempt < self._max_attempts:
                raise
            self._dead_letter(conversation, taken, time, reason=str(error))
        return ""

    def write_counts(self, time: TimeLeft) -> None:
        """Write what was counted of the emitted batches. Call this only when a batch is completed."""
        self._gap_counts.write(time.has_a_call)

    def redrive(self, letter: Mapping[str, Any], time: TimeLeft) -> str:
        """Emit the batch of a dead letter under its old id, and return that id. Raise the error if the emission fails.

        Consumers get the batch out of order, after newer batches of its conversation.
        """
        payloads = letter.get("payloads")
        if payloads is None and isinstance(reference := letter.get("payloadsRef"), dict):
            payloads = json.loads(self._objects.get(str(reference.get("key"))))
        if not isinstance(payloads, list) or not payloads:
            raise InvalidInput("this is not the body of a dead letter: it has no payloads")
        conversation, taken = batch.taken_from_letter(letter, payloads)
        self._emit(conversation, taken, time)
        return taken.batch_id

    def _emit(self, conversation: str, taken: BatchTaken, time: TimeLeft) -> str:
        content, now_ms = batch.content_of(taken.payloads), self._clock()
        queue = self._queue_of(conversation, taken, content)
        event = partial(batch.event_of, conversation, taken, content, emitted_at_ms=now_ms, queue=queue)
        detail = acceptable(to_json(event()))
        oversize = entry_bytes(batch.DETAIL_TYPE, detail) > self._max_event_bytes
        if oversize:
            reference = self._store(batch.object_key(batch.BATCHES, conversation, taken), content.wire, time)
            detail = acceptable(to_json(event(reference=reference)))
        if content.idle_after_ms and not (taken.handoff or is_trial(conversation)):
            try:
                self._idle.begin_steps(conversation, taken, content, now_ms=now_ms)
            except SendFailed as error:
                self._telemetry.warn("steps not begun", conversation=conversation, reason=str(error))
        publish = partial(self._bus.publish, batch.DETAIL_TYPE, detail.decode())
        time.require_a_call()
        if queue is None:
            publish()
        else:
            send = partial(self._queues.send, queue, batch.DETAIL_TYPE, detail.decode())
            self._queues.send_while(publish, partial(send, conversation=conversation, batch_id=taken.batch_id))
        self._report_emitted(conversation, taken, queue, oversize=oversize)
        return self._gap_counts.add(conversation, taken, content.messages, agent=content.agent)

    def _queue_of(self, conversation: str, taken: BatchTaken, content: batch.Content) -> str | None:
        """Return the name of the batch's queue. Only the bus gets trials, because no consumer may answer them."""
        if is_trial(conversation):
            return None
        return self._queues.name_of(content.queue, is_handed_off=taken.handoff is not None)

    def _dead_letter(self, conversation: str, taken: BatchTaken, time: TimeLeft, *, reason: str) -> None:
        with suppress(SendFailed):
            self._idle.undo_steps(conversation, last_at_ms=taken.last_at_ms)
        letter = batch.letter_of(conversation, taken, reason=reason)
        payloads = batch.letter_payloads(taken)
        # Escape to ASCII, since SQS refuses some of the characters that people can write.
        body = json.dumps({**letter, "payloads": payloads}, separators=(",", ":"))
        if len(body) > MAX_DEAD_LETTER_BYTES:
            content = json.dumps(payloads, separators=(",", ":")).encode()
            reference = self._store(batch.object_key(batch.DEAD_LETTERS, conversation, taken), content, time)
            body = json.dumps({**letter, "payloadsRef": reference}, separators=(",", ":"))
        time.require_a_call()
        self._dead_letters.put(body)
        self._telemetry.warn(
            "dead letter", conversation=conversation, batch=taken.batch_id, attempt=taken.attempt, reason=reason
        )

    def _store(self, key: str, body: bytes, time: TimeLeft) -> Json:
        """Store an object, and return the reference to it."""
        time.require_a_call()
        self._objects.put(key, body)
        return {"bucket": self._objects.bucket, "key": key, "bytes": len(body)}

    def _report_emitted(self, conversation: str, taken: BatchTaken, queue: str | None, *, oversize: bool) -> None:
        count, wait_ms = len(taken.payloads), max(taken.due_at_ms - taken.first_at_ms, 0)
        late_ms = max(self._clock() - taken.due_at_ms, 0)
        if not is_trial(conversation):
            self._telemetry.count("Batches")
            self._telemetry.count("BatchSize", count)
            self._telemetry.measure_ms("WaitMs", wait_ms)
            self._telemetry.measure_ms("EmitLatenessMs", late_ms)
            self._telemetry.count_by("FlushReasons", reason=taken.flush_reason or "none")
            if self._queues and queue is None:
                self._telemetry.count("BatchesWithoutQueue")
                self._telemetry.warn("batch without queue", conversation=conversation, batch=taken.batch_id)
        self._telemetry.info(
            "emitted",
            conversation=conversation, batch=taken.batch_id, attempt=taken.attempt, messages=count,
            flush_reason=taken.flush_reason, rule=taken.rule, applied_wait_ms=max(taken.applied_wait_ms, 0),
            wait_ms=wait_ms, late_ms=late_ms, oversize=oversize, **({"queue": queue} if queue else {}),
        )  # fmt: skip


def open_emission(settings: EmissionSettings, telemetry: Telemetry) -> Emission:
    return Emission(
        EventBus(settings.event_bus),
        ObjectStore(settings.oversize_bucket),
        DeadLetterQueue(settings.dead_letter_queue_url),
        telemetry,
        queues=BatchQueues(settings.queues),
        idle=IdleTable(settings.takeovers_table),
        max_event_bytes=settings.max_event_bytes,
        max_attempts=settings.max_attempts,
        gap_counts=GapCounts(TuningTable(settings.tuning_table), telemetry),
    )


def back_off_ms(attempt: int, random: Callable[[], float]) -> int:
    """Return the pause after an attempt. It is up to a quarter shorter than the longest pause, at random, to spread the
    retries."""
    return int(longest_pause_ms(attempt) * (1 - random() / 4))


def longest_pause_ms(attempt: int) -> int:
    """Return the longest pause after an attempt, which doubles with each attempt. It is 0 for attempt 0."""
    # If a run dies, lua/take_batch.lua computes the same pause.
    return min(MIN_RETRY_MS << min(attempt - 1, 16), MAX_RETRY_MS) if attempt > 0 else 0
