"""`bufferctl secret`: it changes one entry as ingest reads it, and shows no secret."""

import io
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import boto3
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bufferctl.commands import secret
from lambdas.ingest.platforms.base import Credentials
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.json_object import Json
from tests.support.fakes import RecordedTelemetry
from tests.unit.test_bufferctl import FakeAws, run

PLATFORMS = ("generic", "whatsapp", "custom/waha")
ACCOUNTS = ("111", "222")
SECRETS = st.sampled_from(["s3cret-a", "s3cret-b", "s3cret-ü"])
ENTRIES = SECRETS | st.lists(SECRETS, max_size=2) | st.none()
DESCRIBED = ENTRIES | st.fixed_dictionaries(
    {},
    optional={
        "secret": ENTRIES, "verifyToken": SECRETS,
        "accounts": st.dictionaries(st.sampled_from(ACCOUNTS), ENTRIES | st.fixed_dictionaries({"secret": ENTRIES})),
    },
)  # fmt: skip
STORED = st.dictionaries(st.sampled_from(PLATFORMS), DESCRIBED)


def read_by_ingest(stored: Json) -> dict[str, Credentials]:
    class Stored:
        def read(self, _secret_id: str) -> str:
            return json.dumps(stored)

    secrets = WebhookSecrets(Stored(), "webhooks", RecordedTelemetry())
    return {platform: secrets.of(platform) for platform in PLATFORMS}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    fake = FakeAws()
    monkeypatch.setattr(boto3, "Session", lambda **_: fake)
    return fake


def piped(text: str, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(text))
        return run("secret", *arguments)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STORED, st.sampled_from(PLATFORMS), st.none() | st.sampled_from(ACCOUNTS), st.booleans())
def test_one_entry_is_set_and_every_other_stays(
    aws: FakeAws, stored: Json, platform: str, account: str | None, is_added: bool
) -> None:
    aws.secrets, before = stored, read_by_ingest(stored)
    options = [*(["--account", account] if account else []), *(["--add"] if is_added else [])]
    assert piped("s3cret-a\n", "set", platform, *options) == 0
    after = read_by_ingest(aws.secrets)
    old = before[platform]
    present = old.accounts.get(account, ()) if account else old.secrets
    wanted = ("s3cret-a", *(each for each in present if is_added and each != "s3cret-a"))
    changed = replace(old, accounts={**old.accounts, account: wanted}) if account else replace(old, secrets=wanted)
    assert after == before | {platform: changed}


def test_a_verify_token_is_set_beside_the_secret(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.secrets = {"whatsapp": "the app secret", "generic": "s3cret"}
    assert piped("a word", "set", "whatsapp", "--verify-token") == 0
    assert aws.secrets == {"whatsapp": {"secret": "the app secret", "verifyToken": "a word"}, "generic": "s3cret"}
    assert capsys.readouterr().out == (
        "Now whatsapp has a new verify token, in force within 60 s, or at a refused webhook.\n"
    )


def test_at_a_terminal_the_secret_is_asked_for_and_not_shown(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("never read"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    asked: list[str] = []

    def answered(question: str) -> str:
        asked.append(question)
        return "typed"

    monkeypatch.setattr(secret, "getpass", answered)
    assert run("secret", "set", "twilio", "--add", "--json") == 0
    assert (aws.secrets["twilio"]["secret"], asked) == (["typed"], ["Secret of twilio: "])
    assert run("secret", "check", "twilio") == 0
    assert "typed" not in "".join(capsys.readouterr())


OF_ALL = {
    "whatsapp": {"secret": ["app-new", "app-old"], "verifyToken": "token", "accounts": {"111": "own", "222": []}},
    "generic": "s3cret",
}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "value", "code", "entries"),
    [
        (["whatsapp"], "", 0, {"secret": (2, None), "verifyToken": (1, None), "account 111": (1, None)}),
        (["whatsapp"], "app-old\n", 0, {"secret": (2, True), "verifyToken": (1, False), "account 111": (1, False)}),
        (["whatsapp"], "own", 0, {"secret": (2, False), "verifyToken": (1, False), "account 111": (1, True)}),
        (["whatsapp", "--account", "111"], "app-new", 5, {"account 111": (1, False)}),
        (["generic"], "wröng", 5, {"secret": (1, False)}),
    ],
)
def test_a_check_counts_the_secrets_and_says_which_is_the_given_one(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], arguments: list[str], value: str, code: int,
    entries: Mapping[str, Any],
) -> None:  # fmt: skip
    aws.secrets = OF_ALL
    assert piped(value, "check", *arguments, "--json") == code
    rows = json.loads(capsys.readouterr().out)["entries"]
    assert {row["entry"]: (row["count"], row.get("same")) for row in rows} == entries
    assert piped(value, "check", *arguments) == code
    assert not re.search("app-|own|token$|s3cret", capsys.readouterr().out)
    assert aws.secrets == OF_ALL


@pytest.mark.parametrize(
    ("arguments", "value", "code", "message"),
    [
        (["set", "whatsap"], "s", 2, "did you mean whatsapp?"),
        (["set", "custom"], "s", 2, "custom/<door>"),
        (["set", "custom/A b"], "s", 2, "custom/<door>"),
        (["set", "whatsapp/111"], "s", 2, "custom/<door>"),
        (["set", "whatsapp"], "\n", 2, "There is no secret"),
        (["set", "whatsapp"], "s \n", 2, "one line"),
        (["set", "whatsapp"], "two\nlines", 2, "one line"),
        (["set", "whatsapp", "--verify-token", "--add"], "s", 2, "only one verify token"),
        (["check", "twilio"], "", 4, "no such secret"),
        (["check", "whatsapp", "--account", "222"], "", 4, "no such secret"),
    ],
)
def test_what_is_wrong_changes_nothing(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], arguments: list[str], value: str, code: int, message: str
) -> None:
    aws.secrets = OF_ALL
    assert piped(value, *arguments) == code
    assert message in capsys.readouterr().err
    assert aws.secrets == OF_ALL


def test_a_secret_that_is_no_object_is_not_replaced(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    nothing: Any = ["s3cret"]
    aws.secrets = nothing
    assert piped("s", "set", "generic") == 1
    assert "not a JSON object" in capsys.readouterr().err
    assert aws.secrets is nothing
