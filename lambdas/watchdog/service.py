"""The watchdog: puts back conversations whose claim or token has expired, and starts missing processors."""

from collections.abc import Callable

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import StoreError
from message_buffer.lanes.outcomes import ShardRecovered
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import WATCHDOG_PASS_MS
from message_buffer.telemetry import Telemetry

# The script blocks Valkey while it puts conversations back. If more claims have expired, the shard's processor, which
# the pass starts if it is missing, puts back the rest.
MAX_CONVERSATIONS_IN_A_RECOVERY = 500


class Watchdog:
    def __init__(
        self, lane: ValkeyLane, telemetry: Telemetry, *, max_step_ms: int, clock: Clock = system_clock
    ) -> None:
        self._lane = lane
        self._max_step_ms = max_step_ms
        self._telemetry = telemetry
        self._clock = clock

    def run_pass(self, remaining_ms: Callable[[], int]) -> None:
        """Check every shard, even if some fail. Then raise the first StoreError, so that an alarm sees it.

        Each pass begins at a different shard, so that no shard is always skipped if there is not enough time for all.
        """
        shards = self._lane.settings.shards
        first = self._clock() // WATCHDOG_PASS_MS % shards
        first_error: StoreError | None = None
        checked: list[tuple[ShardRecovered, int]] = []
        for n in range(shards):
            if remaining_ms() < self._max_step_ms:
                self._telemetry.warn("pass cut", shards_left=shards - n)
                break
            shard = (first + n) % shards
            try:
                checked.append(self._check_shard(shard))
            except StoreError as error:
                first_error = first_error or error
                self._telemetry.count("StoreFailures")
                self._telemetry.warn("shard not checked", shard=shard, reason=str(error))
        self._report(checked)
        if first_error:
            raise first_error

    def _report(self, checked: list[tuple[ShardRecovered, int]]) -> None:
        """Publish one value of each metric for all checked shards together, so that an alarm covers the whole stage."""
        pending, inflight = (sum(seen.pending for seen, _ in checked), sum(seen.inflight for seen, _ in checked))
        # Publish no zeros of these metrics, because no alarm reads them, and AWS bills a metric for each hour in which
        # it has a value.
        if pending or inflight:
            self._telemetry.count("Pending", pending)
            self._telemetry.count("InFlight", inflight)
        if checked:
            self._telemetry.measure_ms("OldestOverdueMs", max(overdue_ms for _, overdue_ms in checked))
        if len(checked) == self._lane.settings.shards:
            self._telemetry.count("Sweeps")

    def _check_shard(self, shard: int) -> tuple[ShardRecovered, int]:
        """Return the shard's state, and how long its oldest conversation is overdue."""
        recovered = self._lane.recover_expired(shard, limit=MAX_CONVERSATIONS_IN_A_RECOVERY)
        for conversation in recovered.conversations:
            self._telemetry.warn("recovered", conversation=conversation)
        conversations = len(recovered.conversations)
        overdue_ms = 0 if recovered.oldest_due_at_ms is None else max(self._clock() - recovered.oldest_due_at_ms, 0)
        if conversations:
            self._telemetry.count("Recovered", conversations)
        self._telemetry.info(
            "shard checked",
            shard=shard, pending=recovered.pending, inflight=recovered.inflight, recovered=conversations,
            overdue_ms=overdue_ms, heartbeat_at_ms=recovered.heartbeat_at_ms,
        )  # fmt: skip
        return recovered, overdue_ms
