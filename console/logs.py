"""Reads what the functions of the local stage logged about a conversation."""

import json
from typing import Any

from bufferctl.errors import errors_of_aws
from console.limits import LOG_LINES_SHOWN, LOGS_LOOK_BACK_MS
from console.looks import now_ms
from console.place import Place

Json = dict[str, Any]


class Logs:
    def __init__(self, place: Place) -> None:
        self._place = place

    def of(self, conversation: str) -> list[Json]:
        """Return the newest lines that name the conversation, oldest first; none on a stage that is not local.

        The lines of a run appear when the run has ended.
        """
        outputs = self._place.outputs
        if outputs is None:
            return []
        found = []
        with errors_of_aws():
            client = outputs.client("logs")
            for role, group in outputs.LogGroups.items():
                pages = client.get_paginator("filter_log_events").paginate(
                    logGroupName=group, startTime=now_ms() - LOGS_LOOK_BACK_MS
                )
                for page in pages:
                    found += [
                        {"at": event["timestamp"], "role": role, "line": line}
                        for event in page["events"]
                        if conversation in event["message"] and (line := _line(event["message"]))
                    ]
        return sorted(found, key=lambda each: int(each["at"]))[-LOG_LINES_SHOWN:]


def _line(text: str) -> Json | None:
    """Return the line's fields, or None if it is not one of ours."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
