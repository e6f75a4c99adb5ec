"""The processor of one shard: claims what is due, and starts a conversation processor for each conversation.

At most one processor acts on a shard, because the scripts check its lease. It runs while there is work, at most until
Lambda's time-out is near. It then releases the lease, and starts a successor if more work is due soon.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from enum import StrEnum
from time import monotonic_ns, sleep
from typing import NamedTuple
from uuid import uuid4

from message_buffer.aws.functions import Functions
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed, StoreError
from message_buffer.lanes.outcomes import (
    BatchBusy,
    ConversationsClaimed,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    RunStale,
    WorkIsNear,
)
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.store import Store
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.limits import LEASE_RENEWALS, METRICS_EVERY_MS
from message_buffer.messages.conversation_id import is_trial
from message_buffer.telemetry import Telemetry

# A thread that starts a conversation processor mostly waits for Lambda's response, so this many threads work at once.
MAX_STARTS_AT_ONCE = 32
# While this many starts wait for a thread or for Lambda's response, the processor claims no further conversations.
MAX_STARTS_UNDER_WAY = 200
# A start may wait for a free thread. If less than this share of the claim's time is left after the wait, the processor
# puts the claim back instead, because the conversation processor could begin after the claim's end.
CLAIM_LEFT_FOR_A_START = 0.5
# The pause before a conversation is due again if a start failed. It doubles with each failure in a row.
MIN_RETURN_MS = 250
MAX_RETURN_MS = 5_000
# While Valkey fails, the processor pauses between its tries. The pause doubles each time, up to MAX_PAUSE_MS.
MIN_PAUSE_MS = 50
MAX_PAUSE_MS = 1_000
# A processor without Valkey ends after this time. Until then it could resume sooner than a new one could start.
MAX_MS_WITHOUT_VALKEY = 30_000


class Exit(StrEnum):
    HELD = "held"  # another processor has the lease
    IDLE = "idle"
    HANDED_OVER = "handed_over"
    LOST = "lost"  # its lease expired, and another processor has the shard
    STORE_UNAVAILABLE = "store_unavailable"


class Timings(NamedTuple):
    idle_ms: int
    handover_ms: int
    max_call_ms: int = 0  # how long a call to Valkey may take


class Time(NamedTuple):
    clock: Clock = system_clock
    monotonic_ms: Callable[[], int] = lambda: monotonic_ns() // 1_000_000
    sleep: Callable[[float], None] = sleep


class ConversationProcessors:
    """Starts conversation processors in parallel, and reports which starts failed."""

    def __init__(self, functions: Functions, function: str, *, clock: Clock = system_clock) -> None:
        self._functions = functions
        self._function = function
        self._clock = clock
        self._pool = ThreadPoolExecutor(MAX_STARTS_AT_ONCE, thread_name_prefix="start-conversation-processor")
        self._under_way: dict[Future[None], str] = {}

    @property
    def any_under_way(self) -> bool:
        return bool(self._under_way)

    @property
    def room(self) -> int:
        return max(MAX_STARTS_UNDER_WAY - len(self._under_way), 0)

    def prepare(self) -> None:
        """Connect to Lambda in a thread, so that the first start need not wait for the connection."""
        self._pool.submit(self._functions.prepare)

    def send(self, conversation: str, *, start_until_ms: int, **facts: int | bool) -> None:
        """Start a conversation processor, which logs these facts about the claim if the batch is late."""
        event = {"conversation": conversation, **facts}
        self._under_way[self._pool.submit(self._start, event, start_until_ms)] = conversation

    def _start(self, event: Mapping[str, object], until_ms: int) -> None:
        if self._clock() > until_ms:
            raise SendFailed("no thread was free in time")
        self._functions.start(self._function, event)

    def wait(self, seconds: float, *, for_all: bool = False) -> None:
        wait(self._under_way, timeout=seconds, return_when=ALL_COMPLETED if for_all else FIRST_COMPLETED)

    def ended(self) -> Iterator[tuple[str, SendFailed | None]]:
        """Yield the conversations whose start has ended since the last call, with the error if it failed.

        A start counts as under way until the caller has handled it and asks for the next one. So if the caller fails,
        the start is not lost.
        """
        for future in [future for future in self._under_way if future.done()]:
            error = future.exception()
            if error is not None and not isinstance(error, SendFailed):
                raise error
            yield self._under_way[future], error
            del self._under_way[future]

    def close(self) -> None:
        # Cancel starts that have not begun. Otherwise a suspended thread would continue them in the next invocation.
        self._pool.shutdown(wait=False, cancel_futures=True)


class Processor:
    """One run of a shard's processor."""

    def __init__(
        self,
        *,
        store: Store,
        wake: Wake,
        conversation_processors: ConversationProcessors,
        starter: ProcessorStarter,
        telemetry: Telemetry,
        timings: Timings,
        shard: int,
        time: Time | None = None,
    ) -> None:
        self._store = store
        self._wake = wake
        self._conversation_processors = conversation_processors
        self._starter = starter
        self._telemetry = telemetry
        self._timings = timings
        self._shard = shard
        self._lease_id = uuid4().hex
        self._clock, self._monotonic_ms, self._sleep = time or Time()
        self._renew_ms = min(5_000, store.settings.lease_ms // LEASE_RENEWALS)
        self._renewed_at = self._busy_at = self._reported_at = self._monotonic_ms()
        self._failures_in_a_row = 0
        self._no_slot_at_ms = 0  # when a claim last left due conversations, because no slot was free
        self._pause_ms = MIN_PAUSE_MS
        self._down_since: int | None = None

    def run(self, remaining_ms: Callable[[], int]) -> Exit:
        """Work until there is a reason to end, and return it. `remaining_ms` returns the time until the time-out."""
        ended: Exit | None = None
        step: Callable[[int], Exit | None] = self._enter
        try:
            while ended is None:
                ended = self._try(step, remaining_ms)
                if self._down_since is None:
                    step = self._work_once
                self._report()
        finally:
            self._wake.close()
            self._conversation_processors.close()
        return ended

    def _try(self, step: Callable[[int], Exit | None], remaining_ms: Callable[[], int]) -> Exit | None:
        """Make one step and return a reason to end, or None.

        If Valkey fails, pause for longer each time, and end after MAX_MS_WITHOUT_VALKEY.
        """
        try:
            ended = step(remaining_ms())
            self._down_since, self._pause_ms = None, MIN_PAUSE_MS
            return ended
        except StoreError as error:
            if not error.retryable:
                raise
            now = self._monotonic_ms()
            self._telemetry.count("StoreFailures")
            if self._down_since is None:
                self._down_since = now
                self._telemetry.warn("store fails", shard=self._shard, reason=type(error).__name__)
            if (
                now - self._down_since > MAX_MS_WITHOUT_VALKEY
                # Do not pause if there is no time left for one more call and for publishing the metrics.
                or remaining_ms() < self._timings.max_call_ms + 2_000
            ):
                return Exit.STORE_UNAVAILABLE
        self._sleep(self._pause_ms / 1_000)
        self._pause_ms = min(2 * self._pause_ms, MAX_PAUSE_MS)
        return None

    def _enter(self, _remaining_ms: int) -> Exit | None:
        asked_at = self._monotonic_ms()  # measure the lease from here, even if the call must connect first
        acquired = self._store.acquire_lease(self._shard, self._lease_id)
        self._report_answer()
        if isinstance(acquired, LeaseTaken):
            return Exit.HELD
        self._report_recovered(acquired.returned, "claimed by a dead processor")
        self._renewed_at, self._busy_at = asked_at, self._monotonic_ms()
        self._conversation_processors.prepare()
        return None

    def _work_once(self, remaining_ms: int) -> Exit | None:
        if remaining_ms <= self._timings.handover_ms:
            return self._hand_over()
        asked_at = self._monotonic_ms()
        if asked_at - self._renewed_at >= self._renew_ms:
            if isinstance(self._store.renew_lease(self._shard, self._lease_id), LeaseLost):
                return self._reacquire()
            self._renewed_at = asked_at
        self._return_failed_starts()
        if not self._conversation_processors.room:
            self._conversation_processors.wait(self._store.settings.max_sleep_ms / 1_000)
            return None
        # Claim at most half of MAX_STARTS_UNDER_WAY, so that there is room for another claim while these conversations
        # are started.
        limit = min(MAX_STARTS_UNDER_WAY // 2, self._conversation_processors.room)
        claimed = self._store.claim_due(self._shard, self._lease_id, limit=limit)
        self._report_answer()
        if isinstance(claimed, LeaseLost):
            return self._reacquire()
        self._report_recovered(claimed.expired, "claim or token expired")
        self._send(claimed)
        if claimed.waits_for_slot:
            self._no_slot_at_ms = self._clock()
        return self._sleep_until_due(claimed)

    def _send(self, claimed: ConversationsClaimed) -> None:
        if not claimed.conversations:
            return
        start_until_ms = claimed.deadline_ms - int(self._store.settings.claim_ms * CLAIM_LEFT_FOR_A_START)
        now_ms = self._clock()
        for due in claimed.conversations:
            self._conversation_processors.send(
                due.conversation, start_until_ms=start_until_ms,
                claimedAt=now_ms, waitedForSlot=due.due_at_ms <= self._no_slot_at_ms,
            )  # fmt: skip
        for due in claimed.conversations:
            if not is_trial(due.conversation):
                self._telemetry.measure_ms("LatenessMs", now_ms - due.due_at_ms)
        self._telemetry.info("claimed", shard=self._shard, conversations=len(claimed.conversations))

    def _report_answer(self) -> None:
        """Log the end of an outage before the processor sleeps."""
        if self._down_since is not None:
            away_ms = self._monotonic_ms() - self._down_since
            self._telemetry.info("store answers again", shard=self._shard, away_ms=away_ms)
            self._down_since = None

    def _report_recovered(self, conversations: int, reason: str) -> None:
        if conversations:
            self._telemetry.count("Recovered", conversations)
            self._telemetry.warn("claims put back", shard=self._shard, conversations=conversations, reason=reason)

    def _sleep_until_due(self, claimed: ConversationsClaimed) -> Exit | None:
        """Sleep until the next due time or deadline, at most for `max_sleep_ms`, or until a script wakes the processor.

        While the maximum number of conversations is in flight, ignore the next due time, because nothing more can be
        claimed. End the run if there was no work, and no conversation in flight, for `idle_ms`.
        """
        settings, now_ms, next_due_at_ms = self._store.settings, self._clock(), claimed.next_due_at_ms
        near = next_due_at_ms is not None and next_due_at_ms <= now_ms + settings.horizon_ms
        if claimed.conversations or near or self._conversation_processors.any_under_way:
            self._busy_at = self._monotonic_ms()
        elif self._monotonic_ms() - self._busy_at >= self._timings.idle_ms:
            match self._store.release_lease(self._shard, self._lease_id, reason="idle"):
                case LeaseReleased():
                    return Exit.IDLE
                case LeaseLost():
                    return self._reacquire()
                case WorkIsNear():
                    self._busy_at = self._monotonic_ms()
                    return None
        until_ms = settings.max_sleep_ms
        if next_due_at_ms is not None and not claimed.waits_for_slot:
            until_ms = min(next_due_at_ms - now_ms, until_ms)
        self._wake.wait(max(until_ms, 0) / 1_000)
        return None

    def _return_failed_starts(self) -> None:
        """Put back the conversations for which no conversation processor could be started."""
        for conversation, error in self._conversation_processors.ended():
            if error is None:
                self._failures_in_a_row = 0
                continue
            wait_ms = min(MIN_RETURN_MS << min(self._failures_in_a_row, 10), MAX_RETURN_MS)
            outcome = self._store.return_claim(conversation, self._lease_id, due_at_ms=self._clock() + wait_ms)
            if isinstance(outcome, BatchBusy | RunStale):
                continue  # the conversation processor was started after all, and only Lambda's answer was late or lost
            self._failures_in_a_row += 1
            self._telemetry.count("StartFailures")
            self._telemetry.warn(
                "conversation processor could not be started",
                conversation=conversation, outcome=type(outcome).__name__, retry_in_ms=wait_ms, reason=str(error),
            )  # fmt: skip

    def _reacquire(self) -> Exit | None:
        """Acquire the expired lease again. Return LOST if another processor has acquired it."""
        self._telemetry.warn("lease lost", shard=self._shard)
        return Exit.LOST if self._enter(0) else None

    def _hand_over(self) -> Exit:
        # Stop waiting before the lease can expire, because only a processor with the lease can put conversations back.
        self._conversation_processors.wait(self._renew_ms / 1_000, for_all=True)
        self._return_failed_starts()
        match self._store.release_lease(self._shard, self._lease_id, reason="handover"):
            case LeaseReleased(start_id=start_id):
                if start_id is not None:
                    self._starter.start(self._shard)
                return Exit.HANDED_OVER
            case _:
                return Exit.LOST

    def _report(self) -> None:
        """Publish the metrics if METRICS_EVERY_MS have passed, so that a long run does not publish only at its end."""
        if self._monotonic_ms() - self._reported_at >= METRICS_EVERY_MS:
            self._reported_at = self._monotonic_ms()
            self._telemetry.flush()
