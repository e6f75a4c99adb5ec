"""WhatsApp's challenge, messages and statuses, through ingest's handler."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.any_json import ANYTHING, fields_of
from tests.support.engine import Engine
from tests.support.ingest_scene import SECRET, VERIFY_TOKEN, Json, Scene, gateway
from tests.support.platforms import NOTHING_DONE


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


OBJECT = "whatsapp_business_account"


def whatsapp(*messages: Any, statuses: list[Json] | None = None, account: Any = "555") -> Json:
    value: Json = {"metadata": {"phone_number_id": account}, "messages": list(messages)}
    if statuses:
        value["statuses"] = statuses
    return {"object": OBJECT, "entry": [{"id": "1", "changes": [{"value": value}]}]}


def item(kind: str = "text", content: Any = None, **fields: Any) -> Json:
    content = {"body": "Hey"} if content is None else content
    return {"from": "491", "id": "wamid.1", "timestamp": "1700000000", "type": kind, kind: content} | fields


CHAT = "default/whatsapp/555/491"


ITEM = fields_of(
    "from from_user_id id timestamp type text image contacts location interactive reaction context referral errors"
)


KNOWN = st.sampled_from(["text", "image", "contacts", "location", "interactive", "button", "reaction"])


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def test_whatsapp_asks_whether_we_are_we(scene: Scene) -> None:
    query = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "42"}
    assert scene.call(gateway("whatsapp", method="GET", query=query)) == (200, "42")


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


def test_whatsapps_challenge_needs_a_verify_token_of_ours(scene: Scene) -> None:
    scene.secrets.text = json.dumps({"whatsapp": SECRET})
    query = {"hub.mode": "subscribe", "hub.verify_token": "", "hub.challenge": "42"}
    assert scene.call(gateway("whatsapp", method="GET", query=query))[0] == 403


def test_a_whatsapp_message_is_read(scene: Scene) -> None:
    status, answer = scene.post("whatsapp", whatsapp(item(context={"id": "wamid.0"})))
    assert (status, answer["accepted"], list(answer["conversations"])) == (200, 1, [CHAT])
    assert scene.buffered(CHAT) == [
        {
            "id": "wamid.1", "text": "Hey", "author": "491", "replyTo": "wamid.0", "sentAt": 1_700_000_000_000,
            "receivedAt": scene.engine.clock.now_ms, "platform": "whatsapp",
        }
    ]  # fmt: skip


@pytest.mark.case(21)
@pytest.mark.parametrize(
    ("kind", "content", "text", "attachments"),
    [
        (
            "image", {"id": "1", "mime_type": "image/jpeg", "caption": "look"}, "look",
            [{"type": "image", "id": "1", "mimeType": "image/jpeg"}],
        ),
        ("audio", {"id": "1", "voice": True}, "", [{"type": "audio", "id": "1", "voice": True}]),
        ("video", {"id": "1", "caption": "v"}, "v", [{"type": "video", "id": "1"}]),
        ("sticker", {"id": "1"}, "", [{"type": "sticker", "id": "1"}]),
        ("document", {"id": "1", "filename": "a.pdf"}, "", [{"type": "document", "id": "1", "name": "a.pdf"}]),
        (
            "location", {"latitude": 1.5, "longitude": 2, "name": "Home"}, "Home",
            [{"type": "location", "latitude": 1.5, "longitude": 2}],
        ),
        (
            "contacts", [{"name": {"formatted_name": "Ann"}, "phones": []}], "Ann",
            [{"type": "contact", "name": "Ann", "phones": []}],
        ),
        ("interactive", {"type": "button_reply", "button_reply": {"id": "b", "title": "Yes"}}, "Yes", None),
        ("interactive", {"type": "list_reply", "list_reply": {"id": "b", "title": "Two"}}, "Two", None),
        ("button", {"payload": "p", "text": "Stop"}, "Stop", None),
    ],
)  # fmt: skip
def test_every_type_of_message_is_there_whole(
    scene: Scene, kind: str, content: Any, text: str, attachments: list[Json] | None
) -> None:
    assert scene.post("whatsapp", whatsapp(item(kind, content)))[1]["accepted"] == 1
    (found,) = scene.buffered(CHAT)
    assert (found["type"], found.get("text", "")) == (kind, text)
    assert found.get("attachments") == attachments
    if kind in ("interactive", "button"):
        assert found["interactive"] == content


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
    assert scene.telemetry.counts["Ignored"] == len(odd) + 2


@pytest.mark.parametrize("kind", ["hologram", "unsupported"])
def test_a_message_whose_content_we_do_not_get_is_buffered_with_its_type(scene: Scene, kind: str) -> None:
    errors = [{"code": 131051, "title": "Message type unknown"}]
    scene.post("whatsapp", whatsapp(item(kind, errors=errors)))
    (found,) = scene.buffered(CHAT)
    assert (found["type"], found.get("text", "")) == (kind, "")
    assert found["withheld"] == {"code": 131051, "title": "Message type unknown"}


def test_an_entry_that_cannot_be_read_does_not_refuse_its_neighbours(scene: Scene) -> None:
    body = whatsapp(item())
    body["entry"] = [{"id": "1"}, 7, {"id": 5, "changes": {}}, *body["entry"]]
    status, answer = scene.post("whatsapp", body)
    assert (status, answer["accepted"], answer["ignored"]) == (200, 1, 3)


@pytest.mark.case(33)
def test_a_webhook_of_statuses_alone_buffers_nothing(scene: Scene) -> None:
    status, answer = scene.post("whatsapp", whatsapp(statuses=[{"id": "wamid.9", "status": "delivered"}]))
    assert (status, answer) == (200, NOTHING_DONE | {"ignored": 1})
    assert scene.is_empty()


def test_a_webhook_of_many_users_and_accounts_is_taken_apart(scene: Scene) -> None:
    body = whatsapp(*[item(id=f"w{n}", **{"from": str(n % 10)}) for n in range(200)])
    body["entry"] += whatsapp(item(), account="666")["entry"]
    _, answer = scene.post("whatsapp", body)
    assert (answer["accepted"], len(answer["conversations"])) == (201, 11)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ([], "The body must be a JSON object."),
        ({}, "object must be whatsapp_business_account."),
        ({"object": "page", "entry": []}, "object must be whatsapp_business_account."),
        ({"object": OBJECT}, "entry is missing, or is not a list."),
    ],
)
def test_an_envelope_that_is_not_whatsapps_is_refused(scene: Scene, body: Any, sentence: str) -> None:
    assert scene.post("whatsapp", body) == (400, {"error": sentence})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KNOWN, ANYTHING, ITEM), max_size=3), ANYTHING)
def test_whatever_whatsapp_sends_the_answer_is_no_5xx(
    scene: Scene, odd: list[tuple[str, Any, Json]], anything: Any
) -> None:
    items = [item(kind, content) | fields for kind, content, fields in odd]
    assert scene.post("whatsapp", whatsapp(*items))[0] == 200
    assert scene.post("whatsapp", whatsapp(*items, account=anything))[0] == 200
    assert scene.post("whatsapp", {"object": OBJECT, "entry": [{"changes": [{"value": anything}]}]})[0] == 200
    assert scene.post("whatsapp", {"object": OBJECT, "entry": anything})[0] in (200, 400)


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
