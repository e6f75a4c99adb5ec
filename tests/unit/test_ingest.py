"""Ingest, from the gateway's event to its answer: who is let in, what is read, and what 2xx promises."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.ingest import handler as handler_module
from lambdas.limits import MAX_WEBHOOK_BYTES
from message_buffer.errors import SendFailed, StoreOutOfMemory, StoreUnavailable
from message_buffer.limits import MAX_MESSAGE_BYTES, SECRET_LIFE_MS
from message_buffer.rules.layers import Rules
from tests.support.engine import Engine
from tests.support.ingest_scene import HEADERS, SECRET, VERIFY_TOKEN, Json, Scene, gateway, rest_gateway, signature


@pytest.fixture
def scene(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(fake, monkeypatch)


def message(message_id: str = "m1", **fields: Any) -> Json:
    return {"account": "shop", "conversation": "c1", "id": message_id, "text": "Hey"} | fields


CONVERSATION = "default/generic/shop/c1"


# -- generic ---------------------------------------------------------------------------------------


def test_a_signed_message_is_buffered_and_the_answer_says_when_it_is_due(scene: Scene) -> None:
    status, answer = scene.post("generic", message(author="Ann", sentAt=5, replyTo="m0"))
    due_at_ms = scene.engine.clock.now_ms + 1_000
    assert (status, answer) == (
        200,
        {"accepted": 1, "duplicates": 0, "conversations": {CONVERSATION: {"dueAt": due_at_ms, "count": 1}}},
    )
    assert scene.buffered(CONVERSATION) == [
        {
            "id": "m1", "text": "Hey", "author": "Ann", "sentAt": 5, "replyTo": "m0",
            "receivedAt": scene.engine.clock.now_ms, "platform": "generic",
        }
    ]  # fmt: skip
    assert scene.functions.processors() == [0]


def test_a_body_that_is_not_base64_is_signed_over_the_same_bytes(scene: Scene) -> None:
    raw = json.dumps(message(text="Grüße 😀"), ensure_ascii=False).encode()
    status, _ = scene.call(gateway("generic", raw, headers={"X-Signature-256": signature(raw)}, as_base64=False))
    assert status == 200
    assert scene.buffered(CONVERSATION)[0]["text"] == "Grüße 😀"


def test_a_rest_apis_event_is_as_good_as_an_http_apis(scene: Scene) -> None:
    raw = json.dumps(message(text="Grüße 😀"), ensure_ascii=False).encode()
    status, _ = scene.call(rest_gateway("generic", raw, headers={"X-Signature-256": signature(raw)}))
    assert status == 200
    assert scene.buffered(CONVERSATION)[0]["text"] == "Grüße 😀"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_rest_apis_event_without_anything_is_refused_and_no_crash(scene: Scene, method: str) -> None:
    status, _ = scene.call(rest_gateway("whatsapp", method=method))
    assert status == (403 if method == "GET" else 401)


def test_a_rest_apis_challenge_is_answered(scene: Scene) -> None:
    query = {"hub.mode": "subscribe", "hub.verify_token": VERIFY_TOKEN, "hub.challenge": "1158201444"}
    assert scene.call(rest_gateway("whatsapp", method="GET", query=query)) == (200, "1158201444")


def test_a_list_of_messages_is_buffered_in_its_order(scene: Scene) -> None:
    status, answer = scene.post("generic", [message(f"m{n}") for n in range(30)])
    assert (status, answer["accepted"]) == (200, 30)
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == [f"m{n}" for n in range(30)]


def test_case_20_a_flood_by_one_person_ends_the_wait_and_no_message_of_it_is_dropped(scene: Scene) -> None:
    for sent in (100, 200, 300):
        status, answer = scene.post("generic", [message(f"m{n}") for n in range(sent - 100, sent)])
        assert (status, answer["accepted"]) == (200, 100)
        assert answer["conversations"][CONVERSATION] == {"dueAt": scene.engine.clock.now_ms, "count": sent}
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == [f"m{n}" for n in range(300)]


def test_case_25_50_identical_webhooks_are_one_message(scene: Scene) -> None:
    answers = [scene.post("generic", message())[1] for _ in range(50)]
    assert sum(answer["accepted"] for answer in answers) == 1
    assert sum(answer["duplicates"] for answer in answers) == 49
    assert len(scene.buffered(CONVERSATION)) == 1
    assert len(scene.functions.processors()) == 1


def test_case_26_the_messages_own_id_makes_it_a_duplicate_not_the_request(scene: Scene) -> None:
    scene.post("generic", [message("m1"), message("m2")])
    status, answer = scene.post("generic", [message("m2", text="Hey again"), message("m3")])
    assert (status, answer["accepted"], answer["duplicates"]) == (200, 1, 1)
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == ["m1", "m2", "m3"]


def test_case_34_equal_texts_under_different_ids_are_both_kept(scene: Scene) -> None:
    scene.post("generic", [message("m1", text="ok"), message("m2", text="ok")])
    assert [each["text"] for each in scene.buffered(CONVERSATION)] == ["ok", "ok"]


def test_case_35_the_same_user_elsewhere_is_another_conversation(scene: Scene) -> None:
    variants = [
        message(), message(account="other"), message(tenant="acme"), message(conversation="c2"),
        message(account="shop/c1", conversation="x"), message(account="shop", conversation="c1/x"),
        message(account="shop%2Fc1", conversation="x"),
    ]  # fmt: skip
    status, answer = scene.post("generic", variants)
    assert (status, answer["accepted"]) == (200, len(variants))
    assert len(answer["conversations"]) == len(variants)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2)
@given(st.lists(st.tuples(*[st.text("a/%2F", min_size=1, max_size=4)] * 3), min_size=2, max_size=8, unique=True))
def test_case_35_no_two_conversations_have_one_id(scene: Scene, parts: list[tuple[str, str, str]]) -> None:
    bodies = [message(tenant=tenant, account=account, conversation=user) for tenant, account, user in parts]
    _, answer = scene.post("generic", bodies)
    assert len(answer["conversations"]) == len(parts)


# -- who is let in ---------------------------------------------------------------------------------


@pytest.mark.parametrize("platform", HEADERS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-signature-256": "", "x-hub-signature-256": ""},
        {"x-signature-256": "sha256=", "x-hub-signature-256": "sha256="},
        {"x-signature-256": signature(b"other"), "x-hub-signature-256": signature(b"other")},
        {"x-signature-256": signature(b"{}", "guess"), "x-hub-signature-256": signature(b"{}", "guess")},
        {"x-signature-256": signature(b"{}")[7:], "x-hub-signature-256": signature(b"{}")[7:]},
        {"x-signature-256": "sha256=\xfc", "x-hub-signature-256": "sha256=\xfc"},
    ],
)
def test_p9_without_the_right_signature_nothing_is_read(scene: Scene, platform: str, headers: dict[str, str]) -> None:
    status, answer = scene.call(gateway(platform, b"{}", headers=headers))
    assert (status, answer) == (401, {"error": "The signature is missing or wrong."})
    assert scene.is_empty()


def test_p9_a_signature_is_good_for_its_body_alone(scene: Scene) -> None:
    raw = json.dumps(message()).encode()
    assert scene.call(gateway("generic", raw + b" ", headers={"x-signature-256": signature(raw)}))[0] == 401


@pytest.mark.parametrize(
    "text",
    [
        "{}", '{"generic": ""}', '{"generic": []}', '{"generic": {}}', '{"generic": [null, ""]}', "[]", "no json",
        '{"generic": "half a pair \\ud83d"}',
    ],
)  # fmt: skip
def test_p9_a_platform_without_a_secret_is_closed(scene: Scene, text: str) -> None:
    scene.secrets.text = text
    raw = json.dumps(message()).encode()
    for secret in ("", "None", SECRET):
        event = gateway("generic", raw, headers={"x-signature-256": signature(raw, secret)})
        assert scene.call(event)[0] == 401
    assert scene.is_empty()


def test_two_secrets_are_valid_while_one_replaces_the_other(scene: Scene) -> None:
    raw = json.dumps(message()).encode()
    for secret in (SECRET, "the next one"):
        assert scene.call(gateway("generic", raw, headers={"x-signature-256": signature(raw, secret)}))[0] == 200


def test_a_changed_secret_is_known_after_a_while_and_read_only_then(scene: Scene) -> None:
    for _ in range(5):
        scene.post("generic", message())
    assert scene.secrets.reads == 1
    scene.secrets.text = '{"generic": "another"}'
    scene.secrets_now_ms = SECRET_LIFE_MS + 1
    assert scene.post("generic", message())[0] == 401
    assert scene.secrets.reads == 2


def test_an_old_secret_is_better_than_none(scene: Scene) -> None:
    scene.post("generic", message("m1"))
    scene.secrets_now_ms = SECRET_LIFE_MS + 1
    scene.secrets.failures = [SendFailed("read secret: Throttling")]
    assert scene.post("generic", message("m2"))[0] == 200


def test_without_any_secret_to_go_by_the_platform_is_asked_to_come_again(scene: Scene) -> None:
    scene.secrets.failures = [SendFailed("read secret: Throttling")]
    assert scene.post("generic", message())[0] == 503
    assert "StoreFailures" not in scene.telemetry.counts
    assert scene.post("generic", message())[0] == 200


# -- what is refused -------------------------------------------------------------------------------


def test_an_unknown_platform_is_not_found(scene: Scene) -> None:
    assert scene.call(gateway("pigeon", b"{}"))[0] == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD"])
def test_other_methods_are_not_allowed(scene: Scene, method: str) -> None:
    assert scene.call(gateway("generic", method=method))[0] == 405


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"{", "The body is not JSON in UTF-8."),
        (b"\xff", "The body is not JSON in UTF-8."),
        (b"[" * 100_000, "The body is not JSON in UTF-8."),
        (b"7", "The body must be a JSON object or a list of 1 to 1000 of them."),
        (b"[]", "The body must be a JSON object or a list of 1 to 1000 of them."),
        ([message()] * 1_001, "The body must be a JSON object or a list of 1 to 1000 of them."),
        ([message(), 7], "[1] must be a JSON object."),
        ({"conversation": "c", "id": "m", "text": ""}, "account is missing."),
        ({"account": "a", "id": "m", "text": ""}, "conversation is missing."),
        ({"account": "a", "conversation": "c", "text": ""}, "id is missing."),
        ({"account": "a", "conversation": "c", "id": "m"}, "text is missing."),
        (message(account=""), "account must be a string that is not empty."),
        (message(account=7), "account must be a string that is not empty."),
        (message(tenant=""), "tenant must be a string that is not empty."),
        (message(agent=7), "agent must be a string that is not empty."),
        (message(conversation="\ud83d"), "conversation must be valid Unicode."),
        (message(conversation="c" * 2_000), "a conversation id has 1 to 1024 bytes; this one has 2021"),
        (message(id=7), "id is not valid: Input should be a valid string."),
        (message(id=""), "id is not valid: Value error, an id has 1 to 1024 bytes of UTF-8."),
        (message(text=None), "text is not valid: Input should be a valid string."),
        (message(sentAt="now"), "sentAt is not valid: Input should be a valid integer."),
        (message(sentAt=-1), "sentAt is not valid: Input should be greater than or equal to 0."),
        (message(attachments=[{}]), "attachments.0.type is not valid: Field required."),
        ([message(), message(attachments=7)], "[1].attachments is not valid: Input should be a valid list."),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence_and_nothing_is_buffered(scene: Scene, body: Any, sentence: str) -> None:
    assert scene.post("generic", body) == (400, {"error": sentence})
    assert scene.is_empty()


def test_a_message_that_is_too_large_is_refused_with_its_neighbours(scene: Scene) -> None:
    status, answer = scene.post("generic", [message("m1"), message("m2", text="x" * MAX_MESSAGE_BYTES)])
    assert status == 413
    assert answer["error"].startswith("A message is too large: the message takes ")
    assert scene.is_empty()


def test_a_body_that_is_too_large_is_refused(scene: Scene) -> None:
    assert scene.post("generic", b" " * (MAX_WEBHOOK_BYTES + 1))[0] == 413


# -- what 2xx promises -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreOutOfMemory("full")])
def test_p1_if_one_message_is_not_safe_the_platform_sends_all_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    buffer = scene.engine.store.buffer_message

    def fail_on_the_second(conversation: str, message_id: str, **options: Any) -> Any:
        if message_id == "m2":
            raise error
        return buffer(conversation, message_id, **options)

    bodies = [message(f"m{n}") for n in (1, 2, 3)]
    with monkeypatch.context() as patched:
        patched.setattr(scene.engine.store, "buffer_message", fail_on_the_second)
        raw = json.dumps(bodies).encode()
        answer = handler_module.handler(gateway("generic", raw, headers={"x-signature-256": signature(raw)}), None)
    assert (answer["statusCode"], answer["headers"]["Retry-After"]) == (503, "5")
    assert scene.telemetry.counts["Refused"] == scene.telemetry.counts["StoreFailures"] == 1
    assert scene.functions.processors() == [0], "the first message is buffered, and its processor was promised"
    status, again = scene.post("generic", bodies)
    assert (status, again["accepted"], again["duplicates"]) == (200, 2, 1)
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == ["m1", "m2", "m3"]


def test_a_processor_that_cannot_be_started_does_not_make_the_message_unsafe(scene: Scene) -> None:
    scene.functions.refusals = 1
    assert scene.post("generic", message())[0] == 200
    assert scene.telemetry.counts["ProcessorStartFailures"] == 1
    scene.engine.clock.advance(scene.engine.store.settings.start_ms)
    assert scene.engine.store.recover_expired(0).start_processor, "the watchdog starts it"


def test_a_duplicate_starts_the_processor_that_its_first_sender_could_not(scene: Scene) -> None:
    scene.functions.refusals = 1
    scene.post("generic", message())
    scene.engine.clock.advance(scene.engine.store.settings.start_ms)
    scene.post("generic", message())
    assert scene.functions.processors() == [0]


def test_what_nobody_foresaw_is_answered_and_told_without_its_words(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the text of a customer")

    monkeypatch.setattr(scene.engine.store, "buffer_message", fail)
    status, _ = scene.post("generic", message())
    assert status == 500
    assert scene.telemetry.said("ingest failed") == [{"error": "RuntimeError"}]


def test_p9_no_message_text_is_logged(scene: Scene) -> None:
    scene.post("generic", message(text="my pin is 1234", author="Ann Smith"))
    scene.post("generic", message(text=["my pin is 1234"]))
    assert "1234" not in str(scene.telemetry.lines)
    assert "Ann" not in str(scene.telemetry.lines)


# -- rules -----------------------------------------------------------------------------------------


def test_the_stages_rules_are_in_force_with_their_overrides(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {"silenceMs": 5_000, "platformOverrides": {"whatsapp": {"silenceMs": 200, "typingInferenceMs": 0}}}
    scene = Scene(fake, monkeypatch, stage_rules=rules)
    _, generic = scene.post("generic", message())
    _, whats_app = scene.post("whatsapp", whatsapp(item()))
    due = [each["dueAt"] for answer in (generic, whats_app) for each in answer["conversations"].values()]
    assert [at_ms - fake.clock.now_ms for at_ms in due] == [5_000, 200]


@pytest.mark.parametrize("rules", [{"silenceMs": -1}, {"silenceMs": 60_000}, {"nonsense": 1}, {"name": 7, "x": 1}])
def test_rules_that_are_wrong_stop_no_message(rules: Json, fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(fake, monkeypatch, stage_rules=rules)
    _, answer = scene.post("generic", message())
    assert answer["conversations"][CONVERSATION]["dueAt"] == fake.clock.now_ms + Rules().silence_ms
    assert scene.telemetry.counts["RulesSkipped"] == 1


# -- WhatsApp --------------------------------------------------------------------------------------


def whatsapp(*messages: Any, statuses: list[Json] | None = None, account: Any = "555") -> Json:
    value: Json = {"metadata": {"phone_number_id": account}, "messages": list(messages)}
    if statuses:
        value["statuses"] = statuses
    return {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [{"value": value}]}]}


def item(kind: str = "text", content: Any = None, **fields: Any) -> Json:
    content = {"body": "Hey"} if content is None else content
    return {"from": "491", "id": "wamid.1", "timestamp": "1700000000", "type": kind, kind: content} | fields


CHAT = "default/whatsapp/555/491"


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


@pytest.mark.parametrize(
    ("kind", "content", "text", "attachments"),
    [
        (
            "image", {"id": "1", "mime_type": "image/jpeg", "caption": "look"}, "look",
            [{"type": "image", "id": "1", "mimeType": "image/jpeg"}],
        ),
        ("audio", {"id": "1", "voice": True}, "", [{"type": "audio", "id": "1"}]),
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
def test_case_21_every_type_of_message_is_there_whole(
    scene: Scene, kind: str, content: Any, text: str, attachments: list[Json] | None
) -> None:
    assert scene.post("whatsapp", whatsapp(item(kind, content)))[1]["accepted"] == 1
    (found,) = scene.buffered(CHAT)
    assert (found["type"], found.get("text", "")) == (kind, text)
    assert found.get("attachments") == attachments
    if kind in ("interactive", "button"):
        assert found["interactive"] == content


def test_case_33_statuses_and_what_we_cannot_read_are_no_messages(scene: Scene) -> None:
    odd = [
        item("hologram"),
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


def test_case_33_a_webhook_of_statuses_alone_buffers_nothing(scene: Scene) -> None:
    status, answer = scene.post("whatsapp", whatsapp(statuses=[{"id": "wamid.9", "status": "delivered"}]))
    assert (status, answer) == (200, {"accepted": 0, "duplicates": 0, "conversations": {}})
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
        ({}, "entry is missing, or is not a list."),
        ({"entry": [{}]}, "entry[0].changes is missing, or is not a list."),
    ],
)
def test_an_envelope_that_is_not_whatsapps_is_refused(scene: Scene, body: Any, sentence: str) -> None:
    assert scene.post("whatsapp", body) == (400, {"error": sentence})


# -- hostile input ---------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=15,
)


def fields_of(names: str) -> st.SearchStrategy[Json]:
    return st.dictionaries(st.sampled_from(names.split()), ANYTHING, max_size=8)


GENERIC = fields_of("account conversation id text author sentAt attachments tenant agent replyTo type")
ITEM = fields_of("from id timestamp type text image contacts location interactive reaction context")
KNOWN = st.sampled_from(["text", "image", "contacts", "location", "interactive", "button", "reaction"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANYTHING | GENERIC | st.lists(GENERIC, max_size=3) | GENERIC.map(lambda odd: message() | odd))
def test_whatever_json_comes_signed_the_answer_is_no_5xx(scene: Scene, body: Any) -> None:
    assert scene.post("generic", body)[0] in (200, 400, 413)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(KNOWN, ANYTHING, ITEM), max_size=3), ANYTHING)
def test_whatever_whatsapp_sends_the_answer_is_no_5xx(
    scene: Scene, odd: list[tuple[str, Any, Json]], anything: Any
) -> None:
    items = [item(kind, content) | fields for kind, content, fields in odd]
    assert scene.post("whatsapp", whatsapp(*items))[0] == 200
    assert scene.post("whatsapp", whatsapp(*items, account=anything))[0] == 200
    assert scene.post("whatsapp", {"entry": [{"changes": [{"value": anything}]}]})[0] == 200
    assert scene.post("whatsapp", {"entry": anything})[0] in (200, 400)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.sampled_from(list(HEADERS)))
def test_whatever_bytes_come_signed_the_answer_is_no_5xx(scene: Scene, body: bytes, platform: str) -> None:
    assert scene.post(platform, body)[0] in (200, 400)


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


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


def test_nesting_that_no_message_can_hold_is_refused(scene: Scene) -> None:
    status, answer = scene.post("generic", message(attachments=[{"type": "file", "x": nested(300)}]))
    assert status == 400
    assert answer["error"]
    assert scene.is_empty()


def test_a_type_is_not_empty(scene: Scene) -> None:
    assert scene.post("generic", message(type=""))[0] == 400
    assert scene.is_empty()
