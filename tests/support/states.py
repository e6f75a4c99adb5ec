"""States of a conversation, by where its message `old` is."""

from collections.abc import Callable

from tests.support.emission import take
from tests.support.engine import SETTINGS, Engine

State = Callable[[Engine], object]


def waiting(engine: Engine) -> None:
    engine.send("c", "old")


def claimed(engine: Engine) -> None:
    waiting(engine)
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]


def waiting_for_retry(engine: Engine) -> None:
    claimed(engine)
    take(engine, "c", "t1")
    engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms + 60_000)


def left_by_a_dead_conversation_processor(engine: Engine) -> None:
    claimed(engine)
    take(engine, "c", "t1")
    engine.clock.advance(SETTINGS.token_ms)


def waiting_behind_a_frozen_batch(engine: Engine) -> None:
    left_by_a_dead_conversation_processor(engine)
    engine.send("c", "old too")


def held(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    waiting(engine)
