"""Synthesizes every stage once; needs neither network nor credentials."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra import cli
from infra.config import LOCAL, StageConfig, load_stage

ROOT = Path(__file__).parents[2]

# jsii looks for its Node when aws_cdk is first imported.
os.environ.update(cli.environment())


@pytest.fixture(scope="session")
def stages() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text())["context"]["stages"]
    return found


@pytest.fixture(scope="session")
def stage_config(stages: dict[str, Any]) -> Callable[..., StageConfig]:
    def load(stage: str, **overrides: Any) -> StageConfig:
        url = "valkey://127.0.0.1:6379?cluster=true" if stage == LOCAL else None
        return load_stage(stages, stage=stage, valkey_url=url, overrides=json.dumps(overrides))

    return load
