"""Follows what the functions write, through the logs API."""

import time
from collections.abc import Iterator
from datetime import datetime

from local.outputs import Outputs

POLL_SECONDS = 0.5


def follow(outputs: Outputs, *, since_ms: int) -> Iterator[str]:
    """Lines of all functions, oldest first within a look, without end."""
    client = outputs.client("logs")
    starts = dict.fromkeys(outputs.LogGroups, since_ms)
    shown: set[str] = set()
    while True:
        found = []
        for role, group in outputs.LogGroups.items():
            pages = client.get_paginator("filter_log_events").paginate(logGroupName=group, startTime=starts[role])
            for event in (event for page in pages for event in page["events"]):
                if event["eventId"] not in shown:
                    shown.add(event["eventId"])
                    starts[role] = max(starts[role], event["timestamp"])
                    found.append((event["timestamp"], role, event["message"].rstrip()))
        for at_ms, role, message in sorted(found):
            yield f"{datetime.fromtimestamp(at_ms / 1_000):%H:%M:%S.%f}"[:-3] + f" {role:<22} {message}"
        time.sleep(POLL_SECONDS)
