"""An operator's list of a shard's conversations: complete over many pages, while everything moves."""

import random
from collections.abc import Iterator

import pytest

from message_buffer.lanes.outcomes import ConversationPage
from message_buffer.lanes.valkey.store import FIRST_PAGE
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import Bus, emit_due, take
from tests.support.engine import Engine

SLOW = Rules(silence_ms=500_000, max_wait_ms=600_000)
NOW = Rules(priority="vip")


def pages(engine: Engine, *, limit: int = 100) -> Iterator[ConversationPage]:
    cursor: str | None = FIRST_PAGE
    while cursor:
        page = engine.store.list_conversations(0, cursor=cursor, limit=limit)
        yield page
        cursor = page.next_cursor


@pytest.mark.parametrize("state", ["open", "taken", "retrying"])
def test_a_long_list_comes_in_pages_and_misses_none(unwatched: Engine, state: str) -> None:
    engine, names = unwatched, {f"c{n}" for n in range(2000)}
    for name in names:
        engine.send(name, "m1", rules=NOW)
    if state != "open":
        for _ in range(len(names) // 100):
            for name in engine.claim():
                take(engine, name, name)
                if state == "retrying":
                    engine.store.retry_batch(name, name, retry_at_ms=engine.clock.now_ms + 60_000)
    found = list(pages(engine, limit=100))
    assert max(len(page.conversations) for page in found) < 200
    assert {name for page in found for name in page.conversations} == names


def test_a_buffer_that_stays_open_is_listed_though_everything_moves(unwatched: Engine) -> None:
    """Flush, claim, put back and retime it, while the hash grows and shrinks around it: the list still has it."""
    engine, chance, bus = unwatched, random.Random(1), Bus()
    stays = [f"stays {n}" for n in range(700)]
    for name in stays:
        engine.send(name, "m1", rules=SLOW)
    found: set[str] = set()
    for turn, page in enumerate(pages(engine, limit=20)):
        found |= {*page.conversations}
        for n in range(60 if turn < 15 else 0):
            engine.send(f"comes and goes {turn} {n}", "m1", rules=NOW)
        if turn >= 15:
            emit_due(engine, bus)
        for name in chance.sample(stays, 5):
            engine.store.hold_buffer(name, holder="people", cause="operator", hold_ms=80_000_000)
            engine.store.resume_buffer(name)
            engine.claim()
            engine.store.hold_buffer(name, holder="people", cause="operator", hold_ms=80_000_000)
        for name in chance.sample(stays, 20):
            engine.store.retime_buffer(name, timing=SLOW.timing)
    assert found >= set(stays)
