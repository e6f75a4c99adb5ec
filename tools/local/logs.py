"""Follows the functions' logs through the logs API of the emulator."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from tools.local.outputs import Outputs

LOGS_POLL_SECONDS = 0.5
# A line of one function may appear later than newer lines of the other functions, by at most this time.
MAX_LATE_LINE_MS = 2_000
Line = tuple[int, str, str, str]


def follow(outputs: Outputs, *, since_ms: int, about: str | None = None) -> Iterator[str]:
    """Yield the lines of all functions, without end, or only those that name one id, as the logs write it.

    The lines that one poll finds are sorted by time.
    """
    shown: Counter[Line] = Counter()
    while True:
        looked_at_ms = int(time.time() * 1_000)
        found = [line for role in outputs.LogGroups for line in _lines(outputs, role, since_ms=since_ms)]
        # The lines of a run may all have the same time. The sort is stable, so it keeps the order in which the function
        # wrote them.
        for at_ms, role, _, message in sorted(not_in(shown, found), key=lambda line: line[0]):
            if about is None or json.dumps(about) in message:
                time_of_day = f"{datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone():%H:%M:%S.%f}"[:-3]
                yield f"{time_of_day} {role:<22} {message.rstrip()}"
        shown, since_ms = Counter(found), max(since_ms, looked_at_ms - MAX_LATE_LINE_MS)
        time.sleep(LOGS_POLL_SECONDS)


def not_in(shown: Counter[Line], found: Iterable[Line]) -> Iterator[Line]:
    """Yield the found lines that were not shown yet. Count equal lines, because a function may write a line twice."""
    left = Counter(shown)
    for line in found:
        if left[line]:
            left[line] -= 1
        else:
            yield line


def _lines(outputs: Outputs, role: str, *, since_ms: int) -> Iterator[Line]:
    pages = outputs.client("logs").get_paginator("filter_log_events")
    for page in pages.paginate(logGroupName=outputs.LogGroups[role], startTime=since_ms):
        for event in page["events"]:
            yield event["timestamp"], role, event["logStreamName"], event["message"]
