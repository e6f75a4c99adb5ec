"""A running stage keeps its lane, and `up` replaces it only after the developer agreed."""

import io
import json
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
    WebhookSecrets={},
    Functions={},
    LogGroups={},
    DeadLetterQueueUrl="queue",
    OversizeBucketName="bucket",
    RulesTableName="rules",
)


class Deployed(Stage):
    """A stage that starts no process and records the settings with which it was deployed."""

    def __init__(self, home: Path, running: Instance | None) -> None:
        super().__init__(home)
        self.running = running
        self.deployed_with: Mapping[str, Any] = {}
        self.started_with_valkey: bool | None = None

    def _running(self) -> Instance | None:
        return self.running

    def _start(self, progress: Progress, *, has_valkey: bool) -> Instance:
        self.started_with_valkey = has_valkey
        return instance(has_valkey=has_valkey)

    def _deploy(self, *_: Any, overrides: Mapping[str, Any], **__: Any) -> Outputs:
        self.deployed_with = overrides
        return OUTPUTS


def instance(*, has_valkey: bool) -> Instance:
    return Instance("no process has this mark", 1, 2, 3, has_valkey)


def stage_of(home: Path, lane: str | None, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    monkeypatch.setattr(module, "_wait_until_answering", lambda url: None)
    running = None if lane is None else instance(has_valkey=lane == "valkey")
    stage = Deployed(home, running)
    if running:
        (home / "run").mkdir(parents=True)
        (home / "run" / "instance.json").write_text(json.dumps(asdict(running)))
        OUTPUTS.write(stage.outputs_file)
    return stage


@pytest.mark.parametrize("lane", ["valkey", "dynamodb"])
def test_another_up_keeps_the_running_stage_and_its_lane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    stage = stage_of(tmp_path, lane, monkeypatch)
    stage.up(Progress(io.StringIO()))
    assert stage.deployed_with == {"lane": lane}
    assert stage.started_with_valkey is None, "nothing was started anew"


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
