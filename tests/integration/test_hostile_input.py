"""Ids and payloads that no platform should send: a clear error or correct behaviour, no wrong slot, no loss."""

import pytest

from message_buffer.errors import InvalidId
from message_buffer.lanes.outcomes import (
    MessageAbsent,
    MessageBuffered,
    MessageDeleted,
    MessageDuplicate,
    MessageEdited,
)
from message_buffer.messages.conversation_id import MAX_CONVERSATION_ID_BYTES
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import Bus, claim_and_take, ids_of, run_until_idle
from tests.support.engine import SETTINGS, Engine, payload
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import same

TIMING = Rules().timing

IDS = {
    "spaces": " a  b ",
    "braces": "{a}{b}",
    "an open brace": "{",
    "empty braces": "{}",
    "another shard's tag": "{b0}",
    "another shard's key": "{b1}:pending",
    "its own key": "{b0}:msgs:c",
    "closing first": "}{",
    "a line end": "a\nb",
    "CR LF": "a\r\nb\r\n",
    "NUL": "a\x00b",
    "only NUL": "\x00",
    "emoji": "👩‍👩‍👧‍👦",
    "right to left": "\u202eabc",
    "quotes": "\"'`\\",
    "Lua": "]]..redis.call('FLUSHALL')..[[",
    "glob": "*?[a-z]",
    "a number": "1e309",
    "minus infinity": "-inf",
    "the longest": "é" * (MAX_CONVERSATION_ID_BYTES // 2),
    "colons": "::",
    "RESP": "$3\r\nfoo\r\n",
}

hostile = pytest.mark.parametrize("name", IDS.values(), ids=IDS.keys())


@hostile
def test_a_hostile_conversation_id_goes_through_a_whole_life(engine: Engine, name: str) -> None:
    bus = Bus()
    engine.send("neighbour", "m1")
    for message_id in ("m1", "m2", "m3", "m4"):
        assert isinstance(engine.send(name, message_id), MessageBuffered)
    assert isinstance(engine.send(name, "m1"), MessageDuplicate)
    assert same(engine.store.edit_message(name, "m2", payload=payload("m2", "new")), MessageEdited(is_newest=False))
    assert same(engine.store.delete_message(name, "m3"), MessageDeleted())
    engine.store.extend_wait(name, extend_ms=5000, max_wait_ms=30_000)
    engine.store.hold_buffer(name, holder="people", cause="operator", hold_ms=10_000)
    engine.store.resume_buffer(name)
    engine.store.flush_buffer(name)
    assert_invariants(engine)
    taken = claim_and_take(engine, name, "t1")
    assert ids_of(taken.payloads) == ["m1", "m2", "m4"]
    engine.store.retry_batch(name, "t1", retry_at_ms=engine.clock.now_ms)
    run_until_idle(engine, bus)
    assert (bus.ids(name), bus.ids("neighbour")) == (["m1", "m2", "m4"], ["m1"])
    assert engine.cancel(name).buffered == 0
    assert_nothing_left_behind(engine)


@hostile
def test_a_hostile_message_id_is_one_message(engine: Engine, name: str) -> None:
    engine.send("c", "m1")
    assert isinstance(engine.send("c", name), MessageBuffered)
    assert isinstance(engine.send("c", name), MessageDuplicate)
    assert same(engine.store.edit_message("c", name, payload=payload(name, "new")), MessageEdited(is_newest=True))
    assert same(
        engine.store.edit_message("c", name + "x", payload=payload(name, "new")),
        MessageAbsent(known=False, batch_id=None),
    )
    engine.clock.advance(3000)
    assert ids_of(claim_and_take(engine, "c").payloads) == ["m1", name]


@pytest.mark.parametrize("name", ["", "a" * 1025, "é" * 513, "a" * 4096])
def test_a_conversation_id_of_no_or_too_many_bytes_is_refused_before_anything_is_sent(
    engine: Engine, name: str
) -> None:
    with pytest.raises(InvalidId, match="1 to 1024 bytes"):
        engine.store.buffer_message(name, "m1", payload=b"x", timing=TIMING)
    assert engine.keys() == {}


LONE = ["\ud800", "a\udfffb", "\udc80"]


@pytest.mark.parametrize("lone", LONE)
def test_a_lone_surrogate_is_refused_before_anything_is_sent(engine: Engine, lone: str) -> None:
    with pytest.raises(InvalidId, match="lone surrogate"):
        engine.store.buffer_message(lone, "m1", payload=b"x", timing=TIMING)
    with pytest.raises(InvalidId, match="lone surrogate"):
        engine.store.buffer_message("c", lone, payload=b"x", timing=TIMING)
    with pytest.raises(InvalidId, match="lone surrogate"):
        engine.store.delete_message("c", lone)
    assert engine.keys() == {}


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"\n", bytes(range(256)), b"\xff\xfe", b"-1", b"false", b"{b0}"], ids=repr
)
def test_a_payload_is_opaque(engine: Engine, content: bytes) -> None:
    engine.store.buffer_message("c", "m1", payload=content, timing=TIMING)
    engine.store.buffer_message("c", "m2", payload=content, timing=TIMING)
    engine.clock.advance(3000)
    assert claim_and_take(engine, "c").payloads == [content, content]


def test_a_payload_of_one_megabyte_comes_out_as_it_went_in(engine: Engine) -> None:
    content = bytes(n * n % 251 for n in range(1000)) * 1049
    engine.store.buffer_message("c", "m1", payload=content, timing=TIMING)
    engine.clock.advance(1000)
    assert claim_and_take(engine, "c").payloads == [content]


@pytest.mark.parametrize(("sent", "sizes"), [(4, [2, 2]), (5, [2, 2, 1]), (2, [2]), (1, [1])])
def test_leftovers_are_due_at_once_under_an_id_and_a_generation_of_their_own(
    engine: Engine, sent: int, sizes: list[int]
) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch=2))
    for n in range(sent):
        engine.send("c", f"m{n}")
    engine.clock.advance(3000)
    seen = []
    for n, size in enumerate(sizes):
        taken = claim_and_take(engine, "c", f"t{n}")
        assert taken == engine.store.take_batch("c", f"t{n}"), "a repeat gives the same part"
        assert len(taken.payloads) == size
        seen.append(taken)
        assert_invariants(engine)
        engine.store.complete_batch("c", f"t{n}")
    assert [message_id for taken in seen for message_id in ids_of(taken.payloads)] == [f"m{n}" for n in range(sent)]
    assert len({taken.batch_id for taken in seen}) == len(sizes)
    assert sorted({taken.generation for taken in seen}) == [taken.generation for taken in seen]
    assert engine.claim() == []
