"""WhatsApp's challenge, messages and statuses, through ingest's handler."""

import json
from typing import Any

import pytest

from message_buffer.json_object import Json
from tests.support.ingest_scene import SECRET, VERIFY_TOKEN, Scene, gateway, whatsapp


def item(kind: str = "text", content: Any = None, **fields: Any) -> Json:
    content = {"body": "Hey"} if content is None else content
    return {"from": "491", "id": "wamid.1", "timestamp": "1700000000", "type": kind, kind: content} | fields


CHAT = "default/whatsapp/555/491"


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("platform", "query"),
    [
        ("whatsapp", None),
        ("whatsapp", {"hub.mode": "subscribe", "hub.verify_token": "wrong", "hub.challenge": "42"}),
        ("whatsapp", {"hub.mode": "subscribe", "hub.verify_token": "ü\ud83d", "hub.challenge": "42"}),
        ("whatsapp", {"hub.mode": "other", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}),
        ("whatsapp", {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN}),
        ("generic", {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}),
    ],
)
def test_whoever_else_asks_is_refused(scene: Scene, platform: str, query: dict[str, str] | None) -> None:
    assert scene.call(gateway(platform, method="GET", query=query))[0] == 403


@pytest.mark.case(33)
def test_statuses_and_what_we_cannot_read_are_no_messages(scene: Scene) -> None:
    odd = [
        item(id=None),
        item("text", {"body": 7}),
        item() | {"from": None},
        7,
        item("text", "x"),
        item("reaction", {}),
    ]
    body = whatsapp(item(), *odd, statuses=[{"id": "wamid.9", "status": "read"}, {"id": "wamid.9"}])
    status, answer = scene.post("whatsapp", body)
    assert (status, answer["accepted"]) == (200, 1)
    counted = [count for name, count in scene.telemetry.counts.items() if name.startswith("IgnoredKinds")]
    assert sum(counted) == len(odd) + 2


def test_one_item_that_cannot_be_kept_does_not_hold_up_its_neighbours(scene: Scene) -> None:
    contacts = [{"name": {"formatted_name": "Ann"}, "phones": ["x" * 70_000]}]
    webhook = whatsapp(
        item(id="good"),
        item("interactive", {"type": "button_reply", "button_reply": {"title": "Yes"}, "x": nested(300)}, id="deep"),
        item("contacts", contacts, id="large"),
    )
    status, answer = scene.post("whatsapp", webhook)
    assert (status, answer["accepted"]) == (200, 1)
    assert [found["id"] for found in scene.buffered(CHAT)] == ["good"]


def test_whatsapps_challenge_needs_a_verify_token_of_ours(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"whatsapp": SECRET})
    query = {"hub.mode": "subscribe", "hub.verify_token": "", "hub.challenge": "42"}
    assert scene.call(gateway("whatsapp", method="GET", query=query))[0] == 403
