"""The watchdog: puts back what dead executors left behind, and starts processors that are missing."""

from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import StoreError
from lambdas.shared.senders.starter import ProcessorStarter
from lambdas.shared.store.outcomes import Recovered
from lambdas.shared.store.store import Store
from lambdas.shared.telemetry import Telemetry

PAGE = 500
# What is left waits for the next sweep.
MOST_IN_A_SWEEP = 50_000


class Watchdog:
    def __init__(
        self, store: Store, starter: ProcessorStarter, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._store = store
        self._starter = starter
        self._telemetry = telemetry
        self._clock = clock

    def sweep(self) -> None:
        """Every shard, whatever happens on the others; then raises the first error, so that the alarm sees it."""
        first_error: StoreError | None = None
        for shard in range(self._store.settings.shards):
            try:
                self._sweep_shard(shard)
            except StoreError as error:
                first_error = first_error or error
                self._telemetry.count("SweepFailures")
                self._telemetry.warn("sweep failed", shard=shard, reason=str(error))
        if first_error:
            raise first_error

    def _sweep_shard(self, shard: int) -> None:
        recovered, conversations = self._recover(shard)
        overdue_ms = 0 if recovered.oldest_due_at_ms is None else max(self._clock() - recovered.oldest_due_at_ms, 0)
        self._telemetry.count("Pending", recovered.pending)
        self._telemetry.count("InFlight", recovered.inflight)
        self._telemetry.measure_ms("OldestOverdueMs", overdue_ms)
        if conversations:
            self._telemetry.count("Recovered", conversations)
        self._telemetry.info(
            "swept",
            shard=shard, pending=recovered.pending, inflight=recovered.inflight, recovered=conversations,
            overdue_ms=overdue_ms, heartbeat_at_ms=recovered.heartbeat_at_ms,
        )  # fmt: skip

    def _recover(self, shard: int) -> tuple[Recovered, int]:
        """Page by page; a page that is not full was the last."""
        conversations = 0
        while True:
            recovered = self._store.recover_expired(shard, limit=PAGE)
            if recovered.start_processor:
                self._starter.start(shard)
            for conversation in recovered.conversations:
                self._telemetry.warn("recovered", conversation=conversation)
            conversations += len(recovered.conversations)
            if len(recovered.conversations) < PAGE or conversations >= MOST_IN_A_SWEEP:
                return recovered, conversations
