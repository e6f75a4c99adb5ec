"""At its storage limit the cache takes no new message, lets all its messages go out, and loses none of them."""

from collections.abc import Iterator

import pytest

from message_buffer.errors import StoreOutOfMemory
from message_buffer.lanes.holds import Hold
from message_buffer.lanes.outcomes import (
    BatchCompleted,
    BatchRetried,
    BufferCancelled,
    Charged,
    ClaimReturned,
    HoldEnded,
    LeaseAcquired,
    LeaseReleased,
    MessageBuffered,
    MessageDeleted,
    Renewed,
    ShardRecovered,
)
from message_buffer.lanes.valkey.connection import connect
from message_buffer.limits import MIN_RETRY_MS
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings
from tests.support.emission import Bus, claim_and_take, ids_of, run_until_idle, take
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants
from tests.support.valkey_server import ValkeyServer

NOW = Rules(priority="vip")
ROOM = 3_000_000


@pytest.fixture
def tight(valkey: ValkeyServer) -> Iterator[Engine]:
    """Yield an engine as in production: scripts as they are, and keys with a time to live may be evicted."""
    admin = valkey.admin()
    admin.flushall()
    client = connect(ConnectionSettings(valkey.url))
    admin.config_set("maxmemory-policy", "volatile-lru")
    yield Engine(client, admin)
    admin.config_set("maxmemory", 0)
    admin.flushall()
    client.close()
    admin.close()


def limit_memory(engine: Engine, room: int) -> None:
    engine.admin.config_set("maxmemory", engine.admin.info("memory")["used_memory"] + room)


def fill(engine: Engine, *, rules: Rules = NOW) -> list[str]:
    """Send until no message is accepted any more; return the conversations whose message was accepted."""
    taken: list[str] = []
    big = b"x" * 50_000
    for n in range(1000):
        try:
            engine.store.buffer_message(f"c{n}", "m1", payload=b'"m1"\n' + big, timing=rules.timing)
        except StoreOutOfMemory:
            return taken
        taken.append(f"c{n}")
    raise AssertionError("the limit was never reached")


def exhaust(engine: Engine) -> None:
    """Use up the last byte: the server refuses whatever a script wants to grow."""
    engine.admin.config_set("maxmemory", 1)


def test_a_full_cache_refuses_the_message_and_keeps_no_half_of_it(tight: Engine) -> None:
    limit_memory(tight, ROOM)
    fill(tight)
    before = tight.settle()
    limit_memory(tight, 0)  # the server frees buffers of its own in between
    with pytest.raises(StoreOutOfMemory, match=r"buffer_message: .*storage limit"):
        tight.send("late", "m1", "x" * 50_000)
    assert tight.settle() == before
    assert_invariants(tight)


def test_a_full_cache_drains_and_takes_messages_again(tight: Engine) -> None:
    limit_memory(tight, ROOM)
    accepted, bus = fill(tight), Bus()
    run_until_idle(tight, bus)
    assert sorted(event.conversation for event in bus.events) == sorted(accepted)
    assert isinstance(tight.send("late", "m1"), MessageBuffered)


def test_memories_are_evicted_and_messages_are_not(tight: Engine) -> None:
    for n in range(300):
        tight.store.buffer_message(f"idle{n}", "m" * 10_000, payload=b'"m"\n{}', timing=NOW.timing)
    run_until_idle(tight, Bus())
    held_until_ms = tight.store.hold_buffer("idle0", holder="people", cause="operator", hold_ms=60_000).held_until_ms
    marked_until_ms = tight.store.hold_buffer("idle1", holder="handoff", cause="answer", hold_ms=60_000).held_until_ms
    limit_memory(tight, ROOM)
    accepted, bus = fill(tight), Bus()
    assert tight.admin.info("stats")["evicted_keys"] > 0
    assert tight.store.peek_conversation("idle0").held_until_ms == held_until_ms, "nor a hold"
    assert tight.store.peek_conversation("idle1").holds == (Hold("handoff", marked_until_ms, "answer"),), "nor a mark"
    assert_invariants(tight)
    run_until_idle(tight, bus)
    assert sorted(event.conversation for event in bus.events) == sorted(accepted)


