"""A circuit breaker, by which a caller skips calls for a while after a failure."""

from message_buffer.clock import Clock, system_clock

# After a failed call, further calls are skipped for this long. Each further failure doubles the pause, up to
# MAX_BREAKER_PAUSE_MS.
MIN_BREAKER_PAUSE_MS = 1_000
MAX_BREAKER_PAUSE_MS = 8_000


class CircuitBreaker:
    """The circuit breaker of one function instance, for calls that the instance makes one at a time."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        # Use wall time, because the monotonic clock stops while Lambda suspends the instance.
        self._clock = clock
        self._pause_ms = 0
        self._failed_at_ms = 0

    @property
    def is_open(self) -> bool:
        """Return whether the last call failed. Skipped calls are ignored."""
        return self._pause_ms > 0

    @property
    def should_skip(self) -> bool:
        """Return whether the caller should skip its call now."""
        return 0 <= self._clock() - self._failed_at_ms < self._pause_ms

    def succeeded(self) -> None:
        self._pause_ms = 0

    def failed(self) -> bool:
        """Record a failed call, which begins the pause or doubles it. Return whether this is the first failure after a
        success."""
        first = not self.is_open
        self._pause_ms = MIN_BREAKER_PAUSE_MS if first else min(2 * self._pause_ms, MAX_BREAKER_PAUSE_MS)
        self._failed_at_ms = self._clock()
        return first
