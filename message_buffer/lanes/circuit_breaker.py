"""A circuit breaker: who has just failed is left alone for a while, and then tried by one call."""

from message_buffer.clock import Clock, system_clock
from message_buffer.limits import MAX_BREAKER_PAUSE_MS, MIN_BREAKER_PAUSE_MS


class CircuitBreaker:
    """For one instance of a function, which does one thing at a time."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        # Wall time: a frozen function's own clock may stand still.
        self._clock = clock
        self._pause_ms = 0
        self._failed_at_ms = 0

    @property
    def should_skip(self) -> bool:
        """Do not try now."""
        return 0 <= self._clock() - self._failed_at_ms < self._pause_ms

    def succeeded(self) -> None:
        self._pause_ms = 0

    def failed(self) -> bool:
        """Is this the first failure after a success?"""
        first = self._pause_ms == 0
        self._pause_ms = MIN_BREAKER_PAUSE_MS if first else min(2 * self._pause_ms, MAX_BREAKER_PAUSE_MS)
        self._failed_at_ms = self._clock()
        return first
