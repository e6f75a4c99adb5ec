"""Today's code reads the data of version 1: buffers, batches, events and dead letters outlive a deploy.

The files under tests/fixtures/v1 are never edited, only added to: they stand for data in the caches, queues and buckets
of stages in use. A change that needs another file there to pass cannot be deployed over running conversations.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from message_buffer.errors import InvalidInput
from message_buffer.events import batch_ready as batch
from message_buffer.events.emission import Emission, EmissionDestinations, Limits, TimeLeft
from message_buffer.lanes.outcomes import (
    Acquired,
    Buffered,
    Completed,
    Deleted,
    Duplicate,
    Edited,
    Flushed,
    LeaseTaken,
    Renewed,
    Resumed,
    Retried,
    Taken,
)
from message_buffer.messages.message import decode, encode
from message_buffer.messages.wire_form import decode_fields
from message_buffer.rules.layers import Rules
from responder.batch import read_batch
from tests.support.emission import Bus, run_until_idle
from tests.support.engine import Engine, payload
from tests.support.fakes import FakeBus, FakeObjects, FakeQueue, RecordedTelemetry
from tests.support.invariants import assert_invariants

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v1"
SCHEMA = Path(__file__).parents[2] / "docs/schema/messages.batch.ready.json"
CUSTOMER = "default/whatsapp/4930123456/"
WAITING, HELD, CLAIMED, FROZEN, RETRYING = (
    CUSTOMER + state for state in ("waiting", "held", "claimed", "frozen", "retrying")
)
FROZEN_BATCH, RETRYING_BATCH = "406dbf1a98aabdf256e19fab-1700000000000-1", "c343fb9aeb6d12800ab4e2e0-1700000000000-1"


def read(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text())


@pytest.fixture
def shard(engine: Engine) -> Engine:
    """Return a shard as version 1 left it: its processor sleeps, one conversation processor is at work."""
    state = read("shard.json")
    for name, key in state["keys"].items():
        value = key["value"]
        match key["type"]:
            case "hash":
                engine.admin.hset(name, mapping=value)
            case "zset":
                engine.admin.zadd(name, value)
            case "list":
                engine.admin.rpush(name, *value)
    engine.clock.now_ms = state["now_ms"]
    return engine


# -- the shard -------------------------------------------------------------------------------------


def test_everything_comes_out_once_and_in_order_under_the_ids_it_had(shard: Engine) -> None:
    bus = Bus()
    run_until_idle(shard, bus)
    assert bus.batches(WAITING) == [["wamid.w1", "wamid.w2"]]
    assert bus.batches(HELD) == [["wamid.h1"]]
    assert bus.batches(CLAIMED) == [["wamid.c1"]]
    assert bus.batches(FROZEN) == [["wamid.f1"], ["wamid.f2"]]
    assert bus.batches(RETRYING) == [["wamid.r1"]]
    batch_ids = {event.batch_id: event.attempt for event in bus.events}
    assert (batch_ids[FROZEN_BATCH], batch_ids[RETRYING_BATCH]) == (2, 2)
    assert_invariants(shard)


def test_a_message_joins_the_buffer_that_was_open_and_a_redelivery_is_known(shard: Engine) -> None:
    assert shard.store.buffer_message(
        WAITING, "wamid.w2", payload=payload("wamid.w2"), timing=Rules().timing
    ) == Duplicate(due_at_ms=1_700_000_003_300, count=2, start_id=None)
    joined = shard.send(WAITING, "wamid.w3", rules=Rules(adaptive=True))
    assert isinstance(joined, Buffered)
    assert (joined.count, joined.start_id) == (3, None)
    assert shard.store.peek_conversation(WAITING).generation == 3
    assert_invariants(shard)


def test_a_conversation_processor_of_version_1_completes_or_retries_what_it_took(shard: Engine) -> None:
    assert isinstance(shard.store.complete_batch(FROZEN, "token-of-frozen"), Completed)
    peeked = shard.store.peek_conversation(FROZEN)
    assert (peeked.state, peeked.count, peeked.batch_id) == ("PENDING", 1, None)
    retried = shard.store.retry_batch(RETRYING, "token-of-retrying", retry_at_ms=shard.clock.now_ms + 7)
    assert retried == Retried(shard.clock.now_ms + 7, start_id=None)
    assert_invariants(shard)


def test_what_version_1_claimed_is_taken_by_todays_conversation_processor(shard: Engine) -> None:
    taken = shard.store.take_batch(CLAIMED, "token-of-today")
    assert isinstance(taken, Taken)
    assert (taken.attempt, taken.generation, taken.flush_reason) == (1, 1, "priority")
    assert decode(taken.payloads[0]).text == "taken soon"
    assert isinstance(shard.store.complete_batch(CLAIMED, "token-of-today"), Completed)


def test_the_lease_of_version_1_holds_until_it_runs_out(shard: Engine) -> None:
    assert isinstance(shard.store.renew_lease(0, "lease-1"), Renewed)
    assert isinstance(shard.store.acquire_lease(0, "today"), LeaseTaken)
    shard.clock.advance(shard.store.settings.lease_ms)
    assert isinstance(shard.store.acquire_lease(0, "today"), Acquired)


def test_buffers_of_version_1_obey_todays_controls(shard: Engine) -> None:
    assert isinstance(shard.store.edit_message(WAITING, "wamid.w1", payload=payload("wamid.w1", "new")), Edited)
    assert isinstance(shard.store.delete_message(WAITING, "wamid.w2"), Deleted)
    assert isinstance(shard.store.flush_buffer(WAITING), Flushed)
    assert isinstance(shard.store.resume_buffer(HELD), Resumed)
    assert shard.cancel(FROZEN).leaving
    assert_invariants(shard)


# -- messages --------------------------------------------------------------------------------------


def test_a_message_of_version_1_is_read_and_written_back_byte_for_byte() -> None:
    wire = (FIXTURES / "message.txt").read_bytes()
    message = decode(wire)
    assert (message.id, message.text) == ('wamid.HBgM"ü\n1', "Grüße 👋\nsecond line")
    assert encode(message) == wire


def test_what_this_version_does_not_know_of_a_message_survives(shard: Engine) -> None:
    wire = (FIXTURES / "message.txt").read_bytes()
    assert decode_fields(wire)["mood"] == {"new": [1, None]}
    later = wire.replace(b'{"v":1,', b'{"v":2,"later":{"a":1},')
    assert batch.content_of([later]).messages[0] == batch.content_of([wire]).messages[0] | {"later": {"a": 1}}
    last = shard.store.peek_conversation(WAITING, limit=9).payloads[-1]
    assert batch.content_of([last]).messages[0]["mood"] == {"new": True}


# -- events and dead letters -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["event.json", "event_by_reference.json"])
def test_an_event_of_version_1_is_still_answered_by_the_responder(name: str) -> None:
    old, objects = read(name), StoredBatches()
    found = read_batch(json.dumps({"detail-type": "messages.batch.ready", "detail": old}), objects)
    assert (found.batch_id, found.generation, found.lane) == (old["batchId"], old["generation"], "valkey")
    assert found.text == "Hey\nGrüße 👋"


class StoredBatches:
    """The bucket, with the content of event.json as the object of a batch that was too large for an event."""

    bucket = "the-bucket"

    def get(self, key: str) -> bytes:
        assert key.startswith("batches/")
        return json.dumps({name: read("event.json")[name] for name in ("messages", "text")}).encode()


def taken_of(event: Any) -> Taken:
    times = event["metadata"]
    payloads = [
        b"%s\n%s" % (json.dumps(each["id"]).encode(), batch.to_json({"v": 1, **each})) for each in event["messages"]
    ]
    return Taken(
        event["batchId"], event["attempt"], event["generation"], times["firstMessageAt"], times["lastMessageAt"],
        times["firstMessageAt"] + times["waitMs"], event["flushReason"], payloads,
    )  # fmt: skip


def test_a_batch_of_version_1_comes_out_as_version_2_with_nothing_else_changed() -> None:
    old = read("event.json")
    taken = taken_of(old)
    content = batch.content_of(taken.payloads)
    new = batch.event_of(old["conversationId"], taken, content, emitted_at_ms=1_700_000_005_000)
    day_ms, (first, second) = 86_400_000, old["messages"]
    changed = {
        "version": 2,
        "lane": "valkey",
        "bufferedAt": 1_700_000_005_000,
        "replyUntil": second["sentAt"] + day_ms,
        "messages": [
            {name: value for name, value in first.items() if value is not None}
            | {"timestamp": "2023-11-14T22:13:21.000Z"},
            {name: value for name, value in second.items() if value is not None}
            | {"timestamp": "2023-11-14T22:13:21.300Z"},
        ],
    }
    assert new == old | changed
    reference = read("event_by_reference.json")["messagesRef"]
    referring = batch.event_by_reference(
        old["conversationId"], taken, content, emitted_at_ms=1_700_000_005_000, reference=reference
    )
    assert referring == new | {"messages": [], "text": None, "messagesRef": reference}


def grown_from(old: Any, new: Any) -> bool:
    """Return whether everything of the old value is unchanged in the new one; objects may have more fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(name in new and grown_from(value, new[name]) for name, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(grown_from, old, new))
    return bool(old == new)


