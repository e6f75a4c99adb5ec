"""Ingest applies the rules in force, and loses no message if they are wrong or away."""

import json
from collections import Counter
from typing import Any

import pytest

from message_buffer.json_object import Json
from message_buffer.limits import MIN_MS_BETWEEN_RULES_CHECKS
from tests.support.engine import Engine
from tests.support.ingest_scene import CHAT, Scene, message, waits_ms

WORDS = {"stopWords": ["stop", "/stop"], "flushWords": ["go"]}


@pytest.fixture
def worded(scene: Scene) -> Scene:
    scene.rules.write("stage", WORDS)
    return scene


@pytest.mark.case(32)
def test_the_next_message_is_buffered_by_the_changed_rules(scene: Scene) -> None:
    scene.rules.write("stage", {"silenceMs": 8_000})
    scene.post("generic", message("m1"))
    scene.rules.write("stage", {"silenceMs": 20_000})
    scene.engine.clock.advance(500)
    assert waits_ms(scene, scene.post("generic", message("m2"))[1]) == 8_000
    scene.engine.clock.advance(MIN_MS_BETWEEN_RULES_CHECKS)
    assert waits_ms(scene, scene.post("generic", message("m3"))[1]) == 20_000
    scene.engine.clock.advance(15_000)
    since_first_ms = 500 + MIN_MS_BETWEEN_RULES_CHECKS + 15_000
    assert waits_ms(scene, scene.post("generic", message("m4"))[1]) == 30_000 - since_first_ms


@pytest.mark.parametrize(
    ("text", "script"), [("Hey", "buffer_message"), ("stop", "cancel_buffer"), ("go", "retime_buffer")]
)
def test_a_message_is_one_round_trip_to_valkey_and_an_order_two_whatever_the_rules(
    worded: Scene, text: str, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worded.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    worded.rules.write("conversation:acme/generic/shop/c1", {"silenceMs": 2_000})
    connection = worded.engine.store._connection
    calls: list[str] = []
    run = connection.run

    def counted(script: Any, *args: Any) -> Any:
        calls.append(script.name)
        return run(script, *args)

    monkeypatch.setattr(connection, "run", counted)
    for n in range(20):
        worded.engine.clock.advance(1_000)
        worded.post("generic", message(f"m{n}", text))
    assert Counter(calls) == {**({} if text == "Hey" else {"charge_changes": 20}), script: 20}


def test_the_agent_of_the_account_goes_with_every_message_and_event(worded: Scene) -> None:
    worded.rules.write("account:generic/shop", {"tenant": "acme", "agent": "sales"})
    owned = "acme/generic/shop/c1"
    worded.post("generic", message("m1"))
    worded.post("generic", message("m2") | {"agent": "support"})
    worded.post("generic", message("m1", "Hello") | {"edited": True})
    assert [(each["text"], each["agent"]) for each in worded.buffered(owned)] == [
        ("Hello", "sales"),
        ("Hey", "support"),
    ]
    worded.post("generic", message("m0", "Hello") | {"edited": True})
    reaction = {"account": "shop", "conversation": "c1", "id": "m0", "reaction": "👍"}
    worded.post("generic", reaction)
    worded.post("generic", message("m3", "stop"))
    events = [*worded.amended(), *worded.cancelled()]
    assert [(event.get("change"), event["agent"]) for event in events] == [
        ("edited", "sales"), ("reaction", "sales"), (None, "sales"),
    ]  # fmt: skip


QUEUES: Json = {"sales": {"agent": ["sales", "support"]}, "whatsapp": {"platform": ["whatsapp"]}, "default": {}}


def test_a_message_and_its_edit_have_the_queue_that_the_stage_or_a_rule_names(
    fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(fake, monkeypatch, queues=QUEUES)

    def queues() -> list[str | None]:
        return [each.get("queue") for each in scene.buffered(CHAT)]

    scene.post("generic", message("m1"))
    scene.post("generic", message("m2") | {"agent": "support"})
    assert queues() == ["default", "sales"]
    scene.rules.write("stage", {"queue": "whatsapp", "platformOverrides": {"telegram": {"queue": "sales"}}})
    scene.engine.clock.advance(MIN_MS_BETWEEN_RULES_CHECKS)
    scene.post("generic", message("m3"))
    scene.post("generic", message("m1", "Hello") | {"edited": True})
    assert queues() == ["whatsapp", "sales", "whatsapp"]
    scene.rules.write(f"conversation:{CHAT}", {"queue": None})
    scene.engine.clock.advance(MIN_MS_BETWEEN_RULES_CHECKS)
    scene.post("generic", message("m4"))
    assert queues()[-1] == "default"


def test_the_event_of_an_edit_after_the_emission_says_nothing_of_queues(
    fake: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(fake, monkeypatch, queues=QUEUES)
    scene.post("generic", message("m1", "Hello") | {"edited": True})
    (event,) = scene.amended()
    assert "queue" not in json.dumps(event)


def test_in_a_stage_without_queues_no_message_has_one(scene: Scene) -> None:
    scene.rules.write("stage", {"queue": "gone"})
    scene.post("generic", message("m1"))
    assert "queue" not in scene.buffered(CHAT)[0]
    assert scene.post("generic", message("m2") | {"queue": "vip"})[0] == 400
