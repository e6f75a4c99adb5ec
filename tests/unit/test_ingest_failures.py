"""Ingest publishes each message of the business that a platform could not deliver, for every consumer."""

import json
from pathlib import Path
from typing import Any

import jsonschema

from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from tests.support.ingest_scene import Scene, whatsapp

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.reply.failed.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft4Validator(SCHEMA)
ERROR = {"code": 131026, "title": "Message undeliverable", "error_data": {"details": "Not a WhatsApp user."}}
SMS = {"MessageSid": "SM8", "MessageStatus": "undelivered", "ErrorCode": "30003", "From": "+1555", "To": "+1401"}


def status(status: str = "failed", **fields: Any) -> Json:
    about = {"id": "wamid.9", "status": status, "timestamp": "1700000000", "recipient_id": "491", "errors": [ERROR]}
    return about | fields


def published(scene: Scene) -> list[Json]:
    events = [json.loads(detail) for kind, detail in scene.bus.published if kind == "messages.reply.failed"]
    for event in events:
        VALIDATOR.validate(event)
    return events


def test_a_failed_delivery_is_published_with_its_owner_and_the_platforms_reason(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/555", {"tenant": "acme", "agent": "sales"})
    body = whatsapp(statuses=[status(each) for each in ("sent", "delivered", "read", "failed")])
    code, answer = scene.post("whatsapp", body)
    assert (code, answer["ignored"]) == (200, 3)
    assert published(scene) == [
        {
            "version": 1, "conversationId": "acme/whatsapp/555/491", "tenant": "acme", "agent": "sales",
            "messageId": "wamid.9", "code": 131026, "text": "Message undeliverable: Not a WhatsApp user.",
            "at": 1_700_000_000_000, "metadata": {"platform": "whatsapp"},
        }
    ]  # fmt: skip
    assert scene.telemetry.said("replies failed") == [{"platform": "whatsapp", "replies": 1}]


def test_twilio_reports_a_failure_to_the_same_address_and_gets_no_text_to_send(scene: Scene) -> None:
    assert scene.post("twilio", SMS) == (200, "<Response></Response>")
    assert scene.post("twilio", SMS | {"MessageStatus": "delivered"})[0] == 200
    (event,) = published(scene)
    assert (event["conversationId"], event["messageId"], event["code"]) == ("default/twilio/1555/1401", "SM8", 30003)
    assert (event["text"], event["at"]) == ("", scene.engine.clock.now_ms)
    assert scene.post("twilio", SMS, secret="another")[0] == 401


def test_who_has_another_accounts_secret_reports_no_failure(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"twilio": {"accounts": {"1555": "the shop's", "1401": "the neighbour's"}}})
    assert scene.post("twilio", SMS, secret="the neighbour's")[0] == 401
    assert published(scene) == []
    assert scene.post("twilio", SMS, secret="the shop's")[0] == 200


def test_a_failure_that_could_not_be_published_is_asked_for_again_and_a_repeat_is_published_again(scene: Scene) -> None:
    scene.bus.failures = [SendFailed("put event: Throttling")]
    codes = [scene.post("whatsapp", whatsapp(statuses=[status()]))[0] for _ in range(3)]
    assert codes == [503, 200, 200]
    first, again = published(scene)
    assert first == again


def test_long_words_of_a_platform_are_cut_and_a_long_id_is_left_out(scene: Scene) -> None:
    errors = [ERROR | {"title": "x" * 300_000, "code": 10**30}]
    body = whatsapp(statuses=[status(errors=errors), status(id="y" * 1_025)])
    assert scene.post("whatsapp", body)[1]["ignored"] == 1
    (event,) = published(scene)
    assert (event["text"], event["code"]) == ("x" * 1_024, None)


def test_failures_have_a_quota_of_their_own(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/555", {"quota": {"messagesPerMinute": 5, "conversationsPerMinute": 5}})
    scene.rules.write("stage", {"stopWords": ["stop"]})
    failures = whatsapp(statuses=[status(id=f"wamid.{n}") for n in range(6)])
    for _ in range(2):
        assert scene.post("whatsapp", failures)[0] == 200
    assert (len(published(scene)), scene.telemetry.counts["Dropped"]) == (6, 6)
    word = {"from": "491", "id": "wamid.1", "timestamp": "1700000000", "type": "text", "text": {"body": "stop"}}
    assert scene.post("whatsapp", whatsapp(word))[1]["stopped"] == 1


def test_a_failure_in_a_group_belongs_to_the_group_even_if_each_author_has_a_conversation(scene: Scene) -> None:
    scene.rules.write("account:whatsapp/555", {"perAuthor": True})
    scene.post("whatsapp", whatsapp(statuses=[status(recipient_id="group1", recipient_type="group")]))
    assert [event["conversationId"] for event in published(scene)] == ["default/whatsapp/555/group1"]
