"""The command line: its requests, its output for people and programs, and its exit codes."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import boto3
import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ReadTimeoutError
from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperGroup

from bufferctl import checkout, events, facts
from bufferctl.__main__ import command_line, main
from bufferctl.commands.rules import _fields, differences, merge
from bufferctl.errors import EXIT_STATUSES
from bufferctl.events import subscribe
from bufferctl.formatting import Pairs, as_json, clock_time, moment, table
from bufferctl.stage import DEFAULT_REGION, LOCAL
from bufferctl.terminal import show
from infra import cli
from infra.settings_and_defaults import STACKS, StageConfig
from lambdas.canary.webhook import GenericWebhook, WebhookResponse, WebhookUnreachable
from message_buffer.json_object import Json

ROOT = Path(__file__).parents[2]
ME = "arn:aws:iam::111122223333:user/ada"
NAME = "default/generic/shop/c1"
NOON_MS = 1_700_000_000_000


class FakeAws:
    """An account with one stage, prod, whose admin function answers what the test says."""

    def __init__(self) -> None:
        self.answers: dict[str, Json] = {}
        self.turns: dict[str, list[Json]] = {}
        self.asked: list[Json] = []
        self.api = "https://api.example.org"
        self.secrets: Json = {"generic": {"secret": ["newest", "older"]}}
        self.error: Exception | None = None
        self.has_responder = False
        self.commit: dict[str, str] = {}

    def client(self, service: str, **_: object) -> Any:
        if self.error:
            raise self.error
        return self

    def describe_stacks(self, *, StackName: str) -> Json:  # noqa: N803 - AWS's name
        if StackName == "MessageBuffer-prod-Responder" and self.has_responder:
            return {"Stacks": [{"Outputs": [{"OutputKey": "ResponderFunction", "OutputValue": "the-responder"}]}]}
        if StackName != "MessageBuffer-prod-Buffer":
            error = {"Code": "ValidationError", "Message": f"Stack {StackName} does not exist"}
            raise ClientError({"Error": error}, "DescribeStacks")
        outputs = self.commit | {
            "ApiEndpoint": self.api, "EventBusName": "bus", "AdminFunction": "the-admin", "WebhookSecretId": "secret",
        }  # fmt: skip
        return {"Stacks": [{"Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in outputs.items()]}]}

    def get_caller_identity(self) -> Json:
        return {"Arn": ME}

    def get_secret_value(self, *, SecretId: str) -> Json:  # noqa: N803 - AWS's name
        assert SecretId == "secret"
        return {"SecretString": json.dumps(self.secrets)}

    def put_secret_value(self, *, SecretId: str, SecretString: str) -> None:  # noqa: N803 - AWS's names
        assert SecretId == "secret"
        self.secrets = json.loads(SecretString)

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Json:  # noqa: N803 - AWS's names
        event = json.loads(Payload)
        of_responder = event["operation"] in ("history", "forget", "tenant.settings.get", "tenant.settings.set")
        assert FunctionName == ("the-responder" if of_responder else "the-admin")
        assert event.pop("by") == ME
        self.asked.append(event)
        turns = self.turns.get(event["operation"])
        answer = turns.pop(0) if turns else self.answers[event["operation"]]
        return {"Payload": io.BytesIO(json.dumps(answer).encode())} | (
            {"FunctionError": "Unhandled"} if "errorType" in answer else {}
        )

    def answer(self, operation: str, result: Mapping[str, Any]) -> None:
        self.answers[operation] = {"ok": True, "result": result}

    def answer_in_turn(self, operation: str, *results: Mapping[str, Any]) -> None:
        self.turns[operation] = [{"ok": True, "result": result} for result in results]

    def refuse(self, operation: str, code: str, message: str) -> None:
        self.answers[operation] = {"ok": False, "error": {"code": code, "message": message}}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> FakeAws:
    fake = FakeAws()
    monkeypatch.setattr(boto3, "Session", lambda **_: fake)
    monkeypatch.setenv("TZ", "UTC")
    return fake


def run(*arguments: str) -> int:
    return main(["--stage", "prod", *arguments])


# -- what is asked ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "result", "asked"),
    [
        (["conversation", "flush", NAME], {"dueAt": NOON_MS, "count": 2}, {"operation": "conversation.flush"}),
        (["conversation", "resume", NAME], {"dueAt": None}, {"operation": "conversation.resume"}),
        (
            ["conversation", "hold", NAME],
            {"heldUntil": NOON_MS},
            {"operation": "conversation.hold", "holdMs": 3_600_000},
        ),
        (
            ["conversation", "hold", NAME, "--for", "15m"],
            {"heldUntil": NOON_MS},
            {"operation": "conversation.hold", "holdMs": 900_000},
        ),
        (
            ["conversation", "handoff", NAME],
            {"heldUntil": NOON_MS},
            {"operation": "conversation.handoff", "holdMs": 3_600_000},
        ),
        (
            ["conversation", "handoff", NAME, "--no-limit", "--reason", "She asked."],
            {"handedOffUntil": None},
            {"operation": "conversation.handoff", "reason": "She asked."},
        ),
        (
            ["conversation", "resume", NAME, "--reason", "Solved."],
            {"dueAt": NOON_MS},
            {"operation": "conversation.resume", "reason": "Solved."},
        ),
        (
            ["conversation", "complete", NAME, "--summary", "Sold."],
            {"at": NOON_MS},
            {"operation": "conversation.complete", "summary": "Sold."},
        ),
        (
            ["conversation", "handoff", NAME, "--for", "15m"],
            {"handedOffUntil": NOON_MS},
            {"operation": "conversation.handoff", "holdMs": 900_000},
        ),
        (
            ["conversation", "cancel", NAME, "--yes"],
            {"generation": 3, "dropped": 2, "frozen": 1, "leaving": True},
            {"operation": "conversation.cancel"},
        ),
    ],
)
def test_a_conversation_is_named_and_so_is_what_to_do(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], command: list[str], result: Json, asked: Json
) -> None:
    aws.answer(asked["operation"], result)
    assert run(*command, "--json") == 0
    assert aws.asked == [{**asked, "conversation": NAME}]
    assert json.loads(capsys.readouterr().out) == result
    assert run(*command) == 0
    assert capsys.readouterr().out


def test_the_history_asks_for_words_only_on_request(aws: FakeAws) -> None:
    aws.has_responder = True
    aws.answer("history", {"status": "reply_sent", "older": 3, "turns": []})
    assert run("conversation", "history", NAME) == 0
    assert run("conversation", "history", NAME, "--messages", "--older", "2") == 0
    asked = {"operation": "history", "conversation": NAME}
    assert aws.asked == [asked | {"texts": False, "limit": 0}, asked | {"texts": True, "limit": 2}]


def test_the_history_shows_each_turn_with_its_time_and_ids(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.has_responder = True
    asked: Json = {"at": 1_700_000_000_000, "role": "user", "batchId": "b-1", "messageIds": ["m-1", "m-2"]}
    said = {"at": 1_700_000_003_000, "role": "assistant", "batchId": "b-1", "messageIds": ["wamid.1"]}
    spent = {"model": "nova", "inputTokens": 11, "outputTokens": 7, "totalTokens": 18, "processingMs": 3_000}
    found = {"status": "reply_sent", "lastReplyId": "b-1", "older": 0, "turns": [asked, said | spent]}
    aws.answer("history", found)
    assert run("conversation", "history", NAME, "--json") == 0
    assert json.loads(capsys.readouterr().out) == found
    assert run("conversation", "history", NAME) == 0
    blocks = [
        dict(line.split(None, 1) for line in block.splitlines()) for block in capsys.readouterr().out.split("\n\n")
    ]
    summary, first, second = blocks
    assert summary == {"status": "reply_sent", "lastReplyId": "b-1", "older": "0"}
    assert first == {"at": moment(asked["at"]), "role": "user", "batchId": "b-1", "messageIds": '["m-1", "m-2"]'}
    assert second.keys() == (said | spent).keys()


def test_a_tenants_settings_are_the_responders(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.has_responder = True
    found = {"tenant": "acme", "settings": {"projectStatus": "active"}}
    aws.answer("tenant.settings.get", found)
    aws.answer("tenant.settings.set", found)
    assert run("tenant", "settings", "get", "acme", "--json") == 0
    assert json.loads(capsys.readouterr().out) == found
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"projectStatus": "active"}'))
    assert run("tenant", "settings", "set", "acme", "-") == 0
    assert "active" in capsys.readouterr().out
    asked = {"operation": "tenant.settings.get", "tenant": "acme"}
    assert aws.asked == [asked, {"operation": "tenant.settings.set", **found}]
    assert run("tenant", "settings", "set", "acme", "nonsense") == 2


def test_rules_come_from_an_argument_or_from_standard_input(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.answer("rules.set", RULES_SET)
    aws.refuse("rules.get", "not_found", "There are no rules under stage.")
    assert run("rules", "set", "stage", '{"silenceMs": 5}', "--expected-version", "6") == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"silenceMs": 6}'))
    assert run("rules", "set", "stage", "-") == 0
    asked = [event for event in aws.asked if event["operation"] == "rules.set"]
    assert asked == [
        {"operation": "rules.set", "scope": "stage", "rules": {"silenceMs": 5}, "expectedVersion": 6},
        {"operation": "rules.set", "scope": "stage", "rules": {"silenceMs": 6}, "expectedVersion": 0},
    ]
    count = len(aws.asked)
    for rules in ("{silenceMs: 5}", "[" * 100_000):
        assert run("rules", "set", "stage", rules) == 2
    assert len(aws.asked) == count
    capsys.readouterr()
    assert run("rules", "set", "stage", "silenceMs=3000") == 2
    assert capsys.readouterr().err.endswith("""Write '{"silenceMs": 3000}'.\n""")


RULES_SET = {"version": 7, "open": {"looked": 3, "retimed": 2, "complete": True}}
SENTENCE = "Version 7, in force within 10 s. Rescheduled 2 of 3 open buffers in this scope."


@pytest.mark.parametrize(
    ("scope", "options", "stored", "expected", "shown"),
    [
        ("stage", [], {"queue": "a", "silenceMs": 1},
         {"silenceMs": 2, "maxMessages": 3, "inboxApps": ["1"]},
         ['- queue: "a"', "~ silenceMs: 1 → 2", "+ maxMessages: 3", '+ inboxApps: ["1"]']),
        ("stage", ["--replace"], {"priority": "vip"},
         {"silenceMs": 2, "maxMessages": 3, "queue": None, "inboxApps": ["1"]},
         ['- priority: "vip"', "+ silenceMs: 2", "+ maxMessages: 3", "+ queue: null", '+ inboxApps: ["1"]']),
        ("door:crm", [], {"id": "id"}, {"silenceMs": 2, "maxMessages": 3, "queue": None, "inboxApps": ["1"]},
         ['- id: "id"', "+ silenceMs: 2", "+ maxMessages: 3", "+ queue: null", '+ inboxApps: ["1"]']),
        ("stage", [], None, {"silenceMs": 2, "maxMessages": 3, "inboxApps": ["1"]},
         ["+ silenceMs: 2", "+ maxMessages: 3", '+ inboxApps: ["1"]']),
        ("stage", [], {"silenceMs": 2, "maxMessages": 3, "inboxApps": ["1"]},
         {"silenceMs": 2, "maxMessages": 3, "inboxApps": ["1"]}, ["No rule is different."]),
    ],
)  # fmt: skip
def test_rules_are_merged_and_the_difference_is_shown(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], scope: str, options: list[str], stored: Any, expected: Json,
    shown: list[str],
) -> None:  # fmt: skip
    aws.answer("rules.get", {"scope": scope, "rules": stored, "version": 6})
    aws.answer("rules.set", RULES_SET)
    given_rules = {"silenceMs": 2, "maxMessages": 3, "queue": None, "inboxApps": ["1"]}
    assert run("rules", "set", scope, json.dumps(given_rules), *options) == 0
    assert aws.asked[-1] == {"operation": "rules.set", "scope": scope, "rules": expected, "expectedVersion": 6}
    assert capsys.readouterr().out.splitlines() == [*shown, SENTENCE]


def test_a_silence_below_the_wait_after_a_short_gap_says_so(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("rules.get", {"scope": "stage", "rules": {}, "version": 6})
    aws.answer("rules.set", RULES_SET | {"typingInferenceMs": 8_000})
    assert run("rules", "set", "stage", '{"silenceMs": 2000}') == 0
    waits = "Fragments within 8 s of each other still wait 8 s (`typingInferenceMs`)."
    assert capsys.readouterr().out.splitlines() == ["+ silenceMs: 2000", SENTENCE, waits]


def test_an_undo_shows_the_difference(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("rules.undo", RULES_SET | {"before": {"silenceMs": 2}, "after": None})
    assert run("rules", "undo", "stage") == 0
    assert capsys.readouterr().out.splitlines() == ["- silenceMs: 2", SENTENCE]


NAMES = st.sampled_from("abc")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=3)


@given(OBJECTS, OBJECTS)
def test_a_difference_leads_from_the_rules_before_to_those_after(before: Json, patch: Json) -> None:
    after = merge(before, patch)
    assert merge(after, patch) == after
    for name in before.keys() | patch.keys():
        if name not in patch:
            assert after[name] == before[name]
        elif patch[name] is None:
            assert name not in after
        elif not isinstance(patch[name], dict):
            assert after[name] == patch[name]
        else:
            of_name = before.get(name)
            assert after[name] == merge(of_name if isinstance(of_name, dict) else {}, patch[name])
    fields = {path: text for path, text in _fields(before).items() if before}
    for line in differences(before, after):
        sign, path, shown = re.fullmatch(r"([-+~]) ([\w.]+): (.*)", line).groups()  # type: ignore[union-attr]
        old, _, new = shown.rpartition(" → ")
        assert fields.pop(path, None) == {"-": new, "~": old, "+": None}[sign]
        if sign != "-":
            fields[path] = new
    assert fields == (_fields(after) if after else {})


def test_the_options_of_all_commands_may_also_follow_the_command(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("rules.list", {"rules": [], "more": False})
    after = ["--stage", "prod", "--profile", "ops", "--region", "eu-west-1", "--json"]
    assert main(["rules", "list", *after]) == 0
    assert json.loads(capsys.readouterr().out) == {"rules": [], "more": False}
    assert main(["status", "--outputs", "nowhere/outputs.json"]) == 3
    assert "make up" in capsys.readouterr().err


# -- what people see -------------------------------------------------------------------------------


def row(name: str, *, due_at_ms: int | None = NOON_MS, lane: str = "valkey") -> Json:
    return {
        "conversation": name, "lane": lane, "shard": 0, "state": "pending", "count": 2, "frozen": 0,
        "reason": "silence", "dueAt": due_at_ms,
    }  # fmt: skip


def page(*rows: Json, next_cursor: str | None = None, more: bool | None = None) -> Json:
    return {"conversations": list(rows), "next": next_cursor, "more": bool(next_cursor) if more is None else more}


def test_conversations_are_listed_from_all_answers_the_earliest_due_first(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    flying = row("d/s/a/flying", due_at_ms=None)
    later = row("d/s/a/later", due_at_ms=NOON_MS + 1_500)
    aws.answer_in_turn(
        "conversation.list",
        page(flying, later, next_cursor="1/open:0"),
        page(later, row("d/s/a/first"), flying | {"conversation": "d/s/a/too"}),
    )
    assert run("conversation", "list", "--tenant", "d", "--platform", "s") == 0
    asked = {"operation": "conversation.list", "tenant": "d", "platform": "s"}
    assert aws.asked == [asked | {"limit": 50}, asked | {"cursor": "1/open:0", "limit": 48}]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["d/s/a/first", "d/s/a/later", "d/s/a/flying", "d/s/a/too"]


def test_a_list_ends_at_its_limit_and_says_that_there_are_more(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("conversation.list", page(row("d/s/a/1"), row("d/s/a/2"), row("d/s/a/3")))
    assert run("conversation", "list", "--limit", "2", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert ([each["conversation"] for each in shown["conversations"]], shown["more"]) == (["d/s/a/1", "d/s/a/2"], True)
    assert aws.asked[0]["limit"] == 2
    aws.answer("conversation.list", page(row("d/s/a/1"), more=True))
    assert run("conversation", "list") == 0
    assert "There are more" in capsys.readouterr().out
    assert len(aws.asked) == 2, "nothing leads to windows that were left out: it does not ask for ever"
    aws.answer("conversation.list", page())
    assert run("conversation", "list", "--limit", "2000") == 0
    assert aws.asked[-1]["limit"] == 500, "the most that the function gives at once"


# -- what needs a yes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["conversation", "cancel", NAME], ["conversation", "forget", NAME], ["dead", "redrive", "--all"]]
)
def test_nothing_is_dropped_or_sent_again_without_a_yes(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    aws.answer("dead.list", {"letters": [{"batchId": "b1"}], "inQueue": 1})
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run(*command) == 2
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for typed in ("n\n", ""):
        sys.stdin.seek(0)
        sys.stdin.truncate()
        sys.stdin.write(typed)
        sys.stdin.seek(0)
        assert run(*command, "--json") == 1
        captured = capsys.readouterr()
        assert "[y/N] " in captured.err
        assert captured.out == "", "a program reads this"
    assert not [event for event in aws.asked if event["operation"] != "dead.list"]


def test_one_letter_that_cannot_be_sent_again_does_not_stop_the_others(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("dead.list", {"letters": [{"batchId": "b1"}, {"batchId": None}, {"batchId": "b1"}], "inQueue": 3})
    aws.refuse("dead.redrive", "refused", "The batch could not be sent again.")
    assert run("dead", "redrive", "b0", "b1", "--json") == 1
    captured = capsys.readouterr()
    assert [each["batchId"] for each in json.loads(captured.out)["failed"]] == ["b0", "b1"]
    assert json.loads(captured.err)["error"]["exitStatus"] == 1
    aws.answer("dead.redrive", {"redriven": "b1"})
    aws.answer("dead.list", {"letters": [{"batchId": "b1"}, {"batchId": "b1"}], "inQueue": 2})
    assert run("dead", "redrive", "--all", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["redriven"] == ["b1"]


def test_letters_that_nobody_can_name_are_counted_when_all_are_sent_again(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("dead.list", {"letters": [{"batchId": "b1"}, {"batchId": None}], "inQueue": 2})
    aws.answer("dead.redrive", {"redriven": "b1"})
    assert run("dead", "redrive", "--all", "--yes", "--json") == 6
    assert json.loads(capsys.readouterr().out) == {"redriven": ["b1"], "failed": [], "unreadable": 1}


def test_what_was_sent_again_is_said_though_aws_went_away_meanwhile(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.answer("dead.redrive", {"redriven": "b1"})
    answers = iter([aws.invoke])

    def invoke(**given: Any) -> Json:
        for answer in answers:
            return answer(**given)
        raise ReadTimeoutError(endpoint_url="https://lambda")

    monkeypatch.setattr(aws, "invoke", invoke)
    assert run("dead", "redrive", "b1", "b2", "--json") == 6
    result = json.loads(capsys.readouterr().out)
    assert (result["redriven"], [each["batchId"] for each in result["failed"]]) == (["b1"], ["b2"])


@pytest.mark.parametrize("arguments", [[], ["--all", "b1"]])
def test_either_some_letters_are_sent_again_or_all(aws: FakeAws, arguments: list[str]) -> None:
    assert run("dead", "redrive", *arguments) == 2


# -- forgetting ------------------------------------------------------------------------------------

FORGOTTEN = {
    "conversation": NAME, "counts": {"waiting": 2, "objects": 1}, "agesOut": [{"place": "logs", "days": 14}],
    "at": NOON_MS, "againInMs": None,
}  # fmt: skip


def test_a_forget_says_what_it_erased_and_what_only_ages_out(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("conversation.forget", FORGOTTEN)
    assert run("conversation", "forget", NAME, "--yes") == 0
    assert aws.asked == [{"operation": "conversation.forget", "conversation": NAME}]
    words = capsys.readouterr().out.split()
    assert {"waiting", "2", "objects", "1", "logs", "14"} <= set(words)


def test_a_dry_run_asks_nobody_to_erase_anything(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.has_responder = True
    aws.answer("conversation.forget", {name: FORGOTTEN[name] for name in ("conversation", "counts", "agesOut")})
    aws.answer("forget", {"counts": {"turns": 3}, "finished": False})
    assert run("conversation", "forget", NAME, "--dry-run") == 0
    assert [(event["operation"], event["dryRun"]) for event in aws.asked] == [
        ("forget", True), ("conversation.forget", True),
    ]  # fmt: skip
    assert "turns    3" in capsys.readouterr().out


def test_a_forget_waits_for_what_is_leaving_and_then_has_the_responder_forget_as_much(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    aws.has_responder = True
    aws.answer_in_turn(
        "conversation.forget",
        FORGOTTEN | {"againInMs": 22_000},
        FORGOTTEN | {"againInMs": 1_000, "counts": {"objects": 1}},
        FORGOTTEN | {"counts": {"objects": 0}},
    )
    aws.answer_in_turn(
        "forget",
        {"counts": {"turns": 5, "marks": 2}, "finished": True},
        {"counts": {"turns": 3}, "finished": False},
        {"counts": {"turns": 1}, "finished": True},
    )
    assert run("conversation", "forget", NAME, "--yes", "--json") == 0
    assert slept == [22.0, 1.0]
    assert aws.asked[0] == {"operation": "forget", "conversation": NAME, "dryRun": True}
    assert [event.get("at") for event in aws.asked[1:4]] == [None, NOON_MS, NOON_MS]
    assert [event["at"] for event in aws.asked[4:]] == [NOON_MS, NOON_MS]
    assert json.loads(capsys.readouterr().out)["counts"] == {"waiting": 2, "objects": 2, "turns": 5, "marks": 2}


def test_a_forget_that_never_ends_says_so(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    aws.answer("conversation.forget", FORGOTTEN | {"againInMs": 1_000})
    assert run("conversation", "forget", NAME, "--yes") == 6
    aws.has_responder = True
    aws.answer("conversation.forget", FORGOTTEN)
    aws.answer("forget", {"counts": {}, "finished": False})
    assert run("conversation", "forget", NAME, "--yes") == 6


# -- how it ends -----------------------------------------------------------------------------------


def test_a_cancel_that_cannot_say_what_it_dropped_does_not_say_none(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("conversation.cancel", {"generation": None, "dropped": None, "frozen": None, "leaving": None})
    assert run("conversation", "cancel", NAME, "--yes") == 0
    assert "None" not in capsys.readouterr().out


def test_a_cancel_names_the_hold_that_remains(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("conversation.cancel", {"dropped": 1, "frozen": 0, "leaving": False, "heldUntil": NOON_MS})
    assert run("conversation", "cancel", NAME, "--yes") == 0
    assert "The hold until Tue 14 Nov 22:13:20 remains; `conversation resume` ends it." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "exit_code"), [("invalid", 1), ("not_found", 4), ("conflict", 1), ("refused", 1), ("unavailable", 3)]
)
def test_a_refusal_is_a_sentence_and_an_exit_code(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], code: str, exit_code: int
) -> None:
    aws.refuse("conversation.flush", code, "Nothing waits in this conversation.")
    assert run("conversation", "flush", NAME) == exit_code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Nothing waits in this conversation.\n")


def test_a_conversation_that_nothing_remembers_is_not_found(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    for known, code in ((False, 4), (True, 0)):
        aws.answer("conversation.show", {"conversation": NAME, "known": known, "state": "idle"})
        assert run("conversation", "show", NAME) == code
        captured = capsys.readouterr()
        assert ("has seen nothing" in captured.err, "idle" in captured.out) == (code == 4, code == 0)


def taking_a_conversation(group: TyperGroup, *words: str) -> Iterator[list[str]]:
    """Yield the command line of each command that takes a conversation's id, without the id."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from taking_a_conversation(command, *words, name)
        elif [each for each in command.params if each.name == "conversation"]:
            yield [*words, name, *(["--conversation"] if name == "tail" else [])]