def test_with_no_byte_left_a_batch_still_goes_its_whole_way(tight: Engine) -> None:
    for message_id in ("m1", "m2"):
        tight.send("c", message_id)
    tight.send("d", "m1")
    tight.clock.advance(3000)
    exhaust(tight)
    assert isinstance(tight.store.acquire_lease(0, tight.processor), LeaseAcquired)
    assert isinstance(tight.store.renew_lease(0, tight.processor), Renewed)
    assert tight.claim() == ["c", "d"] or tight.claim() == []
    assert isinstance(tight.store.return_claim("d", tight.processor, due_at_ms=tight.clock.now_ms), ClaimReturned)
    assert ids_of(take(tight, "c", "t1").payloads) == ["m1", "m2"]
    assert isinstance(tight.store.retry_batch("c", "t1", retry_at_ms=tight.clock.now_ms), BatchRetried)
    assert isinstance(tight.store.release_lease(0, tight.processor, reason="handover"), LeaseReleased)
    tight.processor = "lease-2"
    assert sorted(tight.claim()) == ["c", "d"]
    take(tight, "c", "t2")
    assert isinstance(tight.store.renew_token("c", "t2"), Renewed)
    # The token of the second attempt lasts longer.
    tight.clock.advance(SETTINGS.token_ms + MIN_RETRY_MS)
    recovered = tight.store.recover_expired(0)
    assert recovered.conversations == ["c"]
    tight.processor = "lease-3"
    assert tight.claim() == ["c", "d"], "the dead processor's claim and what has expired"
    again = take(tight, "c", "t3")
    assert (ids_of(again.payloads), again.attempt) == (["m1", "m2"], 3)
    assert isinstance(tight.store.complete_batch("c", "t3"), BatchCompleted)
    assert_invariants(tight)


def test_with_no_byte_left_a_batch_is_taken_with_its_mark_and_the_mark_can_be_ended(tight: Engine) -> None:
    tight.send("c", "m1")
    tight.store.hold_buffer("c", holder="handoff", cause="answer", hold_ms=60_000)
    tight.clock.advance(3000)
    exhaust(tight)
    tight.claim()
    assert take(tight, "c", "t1").handoff == Hold("handoff", tight.clock.now_ms + 57_000, "answer")
    assert isinstance(tight.store.resume_buffer("c", holder="handoff"), HoldEnded)
    assert take(tight, "c", "t1").handoff is None


def test_with_no_byte_left_stop_words_and_deletions_are_charged_and_carried_out(tight: Engine) -> None:
    for conversation in "cd":
        tight.send(conversation, "m1")
    exhaust(tight)
    charge = Charge((("generic/shop", Quota(1, 1)),))
    assert isinstance(tight.store.charge_changes("c", charge, items=2), Charged)
    assert isinstance(tight.store.cancel_buffer("c"), BufferCancelled)
    assert isinstance(tight.store.delete_message("d", "m1"), MessageDeleted)


def test_with_no_byte_left_a_batch_larger_than_the_limit_still_goes_in_parts(tight: Engine) -> None:
    bus = Bus()
    tight.store = tight.another_store(SETTINGS._replace(max_batch=2))
    for n in range(5):
        tight.send("c", f"m{n}")
    tight.clock.advance(3000)
    exhaust(tight)
    run_until_idle(tight, bus)
    assert bus.batches("c") == [["m0", "m1"], ["m2", "m3"], ["m4"]]


def test_with_no_byte_left_the_watchdog_still_starts_a_processor(tight: Engine) -> None:
    tight.send("c", "m1")
    tight.clock.advance(SETTINGS.start_ms)
    exhaust(tight)
    recovered = tight.store.recover_expired(0)
    assert isinstance(recovered, ShardRecovered)
    assert recovered.start_id


def test_with_no_byte_left_a_repeated_completion_still_answers(tight: Engine) -> None:
    store = tight.another_store(new_call_id=lambda: "this call")
    tight.send("c", "m1", rules=NOW)
    claim_and_take(tight, "c", "t1")
    tight.send("c", "m2")
    tight.store.release_lease(0, tight.processor, reason="handover")
    tight.clock.advance(SETTINGS.start_ms)
    exhaust(tight)
    first = store.complete_batch("c", "t1")
    assert isinstance(first, BatchCompleted)
    assert first.start_id
    assert store.complete_batch("c", "t1") == first


@pytest.mark.parametrize("act", ["flush", "retime", "cancel", "resume", "delete"])
def test_with_no_byte_left_what_empties_the_buffer_works(tight: Engine, act: str) -> None:
    tight.send("c", "m1")
    tight.store.hold_buffer("h", holder="people", cause="operator", hold_ms=60_000)
    tight.send("h", "m1")
    exhaust(tight)
    match act:
        case "flush":
            tight.store.flush_buffer("c")
            assert tight.claim() == ["c"]
        case "retime":
            tight.store.retime_buffer("c", timing=NOW.timing)
            assert tight.claim() == ["c"]
        case "cancel":
            assert tight.cancel("c").buffered == 1
        case "resume":
            tight.store.resume_buffer("h")
            assert tight.claim() == ["h"]
        case _:
            tight.store.delete_message("c", "m1")
            assert tight.store.peek_conversation("c").count == 0
