"""The watchdog: puts back what dead conversation processors left behind, and starts processors that are missing."""

from collections.abc import Callable
from typing import NamedTuple

from lambdas.limits import (
    MAX_CONVERSATIONS_IN_A_RECOVERY,
    MAX_CONVERSATIONS_RECOVERED_IN_A_PASS,
    MAX_STEP_MS,
    PASS_EVERY_MS,
)
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import StoreError
from message_buffer.lanes.outcomes import Recovered
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.store import Store
from message_buffer.telemetry import Telemetry


class _Health(NamedTuple):
    pending: int
    inflight: int
    overdue_ms: int


class Watchdog:
    def __init__(
        self, store: Store, starter: ProcessorStarter, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._store = store
        self._starter = starter
        self._telemetry = telemetry
        self._clock = clock

    def sweep(self, remaining_ms: Callable[[], int]) -> None:
        """Every shard, whatever happens on the others; then raises the first error, so that the alarm sees it.

        Each pass begins at another shard: where the time does not reach for all, none is always left out.
        """
        shards = self._store.settings.shards
        first = self._clock() // PASS_EVERY_MS % shards
        first_error: StoreError | None = None
        seen: list[_Health] = []
        for n in range(shards):
            if remaining_ms() < MAX_STEP_MS:
                self._telemetry.count("SweepsCut")
                self._telemetry.warn("sweep cut", shards_left=shards - n)
                break
            shard = (first + n) % shards
            try:
                seen.append(self._sweep_shard(shard, remaining_ms))
            except StoreError as error:
                first_error = first_error or error
                self._telemetry.count("SweepFailures")
                self._telemetry.count("StoreFailures")
                self._telemetry.warn("sweep failed", shard=shard, reason=str(error))
        self._tell(seen)
        if first_error:
            raise first_error

    def _tell(self, seen: list[_Health]) -> None:
        """One value a pass, of all shards it has seen: an alarm on a mean or a maximum then means the stage."""
        if seen:
            self._telemetry.count("Pending", sum(health.pending for health in seen))
            self._telemetry.count("InFlight", sum(health.inflight for health in seen))
            self._telemetry.measure_ms("OldestOverdueMs", max(health.overdue_ms for health in seen))
        if len(seen) == self._store.settings.shards:
            self._telemetry.count("Sweeps")

    def _sweep_shard(self, shard: int, remaining_ms: Callable[[], int]) -> _Health:
        recovered, conversations = self._recover(shard, remaining_ms)
        overdue_ms = 0 if recovered.oldest_due_at_ms is None else max(self._clock() - recovered.oldest_due_at_ms, 0)
        if conversations:
            self._telemetry.count("Recovered", conversations)
        self._telemetry.info(
            "swept",
            shard=shard, pending=recovered.pending, inflight=recovered.inflight, recovered=conversations,
            overdue_ms=overdue_ms, heartbeat_at_ms=recovered.heartbeat_at_ms,
        )  # fmt: skip
        return _Health(recovered.pending, recovered.inflight, overdue_ms)

    def _recover(self, shard: int, remaining_ms: Callable[[], int]) -> tuple[Recovered, int]:
        """Page by page; a page that is not full was the last."""
        conversations = 0
        while True:
            recovered = self._store.recover_expired(shard, limit=MAX_CONVERSATIONS_IN_A_RECOVERY)
            if recovered.start_processor:
                self._starter.start(shard)
            for conversation in recovered.conversations:
                self._telemetry.warn("recovered", conversation=conversation)
            conversations += len(recovered.conversations)
            full = len(recovered.conversations) >= MAX_CONVERSATIONS_IN_A_RECOVERY
            if not full or conversations >= MAX_CONVERSATIONS_RECOVERED_IN_A_PASS or remaining_ms() < MAX_STEP_MS:
                return recovered, conversations
