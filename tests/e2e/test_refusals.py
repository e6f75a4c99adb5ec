"""Ingest refuses wrong requests with a reason, and buffers no message of them."""

import json

import pytest

from tests.support.judge import Talk
from tests.support.local_stage import LocalStage
from tools.local.webhooks import StageResponse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]


def assert_refused(answer: StageResponse, status: int) -> str:
    assert answer.status == status, answer.body
    problem = answer.json["error"]
    assert isinstance(problem, str)
    assert problem.endswith(".")
    return problem


def assert_nothing_buffered(talk: Talk) -> None:
    assert not talk.stage.keys(f"*{talk.name}*"), "the refused request left keys in Valkey"


@pytest.mark.promise("P9")
@pytest.mark.smoke
def test_a_signature_of_another_body_changes_nothing(stage: LocalStage) -> None:
    talk = Talk(stage)
    headers = stage.webhooks.signature("generic", json.dumps(talk.body("other")).encode())
    assert_refused(stage.webhooks.post("generic", talk.body(), headers=headers), 401)
    assert_nothing_buffered(talk)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"account": NaN}', b"[[]]"],
    ids=["empty", "cut", "null", "no messages", "a string", "not UTF-8", "deep", "no fields", "a list of lists"],
)
def test_a_body_that_cannot_be_read_is_refused(stage: LocalStage, body: bytes) -> None:
    # Like API Gateway, the emulator passes bytes on unchanged only if their type is not text.
    headers = {"Content-Type": "application/octet-stream"}
    assert_refused(stage.webhooks.post("generic", body, headers=headers), 400)


def test_a_body_that_is_too_large_is_refused(stage: LocalStage) -> None:
    talk = Talk(stage)
    bodies = [talk.body(text="x" * 60_000) for _ in range(80)]
    assert_refused(stage.webhooks.post("generic", bodies), 413)
    assert_nothing_buffered(talk)


def test_an_unknown_platform_is_not_found(stage: LocalStage) -> None:
    assert_refused(stage.webhooks.post("pigeon", {}), 404)
