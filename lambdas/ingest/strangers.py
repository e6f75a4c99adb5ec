"""Logs requests whose sender is not proven, but only a few lines a minute.

Anybody can send any number of such requests, and each line costs money. The metrics still count every request.
"""

from collections import Counter
from collections.abc import Callable

from lambdas.limits import MAX_LINES_ABOUT_STRANGERS
from message_buffer.clock import Clock
from message_buffer.limits import MINUTE_MS
from message_buffer.telemetry import Telemetry

Write = Callable[..., None]


class LinesAboutStrangers:
    """The lines of one instance."""

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._minute_began_ms = 0
        self._counts: Counter[tuple[Write, str, str]] = Counter()
        """How often each line was due in this minute, by its function, its text and its platform."""

    def info(self, decision: str, *, platform: str, **fields: str | int) -> None:
        self._write(self._telemetry.info, decision, platform, fields)

    def warn(self, decision: str, *, platform: str, **fields: str | int) -> None:
        self._write(self._telemetry.warn, decision, platform, fields)

    def write_counts(self) -> None:
        """Log how many more lines the minute would have had, once it is over."""
        if 0 <= self._clock() - self._minute_began_ms < MINUTE_MS:
            return
        for (write, decision, platform), count in self._counts.items():
            if count > MAX_LINES_ABOUT_STRANGERS:
                write(decision, platform=platform, more=count - MAX_LINES_ABOUT_STRANGERS)
        self._counts.clear()
        self._minute_began_ms = self._clock()

    def _write(self, write: Write, decision: str, platform: str, fields: dict[str, str | int]) -> None:
        line = (write, decision, platform)
        self._counts[line] += 1
        if self._counts[line] <= MAX_LINES_ABOUT_STRANGERS:
            write(decision, platform=platform, **fields)
