"""Nothing expires while a message waits."""

from collections.abc import Callable

import pytest

from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import (
    Bus,
    run_until_idle,
    take,
)
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_nothing_expires


@pytest.mark.case(29)
def test_nothing_with_a_message_expires_in_any_state(engine: Engine) -> None:
    """Ask for the shortest time to live there is, since the server's own clock counts it."""

    engine.store = engine.another_store(SETTINGS._replace(seen_ms=1))
    engine.send("c", "m0", rules=Rules(adaptive=True))
    run_until_idle(engine, Bus())
    steps: list[Callable[[], object]] = [
        lambda: engine.send("c", "m1", rules=Rules(adaptive=True)),
        lambda: engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=1),
        lambda: engine.store.resume_buffer("c"),
        lambda: engine.store.extend_wait("c", extend_ms=9000, max_wait_ms=9000),
        lambda: engine.store.retime_buffer("c", timing=Rules(silence_ms=5000).timing),
        lambda: engine.store.flush_buffer("c"),
        engine.claim,
        lambda: take(engine, "c", "t1"),
        lambda: engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=1),
        lambda: engine.send("c", "m2", rules=Rules(adaptive=True)),
        lambda: engine.store.delete_message("c", "m2"),
        lambda: engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms),
        lambda: engine.send("c", "m3", rules=Rules(adaptive=True)),
        engine.claim,
        lambda: engine.store.take_batch("c", "t2"),
    ]
    for step in steps:
        step()
        assert_nothing_expires(engine.keys(), "c")
