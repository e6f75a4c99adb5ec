"""Reads what the functions of the local stage logged."""

import json

from message_buffer.json_object import Json
from tools.console.place import ShownStage
from tools.console.polls import now_ms

LOG_LINES_SHOWN = 200
LOGS_LOOK_BACK_MS = 10 * 60_000
# The admin function logs every operation. Leave out these operations, because the page requests them every few seconds.
ONLY_LOOKS = ("conversation.show", "conversation.list", "rules.explain", "rules.list", "status", "dead.list")


class Logs:
    def __init__(self, place: ShownStage) -> None:
        self._place = place

    def of(self, conversation: str) -> list[Json]:
        """Return the newest log lines that contain the conversation's id, oldest first.

        The lines of a run appear only when the run has ended. Lines about the console's own polls are left out.
        If the stage is not local, the list is empty.
        """
        return [each for each in self._lines_with(conversation) if each["line"].get("operation") not in ONLY_LOOKS]

    def _lines_with(self, text: str) -> list[Json]:
        outputs = self._place.outputs
        if outputs is None:
            return []
        found = []
        with self._place.errors():
            client = outputs.client("logs")
            for name, group in outputs.LogGroups.items():
                pages = client.get_paginator("filter_log_events").paginate(
                    logGroupName=group, startTime=now_ms() - LOGS_LOOK_BACK_MS
                )
                for page in pages:
                    found += [
                        {"at": event["timestamp"], "role": name, "line": line}
                        for event in page["events"]
                        if text in event["message"] and (line := _line(event["message"]))
                    ]
        return sorted(found, key=lambda each: int(each["at"]))[-LOG_LINES_SHOWN:]


def _line(text: str) -> Json | None:
    """Return the line's fields, or None if our functions did not write the line."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None
