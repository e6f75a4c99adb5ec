"""Ingest, from the gateway's event to its answer: what it reads, what it refuses, and what 2xx promises."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.ingest import handler as handler_module
from message_buffer.errors import StoreOutOfMemory, StoreUnavailable
from message_buffer.lanes.valkey.lane import ValkeyLane
from tests.support.ingest_scene import Scene, gateway, message, rest_gateway, signature
from tests.support.platforms import NOTHING_DONE

CONVERSATION = "default/generic/shop/c1"
ISO_OR_MS = "sentAt must be milliseconds since 1970, or a time in ISO 8601 with its zone, such as 2026-01-31T12:00:00Z."


# -- generic ---------------------------------------------------------------------------------------


def test_a_signed_message_is_buffered_and_the_answer_says_when_it_is_due(scene: Scene) -> None:
    status, answer = scene.post("generic", message(author="Ann", sentAt=5, replyTo="m0"))
    due_at_ms = scene.engine.clock.now_ms + 1_000
    assert (status, answer) == (
        200,
        NOTHING_DONE
        | {"accepted": 1, "conversations": {CONVERSATION: {"dueAt": due_at_ms, "count": 1, "rule": "silenceMs"}}},
    )
    assert scene.buffered(CONVERSATION) == [
        {
            "id": "m1", "text": "Hey", "author": "Ann", "sentAt": 5, "replyTo": "m0",
            "receivedAt": scene.engine.clock.now_ms, "platform": "generic",
        }
    ]  # fmt: skip
    assert scene.functions.processors() == [0]


def test_a_rest_apis_event_is_as_good_as_an_http_apis(scene: Scene) -> None:
    raw = json.dumps(message(text="Grüße 😀"), ensure_ascii=False).encode()
    status, _ = scene.call(rest_gateway("generic", raw, headers={"X-Signature-256": signature(raw)}))
    assert status == 200
    assert scene.buffered(CONVERSATION)[0]["text"] == "Grüße 😀"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_rest_apis_event_without_anything_is_refused_and_no_crash(scene: Scene, method: str) -> None:
    status, _ = scene.call(rest_gateway("whatsapp", method=method))
    assert status == (403 if method == "GET" else 401)


@pytest.mark.case(20)
def test_a_flood_by_one_person_ends_the_wait_and_no_message_of_it_is_dropped(scene: Scene) -> None:
    for sent in (100, 200, 300):
        status, answer = scene.post("generic", [message(f"m{n}") for n in range(sent - 100, sent)])
        assert (status, answer["accepted"]) == (200, 100)
        assert answer["conversations"][CONVERSATION] == {
            "dueAt": scene.engine.clock.now_ms,
            "count": sent,
            "rule": "maxMessages",
        }
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == [f"m{n}" for n in range(300)]


@pytest.mark.case(26)
def test_the_messages_own_id_makes_it_a_duplicate_not_the_request(scene: Scene) -> None:
    scene.post("generic", [message("m1"), message("m2")])
    status, answer = scene.post("generic", [message("m2", text="Hey again"), message("m3")])
    assert (status, answer["accepted"], answer["duplicates"]) == (200, 1, 1)
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == ["m1", "m2", "m3"]


@pytest.mark.case(35)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2)
@given(st.lists(st.tuples(*[st.text("a/%2F", min_size=1, max_size=4)] * 3), min_size=2, max_size=8, unique=True))
def test_no_two_conversations_have_one_id(scene: Scene, parts: list[tuple[str, str, str]]) -> None:
    bodies = [message(tenant=tenant, account=account, conversation=user) for tenant, account, user in parts]
    _, answer = scene.post("generic", bodies)
    assert len(answer["conversations"]) == len(parts)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"[" * 100_000, "The body is not JSON in UTF-8."),
        (b"7", "The body must be a JSON object or a list of 1 to 1000 of them."),
        ([message(), 7], "[1] must be a JSON object."),
        (message(conversation="\ud83d"), "conversation must be valid Unicode."),
        (message(conversation="c" * 2_000), "a conversation id has 1 to 1024 bytes; this one has at least 2021"),
        (message(id=""), "id is not valid: Value error, an id has 1 to 1024 bytes of UTF-8."),
        (message(sentAt="now"), ISO_OR_MS),
        ([message(), message(attachments=7)], "[1].attachments is not valid: Input should be a valid list."),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence_and_nothing_is_buffered(scene: Scene, body: Any, sentence: str) -> None:
    assert scene.post("generic", body) == (400, {"error": sentence})
    assert scene.is_empty()


# -- what 2xx promises -----------------------------------------------------------------------------


@pytest.mark.promise("P1")
@pytest.mark.parametrize("error", [StoreUnavailable("gone"), StoreOutOfMemory("full")])
def test_if_one_message_is_not_safe_the_platform_sends_all_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    buffer = ValkeyLane.buffer_message

    def fail_on_the_second(lane: ValkeyLane, conversation: str, message_id: str, **options: Any) -> Any:
        if message_id == "m2":
            raise error
        return buffer(lane, conversation, message_id, **options)

    bodies = [message(f"m{n}") for n in (1, 2, 3)]
    with monkeypatch.context() as patched:
        patched.setattr(ValkeyLane, "buffer_message", fail_on_the_second)
        raw = json.dumps(bodies).encode()
        answer = handler_module.handler(gateway("generic", raw, headers={"x-signature-256": signature(raw)}), None)
    assert (answer["statusCode"], answer["headers"]["Retry-After"]) == (503, "5")
    assert scene.telemetry.counts["StoreFailures"] == 1
    assert scene.functions.processors() == [0], "the first message is buffered, and its processor was promised"
    status, again = scene.post("generic", bodies)
    assert (status, again["accepted"], again["duplicates"]) == (200, 2, 1)
    assert [each["id"] for each in scene.buffered(CONVERSATION)] == ["m1", "m2", "m3"]


def test_a_processor_that_cannot_be_started_does_not_make_the_message_unsafe(scene: Scene) -> None:
    scene.functions.refusals = 1
    assert scene.post("generic", message())[0] == 200
    assert scene.telemetry.counts["StartFailures"] == 1
    scene.engine.clock.advance(scene.engine.store.settings.start_ms)
    assert scene.engine.store.recover_expired(0).start_id, "the watchdog starts it"


def test_what_nobody_foresaw_is_answered_and_told_without_its_words(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the text of a customer")

    monkeypatch.setattr(scene.engine.store, "buffer_message", fail)
    status, _ = scene.post("generic", message())
    assert status == 500
    assert scene.telemetry.said("ingest failed") == [{"error": "RuntimeError"}]


@pytest.mark.promise("P9")
def test_no_message_text_is_logged(scene: Scene) -> None:
    scene.post("generic", message(text="my pin is 1234", author="Ann Smith"))
    scene.post("generic", message(text=["my pin is 1234"]))
    assert "1234" not in str(scene.telemetry.lines)
    assert "Ann" not in str(scene.telemetry.lines)
