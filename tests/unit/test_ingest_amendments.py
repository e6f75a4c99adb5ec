"""Edits, deletions and reactions change what waits, or go out as `messages.amended`."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.lanes.circuit_breaker import MIN_BREAKER_PAUSE_MS
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.outcomes import BatchTaken
from tests.support.engine import Engine
from tests.support.fakes import valkey_lane
from tests.support.ingest_scene import Scene, telegram
from tests.support.two_lanes import TwoLanes
from tests.support.window import make_message_table

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.amended.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
CHAT = "default/telegram/shopbot/1111111"


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


def instagram(**event: Any) -> Json:
    whole = {"sender": {"id": "ada"}, "recipient": {"id": "shop"}, "timestamp": 1700000000000} | event
    return {"object": "instagram", "entry": [{"id": "shop", "time": 1, "messaging": [whole]}]}


def emit(scene: Scene, conversation: str) -> BatchTaken:
    """Take the batch that waits and leave it frozen."""
    scene.engine.clock.advance(60_000)
    store = scene.engine.store
    store.acquire_lease(0, "lease")
    store.claim_due(0, "lease")
    taken = store.take_batch(conversation, "token")
    assert isinstance(taken, BatchTaken)
    return taken


def test_an_edit_of_what_waits_changes_it_in_its_place(scene: Scene) -> None:
    scene.post("telegram", telegram("Order 1", message_id=1))
    scene.post("telegram", telegram("please", message_id=2))
    due_at_ms = scene.engine.store.peek_conversation(CHAT).due_at_ms
    for _ in range(2):
        assert scene.post("telegram", telegram("Order 2", message_id=1, edited=True))[0] == 200
    first, second = scene.buffered(CHAT)
    assert (first["text"], first["editedAt"], second["text"]) == ("Order 2", 1_700_000_100_000, "please")
    assert scene.engine.store.peek_conversation(CHAT).due_at_ms == due_at_ms
    assert scene.amended() == []


@pytest.mark.parametrize("field", ["mid", "emoji"])
def test_no_event_of_a_change_is_larger_than_the_bus_accepts(scene: Scene, field: str) -> None:
    reaction = {"mid": "m1", "action": "react", "emoji": "👍"}
    assert scene.post("instagram", instagram(reaction=reaction | {field: "x" * 1_024}))[0] == 200
    status, answer = scene.post("instagram", instagram(reaction=reaction | {field: "x" * 300_000}))
    assert (status, answer["ignored"], len(scene.amended())) == (200, 1, 1)


def test_an_edit_of_what_is_being_emitted_goes_out_with_its_batch(scene: Scene) -> None:
    scene.post("telegram", telegram("Order 1"))
    taken = emit(scene, CHAT)
    assert scene.post("telegram", telegram("Order 2", edited=True))[0] == 200
    (event,) = scene.amended()
    VALIDATOR.validate(event)
    assert (event["change"], event["batchId"], event["messageId"]) == ("edited", taken.batch_id, "1")
    assert (event["message"]["text"], event["author"], event["at"]) == ("Order 2", "1111111", 1_700_000_100_000)
    assert (event["conversationId"], event["tenant"]) == (CHAT, "default")
    assert scene.engine.store.peek_conversation(CHAT).frozen == 1


def test_an_edit_of_what_was_emitted_goes_out_again_with_each_delivery(scene: Scene) -> None:
    scene.post("telegram", telegram("Order 1"))
    emit(scene, CHAT)
    scene.engine.store.complete_batch(CHAT, "token")
    for _ in range(2):
        assert scene.post("telegram", telegram("Order 2", edited=True))[0] == 200
    first, again = scene.amended()
    assert first == again
    assert scene.buffered(CHAT) == []


def test_an_unsent_message_leaves_its_buffer_and_no_redelivery_brings_it_back(scene: Scene) -> None:
    conversation = "default/instagram/shop/ada"
    scene.post("instagram", instagram(message={"mid": "a", "text": "secret"}))
    assert scene.post("instagram", instagram(message={"mid": "a", "is_deleted": True}))[0] == 200
    assert scene.buffered(conversation) == []
    assert scene.amended() == []
    assert scene.post("instagram", instagram(message={"mid": "a", "text": "secret"}))[1]["duplicates"] == 1
    assert scene.buffered(conversation) == []


def test_a_deletion_after_emission_goes_out(scene: Scene) -> None:
    conversation = "default/instagram/shop/ada"
    scene.post("instagram", instagram(message={"mid": "a", "text": "secret"}))
    taken = emit(scene, conversation)
    scene.post("instagram", instagram(message={"mid": "a", "is_deleted": True}))
    (event,) = scene.amended()
    VALIDATOR.validate(event)
    assert (event["change"], event["batchId"], event["message"]) == ("deleted", taken.batch_id, None)


@pytest.mark.parametrize(
    ("reaction", "emoji"), [({"action": "react", "emoji": "❤"}, "❤"), ({"action": "unreact"}, None)]
)
def test_a_reaction_always_goes_out_and_changes_no_buffer(scene: Scene, reaction: Json, emoji: str | None) -> None:
    scene.post("instagram", instagram(message={"mid": "a", "text": "Hey"}))
    before = scene.engine.keys()
    assert scene.post("instagram", instagram(reaction={"mid": "a", **reaction}))[0] == 200
    (event,) = scene.amended()
    VALIDATOR.validate(event)
    assert (event["change"], event["messageId"], event["emoji"], event["batchId"]) == ("reaction", "a", emoji, None)
    assert scene.engine.keys().keys() == before.keys()


def test_a_change_that_stands_before_its_message_in_one_body_is_made_after_it(scene: Scene) -> None:
    body = instagram(message_edit={"mid": "a", "text": "right"})
    body["entry"] += instagram(message={"mid": "a", "text": "wrong"})["entry"]
    assert scene.post("instagram", body)[0] == 200
    assert [each["text"] for each in scene.buffered("default/instagram/shop/ada")] == ["right"]


def test_a_change_that_could_not_be_told_is_asked_for_again(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: Throttling")]
    body = instagram(reaction={"mid": "a", "action": "react", "emoji": "❤"})
    assert scene.post("instagram", body)[0] == 503
    assert scene.post("instagram", body)[0] == 200
    assert len(scene.amended()) == 1


def leave_window(lanes: TwoLanes) -> str:
    """Let the DynamoDB lane emit what it holds; its batch id."""
    lanes.scene.pass_time(60_000)
    batch_id: str = lanes.scene.events()[-1]["batchId"]
    return batch_id


@pytest.mark.parametrize(
    ("which", "lane_of_known", "lanes_of_unknown"),
    [
        ("valkey", "valkey", ["valkey"]),
        ("dynamodb", "dynamodb", ["dynamodb"]),
        # The message may wait in Valkey, so the platform is to send its edit again.
        ("fallback in an outage", "dynamodb", []),
        ("fallback after an outage", "dynamodb", ["valkey"]),
    ],
)
def test_an_amendment_names_the_lane_that_answered_for_its_message(
    database: Any, monkeypatch: pytest.MonkeyPatch, which: str, lane_of_known: str, lanes_of_unknown: list[str]
) -> None:
    make_message_table(database)
    lanes = TwoLanes()
    alone: dict[str, Lane] = {"valkey": valkey_lane(lanes.engine.store), "dynamodb": lanes.scene.lane}
    scene = Scene(lanes.engine, monkeypatch, lane=alone.get(which, lanes.ingesters[0]))
    if which not in alone:
        lanes.cut("ingest", "swallowed")
    scene.post("telegram", telegram("Order 1"))
    batch_id = emit(scene, CHAT).batch_id if which == "valkey" else leave_window(lanes)
    if which == "fallback after an outage":
        lanes.mend("ingest")
        lanes.clock.advance(MIN_BREAKER_PAUSE_MS)
    assert scene.post("telegram", telegram("Order 2", edited=True))[0] == 200
    scene.post("telegram", telegram("Order 3", message_id=9, edited=True))
    known, *unknown = scene.amended()
    assert (known["batchId"], known["lane"]) == (batch_id, lane_of_known)
    assert [(each["batchId"], each["lane"]) for each in unknown] == [(None, lane) for lane in lanes_of_unknown]
