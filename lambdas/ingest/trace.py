"""Finds the trace that a webhook belongs to, so that consumers can go on with it."""

import re
from collections.abc import Mapping

from lambdas.ingest.platforms.base import Incoming, Intake
from message_buffer.aws.environment import read_trace_id
from message_buffer.messages.changes import Edited

# Version 00 of W3C's header. Ids of zeros only are invalid.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# The run's trace, if X-Ray records it, which it does only in a stage with `tracing`.
_RECORDED = re.compile(r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16});Sampled=1(?:;|$)")


def add_trace(intake: Intake, headers: Mapping[str, str]) -> None:
    """Give each message of the webhook the trace that its sender or X-Ray names, if either does."""
    traceparent = _traceparent(headers.get("traceparent", ""))
    if traceparent is None:
        return
    for place, update in enumerate(intake.updates):
        if isinstance(update, Incoming | Edited):
            message = update.message.model_copy(update={"traceparent": traceparent})
            intake.updates[place] = update._replace(message=message)


def _traceparent(header: str) -> str | None:
    if _TRACEPARENT.fullmatch(header):
        return header
    recorded = _RECORDED.match(read_trace_id() or "")
    return f"00-{recorded[1]}{recorded[2]}-{recorded[3]}-01" if recorded else None
