"""Synthesizes every stage once; needs neither network nor credentials."""

import json
import os
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
def synthesize(stacks_of: Callable[..., list[cdk.Stack]]) -> Callable[..., Mapping[str, Template]]:
    """Return the templates of a stage by the last word of their stack's name."""
    made: dict[str, Mapping[str, Template]] = {}

    def synthesized(stage: str, **overrides: Any) -> Mapping[str, Template]:
        key = f"{stage} {overrides}"
        if key not in made:
            stacks = stacks_of(stage, **overrides)
            made[key] = {stack.stack_name.split("-")[-1]: Template.from_stack(stack) for stack in stacks}
        return made[key]

    return synthesized
