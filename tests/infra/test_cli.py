"""The CDK CLI, ours or one from npm: it runs the app by the project's Python and says first what is missing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import pytest

import app as program
from infra import cli, preflight

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "stage"),
    [
        (["deploy", "--all", "-c", "stage=prod"], "prod"),
        (["-c", "stage=prod", "diff"], "prod"),
        (["synthesize", "--context=stage=prod", "-c", "shards=2"], "prod"),
        (["destroy", "--all"], "dev"),
        (["synth", "-q", "-c", "stage="], ""),
    ],
)
def test_the_stage_is_read_from_the_arguments(arguments: list[str], stage: str) -> None:
    assert cli.stage(arguments) == stage


class Became(Exception):
    """The command that would have replaced this process."""


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Record each call of preflight, which finds everything; the CDK CLI is not started."""
    calls: list[Sequence[str]] = []

    def become(path: str, words: list[str], environment: dict[str, str]) -> NoReturn:
        raise Became(words, environment)

    def find_everything(given: Sequence[str]) -> int:
        calls.append(given)
        return 0

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(preflight, "main", find_everything)
    return calls


@pytest.mark.parametrize("word", ["deploy", "watch"])
def test_preflight_comes_before_a_deployment(word: str, looked_for: list[Sequence[str]]) -> None:
    with pytest.raises(Became) as became:
        cli.main([word, "--all", "-c", "stage=prod"])
    words, _ = became.value.args
    assert looked_for == [["--stage", "prod"]]
    assert words[2:6] == [word, "--all", "-c", "stage=prod"]


@pytest.mark.parametrize("app", [["--app", "cdk.out"], ["--app=cdk.out"], ["-a", "cdk.out"]])
def test_what_was_synthesized_is_deployed_without_our_app_and_its_packages(
    app: list[str], looked_for: list[Sequence[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not the cdk.out of whoever runs the tests: its layer has no byte code if their machine has no Python 3.13.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Became) as became:
        cli.main(["deploy", "--all", *app, "-c", "stage=prod"])
    words, _ = became.value.args
    assert words[2:] == ["deploy", "--all", *app, "-c", "stage=prod"]
    assert looked_for == [], "it imports packages that are not installed where there are credentials"


def test_a_synthesized_layer_without_byte_code_is_not_deployed(looked_for: list[Sequence[str]], tmp_path: Path) -> None:
    packages = tmp_path / "asset.01" / "python" / "thing"
    packages.mkdir(parents=True)
    (packages / "__init__.py").touch()
    (tmp_path / "asset.02" / "lambdas").mkdir(parents=True)
    (tmp_path / "Stack.assets.json").write_text('{"path": "asset.01"}, {"path": "asset.02"}')
    with pytest.raises(SystemExit, match=r"Python 3\.13"):
        cli.main(["deploy", "--all", "--app", str(tmp_path), "-c", "stage=prod"])
    (packages / "__pycache__").mkdir()
    (packages / "__pycache__" / "__init__.cpython-313.pyc").touch()
    with pytest.raises(Became):
        cli.main(["deploy", "--all", "--app", str(tmp_path), "-c", "stage=prod"])


@pytest.mark.parametrize("word", ["bootstrap", "diff"])
def test_a_command_that_only_asks_aws_first_checks_the_credentials(word: str, looked_for: list[Sequence[str]]) -> None:
    with pytest.raises(Became):
        cli.main([word, "-c", "stage=prod"])
    assert looked_for == [["--stage", "prod", "--credentials"]]


@pytest.mark.parametrize("command", ["diff", "deploy", "destroy", "bootstrap"])
@pytest.mark.parametrize("app", [[], ["--app", "cdk.out"]])
def test_a_command_that_would_go_to_aws_names_the_local_stages_own_commands(
    looked_for: list[Sequence[str]], command: str, app: list[str]
) -> None:
    with pytest.raises(SystemExit, match="use `make up` to deploy it and `make down` to remove it"):
        cli.main([command, *app, "-c", "stage=local"])
    assert looked_for == []


def test_what_is_missing_ends_the_command(looked_for: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "main", lambda given: 1)
    with pytest.raises(SystemExit) as ended:
        cli.main(["deploy", "--all"])
    assert ended.value.code == 1


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Make the part of a clone that the launcher in cdk.json needs, with an app that says which Python runs it."""
    folder = tmp_path / "a clone"
    (folder / "infra").mkdir(parents=True)
    shutil.copy(ROOT / "infra" / "app.sh", folder / "infra" / "app.sh")
    (folder / "app.py").write_text("import sys; print('run by', sys.executable)")
    return folder


def launched(clone: Path) -> subprocess.CompletedProcess[str]:
    """Run the `app` of cdk.json as a CDK CLI does."""
    command = json.loads((ROOT / "cdk.json").read_text("utf-8"))["app"]
    return subprocess.run(command, shell=True, cwd=clone, capture_output=True, text=True, check=False)  # noqa: S602


def test_any_cdk_runs_the_app_by_the_python_of_the_clone(clone: Path) -> None:
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    ended = launched(clone)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.strip() == f"run by {python.relative_to(clone)}" or ended.stdout.strip() == f"run by {python}"


def test_the_cdk_of_this_project_refuses_to_run_in_another(tmp_path: Path) -> None:
    (tmp_path / "cdk.json").write_text("{}")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "infra" / "cdk.sh"), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "This cdk runs only this project's app" in run("list").stderr
    assert run("--app", "x", "--version").returncode == 0
    (tmp_path / "cdk.json").unlink()
    assert run("--version").returncode == 0


@pytest.mark.parametrize("module", ["app.py", "-m infra.cli", "-m infra.preflight", "-m bufferctl", "-m tools.local"])
def test_a_python_without_the_dependencies_is_told_in_one_sentence(module: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-S", *module.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    (sentence,) = ended.stderr.splitlines()
    assert sentence.startswith("The Python package '")
    assert sentence.endswith("' is missing. Run `make setup`, then this command with .venv/bin/python.")


def test_lambda_can_read_what_a_private_clone_deploys(tmp_path: Path) -> None:
    package = tmp_path / "asset.0123" / "lambdas"
    package.mkdir(parents=True, mode=0o700)
    (module := package / "handler.py").touch(0o600)
    (tool := package / "tool").touch(0o700)
    (private := tmp_path / "tree.json").touch(0o600)
    program.let_lambda_read(tmp_path)
    modes = [path.stat().st_mode & 0o777 for path in (package.parent, package, module, tool, private)]
    assert modes == [0o755, 0o755, 0o644, 0o755, 0o600]
