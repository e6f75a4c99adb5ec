"""Runs the canary once: sends a burst through the public API, and measures the time until its batch arrives."""

import time
from collections.abc import Callable

from lambdas.canary.burst import MAX_LATE_SECONDS, Burst, WebhookRefused
from lambdas.canary.listening import LONG_POLL_SECONDS, ArrivedEvent, Subscription
from lambdas.canary.webhook import GenericWebhook, WebhookUnreachable
from message_buffer.clock import Clock, system_clock
from message_buffer.limits import CANARY_FRAGMENTS, CANARY_RUN_MS
from message_buffer.telemetry import Telemetry

# Each run of a day uses another conversation, so that all shards are tried in turn.
CANARY_CONVERSATIONS = 288
# The function stops waiting this long before its time-out, so that it can still log what is missing.
MIN_MS_LEFT_TO_REPORT = 5_000
ACCOUNT = "canary"
# The canary's batch may wait for cold starts of up to four functions. If it is later than this, something is wrong.
MAX_CANARY_LATENESS_MS = 15_000


class Canary:
    def __init__(
        self,
        webhook: GenericWebhook,
        events: Subscription,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._webhook = webhook
        self._events = events
        self._telemetry = telemetry
        self._clock = clock

    def run(self, run_id: str, remaining_ms: Callable[[], int]) -> None:
        """Send a burst and publish its lateness, or count a failure."""
        slot = self._clock() // CANARY_RUN_MS % CANARY_CONVERSATIONS
        burst = Burst(self._webhook, ACCOUNT, str(slot))
        arrivals: list[ArrivedEvent] = []
        try:
            for number in range(CANARY_FRAGMENTS):
                burst.send(f"{run_id}-{number}", f"fragment {number}")
        except (WebhookRefused, WebhookUnreachable) as error:
            problem: str | None = str(error)
        else:
            self._collect(burst, arrivals, remaining_ms)
            problem = burst.problem(arrivals) or self._lateness(burst.late_ms(arrivals))
        if problem is None:
            self._telemetry.info("canary is well", conversation=burst.conversation, late_ms=burst.late_ms(arrivals))
        else:
            self._telemetry.count("CanaryFailures")
            self._telemetry.warn("canary failed", conversation=burst.conversation, reason=problem)

    def _lateness(self, late_ms: int) -> str | None:
        """Publish the lateness of a right batch. Return a problem if the batch is too late."""
        self._telemetry.measure_ms("CanaryLatenessMs", late_ms)
        return f"The batch was {late_ms / 1_000:.1f} s late" if late_ms > MAX_CANARY_LATENESS_MS else None

    def _collect(self, burst: Burst, arrivals: list[ArrivedEvent], remaining_ms: Callable[[], int]) -> None:
        """Collect events until all batches of the burst have arrived or are too late, or until the run must end."""
        wait_seconds = max(burst.due_at_ms - self._clock(), 0) / 1_000 + MAX_LATE_SECONDS
        until = time.monotonic() + min(wait_seconds, (remaining_ms() - MIN_MS_LEFT_TO_REPORT) / 1_000)
        while not burst.is_out(arrivals) and time.monotonic() < until:
            arrivals += self._events.poll(wait_seconds=LONG_POLL_SECONDS)
        # Collect once more, to find a second batch with the same messages, which would be an error.
        arrivals += self._events.poll(wait_seconds=LONG_POLL_SECONDS)
