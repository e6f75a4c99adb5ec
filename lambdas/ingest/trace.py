"""Finds the trace that a webhook belongs to, so that consumers can go on with it."""

import re
from collections.abc import Mapping

from message_buffer.aws.environment import read_trace_id

# Version 00 of W3C's header. Ids of zeros only are invalid.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# The run's trace, if X-Ray records it, which it does only in a stage with `tracing`.
_RECORDED = re.compile(r"Root=1-([0-9a-f]{8})-([0-9a-f]{24});Parent=([0-9a-f]{16});Sampled=1(?:;|$)")


def traceparent_of(headers: Mapping[str, str]) -> str | None:
    """Return the trace that the webhook's sender or X-Ray names, or None if neither does."""
    header = headers.get("traceparent", "")
    if _TRACEPARENT.fullmatch(header):
        return header
    recorded = _RECORDED.match(read_trace_id() or "")
    return f"00-{recorded[1]}{recorded[2]}-{recorded[3]}-01" if recorded else None
