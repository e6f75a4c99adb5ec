"""Ingest refuses wrong requests with a reason, and buffers no message of them."""

import json

import pytest

from local.webhooks import Answer, whatsapp, whatsapp_text
from tests.support.judge import Talk, judge
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]


def assert_refused(answer: Answer, status: int) -> str:
    assert answer.status == status, answer.body
    problem = answer.json["error"]
    assert isinstance(problem, str)
    assert problem.endswith(".")
    return problem


def assert_nothing_buffered(talk: Talk) -> None:
    assert not talk.stage.keys(f"*{talk.name}*"), "the refused request left keys in Valkey"


@pytest.mark.promise("P9")
@pytest.mark.parametrize("signature", ["sha256=" + "0" * 64, "", "sha1=abc", "sha256=", "nonsense", "sha256=é"])
def test_a_wrong_signature_changes_nothing(stage: LocalStage, signature: str) -> None:
    talk = Talk(stage)
    headers = {"X-Signature-256": signature.encode("utf-8").decode("latin-1")}
    assert_refused(stage.webhooks.post("generic", talk.body(), headers=headers), 401)
    assert_nothing_buffered(talk)


@pytest.mark.promise("P9")
@pytest.mark.smoke
def test_a_signature_of_another_body_changes_nothing(stage: LocalStage) -> None:
    talk = Talk(stage)
    headers = stage.webhooks.signature("generic", json.dumps(talk.body("other")).encode())
    assert_refused(stage.webhooks.post("generic", talk.body(), headers=headers), 401)
    assert_nothing_buffered(talk)


def test_the_signature_of_one_platform_is_refused_by_another(stage: LocalStage) -> None:
    body = json.dumps(whatsapp(whatsapp_text("wamid.x", "text", sender="491512345678900"))).encode()
    headers = {"X-Hub-Signature-256": stage.webhooks.signature("generic", body)["X-Signature-256"]}
    assert_refused(stage.webhooks.post("whatsapp", body, headers=headers), 401)
    assert not stage.keys("*491512345678900*")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"account": NaN}', b"[[]]"],
    ids=["empty", "cut", "null", "no messages", "a string", "not UTF-8", "deep", "no fields", "a list of lists"],
)
def test_a_body_that_cannot_be_read_is_refused(stage: LocalStage, body: bytes) -> None:
    # Like API Gateway, the emulator passes bytes on unchanged only if their type is not text.
    headers = {"Content-Type": "application/octet-stream"}
    assert_refused(stage.webhooks.post("generic", body, headers=headers), 400)


@pytest.mark.parametrize("field", ["account", "conversation", "id", "text"])
def test_a_missing_field_is_named(stage: LocalStage, field: str) -> None:
    talk = Talk(stage)
    body = talk.body()
    del body[field]
    assert field in assert_refused(stage.webhooks.post("generic", body), 400)
    assert_nothing_buffered(talk)


@pytest.mark.parametrize(
    "wrong",
    [
        {"account": ""},
        {"conversation": 7},
        {"id": ""},
        {"id": "x" * 2_000},
        {"text": None},
        {"text": ["a", "list"]},
        {"sentAt": "yesterday"},
        {"attachments": "none"},
        {"account": "half \ud83d emoji"},
    ],
)
def test_a_wrong_field_is_named(stage: LocalStage, wrong: dict[str, object]) -> None:
    talk = Talk(stage)
    (field,) = wrong
    assert field in assert_refused(stage.webhooks.post("generic", talk.body() | wrong), 400)
    assert_nothing_buffered(talk)


def test_one_wrong_message_of_a_list_keeps_all_out(stage: LocalStage) -> None:
    talk = Talk(stage)
    bodies = [talk.body(), talk.body(), talk.body() | {"id": None}]
    assert "[2]" in assert_refused(stage.webhooks.post("generic", bodies), 400)
    assert_nothing_buffered(talk)


def test_a_message_that_is_too_large_is_refused(stage: LocalStage) -> None:
    talk = Talk(stage)
    assert_refused(stage.webhooks.post("generic", talk.body(text="x" * 70_000)), 413)
    assert_nothing_buffered(talk)


def test_a_body_that_is_too_large_is_refused(stage: LocalStage) -> None:
    talk = Talk(stage)
    bodies = [talk.body(text="x" * 60_000) for _ in range(80)]
    assert_refused(stage.webhooks.post("generic", bodies), 413)
    assert_nothing_buffered(talk)


def test_an_unknown_platform_is_not_found(stage: LocalStage) -> None:
    assert_refused(stage.webhooks.post("pigeon", {}), 404)


def test_after_all_refusals_a_message_is_still_buffered(stage: LocalStage) -> None:
    talk = Talk(stage)
    talk.say()
    judge([talk], within_ms=15_000)
