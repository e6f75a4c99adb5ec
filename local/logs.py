"""Follows what the functions write, through the logs API."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from local.outputs import Outputs

POLL_SECONDS = 0.5
# A function that runs beside another may write its lines a moment later under an earlier time.
OVERLAP_MS = 2_000

Line = tuple[int, str, str, str]


def follow(outputs: Outputs, *, since_ms: int) -> Iterator[str]:
    """Lines of all functions, oldest first within a look, without end."""
    shown: Counter[Line] = Counter()
    while True:
        looked_at_ms = int(time.time() * 1_000)
        found = [line for role in outputs.LogGroups for line in _lines(outputs, role, since_ms=since_ms)]
        # All lines of a run may carry one time: the sort keeps the order in which the function wrote them.
        for at_ms, role, _, message in sorted(not_in(shown, found), key=lambda line: line[0]):
            yield (
                f"{datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone():%H:%M:%S.%f}"[:-3]
                + f" {role:<22} {message.rstrip()}"
            )
        shown, since_ms = Counter(found), max(since_ms, looked_at_ms - OVERLAP_MS)
        time.sleep(POLL_SECONDS)


def not_in(shown: Counter[Line], found: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines that are found more often than they were shown, in the order found."""
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