@pytest.mark.parametrize("name", ["dead_letter.json", "dead_letter_by_reference.json"])
def test_a_dead_letter_of_version_1_is_redriven_under_its_batch_id(name: str) -> None:
    letter, bus, objects, telemetry = read(name), FakeBus(), FakeObjects(), RecordedTelemetry()
    if reference := letter.get("payloadsRef"):
        objects.kept[reference["key"]] = (FIXTURES / "dead_letter_payloads.json").read_bytes()
    emission = Emission(EmissionDestinations(bus, objects, FakeQueue()), telemetry, Limits(262_144, 3))
    assert emission.redrive(letter, TimeLeft(lambda: 20_000)) == letter["batchId"]
    ((_, detail),) = bus.published
    event = json.loads(detail)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(event)
    assert (event["batchId"], event["attempt"], event["text"]) == (letter["batchId"], 2, "Hey\nGrüße 👋")
    assert [message["mood"] for message in event["messages"]] == [{"new": True}] * 2
    assert (event["version"], event["lane"]) == (2, "valkey")


@pytest.mark.parametrize(("name", "lane"), [("debounce", "valkey"), ("window", "dynamodb")])
def test_a_dead_letter_with_a_lanes_old_name_comes_out_under_its_name(name: str, lane: str) -> None:
    bus = FakeBus()
    emission = Emission(EmissionDestinations(bus, FakeObjects(), FakeQueue()), RecordedTelemetry(), Limits(262_144, 3))
    emission.redrive(read("dead_letter.json") | {"lane": name}, TimeLeft(lambda: 20_000))
    assert json.loads(bus.published[0][1])["lane"] == lane


def test_a_dead_letter_of_an_unknown_lane_is_not_redriven() -> None:
    letter = read("dead_letter.json")
    with pytest.raises(InvalidInput, match="this is not the body of a dead letter"):
        batch.taken_from_letter(letter | {"lane": "fast"}, letter["payloads"])


def test_todays_dead_letter_has_all_that_version_1_reads_back() -> None:
    old = read("dead_letter.json")
    conversation, taken = batch.taken_from_letter(old, old["payloads"])
    new = batch.letter_of(conversation, taken, reason=old["reason"]) | {"payloads": batch.letter_payloads(taken)}
    assert grown_from(old | {"attempt": old["attempt"] + 1}, new)
