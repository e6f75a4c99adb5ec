"""A running stage keeps its lane, `up` replaces it only after the developer agreed, and a new one keeps what it can."""

import io
import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tools.local import __main__ as command
from tools.local import stage as module
from tools.local.errors import LocalError
from tools.local.outputs import Outputs
from tools.local.progress import Progress
from tools.local.stage import Instance, Stage

OUTPUTS = Outputs(
    ApiEndpoint="http://127.0.0.1:4566/api",
    EventBusName="bus",
    AwsEndpointUrl="http://127.0.0.1:4566",
    Region="us-east-1",
    ValkeyUrl="valkey://127.0.0.1:6379",
    WebhookSecrets={"generic": "first"},
    Functions={},
    LogGroups={},
    DeadLetterQueueUrl="queue",
    OversizeBucketName="bucket",
    RulesTableName="rules",
)
STACK_OUTPUTS = '{"MessageBuffer-local-Buffer": {"WebhookSecretId": "secrets"}}'


class Deployed(Stage):
    """A stage that starts no process and records the settings with which it was deployed."""

    def __init__(self, home: Path, running: Instance | None) -> None:
        super().__init__(home)
        self.running = running
        self.deployed_with: Mapping[str, Any] = {}
        self.deployed_secrets: Mapping[str, Any] = {}
        self.started_with_valkey: bool | None = None
        self.wanted_port: int | None = None

    def _running(self) -> Instance | None:
        return self.running

    def _start(self, progress: Progress, *, has_valkey: bool, wanted_port: int | None) -> Instance:
        self.started_with_valkey, self.wanted_port = has_valkey, wanted_port
        self.running = instance(has_valkey=has_valkey)
        return self.running

    def _deploy(self, *_: Any, overrides: Mapping[str, Any], secrets: Mapping[str, Any], **__: Any) -> Outputs:
        self.deployed_with, self.deployed_secrets = overrides, secrets
        self._run.mkdir(parents=True, exist_ok=True)
        (self._run / "stack-outputs.json").write_text(STACK_OUTPUTS)
        return OUTPUTS

    def stopped(self) -> "Deployed":
        """Return the next stage in this folder, after this one was stopped as `make down` does."""
        self.keep()
        self.down(Progress(io.StringIO()))
        return Deployed(self._home, running=None)


