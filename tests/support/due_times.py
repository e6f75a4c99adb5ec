"""Messages sent at chosen moments, and when the batch was due after each."""

from typing import NamedTuple

from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import Engine

FIXED = Rules(silence_ms=1000, typing_inference_ms=0, max_wait_ms=5000)
TYPING = Rules(silence_ms=1000, typing_inference_ms=3000, max_wait_ms=30_000)


class Due(NamedTuple):
    after_ms: int
    """Since the first message."""
    reason: str


def send_at(engine: Engine, rules: Rules, *after_ms: int) -> list[Due]:
    """Send one message at each moment, counted from the first; return when the batch was due after each."""
    began_ms = engine.clock.now_ms
    found = []
    for n, offset_ms in enumerate(after_ms):
        engine.clock.now_ms = began_ms + offset_ms
        due_at_ms = engine.send("c", f"m{n}", rules=rules).due_at_ms
        assert due_at_ms is not None
        seen = engine.store.peek_conversation("c")
        assert seen.due_at_ms == due_at_ms
        found.append(Due(due_at_ms - began_ms, seen.flush_reason or ""))
    return found