@pytest.mark.parametrize("command", [*taking_a_conversation(command_line())], ids=" ".join)
def test_a_malformed_id_is_wrong_usage_before_anything_is_asked(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    for malformed in ("c1", "a/b/c", "a/b/c/d/e", "a/b//d", ""):
        assert run(*command, malformed) == 2
        assert "tenant/platform/account/user" in capsys.readouterr().err
    assert aws.asked == []


NOTHING: dict[tuple[str, ...], Json] = {
    ("conversation", "list"): {"conversations": [], "next": None, "more": False},
    ("conversation", "list", "--tenant", "acme"): {"conversations": [], "next": None, "more": False},
    ("conversation", "history", NAME): {"status": None, "turns": [], "older": 0},
    ("rules", "list"): {"rules": [], "more": False},
    ("rules", "list", "tenant:"): {"rules": [], "more": False},
    ("dead", "list"): {"letters": [], "inQueue": 0},
    ("dead", "list", "--replies"): {"letters": [], "inQueue": 2},
    ("tenant", "settings", "get", "acme"): {"tenant": "acme", "settings": {}},
}


@pytest.mark.parametrize("command", NOTHING, ids=" ".join)
def test_an_empty_list_is_a_sentence(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    aws.has_responder = True
    for operation in (".".join(command[:2]), "history", "tenant.settings.get"):
        aws.answer(operation, NOTHING[command])
    assert run(*command) == 0
    assert re.fullmatch(r"[A-Za-z].* .*\.\n", capsys.readouterr().out)
    assert run(*command, "--json") == 0
    assert json.loads(capsys.readouterr().out)


def test_a_function_that_fails_is_a_sentence_too(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answers["status"] = {"errorType": "Sandbox.Timedout", "errorMessage": "Task timed out after 60 seconds"}
    assert run("status") == 1
    assert "Task timed out after 60 seconds" in capsys.readouterr().err


def test_without_credentials_aws_cannot_be_reached(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.error = NoCredentialsError()
    assert run("status") == 3
    assert "Sign in" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["conversation"], ["rules", "set", "stage"], ["conversation", "holt", NAME]])
def test_wrong_usage_exits_with_2_and_an_error_like_every_other(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (text,) = capsys.readouterr().err.splitlines()
    assert "--help`" in text
    assert main([*arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().err) == {"error": {"message": text, "exitStatus": 2}}


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail", "--count", "0"],
        ["tail", "--seconds", "0"],
        ["tail", "--count", "many"],
        ["rules", "list", "--js"],
    ],
)
def test_a_command_never_runs_without_the_limit_or_the_option_that_was_meant(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(*arguments) == 2
    assert arguments[-2 if arguments[-1].isalnum() else -1] in capsys.readouterr().err
    assert aws.asked == []


def test_outputs_that_are_no_file_of_a_stage_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = tmp_path / "outputs.json"
    half.write_text('{"ApiEndpoint": ')
    for path in (tmp_path, half):
        assert main(["--outputs", str(path), "status"]) == 1
        assert str(path) in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["door", "try"], ["--help"], ["--version"]])
def test_a_reader_that_ends_early_is_no_error(arguments: list[str], tmp_path: Path) -> None:
    mapping = ROOT / "examples/doors/waha.json"
    body = tmp_path / "body.json"
    body.write_text('{"payload": {"id": "1", "from": "49@c.us", "body": "Hey"}, "event": "message", "session": "s"}')
    reading, writing = os.pipe()
    os.close(reading)
    # Python collects what it prints to a pipe, unless the environment forbids that.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-m", "bufferctl", *arguments, *([mapping, body] if "door" in arguments else [])],
        cwd=ROOT, env=env, stdout=writing, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_help_needs_no_sdk() -> None:
    loaded = "import sys, bufferctl.__main__; assert not {'boto3', 'botocore', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", loaded], check=True, cwd=ROOT)
    shown = subprocess.run(
        [sys.executable, "-m", "bufferctl", "--help"], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "exit statuses:" in shown.stdout


# -- on a terminal ---------------------------------------------------------------------------------

HOSTILE = "[bold]one[/bold]\n\x1b[2Jtwo \x9b31m [link=file:///x]y[/link] \u202e :boom:"


def become_a_terminal(monkeypatch: pytest.MonkeyPatch, *, width: int = 200) -> None:
    """Make both outputs a terminal. pytest replaces them before each test's call."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_people_wrote_cannot_steer_a_terminal(
    aws: FakeAws,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
) -> None:
    if is_terminal:
        become_a_terminal(monkeypatch)
    message = {"receivedAt": NOON_MS, "id": "m1", "author": None, "text": HOSTILE}
    holds = [{"holder": "consumers", "cause": HOSTILE, "until": NOON_MS}]
    shown = {"conversation": HOSTILE, "state": "pending", "holds": holds, "batch": None, "messages": [message]}
    aws.answer("conversation.show", shown | {"known": True})
    assert run("conversation", "show", NAME, "--messages") == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert not [each for each in out if not each.isprintable() and each != "\n"]
    assert out.count("[bold]one[/bold]  [2Jtwo  31m [link=file:///x]y[/link]   :boom:") == 3
    assert str(NOON_MS) not in out, "a time is shown as a number"
    assert run("conversation", "show", NAME, "--messages", "--json") == 0
    out = capsys.readouterr().out
    assert json.loads(out) == shown
    assert not {"\x1b", "\x9b", "\u202e"} & set(out)


@pytest.mark.parametrize("width", [1, 40, 80, 160])
def test_no_width_of_a_terminal_ends_a_command_and_a_usual_one_never_breaks_an_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    become_a_terminal(monkeypatch, width=width)
    texts = ["", "漢字" * 30, "e" + "\u0301" * 50, "שלום", "\ud800", HOSTILE, "x" * 200]
    rows = [{"conversation": "c" * 44, "reason": text, "dueAt": None} for text in texts]
    show(table(rows), table([]), Pairs(rows[1]), Pairs({}), "Text")
    out = capsys.readouterr().out
    assert ("c" * 44 in out) == (width >= 80)


def test_a_sentence_names_the_day_of_a_time_that_is_not_today() -> None:
    now = datetime.now().astimezone()
    assert clock_time(int(now.timestamp() * 1_000)) == f"{now:%H:%M:%S}"
    assert clock_time(NOON_MS) == f"{datetime.fromtimestamp(NOON_MS / 1_000, now.tzinfo):%a %d %b %H:%M:%S}"


def test_one_json_object_is_one_line_for_every_reader() -> None:
    assert len(as_json({"text": "one\u2028two\u2029three\x85four\rfive"}, indent=None).splitlines()) == 1


# -- the exit status -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "code", "status"),
    [
        ("Invoke", "TooManyRequestsException", 3),
        ("Invoke", "AccessDeniedException", 1),
        ("DescribeStacks", "Throttling", 3),
        ("DescribeStacks", "ValidationError", 4),
    ],
)
def test_an_error_of_aws_has_the_status_that_says_what_to_do(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], operation: str, code: str, status: int
) -> None:
    aws.error = ClientError({"Error": {"Code": code, "Message": "No."}}, operation)
    assert run("status", "--json") == status
    problem = {"message": f"AWS refuses {operation}: No.", "exitStatus": status}
    assert json.loads(capsys.readouterr().err) == {"error": problem}


# -- send ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "status"), [(200, 0), (401, 1), (429, 3), (503, 3), (None, 3)])
def test_what_a_webhook_answers_to_a_message_decides_the_exit_status(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch, answer: int | None, status: int
) -> None:
    posted: list[tuple[str, str, Any]] = []

    def post(self: GenericWebhook, message: Json) -> WebhookResponse:
        posted.append((self._url, self._secret, message))
        if answer is None:
            raise WebhookUnreachable("no route")
        return WebhookResponse(answer, json.dumps({"conversations": {NAME: {"dueAt": NOON_MS, "count": 1}}}))

    monkeypatch.setattr(GenericWebhook, "post", post)
    assert run("send", "Hey", "--id", "m1", "--user", "c1") == status
    message = {"account": "bufferctl", "conversation": "c1", "id": "m1", "text": "Hey"}
    assert posted == [("https://api.example.org/webhook/generic", "newest", message)]


def test_a_stage_without_a_secret_is_refused(aws: FakeAws) -> None:
    aws.secrets = {}
    assert run("send", "Hey") == 1


# -- tail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_tail_twice_leaves_nothing_behind(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    done: list[str] = []

    class Subscription:
        def poll(self, *, wait_seconds: int) -> NoReturn:
            signal.raise_signal(ending)
            raise AssertionError("the signal ends it")

    @contextmanager
    def subscribe(*_: object, **__: object) -> Iterator[Subscription]:
        try:
            yield Subscription()
        finally:
            signal.raise_signal(ending)
            done.append("removed")

    monkeypatch.setattr(events, "subscribe", subscribe)
    before = signal.getsignal(ending)
    assert run("tail") == 0
    assert done == ["removed"]
    assert signal.getsignal(ending) is before


def test_a_tail_without_an_event_says_so(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def subscribe(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(poll=lambda **_: [])

    monkeypatch.setattr(events, "subscribe", subscribe)
    monkeypatch.setattr(time, "monotonic", iter(range(100)).__next__)
    assert run("tail", "--seconds", "3") == 0
    captured = capsys.readouterr()
    assert (captured.out, "No event arrived." in captured.err) == ("", True)


def test_a_tail_that_is_killed_leaves_what_people_wrote_for_minutes_only() -> None:
    """Before, its queue kept every event for SQS's four days."""
    created: list[dict[str, Any]] = []

    class Sqs:
        def create_queue(self, **call: Any) -> NoReturn:
            created.append(call)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), subscribe(lambda _: Sqs(), "bus", pattern={}, prefix="bufferctl-tail"):
        pass
    (call,) = created
    assert 60 <= int(call["Attributes"]["MessageRetentionPeriod"]) <= 600


