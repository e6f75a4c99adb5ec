"""The command line: its requests, its output for people and programs, and its exit codes."""

import argparse
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NoReturn

import boto3
import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ReadTimeoutError

from bufferctl import commands
from bufferctl.__main__ import main, make_parser
from bufferctl.errors import EXIT_STATUSES
from bufferctl.events import subscribe
from bufferctl.formatting import Lines, Pairs, TextLine, as_json, table
from bufferctl.stage import DEFAULT_REGION
from bufferctl.terminal import show
from infra.settings_and_defaults import StageConfig
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
        outputs = {
            "ApiEndpoint": self.api, "EventBusName": "bus", "AdminFunction": "the-admin", "WebhookSecretId": "secret",
        }  # fmt: skip
        return {"Stacks": [{"Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in outputs.items()]}]}

    def get_caller_identity(self) -> Json:
        return {"Arn": ME}

    def get_secret_value(self, *, SecretId: str) -> Json:  # noqa: N803 - AWS's name
        assert SecretId == "secret"
        return {"SecretString": json.dumps(self.secrets)}

    def invoke(self, *, FunctionName: str, Payload: bytes) -> Json:  # noqa: N803 - AWS's names
        event = json.loads(Payload)
        of_responder = event["operation"] in ("history", "forget")
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
            {"operation": "conversation.hold", "holdMs": 3_600_000, "cause": "operator"},
        ),
        (
            ["conversation", "hold", NAME, "--for", "15m"],
            {"heldUntil": NOON_MS},
            {"operation": "conversation.hold", "holdMs": 900_000, "cause": "operator"},
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


def test_a_hand_off_is_a_hold_that_says_so_and_both_warn_if_they_outlast_the_reply_window(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    outlasts = {"replyUntil": NOON_MS, "warning": "Too long."}
    aws.answer("conversation.hold", {"heldUntil": NOON_MS + 1} | outlasts)
    for verb in ("hold", "handoff"):
        assert run("conversation", verb, NAME, "--for", "30m") == 0
        assert capsys.readouterr().out.splitlines()[1:] == ["Warning: Too long.", "replyUntil  2023-11-14 22:13:20.000"]
    assert [each["cause"] for each in aws.asked] == ["operator", "handoff"]


def test_the_history_shows_words_only_on_request(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.has_responder = True
    turn = {"at": NOON_MS, "role": "user", "batchId": "b-1", "text": "Hey"}
    aws.answer("history", {"status": "reply_sent", "older": 3, "turns": [turn]})
    assert run("conversation", "history", NAME) == 0
    assert "Hey" not in capsys.readouterr().out
    assert run("conversation", "history", NAME, "--messages", "--older", "2") == 0
    assert "Hey" in capsys.readouterr().out
    assert aws.asked[1] == {"operation": "history", "conversation": NAME, "texts": True, "limit": 2}


def test_a_stage_without_a_responder_says_so(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("conversation", "history", NAME) == 1
    assert capsys.readouterr().err == "This stage has no responder.\n"


def test_rules_come_from_an_argument_or_from_standard_input(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.answer("rules.set", {"version": 7, "open": {"looked": 3, "retimed": 2, "complete": True}})
    assert run("rules", "set", "stage", '{"silenceMs": 5}', "--expected-version", "6") == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"silenceMs": 6}'))
    assert run("rules", "set", "stage", "-") == 0
    assert aws.asked == [
        {"operation": "rules.set", "scope": "stage", "rules": {"silenceMs": 5}, "expectedVersion": 6},
        {"operation": "rules.set", "scope": "stage", "rules": {"silenceMs": 6}},
    ]
    assert capsys.readouterr().out.splitlines()[0] == (
        "Version 7, in force within 10 s. Rescheduled 2 of 3 open buffers in this scope."
    )
    assert run("rules", "set", "stage", "{silenceMs: 5}") == 2
    assert capsys.readouterr().err.startswith("The rules are not JSON")


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
    assert lines[0].split() == ["conversation", "lane", "shard", "state", "count", "frozen", "reason", "dueAt"]
    assert [line.split()[0] for line in lines[1:]] == ["d/s/a/first", "d/s/a/later", "d/s/a/flying", "d/s/a/too"]
    assert lines[1].split()[1:] == ["valkey", "0", "pending", "2", "0", "silence", "2023-11-14", "22:13:20.000"]


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
    assert capsys.readouterr().out.splitlines()[-1] == "There are more: filter them, or raise --limit."
    assert len(aws.asked) == 2, "nothing leads to windows that were left out: it does not ask for ever"
    aws.answer("conversation.list", page())
    assert run("conversation", "list", "--limit", "2000") == 0
    assert capsys.readouterr().out == "Nothing waits.\n"
    assert aws.asked[-1]["limit"] == 500, "the most that the function gives at once"


def test_what_people_wrote_cannot_steer_the_terminal(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    message = {"receivedAt": NOON_MS, "id": "m1", "author": None, "text": "one\n\x1b[2Jtwo"}
    holds = [{"holder": "consumers", "cause": "one\n\x1b[2Jtwo", "until": NOON_MS}]
    shown = {"conversation": NAME, "state": "pending", "holds": holds, "batch": None, "messages": [message]}
    aws.answer("conversation.show", shown)
    assert run("conversation", "show", NAME, "--messages") == 0
    assert aws.asked[0]["messages"] is True
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.splitlines()[-1].endswith("one  [2Jtwo")


def test_an_explanation_names_value_layer_and_version_and_what_is_not_in_force(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = {"value": 900, "layer": "tenant:acme", "via": "set here", "version": 3}
    skipped = [{"layer": "stage", "reason": "silenceM: unknown field"}]
    waits = [{"example": "a message", "waitMs": 900, "rule": "silenceMs"}]
    aws.answer("rules.explain", {"rules": {"silenceMs": rule}, "waits": waits, "skipped": skipped})
    assert run("rules", "explain", NAME) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rule       value  layer        via       version",
        "silenceMs  900    tenant:acme  set here  3",
        "",
        "example    waitMs  rule",
        "a message  900     silenceMs",
        "Not in force: stage: silenceM: unknown field",
    ]


def test_rules_whose_buffers_were_not_all_seen_are_not_called_done(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"looked": 3, "retimed": 2, "complete": False, "problem": "no connection"}
    aws.answer("rules.delete", {"deleted": "stage", "open": found})
    assert run("rules", "delete", "stage") == 0
    assert "Some were not reached (no connection)" in capsys.readouterr().out


def test_a_letters_words_are_shown_only_if_they_are_asked_for(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("dead.show", {"batchId": "b1", "reason": "put event"})
    assert run("dead", "show", "b1") == 0
    assert aws.asked == [{"operation": "dead.show", "batchId": "b1", "payloads": False}]
    aws.answer("dead.show", {"batchId": "b1", "reason": "put event", "payloads": ["hello"]})
    assert run("dead", "show", "b1", "--payloads") == 0
    assert "hello" in capsys.readouterr().out


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
    assert capsys.readouterr().err == "There is no terminal to ask at: add --yes.\n"
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
    assert json.loads(captured.err) == {"error": {"message": "2 of 2 were not sent again.", "exitStatus": 1}}
    aws.answer("dead.redrive", {"redriven": "b1"})
    aws.answer("dead.list", {"letters": [{"batchId": "b1"}, {"batchId": "b1"}], "inQueue": 2})
    assert run("dead", "redrive", "--all", "--yes") == 0
    assert capsys.readouterr().out == "b1  sent again\n"


def test_letters_that_nobody_can_name_are_counted_when_all_are_sent_again(
    aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("dead.list", {"letters": [{"batchId": "b1"}, {"batchId": None}], "inQueue": 2})
    aws.answer("dead.redrive", {"redriven": "b1"})
    assert run("dead", "redrive", "--all", "--yes") == 6
    captured = capsys.readouterr()
    assert captured.out == "b1  sent again\n"
    assert captured.err == (
        "1 letter without a batch id stayed in the queue: docs/bufferctl.md says how to remove one.\n"
    )
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
    assert run("dead", "redrive", "b1", "b2") == 6
    captured = capsys.readouterr()
    assert captured.out.startswith("b1  sent again\nb2  AWS cannot be reached:")
    assert captured.err == "1 of 2 were not sent again.\n"


@pytest.mark.parametrize("arguments", [[], ["--all", "b1"]])
def test_either_some_letters_are_sent_again_or_all(aws: FakeAws, arguments: list[str]) -> None:
    assert run("dead", "redrive", *arguments) == 2


def test_the_name_of_an_id_in_the_logs_is_looked_up(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("id.look_up", {"logged": "#0a1b"})
    assert run("logged", NAME) == 0
    assert aws.asked == [{"operation": "id.look_up", "id": NAME}]
    assert capsys.readouterr().out == "#0a1b\n"


# -- forgetting ------------------------------------------------------------------------------------

FORGOTTEN = {
    "conversation": NAME, "counts": {"waiting": 2, "objects": 1}, "agesOut": [{"place": "logs", "days": 14}],
    "at": NOON_MS, "againInMs": None,
}  # fmt: skip


def test_a_forget_says_what_it_erased_and_what_only_ages_out(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answer("conversation.forget", FORGOTTEN)
    assert run("conversation", "forget", NAME, "--yes") == 0
    assert aws.asked == [{"operation": "conversation.forget", "conversation": NAME}]
    assert capsys.readouterr().out == (
        "Erased, and published an event for consumers:\n\nwaiting  2\nobjects  1\n\n"
        "These copies cannot be erased, but expire:\n\nplace  days\nlogs   14\n"
    )


def test_a_forget_in_several_calls_names_the_other_name_that_the_first_one_found(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bufferctl.forgetting.time.sleep", lambda _seconds: None)
    other = "default/whatsapp/555/US.ada"
    aws.answer_in_turn("conversation.forget", FORGOTTEN | {"otherName": other, "againInMs": 5}, FORGOTTEN)
    assert run("conversation", "forget", NAME, "--yes") == 0
    assert capsys.readouterr().out.endswith(f"The author also has the name {other}: forget that, too.\n")


def test_a_dry_run_asks_nobody_to_erase_anything(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.has_responder = True
    aws.answer("conversation.forget", {name: FORGOTTEN[name] for name in ("conversation", "counts", "agesOut")})
    aws.answer("forget", {"counts": {"turns": 3}, "finished": False})
    assert run("conversation", "forget", NAME, "--dry-run") == 0
    assert [(event["operation"], event["dryRun"]) for event in aws.asked] == [
        ("conversation.forget", True), ("forget", True),
    ]  # fmt: skip
    assert capsys.readouterr().out.startswith("It would erase:\n\nwaiting  2\nobjects  1\nturns    3\n")


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
        {"counts": {"turns": 5, "outboxes": 2}, "finished": True},
        {"counts": {"turns": 3}, "finished": False},
        {"counts": {"turns": 1}, "finished": True},
    )
    assert run("conversation", "forget", NAME, "--yes", "--json") == 0
    assert slept == [22.0, 1.0]
    assert aws.asked[0] == {"operation": "forget", "conversation": NAME, "dryRun": True}
    assert [event.get("at") for event in aws.asked[1:4]] == [None, NOON_MS, NOON_MS]
    assert [event["at"] for event in aws.asked[4:]] == [NOON_MS, NOON_MS]
    captured = capsys.readouterr()
    assert json.loads(captured.out)["counts"] == {"waiting": 2, "objects": 2, "turns": 5, "outboxes": 2}
    assert "trying again in 22 s" in captured.err


def test_a_forget_that_never_ends_says_so(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    aws.answer("conversation.forget", FORGOTTEN | {"againInMs": 1_000})
    assert run("conversation", "forget", NAME, "--yes") == 6
    assert capsys.readouterr().err.endswith("run it again.\n")
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
    assert capsys.readouterr().out == "Dropped. Valkey's answer was lost, so the number of messages is unknown.\n"


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


def test_a_function_that_fails_is_a_sentence_too(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.answers["status"] = {"errorType": "Sandbox.Timedout", "errorMessage": "Task timed out after 60 seconds"}
    assert run("status") == 1
    assert capsys.readouterr().err == "The admin function failed: Task timed out after 60 seconds.\n"


def test_without_credentials_aws_cannot_be_reached(aws: FakeAws, capsys: pytest.CaptureFixture[str]) -> None:
    aws.error = NoCredentialsError()
    assert run("status") == 3
    assert capsys.readouterr().err.startswith("AWS cannot be reached: Unable to locate credentials. Sign in")


@pytest.mark.parametrize(
    "arguments", [[], ["conversation"], ["rules", "set", "stage"], ["conversation", "hold", NAME, "--for", "1d"]]
)
def test_wrong_usage_exits_with_2_and_an_error_like_every_other(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    usage, *_, text = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: ")
    assert text.endswith(".")
    assert main([*arguments, "--json"]) == 2
    problem = json.loads(capsys.readouterr().err.splitlines()[-1])["error"]
    assert problem == {"message": text, "exitStatus": 2}


@pytest.mark.parametrize(
    "arguments",
    [
        ["tail", "--count", "0"],
        ["tail", "--seconds", "0"],
        ["tail", "--seconds", "nan"],
        ["tail", "--count", "many"],
        ["verify", "--load", "0/s"],
        ["rules", "list", "--js"],
    ],
)
def test_a_command_never_runs_without_the_limit_or_the_option_that_was_meant(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(*arguments) == 2
    assert arguments[-1] in capsys.readouterr().err.splitlines()[-1]
    assert aws.asked == []


def test_outputs_that_are_no_file_of_a_stage_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = tmp_path / "outputs.json"
    half.write_text('{"ApiEndpoint": ')
    for path in (tmp_path, half):
        assert main(["--outputs", str(path), "status"]) == 1
        assert capsys.readouterr().err.startswith(f"{path} is not the outputs.json of a local stage: ")


def test_a_reader_that_ends_early_is_no_error(tmp_path: Path) -> None:
    mapping = ROOT / "examples/doors/waha.json"
    body = tmp_path / "body.json"
    body.write_text('{"payload": {"id": "1", "from": "49@c.us", "body": "Hey"}, "event": "message", "session": "s"}')
    reading, writing = os.pipe()
    os.close(reading)
    # Python collects what it prints to a pipe, unless the environment forbids that.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        [sys.executable, "-m", "bufferctl", "door", "try", mapping, body],
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


def become_a_terminal(monkeypatch: pytest.MonkeyPatch, *, width: int = 200) -> None:
    """Make both outputs a terminal that knows colours. pytest replaces them before each test's call."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("NO_COLOR", raising=False)


HOSTILE = "[bold]one[/bold]\n\x1b[2Jtwo \x9b31m [link=file:///x]y[/link] \u202e :boom:"


def without_styles(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_gets_colours_and_people_cannot_steer_it(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_terminal(monkeypatch)
    message = {"receivedAt": NOON_MS, "id": "m1", "author": HOSTILE, "text": HOSTILE}
    holds = [{"holder": "consumers", "cause": HOSTILE, "until": NOON_MS}]
    shown = {"conversation": HOSTILE, "reason": "hold", "holds": holds, "batch": None, "messages": [message]}
    aws.answer("conversation.show", shown)
    assert run("conversation", "show", NAME, "--messages") == 0
    out = capsys.readouterr().out
    assert "\x1b[33mhold" in out
    plain = without_styles(out)
    assert "\x1b" not in plain
    assert not [each for each in plain if not each.isprintable() and each != "\n"]
    assert plain.count("[bold]one[/bold]  [2Jtwo  31m [link=file:///x]y[/link]   :boom:") == 4


ID = "acme/whatsapp/106540352242922/491701234567"
LETTER = {"batchId": "b" * 40, "conversationId": ID, "messages": 2, "attempt": 1, "lastAt": NOON_MS, "reason": "r" * 50}


def on_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, *command: str
) -> list[str]:
    """Return the lines that a terminal of this width shows."""
    become_a_terminal(monkeypatch, width=width)
    assert run(*command) == 0
    lines = without_styles(capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("width", [160, 130, 80, 60])
def test_a_terminal_folds_texts_and_no_id(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    aws.answer("dead.list", {"letters": [LETTER], "inQueue": 1})
    words = " ".join(on_terminal(capsys, monkeypatch, width, "dead", "list")).split()
    assert {"b" * 40, ID} <= set(words)
    assert ("r" * 50 in words) == (width == 80), "the reason is folded in a table, or if it does not fit a line"


class Ascii(io.TextIOWrapper):
    """An output that lacks most characters, such as that of a job with LC_ALL=POSIX and UTF-8 mode off."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")

    @property
    def bytes(self) -> bytes:
        self.flush()
        return self.buffer.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_an_output_without_umlauts_gets_question_marks_and_json_gets_utf_8(
    aws: FakeAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.answer("dead.show", {"batchId": "b1", "payloads": ["Grüße"]})
    monkeypatch.setattr(sys, "stdout", out := Ascii())
    assert run("dead", "show", "b1", "--payloads") == 0
    assert b"Gr??e" in out.bytes
    monkeypatch.setattr(sys, "stdout", out := Ascii())
    assert run("dead", "show", "b1", "--payloads", "--json") == 0
    assert json.loads(out.bytes)["payloads"] == ["Grüße"]


def test_json_has_no_colours_and_no_control_characters(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_a_terminal(monkeypatch)
    aws.answer("dead.show", {"batchId": "b1", "payloads": [HOSTILE]})
    assert run("dead", "show", "b1", "--payloads", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["payloads"] == [HOSTILE]
    assert not {"\x1b", "\x9b", "\u202e"} & set(captured.out)
    assert captured.err == ""


def test_one_json_object_is_one_line_for_every_reader() -> None:
    assert len(as_json({"text": "one\u2028two\u2029three\x85four\rfive"}, indent=None).splitlines()) == 1


@pytest.mark.parametrize("width", [0, 1, 2, 40])
def test_no_width_and_no_content_of_a_terminal_ends_a_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    become_a_terminal(monkeypatch, width=width)
    texts = ["", "漢字" * 30, "e" + "\u0301" * 50, "שלום", "x" * 200, "\ud800", HOSTILE]
    rows = [{"conversation": text, "reason": text, "dueAt": None} for text in texts]
    names = ("conversation", "reason", "dueAt")
    show(
        table(rows, names),
        table([], names),
        Pairs(rows[1]),
        Pairs({}),
        Lines([TextLine(each, "bad", each) for each in texts]),
    )
    shown = without_styles(capsys.readouterr().out)
    assert "\x1b" not in shown
    assert "xx" in shown.replace("\n", ""), "something is shown"
    assert str(Pairs({})) == ""


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


@pytest.fixture
def webhook(aws: FakeAws) -> Iterator[list[tuple[str, str, Json]]]:
    """Keeps (path, time and signature, body) of what is posted; refuses a text that says so."""
    posted: list[tuple[str, str, Json]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            proof = f"{self.headers['X-Signature-Timestamp']} {self.headers['X-Signature-256']}"
            posted.append((self.path, proof, body))
            self.send_response(401 if body["text"] == "forged" else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"conversations": {NAME: {"dueAt": NOON_MS, "count": 1}}}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        aws.api = f"http://127.0.0.1:{server.server_address[1]}"
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        yield posted
        server.shutdown()
        serving.join()


def test_a_test_message_is_signed_with_the_stages_newest_secret_and_the_time(
    aws: FakeAws,
    webhook: list[tuple[str, str, Json]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("message_buffer.clock.time_ns", lambda: NOON_MS * 1_000_000)
    assert run("send", "Hey", "--id", "m1", "--user", "c1") == 0
    ((path, proof, body),) = webhook
    assert (path, body) == (
        "/webhook/generic",
        {"account": "bufferctl", "conversation": "c1", "id": "m1", "text": "Hey"},
    )
    # Made with `printf %s "1700000000.$body" | openssl dgst -sha256 -hmac newest`.
    assert proof == "1700000000 sha256=d796f97c87c52220f106289713d7c752818dcbef9ffe514db1e5e6bcaa17c226"
    assert NAME in capsys.readouterr().out


def test_a_webhook_that_refuses_or_is_away_is_said(
    aws: FakeAws, webhook: list[tuple[str, str, Json]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("send", "forged") == 1
    assert capsys.readouterr().err.startswith("The webhook answers 401")
    aws.api = "http://127.0.0.1:1"
    assert run("send", "Hey") == 3
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

    monkeypatch.setattr(commands, "subscribe", subscribe)
    before = signal.getsignal(ending)
    assert run("tail") == 0
    assert done == ["removed"]
    assert signal.getsignal(ending) is before


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


# -- the document ----------------------------------------------------------------------------------

Shape = tuple[frozenset[str], frozenset[str]]
DOCUMENT = (ROOT / "docs" / "bufferctl.md").read_text("utf-8").partition("## Every command")[2]


def shapes_of(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, Shape]]:
    """Yield each command of the parser with its positional arguments and its options; hidden ones are left out."""
    shown = [each for each in parser._actions if each.help != argparse.SUPPRESS and "--help" not in each.option_strings]
    nested = [each for each in shown if isinstance(each, argparse._SubParsersAction)]
    options = {name for each in shown for name in each.option_strings}
    positional = {each.metavar or each.dest for each in shown if not each.option_strings and each not in nested}
    if path == "" or not nested:
        yield path, (frozenset(str(name) for name in positional), frozenset(options))
    for each in nested:
        for name, inner in each.choices.items():
            yield from shapes_of(inner, f"{path} {name}".strip())


def test_every_exit_status_is_in_the_document() -> None:
    page = (ROOT / "docs" / "bufferctl.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_STATUSES


def documented() -> Iterator[tuple[str, Shape]]:
    """Yield the same as the document has it."""
    before = DOCUMENT.partition("```")[0]
    yield "", (frozenset(), frozenset(re.findall(r"--[a-z-]+", before)))
    for line in DOCUMENT.split("```")[1].strip().splitlines():
        path = re.split(r" [<\[]", line)[0]
        yield path, (frozenset(re.findall(r"<(.+?)>", line)), frozenset(re.findall(r"--[a-z-]+", line)))


def test_every_command_and_option_is_in_the_document_and_nothing_else() -> None:
    assert dict(documented()) == dict(shapes_of(make_parser()))


# -- a machine without the set-up ------------------------------------------------------------------


def test_a_python_without_the_dependencies_is_told_in_one_sentence() -> None:
    # -S: without site-packages, as a system's Python is without ours.
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "bufferctl", "status"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == (
        "The Python package 'botocore' is missing. Run `make setup`, then this command with .venv/bin/python.\n"
    )


@pytest.mark.parametrize("time", ["25h", "1441m", "86401s", "0s"])
def test_a_time_that_the_functions_would_refuse_is_wrong_usage(
    aws: FakeAws, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    assert run("conversation", "hold", NAME, "--for", time) == 2
    assert "at least 1s and at most 24h" in capsys.readouterr().err
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


def test_an_unknown_stage_is_answered_with_the_valid_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stage", "prdo", "status"]) == 4
    assert "cdk.json has no stage 'prdo', but dev, local, prod." in capsys.readouterr().err


def test_a_stage_without_a_region_is_where_it_is_deployed() -> None:
    assert StageConfig.model_fields["region"].default == DEFAULT_REGION
