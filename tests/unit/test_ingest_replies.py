"""Platforms report replies of the business. Ingest notes when they were sent, if the stage wants that."""

from typing import Any

import pytest

from message_buffer.errors import StoreUnavailable
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from tests.support.engine import Engine
from tests.support.ingest_scene import CHAT as GENERIC_CHAT
from tests.support.ingest_scene import Scene, message, whatsapp
from tests.unit.test_ingest_human_replies import BOT, INBOX, RULES, messenger

CHAT = "default/whatsapp/555/491"
PAGE_CHAT = "default/messenger/682/7700"


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(fake, monkeypatch)
    scene.ingest._notes_replies = True
    scene.rules.write("stage", RULES)
    return scene


def status(scene: Scene, kind: str = "sent", *, after_ms: int = 0, user: str = "491", **fields: object) -> Json:
    at = scene.engine.clock() + after_ms
    return {"id": f"wamid.{kind}", "status": kind, "timestamp": str(at), "recipient_id": user, **fields}


def replied_at(scene: Scene, conversation: str) -> int | None:
    """Return the reply's time in the conversation's next batch."""
    scene.engine.send(conversation, "next")
    scene.engine.clock.advance(10_000)
    return take(scene.engine, conversation).replied_at_ms


def take(engine: Engine, conversation: str) -> BatchTaken:
    assert conversation in engine.claim()
    taken = engine.store.take_batch(conversation, f"t{engine.clock()}")
    assert isinstance(taken, BatchTaken)
    return taken


def had_a_batch(scene: Scene, conversation: str) -> int:
    """Emit a batch of the conversation. Return the time 1 s later."""
    scene.engine.send(conversation, "m1")
    scene.engine.clock.advance(10_000)
    taken = take(scene.engine, conversation)
    scene.engine.store.complete_batch(conversation, f"t{scene.engine.clock()}")
    assert taken.replied_at_ms is None
    return scene.engine.clock.advance(1_000)


def test_the_first_reply_that_whatsapp_has_sent_is_noted(scene: Scene) -> None:
    now_ms = had_a_batch(scene, CHAT)
    scene.engine.clock.advance(5_000)
    sent = (status(scene, after_ms=-1_000), status(scene, after_ms=-5_000), status(scene, "delivered", after_ms=-5_500))
    code, answer = scene.post("whatsapp", whatsapp(statuses=[*sent]))
    assert (code, answer["ignored"]) == (200, 3)
    assert scene.telemetry.counts["IgnoredKinds status"] == 3
    assert replied_at(scene, CHAT) == now_ms


@pytest.mark.parametrize(
    ("fields", "is_on"),
    [({"kind": "delivered"}, True), ({"recipient_type": "group"}, True), ({}, False)],
    ids=["only delivered", "to a group", "a stage that does not want it"],
)
def test_other_statuses_are_not_noted(scene: Scene, fields: dict[str, Any], is_on: bool) -> None:
    had_a_batch(scene, CHAT)
    scene.ingest._notes_replies = is_on
    assert scene.post("whatsapp", whatsapp(statuses=[status(scene, **fields)]))[0] == 200
    assert replied_at(scene, CHAT) is None


@pytest.mark.parametrize("app", [BOT, INBOX])
def test_messengers_echoes_are_noted_whoever_has_written(scene: Scene, app: str) -> None:
    now_ms = had_a_batch(scene, PAGE_CHAT)
    scene.post("messenger", messenger(scene, app))
    scene.engine.store.resume_buffer(PAGE_CHAT)
    assert replied_at(scene, PAGE_CHAT) == now_ms


def test_the_reply_is_noted_for_the_owner_of_the_account(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/555", {"tenant": "acme"})
    now_ms = had_a_batch(scene, "acme/whatsapp/555/491")
    scene.post("whatsapp", whatsapp(statuses=[status(scene)]))
    assert replied_at(scene, "acme/whatsapp/555/491") == now_ms


def test_replies_are_noted_for_the_steps_of_silence_of_conversations_with_the_rule(scene: Scene) -> None:
    scene.ingest._notes_replies = False
    scene.rules.write(f"conversation:{CHAT}", {"idleAfterMs": [60_000]})
    now_ms = had_a_batch(scene, CHAT)
    sent = [status(scene), status(scene, after_ms=-500), status(scene, after_ms=9_000), status(scene, user="492")]
    scene.post("whatsapp", whatsapp(statuses=sent))
    assert scene.takeovers.steps == [("reply", CHAT, at) for at in (now_ms - 500, now_ms, now_ms)]


def test_a_failure_to_note_a_reply_fails_no_webhook(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("note_reply: no connection")

    monkeypatch.setattr(scene.ingest._lane, "note_reply", fails)
    assert scene.post("whatsapp", whatsapp(statuses=[status(scene)]))[0] == 200
    said = scene.telemetry.said("replies not noted")
    assert said == [{"platform": "whatsapp", "reason": "note_reply: no connection"}]


def test_a_message_carries_the_steps_that_its_rules_have(scene: Scene) -> None:
    scene.rules.write("stage", {"idleAfterMs": [120_000, 60_000]})
    scene.post("generic", message("m1"))
    (stored,) = scene.buffered(GENERIC_CHAT)
    assert stored["idleAfterMs"] == [60_000, 120_000]
