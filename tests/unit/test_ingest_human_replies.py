"""A human agent answers: the conversation is on hold, and only a person's own words do that."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lambdas.ingest.human_replies import MAX_CONVERSATIONS_TAKEN_OVER_IN_A_WEBHOOK
from lambdas.ingest.service import MAX_WORK_MS_IN_A_WEBHOOK
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.lanes.holds import Hold
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.limits import HOUR_MS, MINUTE_MS
from message_buffer.rules.queues import HANDOFF
from tests.support.engine import Engine
from tests.support.ingest_scene import Scene
from tests.support.ingest_scene import whatsapp as of_whatsapp
from tests.support.platforms import one_message

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.conversation.taken_over.json").read_text())
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
CHAT = "default/whatsapp/555/491"
PAGE_CHAT = "default/messenger/682/7700"
WORDS = "Hello, this is Eva."
INBOX, BOT = "263902037430900", "1517776481860111"
HOLD_MS = 12 * HOUR_MS
RULES: Json = {"onHumanReply": {"hold": "12h"}, "inboxApps": [INBOX]}


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(fake, monkeypatch)
    scene.rules.write("stage", RULES)
    return scene


def echo(scene: Scene, message_id: str = "wamid.9", *, ago_ms: int = 0, **fields: object) -> Json:
    at_ms = scene.engine.clock.now_ms - ago_ms
    return {
        "from": "15558675310", "to": "491", "id": message_id, "timestamp": at_ms, "type": "text",
        "text": {"body": WORDS},
    } | fields  # fmt: skip


def whatsapp(*echoes: Json) -> Json:
    return of_whatsapp(field="smb_message_echoes", message_echoes=list(echoes))


def messenger(scene: Scene, app: str | None = INBOX, message_id: str = "m_9", platform: str = "messenger") -> Json:
    message = {"is_echo": True, "mid": message_id, "text": WORDS} | ({"app_id": int(app)} if app else {})
    account = {"messenger": "682", "instagram": "178"}[platform]
    event = {
        "sender": {"id": account}, "recipient": {"id": "7700"}, "timestamp": scene.engine.clock.now_ms,
        "message": message,
    }  # fmt: skip
    name = {"messenger": "page", "instagram": "instagram"}[platform]
    return {"object": name, "entry": [{"id": account, "messaging": [event]}]}


def telegram(scene: Scene, **fields: object) -> Json:
    message = {
        "message_id": 9, "date": scene.engine.clock.now_ms // 1_000, "chat": {"id": 1111, "type": "private"},
        "from": {"id": 42, "is_bot": False, "first_name": "Eva"}, "business_connection_id": "B1", "text": WORDS,
    }  # fmt: skip
    return {"update_id": 9, "business_message": message | fields}


def held_until(scene: Scene, conversation: str = CHAT) -> int | None:
    return scene.engine.store.peek_conversation(conversation).held_until_ms


# -- who holds -------------------------------------------------------------------------------------


def test_a_persons_reply_holds_the_conversation_and_is_no_message(scene: Scene) -> None:
    assert scene.post("whatsapp", one_message("whatsapp", "555", "Anyone there?"))[0] == 200
    customer = next(name for name in iter(scene.engine.keys()) if "msgs:" in name).partition("msgs:")[2]
    to = customer.rpartition("/")[2]
    status, answer = scene.post("whatsapp", whatsapp(echo(scene, to=to)))
    now_ms = scene.engine.clock.now_ms
    assert (status, answer["accepted"], answer["ignored"]) == (200, 0, 1)
    assert held_until(scene, customer) == now_ms + HOLD_MS
    assert len(scene.buffered(customer)) == 1
    (event,) = scene.taken_over()
    VALIDATOR.validate(event)
    assert event == {
        "version": 1, "conversationId": customer, "tenant": "default", "messageId": "wamid.9", "at": now_ms,
        "until": now_ms + HOLD_MS, "metadata": {"platform": "whatsapp"},
    }  # fmt: skip
    assert scene.telemetry.said("taken over")[0]["conversations"] == [customer]
    assert scene.telemetry.counts["IgnoredKinds echo"] == 1


def test_a_persons_words_are_nowhere(scene: Scene) -> None:
    scene.post("whatsapp", whatsapp(echo(scene)))
    kept = [scene.bus.published, scene.engine.keys(), scene.takeovers.states, vars(scene.telemetry)]
    assert "Eva" not in repr(kept)


def test_the_owner_and_the_agent_of_the_account_are_told(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/555", {"tenant": "acme", "agent": "support"})
    scene.rules.write("agent:acme/support", {"onHumanReply": {"hold": "30m"}})
    scene.post("whatsapp", whatsapp(echo(scene)))
    (event,) = scene.taken_over()
    VALIDATOR.validate(event)
    assert (event["conversationId"], event["tenant"], event["agent"]) == ("acme/whatsapp/555/491", "acme", "support")
    assert held_until(scene, "acme/whatsapp/555/491") == scene.engine.clock.now_ms + 30 * MINUTE_MS


def test_without_the_rule_nothing_is_held_and_the_table_is_not_asked(scene: Scene) -> None:
    scene.rules.write("stage", {"inboxApps": [INBOX]})
    assert scene.post("whatsapp", whatsapp(echo(scene)))[0] == 200
    assert scene.post("messenger", messenger(scene))[0] == 200
    assert scene.post("telegram", telegram(scene))[0] == 200
    assert (scene.takeovers.calls, scene.taken_over(), scene.is_empty()) == ([], [], True)


@pytest.mark.parametrize(
    ("app", "rules", "holds"),
    [
        (INBOX, RULES, True),
        (BOT, RULES, False),
        (None, RULES, False),
        (INBOX, {"onHumanReply": {"hold": "12h"}}, False),
    ],
)
@pytest.mark.parametrize("platform", ["messenger", "instagram"])
def test_only_an_app_that_the_rules_name_as_an_inbox_holds(
    scene: Scene, platform: str, app: str | None, rules: Json, holds: bool
) -> None:
    scene.rules.write("stage", rules)
    scene.post(platform, messenger(scene, app, platform=platform))
    conversation = {"messenger": PAGE_CHAT, "instagram": "default/instagram/178/7700"}[platform]
    assert (held_until(scene, conversation) is not None) == holds
    assert len(scene.taken_over()) == holds


# -- again, late, in between -----------------------------------------------------------------------


def test_a_redelivery_changes_nothing_and_is_published_once(scene: Scene) -> None:
    body = whatsapp(echo(scene))
    for _ in range(3):
        assert scene.post("whatsapp", body)[0] == 200
        scene.engine.clock.advance(MINUTE_MS)
    assert held_until(scene) == scene.engine.clock.now_ms - 3 * MINUTE_MS + HOLD_MS
    assert (len(scene.taken_over()), len(scene.telemetry.said("taken over"))) == (1, 1)


def test_an_operator_who_resumes_while_the_hold_is_made_wins(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = scene.bus.publish

    def resume_first(detail_type: str, detail: str) -> None:
        scene.takeovers.resume(CHAT, now_ms=scene.engine.clock.now_ms)
        publish(detail_type, detail)

    monkeypatch.setattr(scene.bus, "publish", resume_first)
    assert scene.post("whatsapp", whatsapp(echo(scene)))[0] == 200
    assert held_until(scene) is None
    longer_ms = 86_400_000
    scene.engine.store.hold_buffer(CHAT, holder="people", cause="handoff", hold_ms=longer_ms)
    assert scene.post("whatsapp", whatsapp(echo(scene)))[0] == 200
    assert held_until(scene) == scene.engine.clock.now_ms + longer_ms, "a hand-off made since then stays"
    assert not scene.telemetry.said("taken over")


@pytest.mark.parametrize("call", ["read", "save", "mark_published"])
def test_if_the_table_fails_the_platform_comes_again_and_nothing_is_lost(scene: Scene, call: str) -> None:
    scene.takeovers.failures = [call]
    body = whatsapp(echo(scene))
    assert scene.post("whatsapp", body)[0] == 503
    assert scene.post("whatsapp", body)[0] == 200
    assert held_until(scene) == scene.engine.clock.now_ms + HOLD_MS
    assert len(scene.taken_over()) == (2 if call == "mark_published" else 1), "published at least once"


def test_if_the_bus_fails_the_hold_stays_and_the_event_follows(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: ThrottlingException")]
    body = whatsapp(echo(scene))
    assert scene.post("whatsapp", body)[0] == 503
    assert held_until(scene) is not None
    assert scene.post("whatsapp", body)[0] == 200
    assert len(scene.taken_over()) == 1


# -- in a stage with the queue handoff -------------------------------------------------------------


@pytest.fixture
def with_queue(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(fake, monkeypatch, queues={HANDOFF: {}})
    scene.rules.write("stage", RULES)
    return scene


def holds(scene: Scene) -> tuple[Hold, ...]:
    return scene.engine.store.peek_conversation(CHAT).holds


def test_a_persons_reply_marks_the_conversation_and_keeps_nothing_back(with_queue: Scene) -> None:
    scene, now_ms = with_queue, with_queue.engine.clock.now_ms
    assert scene.post("whatsapp", whatsapp(echo(scene)))[0] == 200
    assert holds(scene) == (Hold("handoff", now_ms + HOLD_MS, "answer"),)
    assert held_until(scene) is None
    (event,) = scene.taken_over()
    VALIDATOR.validate(event)
    assert (event["conversationId"], event["until"]) == (CHAT, now_ms + HOLD_MS)


def test_a_later_reply_prolongs_the_mark_and_a_redelivery_does_not(with_queue: Scene) -> None:
    scene, began_ms = with_queue, with_queue.engine.clock.now_ms
    first = whatsapp(echo(scene))
    scene.post("whatsapp", first)
    scene.engine.clock.advance(HOUR_MS)
    scene.post("whatsapp", first)
    assert holds(scene) == (Hold("handoff", began_ms + HOLD_MS, "answer"),)
    scene.post("whatsapp", whatsapp(echo(scene, "wamid.10")))
    scene.post("whatsapp", first)
    assert holds(scene) == (Hold("handoff", began_ms + HOUR_MS + HOLD_MS, "answer"),)
    assert len(scene.taken_over()) == 1


def test_an_operator_who_resumes_while_the_mark_is_set_wins(with_queue: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, publish = with_queue, with_queue.bus.publish

    def resume_first(detail_type: str, detail: str) -> None:
        scene.takeovers.resume(CHAT, now_ms=scene.engine.clock.now_ms)
        publish(detail_type, detail)

    monkeypatch.setattr(scene.bus, "publish", resume_first)
    assert scene.post("whatsapp", whatsapp(echo(scene)))[0] == 200
    assert holds(scene) == ()


# -- hostile, and outages --------------------------------------------------------------------------


@pytest.mark.promise("P9")
def test_a_webhook_holds_only_so_many_conversations(scene: Scene) -> None:
    most = MAX_CONVERSATIONS_TAKEN_OVER_IN_A_WEBHOOK
    echoes = [echo(scene, f"wamid.{n}", ago_ms=n, to=f"49{n}") for n in range(most + 10)]
    assert scene.post("whatsapp", whatsapp(*echoes))[0] == 200
    assert len(scene.telemetry.said("taken over")[0]["conversations"]) == most
    (line,) = scene.telemetry.said("too many conversations taken over at once")
    assert line["replies"] == 10
    assert held_until(scene, f"default/whatsapp/555/49{most - 1}") is not None
    assert held_until(scene, f"default/whatsapp/555/49{most}") is None


def test_a_webhook_whose_holds_take_too_long_keeps_those_and_comes_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time was looked at before the first hold only, so a slow table kept the function until it was killed."""
    hold = ValkeyLane.hold_buffer

    def slowly(lane: ValkeyLane, conversation: str, **named: Any) -> Any:
        scene.engine.clock.advance(MAX_WORK_MS_IN_A_WEBHOOK // 4 + 1)
        return hold(lane, conversation, **named)

    monkeypatch.setattr(ValkeyLane, "hold_buffer", slowly)
    body = whatsapp(*(echo(scene, f"wamid.{n}", ago_ms=n * 1_000, to=f"49{n}") for n in range(10)))
    assert scene.post("whatsapp", body)[0] == 503
    held = [held_until(scene, f"default/whatsapp/555/49{n}") is not None for n in range(10)]
    assert held == [True] * 4 + [False] * 6
