"""The events, dead letters and messages in tests/fixtures/v1 can be read.

Until the first release the files are those that today's code writes. From then on they are only added to: each release
leaves what it wrote, because buses, queues and buckets keep it across a deployment.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lambdas.responder.batch import read_batch
from message_buffer.aws.object_store import ObjectStore
from message_buffer.errors import InvalidInput
from message_buffer.events import batch_ready as batch
from message_buffer.events.emission import Emission, TimeLeft
from message_buffer.messages.message import decode, encode
from tests.support.fakes import FakeBatchQueues, FakeBus, FakeObjects, FakeQueue, NoCounts, RecordedTelemetry
from tests.support.takeovers import FakeTakeovers

FIXTURES = Path(__file__).parents[1] / "fixtures" / "v1"
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.batch.ready.json").read_text("utf-8"))
CONTENT = ("messages", "text")


def read(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text("utf-8"))


class StoredBatches(ObjectStore):
    """The bucket, with the content of event.json as the object of a batch that was too large for an event."""

    def __init__(self) -> None:
        super().__init__("the-bucket")

    def get(self, key: str) -> bytes:
        assert key == read("event_by_reference.json")["messagesRef"]["key"]
        return json.dumps({name: read("event.json")[name] for name in CONTENT}).encode()


@pytest.mark.parametrize("name", ["event.json", "event_by_reference.json"])
def test_an_event_has_its_schema_and_is_read_by_the_responder(name: str) -> None:
    event = read(name)
    jsonschema.Draft202012Validator(SCHEMA).validate(event)
    found = read_batch(json.dumps({"detail-type": batch.DETAIL_TYPE, "detail": event}), StoredBatches())
    assert (found.batch_id, found.generation, found.lane) == (event["batchId"], event["generation"], "valkey")
    assert found.text == "Hey\nGrüße 👋"


@pytest.mark.parametrize("name", ["dead_letter.json", "dead_letter_by_reference.json"])
def test_a_dead_letter_is_redriven_and_makes_the_event_of_its_batch(name: str) -> None:
    letter, bus, objects = read(name), FakeBus(), FakeObjects()
    if reference := letter.get("payloadsRef"):
        objects.kept[reference["key"]] = (FIXTURES / "dead_letter_payloads.json").read_bytes()
    emission = Emission(
        bus,
        objects,
        FakeQueue(),
        RecordedTelemetry(),
        queues=FakeBatchQueues(),
        idle=FakeTakeovers(),
        gap_counts=NoCounts(),
        max_event_bytes=256_000,
        max_attempts=3,
    )
    assert emission.redrive(letter, TimeLeft(lambda: 20_000)) == letter["batchId"]
    ((_, detail),) = bus.published
    emitted = json.loads(detail)
    assert emitted == read("event.json") | {"attempt": 2, "bufferedAt": emitted["bufferedAt"]}


@pytest.mark.parametrize("change", [{"lane": "fast"}, {"generation": None, "lane": None}])
def test_what_is_no_dead_letter_is_not_redriven(change: dict[str, Any]) -> None:
    letter = read("dead_letter.json")
    with pytest.raises(InvalidInput):
        batch.taken_from_letter(letter | change, letter["payloads"])


def test_a_message_is_read_and_written_back_byte_for_byte() -> None:
    wire = (FIXTURES / "message.txt").read_bytes()
    message = decode(wire)
    assert (message.id, message.text) == ('wamid.HBgM"ü\n1', "Grüße 👋\nsecond line")
    assert encode(message) == wire
