"""Edits, deletions and reactions change what waits, or go out as `messages.amended`."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from tests.support.ingest_scene import Scene, telegram

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.amended.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
CHAT = "default/telegram/shopbot/1111111"


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
    assert (event["conversationId"], event["tenant"], event["lane"]) == (CHAT, "default", "valkey")
    assert scene.engine.store.peek_conversation(CHAT).frozen == 1


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
