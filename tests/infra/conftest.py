"""Synthesizes every stage once; needs neither network nor credentials."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra import cli
from infra.cli import LOCAL
from infra.settings_and_defaults import StageConfig, load_stage

# jsii looks for its Node when aws_cdk is first imported.
os.environ.update(cli.environment())

import aws_cdk as cdk
from aws_cdk.assertions import Template

from infra.composition import compose

ROOT = Path(__file__).parents[2]
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


class Synthesized(NamedTuple):
    """A stack as CDK would deploy it."""

    template: dict[str, Any]
    after: list[str]
    """The last words of the names of the stacks that are deployed before."""


@pytest.fixture(scope="session")
def stacks(stacks_of: Callable[..., list[cdk.Stack]]) -> Callable[..., Mapping[str, Synthesized]]:
    """Return the stacks of a stage by the last words of their names.

    A synthesis takes a second, so its result is kept in a file that is named after a hash of all inputs.
    """
    inputs, made = hash_of_inputs(), dict[str, Mapping[str, Synthesized]]()
    KEPT.mkdir(parents=True, exist_ok=True)
    for old in KEPT.glob("*.json"):
        if not old.name.startswith(inputs):
            old.unlink(missing_ok=True)

    def found(stage: str, **overrides: Any) -> Mapping[str, Synthesized]:
        key = sha256(f"{stage} {json.dumps(overrides, sort_keys=True)}".encode()).hexdigest()[:16]
        if key not in made:
            file = KEPT / f"{inputs}-{key}.json"
            if not file.exists():
                new = {
                    _word(stack): Synthesized(
                        dict(Template.from_stack(stack).to_json()), sorted(_word(other) for other in stack.dependencies)
                    )
                    for stack in stacks_of(stage, **overrides)
                }
                partial = file.with_suffix(f".{os.getpid()}")
                partial.write_text(json.dumps(new))
                partial.replace(file)
            made[key] = {word: Synthesized(*each) for word, each in json.loads(file.read_text()).items()}
        return made[key]

    return found


def _word(stack: cdk.Stack) -> str:
    return stack.stack_name.rpartition("-")[2]


def hash_of_inputs() -> str:
    """Return a hash of everything that a template depends on: our sources, their packages, and this file."""
    rooms = ("infra", "lambdas", "message_buffer", "lua", "docs/schema", "bufferctl")
    files = [path for room in rooms for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix != ".pyc"]
    files += [ROOT / "cdk.json", ROOT / "requirements.txt", Path(__file__)]
    found = sha256(sys.version.encode())
    for path in sorted(files):
        found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return found.hexdigest()[:16]


@pytest.fixture(scope="session")
def synthesize(stacks: Callable[..., Mapping[str, Synthesized]]) -> Callable[..., Mapping[str, Template]]:
    """Return the templates of a stage by the last word of their stack's name."""
    made: dict[str, Mapping[str, Template]] = {}

    def synthesized(stage: str, **overrides: Any) -> Mapping[str, Template]:
        key = f"{stage} {overrides}"
        if key not in made:
            found = stacks(stage, **overrides)
            made[key] = {word: Template.from_json(each.template) for word, each in found.items()}
        return made[key]

    return synthesized
