"""A hold keeps a conversation's messages back until it ends or is resumed."""

import pytest

from message_buffer.errors import TooManyHolds
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine

RULES = Rules(silence_ms=2_000)


def test_a_hold_on_an_idle_conversation_can_neither_expire_nor_be_evicted(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=60_000)
    assert {name: key.ttl_ms for name, key in engine.keys().items()} == {"{b0}:held": -1, "{b0}:holds": -1}
    assert engine.send("c", "m1").due_at_ms == engine.clock.now_ms + 60_000


def test_a_hand_off_mark_on_an_idle_conversation_can_neither_expire_nor_be_evicted(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="handoff", cause="answer", hold_ms=60_000)
    assert {name: key.ttl_ms for name, key in engine.keys().items()} == {"{b0}:held": -1, "{b0}:holds": -1}


def test_marks_without_a_limit_do_not_keep_consumers_from_holding(engine: Engine) -> None:
    store = engine.another_store(SETTINGS._replace(max_held=1))
    for n in range(3):
        store.hold_buffer(f"c{n}", holder="handoff", cause="operator", hold_ms=None)
    store.hold_buffer("c0", holder="consumers", cause="a bot", hold_ms=60_000)
    with pytest.raises(TooManyHolds):
        store.hold_buffer("c1", holder="consumers", cause="a bot", hold_ms=60_000)


def test_no_conversation_has_the_name_under_which_a_mark_is_swept(engine: Engine) -> None:
    marked, alike = "default/generic/shop/ann", "handoff:default/generic/shop/ann"
    engine.store.hold_buffer(marked, holder="handoff", cause="answer", hold_ms=600_000)
    assert engine.send(alike, "m1", rules=RULES).due_at_ms == engine.clock.now_ms + RULES.silence_ms


def test_a_mark_that_has_ended_is_swept_a_minute_later_and_one_without_a_limit_is_not(engine: Engine) -> None:
    engine.store.hold_buffer("c", holder="handoff", cause="answer", hold_ms=1_000)
    engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=600_000)
    engine.store.hold_buffer("for ever", holder="handoff", cause="handoff", hold_ms=None)
    for ms, names in (
        (60_999, {b"handoff/c", b"people/c", b"handoff/for ever"}),
        (1, {b"people/c", b"handoff/for ever"}),
    ):
        engine.clock.advance(ms)
        engine.store.recover_expired(0)
        assert engine.keys()["{b0}:holds"].pairs.keys() == names
    engine.clock.advance(10 * 86_400_000)
    engine.store.recover_expired(0)
    assert engine.keys()["{b0}:holds"].pairs.keys() == {b"handoff/for ever"}
    assert engine.keys()["{b0}:held"].pairs.keys() == {b"handoff/for ever"}


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
        assert {name.split(b"/")[1] for name in (keys["{b0}:holds"].pairs if left else {})} == set(held)
    assert engine.keys().keys().isdisjoint({"{b0}:held", "{b0}:holds"})
