"""Carries the trace of a turn on, in the form of W3C's header, to the AI and to the channel."""

import re
from contextvars import ContextVar
from uuid import uuid4

# Each thread answers one turn at a time.
_TRACE: ContextVar[tuple[str, str] | None] = ContextVar("trace", default=None)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")


def follow(traceparent: object) -> None:
    """Let the calls that this thread makes from now on belong to this trace, or to none if it has another form."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    _TRACE.set((found[1], found[2]) if found else None)


def next_header() -> dict[str, str]:
    """Return the header for one call, with a span id of its own, or no header if there is no trace."""
    trace = _TRACE.get()
    return {"traceparent": f"00-{trace[0]}-{uuid4().hex[:16]}-{trace[1]}"} if trace else {}
