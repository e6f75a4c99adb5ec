"""A hold keeps a conversation's messages back until it ends or is resumed."""

import pytest

from message_buffer.errors import TooManyHolds
from message_buffer.lanes.outcomes import (
    RunStale,
)
from tests.support.emission import (
    Bus,
    claim_and_take,
    emit_due,
    run_until_idle,
)
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same
from tests.support.states import (
    claimed,
    waiting_behind_a_frozen_batch,
)


def test_a_hold_calls_a_claimed_conversation_back(engine: Engine) -> None:
    claimed(engine)
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    assert_invariants(engine)
    assert same(engine.store.take_batch("c", "t1"), RunStale())
    assert engine.claim() == []


def test_a_hold_lets_a_frozen_batch_go_and_keeps_what_is_behind_it(engine: Engine) -> None:
    bus = Bus()
    waiting_behind_a_frozen_batch(engine)
    engine.store.recover_expired(0)
    held_until_ms = engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000).held_until_ms
    assert emit_due(engine, bus) == ["c"]
    assert bus.ids("c") == ["old"]
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["old", "old too"]
    assert bus.events[-1].at_ms == held_until_ms


def test_a_hold_on_an_idle_conversation_can_neither_expire_nor_be_evicted(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    assert {name: key.ttl_ms for name, key in engine.keys().items()} == {"{b0}:held": -1, "{b0}:holds": -1}
    assert engine.send("c", "m1").due_at_ms == engine.clock.now_ms + 60_000


def test_consumers_cannot_fill_the_cache_with_holds(engine: Engine) -> None:
    store = engine.another_store(SETTINGS._replace(max_held=2))
    for conversation in ("c", "invented"):
        store.hold_buffer(conversation, holder="consumers", cause="a bot", hold_ms=60_000)
    with pytest.raises(TooManyHolds):
        store.hold_buffer("invented, too", holder="consumers", cause="a bot", hold_ms=60_000)
    store.hold_buffer("c", holder="consumers", cause="a bot", hold_ms=600_000)
    store.hold_buffer("invented, too", holder="people", cause="operator", hold_ms=60_000)
    assert len(engine.keys()["{b0}:holds"].pairs) == 3


def test_a_hold_that_ran_out_is_swept_a_minute_later(engine: Engine) -> None:
    held_until_ms = engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000).held_until_ms
    engine.store.hold_buffer("stands", holder="people", cause="operator", hold_ms=600_000)
    engine.clock.now_ms = held_until_ms + 59_999
    engine.store.recover_expired(0)
    assert engine.keys()["{b0}:held"].pairs.keys() == {b"c", b"stands"}
    assert engine.store.peek_conversation("c").held_until_ms is None, "but it is over"
    engine.clock.advance(1)
    engine.store.recover_expired(0)
    assert engine.keys()["{b0}:held"].pairs.keys() == {b"stands"}
    assert engine.store.peek_conversation("stands").held_until_ms is not None


@pytest.mark.parametrize("become_idle", ["complete", "cancel", "delete"])
def test_a_hold_outlives_the_conversation_becoming_idle(engine: Engine, become_idle: str) -> None:
    held_until_ms = engine.store.hold_buffer(
        "c", holder="people", cause="operator", hold_ms=SETTINGS.seen_ms
    ).held_until_ms
    engine.send("c", "m1")
    engine.store.flush_buffer("c")
    match become_idle:
        case "complete":
            claim_and_take(engine, "c", "t1")
            engine.store.complete_batch("c", "t1")
        case "cancel":
            engine.store.cancel_buffer("c")
        case _:
            engine.store.delete_message("c", "m1")
    assert engine.send("c", "m2").due_at_ms == held_until_ms


def test_a_hold_is_not_made_shorter_by_a_shorter_one(engine: Engine) -> None:
    engine.send("c", "m1")
    long = engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=3_600_000)
    assert (
        engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=10_000).held_until_ms
        == long.held_until_ms
    )
    engine.clock.now_ms = long.held_until_ms - 1
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


def test_a_hold_that_takes_a_conversation_back_sees_to_its_processor(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    engine.clock.advance(engine.store.settings.lease_ms)
    held = engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=20_000)
    assert (held.held_until_ms, held.start_id is None) == (engine.clock.now_ms + 20_000, False)


@pytest.mark.parametrize("ends", ["people", "consumers"])
def test_who_held_is_swept_with_the_hold_in_the_bound_of_a_call(engine: Engine, ends: str) -> None:
    """However many holds have ended, a call forgets at most its limit of them."""
    for n in range(5):
        engine.store.hold_buffer(f"c{n}", holder="people", cause="answer", hold_ms=1_000)
        engine.store.hold_buffer(f"c{n}", holder="consumers", cause="crm", hold_ms=2_000)
    engine.store.resume_buffer("c4", holder="people" if ends == "people" else "consumers")
    engine.clock.advance(62_000)
    for left in (3, 1, 0):
        engine.store.recover_expired(0, limit=2)
        keys = engine.keys()
        held = keys["{b0}:held"].pairs if left else {}
        assert len(held) == left
        assert {name.split(b":")[1] for name in (keys["{b0}:holds"].pairs if left else {})} == set(held)
    assert engine.keys().keys().isdisjoint({"{b0}:held", "{b0}:holds"})
