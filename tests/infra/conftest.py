"""Synthesizes every stage once; needs neither network nor credentials."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from infra import cli
from infra.settings_and_defaults import LOCAL, StageConfig, load_stage

# jsii looks for its Node when aws_cdk is first imported.
os.environ.update(cli.environment())

import aws_cdk as cdk
from aws_cdk.assertions import Template

from infra.composition import compose

ROOT = Path(__file__).parents[2]
# Templates are made from these, and from the stand-in of the layer below.
MADE_FROM = (
    "app.py",
    "cdk.json",
    "requirements.txt",
    "infra",
    "lambdas",
    "lua",
    "message_buffer",
    "tests/infra/conftest.py",
)
KEPT = ROOT / ".build" / "templates"


@pytest.fixture(scope="session")
def context() -> dict[str, Any]:
    """Return cdk.json's context: the stages, and CDK's feature flags."""
    found: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]
    return found


@pytest.fixture(scope="session")
def stages(context: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = context["stages"]
    return found


@pytest.fixture(scope="session")
def stage_config(stages: dict[str, Any]) -> Callable[..., StageConfig]:
    def load(stage: str, **overrides: Any) -> StageConfig:
        has_valkey = stage == LOCAL and overrides.get("lane") != "dynamodb"
        url = "valkey://127.0.0.1:6379" if has_valkey else None
        return load_stage(stages, stage=stage, valkey_url=url, overrides=json.dumps(overrides))

    return load


@pytest.fixture(scope="session")
def new_app(context: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[], cdk.App]:
    return lambda: cdk.App(outdir=str(tmp_path_factory.mktemp("out")), context=context)


@pytest.fixture(scope="session")
def composed(
    new_app: Callable[[], cdk.App],
    stage_config: Callable[..., StageConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., cdk.App]:
    """Return the app of a stage, with a stand-in for its layer, before it is synthesized."""
    layer = tmp_path_factory.mktemp("layer")
    (layer / "python").mkdir()
    (layer / "python" / "thing.py").touch()

    def compose_stage(stage: str, **overrides: Any) -> cdk.App:
        app = new_app()
        compose(app, stage_config(stage, **overrides), source=ROOT, layer=layer)
        return app

    return compose_stage


@pytest.fixture(scope="session")
def stacks_of(composed: Callable[..., cdk.App]) -> Callable[..., list[cdk.Stack]]:
    """Compose the stacks of a stage, once for all tests that only look at them."""
    made: dict[str, list[cdk.Stack]] = {}

    def stacks(stage: str, **overrides: Any) -> list[cdk.Stack]:
        key = f"{stage} {overrides}"
        if key not in made:
            app = composed(stage, **overrides)
            made[key] = [child for child in app.node.children if isinstance(child, cdk.Stack)]
        return made[key]

    return stacks


@pytest.fixture(scope="session")
def templates_folder() -> Path:
    """Return the folder of the templates that were made from the files as they are now."""
    digest = hashlib.sha256()
    for path in sorted(each for name in MADE_FROM for each in (ROOT / name, *(ROOT / name).rglob("*"))):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(f"{path}\n".encode() + path.read_bytes())
    folder = KEPT / digest.hexdigest()[:16]
    if not folder.exists():
        shutil.rmtree(KEPT, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def synthesize(
    stacks_of: Callable[..., list[cdk.Stack]], templates_folder: Path
) -> Callable[..., Mapping[str, Template]]:
    """Return the templates of a stage by the last word of their stack's name. One worker synthesizes them for all."""
    made: dict[str, Mapping[str, Template]] = {}

    def synthesized(stage: str, **overrides: Any) -> Mapping[str, Template]:
        key = f"{stage} {overrides}"
        if key not in made:
            file = templates_folder / hashlib.sha256(key.encode()).hexdigest()[:16]
            with file.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not file.exists():
                    templates = {
                        stack.stack_name.split("-")[-1]: Template.from_stack(stack).to_json()
                        for stack in stacks_of(stage, **overrides)
                    }
                    file.with_suffix(".new").write_text(json.dumps(templates))
                    file.with_suffix(".new").rename(file)
            found = json.loads(file.read_text())
            made[key] = {name: Template.from_string(json.dumps(each)) for name, each in found.items()}
        return made[key]

    return synthesized
