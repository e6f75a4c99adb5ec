"""Logs requests whose sender is not proven, but only a few lines a minute.

Anybody can send any number of such requests, and each line costs money, as does each metric, which is written as a
line. An instance writes the first few lines of each kind and metric in a minute at once. Later it writes a metric's
count whenever that has doubled, so that an alarm notices large numbers, and after the minute what is not written yet.
"""

from collections import Counter
from collections.abc import Callable

from message_buffer.clock import Clock
from message_buffer.limits import MINUTE_MS
from message_buffer.telemetry import Telemetry

# An instance immediately writes this many lines a minute for each platform and kind of refusal, and for each metric.
MAX_LINES_A_MINUTE = 5
Write = Callable[..., None]


class UnauthenticatedLog:
    """Logs the unauthenticated requests of one instance, and counts those that it does not log."""

    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock
        self._minute_began_ms = 0
        self._counts: Counter[tuple[Write, str, str]] = Counter()
        """How often each line was to be written in this minute. A line is identified by function, text and platform."""
        self._metrics: Counter[str] = Counter()
        """How often each metric was counted in this minute."""
        self._written: Counter[str] = Counter()
        """How many of these counts are written."""

    def info(self, decision: str, *, platform: str, **fields: str | int) -> None:
        self._write(self._telemetry.info, decision, platform, fields)

    def warn(self, decision: str, *, platform: str, **fields: str | int) -> None:
        self._write(self._telemetry.warn, decision, platform, fields)

    def count(self, metric: str) -> None:
        """Count a request. Write the first few counts at once, and later ones when the count has doubled."""
        self._metrics[metric] += 1
        count = self._metrics[metric]
        if count <= MAX_LINES_A_MINUTE or count == 2 * self._written[metric]:
            self._telemetry.count_all({metric: count - self._written[metric]})
            self._written[metric] = count

    def write_counts(self) -> None:
        """Write the counts of the last minute that are not written yet, if that minute is over."""
        if 0 <= self._clock() - self._minute_began_ms < MINUTE_MS:
            return
        for (write, decision, platform), count in self._counts.items():
            if count > MAX_LINES_A_MINUTE:
                write(decision, platform=platform, more=count - MAX_LINES_A_MINUTE)
        self._telemetry.count_all(self._metrics - self._written)
        self._counts.clear()
        self._metrics.clear()
        self._written.clear()
        self._minute_began_ms = self._clock()

    def _write(self, write: Write, decision: str, platform: str, fields: dict[str, str | int]) -> None:
        line = (write, decision, platform)
        self._counts[line] += 1
        if self._counts[line] <= MAX_LINES_A_MINUTE:
            write(decision, platform=platform, **fields)