# -- the command line ------------------------------------------------------------------------------


def test_every_exit_status_is_in_the_document_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown, page = capsys.readouterr().out, (ROOT / "docs" / "bufferctl.md").read_text("utf-8")
    for code, meaning in EXIT_STATUSES.items():
        assert f"| {code} | {meaning} |" in page
        assert f"{code:<3}  {meaning}" in shown


def leaves(group: TyperGroup) -> Iterator[Any]:
    for command in group.commands.values():
        yield from leaves(command) if isinstance(command, TyperGroup) else [command]


def test_every_command_has_a_help_and_the_options_of_all_commands() -> None:
    for command in leaves(command_line()):
        assert command.help
        options = {name for each in command.params for name in each.opts}
        assert {"--stage", "--profile", "--region", "--outputs", "--json"} <= options


def test_the_version_and_a_completion_need_no_stage() -> None:
    program = ROOT / "bufferctl" / "bufferctl.sh"
    shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    assert shown.stdout.startswith("bufferctl 0.")
    wanted = {"_BUFFERCTL_COMPLETE": "complete_bash", "COMP_WORDS": "bufferctl dead redrive --", "COMP_CWORD": "3"}
    found = subprocess.run([program], env=os.environ | wanted, check=True, capture_output=True, text=True)
    assert {"--all", "--yes", "--stage"} <= set(found.stdout.split())