class Aws:
    """A fake of the emulator: the rules' table, and the webhook secrets."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.secrets: dict[str, Any] = {"generic": ["second", "first"], "custom/shop": "of a door"}

    def get_paginator(self, operation: str) -> "Aws":
        assert operation == "scan"
        return self

    def paginate(self, *, TableName: str) -> "Aws":  # noqa: N803 - AWS's names
        return self

    def build_full_result(self) -> dict[str, Any]:
        return {"Items": list(self.items)}

    def put_item(self, *, TableName: str, Item: dict[str, Any]) -> None:  # noqa: N803
        self.items.append(Item)

    def get_secret_value(self, *, SecretId: str) -> dict[str, str]:  # noqa: N803
        assert SecretId == "secrets"
        return {"SecretString": json.dumps(self.secrets)}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Aws:
    aws = Aws()
    monkeypatch.setattr(Outputs, "client", lambda self, service: aws)
    return aws


def instance(*, has_valkey: bool) -> Instance:
    return Instance("no process has this mark", 1, 2, 3, has_valkey)


def stage_of(home: Path, lane: str | None, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    monkeypatch.setattr(module, "_wait_until_answering", lambda url: None)
    monkeypatch.setattr("tools.local.stage.workers.warm_up", lambda outputs, **_: None)
    running = None if lane is None else instance(has_valkey=lane == "valkey")
    stage = Deployed(home, running)
    if running:
        (home / "run").mkdir(parents=True)
        (home / "run" / "instance.json").write_text(json.dumps(asdict(running)))
        (home / "run" / "stack-outputs.json").write_text(STACK_OUTPUTS)
        OUTPUTS.write(stage.outputs_file)
    return stage


@pytest.mark.parametrize("lane", ["valkey", "dynamodb"])
def test_another_up_keeps_the_running_stage_and_its_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: Aws, lane: str
) -> None:
    stage = stage_of(tmp_path, lane, monkeypatch)
    stage.up(Progress(io.StringIO()))
    assert stage.deployed_with["lane"] == lane
    assert stage.started_with_valkey is None, "nothing was started anew"
    assert stage.deployed_secrets == aws.secrets, "also those that an operator has set"


# -- what a new stage takes over ------------------------------------------------------------------------------

RULES = [{"scope": {"S": "!version"}, "version": {"N": "1"}}, {"scope": {"S": "stage"}, "rules": {"S": "{}"}}]


def test_a_new_stage_has_the_port_and_secrets_of_the_one_before_and_its_rules_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: Aws
) -> None:
    first = stage_of(tmp_path, "valkey", monkeypatch)
    aws.items = list(RULES)
    assert first.keep() == 1, "the item with the version is none"
    second = first.stopped()
    aws.items = []
    second.up(Progress(io.StringIO()))
    assert second.wanted_port == 3
    assert second.deployed_secrets == {"generic": ["second", "first"], "custom/shop": "of a door"}
    assert aws.items == []
    # Nobody has set rules on the second stage, so those of the first are still there.
    third = second.stopped()
    third.up(Progress(io.StringIO()), with_rules=True)
    assert aws.items == RULES


def test_a_kept_file_that_cannot_be_read_is_as_good_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: Aws
) -> None:
    stage = stage_of(tmp_path, None, monkeypatch)
    for content in ("{", '{"of": "another version"}'):
        (tmp_path / "kept.json").write_text(content)
        stage.running = None
        stage.up(Progress(io.StringIO()), with_rules=True)
        assert (stage.wanted_port, stage.deployed_secrets) == (None, {})


def test_a_port_that_another_program_has_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = taken.getsockname()[1]
        given, *others = module._free_ports(wanted, None, None)
        assert len({wanted, given, *others}) == 4
    assert module._free_ports(wanted, None)[0] == wanted


@pytest.mark.parametrize(
    ("settings", "cores", "slots"), [({}, 2, 4), ({}, 64, 16), ({"shards": 6}, 2, 6), ({"shards": 6}, None, 6)]
)
def test_slots_fit_the_machine_and_the_shards(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], cores: int | None, slots: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert module.slots_of(settings) == slots


def test_a_stage_is_deployed_with_its_slots_unless_its_settings_name_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aws: Aws
) -> None:
    stage = stage_of(tmp_path, "valkey", monkeypatch)
    stage.up(Progress(io.StringIO()))
    assert stage.deployed_with["concurrency"] == {"conversation_processor": module.slots_of({})}
    chosen = {"conversation_processor": 50, "ingest": 3}
    stage.up(Progress(io.StringIO()), overrides={"concurrency": chosen})
    assert stage.deployed_with["concurrency"] == chosen


# -- a change of the lane -------------------------------------------------------------------------------------


class Operators:
    def ask(self, operation: str) -> dict[str, Any]:
        assert operation == "status"
        return {"pending": 2, "inflight": 1, "windows": {"open": 4}}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    """Return a running stage of the Valkey lane in which seven conversations wait."""

    def find_stage(name: str, **given: Any) -> Any:
        assert (name, given["outputs"]) == ("local", tmp_path / "outputs.json")
        return Operators()

    monkeypatch.setattr(command, "find_stage", find_stage)
    return stage_of(tmp_path, "valkey", monkeypatch)


def test_a_stage_of_the_other_lane_is_replaced_only_after_a_yes(
    stage: Deployed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(LocalError, match=r"Nothing was done\. Run `make down` first"):
        command._agree_to_replace(stage, {"lane": "dynamodb"})
    assert "This would delete 7 waiting conversations" in capsys.readouterr().out
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "n")
    with pytest.raises(LocalError, match=r"Nothing was done\."):
        command._agree_to_replace(stage, {"lane": "dynamodb"})
    monkeypatch.setattr("builtins.input", lambda question: "y")
    command._agree_to_replace(stage, {"lane": "dynamodb"})


# -- an outage on purpose ------------------------------------------------------------------------------------


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what happens to Valkey, which no process runs."""
    seen: list[str] = []
    monkeypatch.setattr("tools.local.stage.valkey.stop", lambda **_: seen.append("stopped"))
    monkeypatch.setattr("tools.local.stage.valkey.start", lambda **_: seen.append("started"))
    monkeypatch.setattr("tools.local.stage.valkey.wait_until_ready", lambda _port: None)
    return seen


def test_an_outage_that_is_interrupted_ends_with_a_running_valkey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: list[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), stage_of(tmp_path, "valkey", monkeypatch).without_valkey():
        raise KeyboardInterrupt
    assert servers == ["stopped", "started"]