@pytest.mark.parametrize(
    ("deployed", "ours", "verdict"),
    [
        ("4f1c", "4f1c", "(4f1c): the same"),
        ("4f1c", "77aa", "(4f1c): they differ"),
        ("4f1c-changed", "4f1c-changed", "files changed"),
        (None, "4f1c", "not deployed from a git checkout"),
    ],
)
def test_the_version_is_compared_with_that_of_the_stage(
    aws: FakeAws,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    deployed: str | None,
    ours: str,
    verdict: str,
) -> None:
    monkeypatch.setattr(checkout, "commit", lambda: ours)
    aws.commit = {"Commit": deployed} if deployed else {}
    for arguments in (["--version", "--stage", "prod"], ["--stage", "prod", "--version"]):
        assert main(arguments) == 0
        first, second = capsys.readouterr().out.splitlines()
        assert (ours in first, verdict in second) == (True, True), second


@pytest.mark.parametrize("time", ["25h", "86401s", "0s", "1d"])
def test_a_time_that_the_functions_would_refuse_is_wrong_usage(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    assert run("conversation", "hold", NAME, "--for", time) == 2
    assert "at most 24h" in capsys.readouterr().err
    assert aws.asked == []


def test_the_region_is_that_of_cdk_json_unless_another_is_given(aws: FakeAws, monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[str] = []

    def session(*, region_name: str, **_: Any) -> FakeAws:
        regions.append(region_name)
        return aws

    monkeypatch.setattr(boto3, "Session", session)
    aws.answer("conversation.flush", {"dueAt": NOON_MS, "count": 2})
    for arguments in ([], ["--region", "eu-west-1"]):
        assert main(["--stage", "prod", *arguments, "conversation", "flush", NAME]) == 0
    assert regions == ["us-east-1", "eu-west-1"]


def test_a_question_that_nobody_can_answer_is_wrong_usage(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.error = EOFError()  # the SDK asks for the code of a second factor, and there is no terminal
    assert run("status") == 2
    assert "terminal" in capsys.readouterr().err


def test_the_console_gets_the_file_that_was_meant_though_it_runs_in_another_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execv", lambda _program, words: asked.append(words))
    assert main(["console", "--outputs", "outputs.json"]) == 0
    assert str(tmp_path / "outputs.json") in asked[0]


def test_an_unknown_stage_is_answered_with_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stage", "prdo", "status"]) == 4
    assert "dev, local, prod" in capsys.readouterr().err


def test_it_repeats_what_the_settings_of_stages_say() -> None:
    """Compare the constants of `bufferctl` that it may not import from `infra/`."""
    assert StageConfig.model_fields["region"].default == DEFAULT_REGION
    assert facts.STACKS == STACKS
    assert LOCAL == cli.LOCAL
