"""Answers bufferctl from the cost model: a stage's bill, and what the messages of `verify --load` add to it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bufferctl.cost.model import NO_MESSAGES, SECONDS, Traffic, bill, total
from bufferctl.cost.page import as_json, as_text
from bufferctl.errors import Misused
from infra.cli import LOCAL
from infra.settings_and_defaults import ConfigError, load_stage

ROOT = Path(__file__).parents[2]


def stages() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]["stages"]
    return found


def cost(stage: str | None, traffic: Mapping[str, float], *, overrides: str | None = None, form: str = "text") -> str:
    """Return the bill of a stage, in the form `text` or `json`. `traffic` has values for fields of Traffic.

    Raise Misused if the stage, its overrides or the traffic are invalid.
    """
    if stage == LOCAL:
        text = "The local stage costs nothing: it runs on your machine."
        return text if form == "text" else json.dumps({"stage": LOCAL, "lines": [], "total": 0})
    try:
        config, asked = load_stage(stages(), stage=stage, overrides=overrides), Traffic.model_validate(traffic)
    except ConfigError as error:
        raise Misused(str(error).replace("-c stage=", "--stage ").replace("-c overrides=", "--overrides")) from error
    except ValidationError as error:
        wrong = (f"--{str(found['loc'][0]).replace('_', '-')}: {found['msg']}" for found in error.errors())
        raise Misused(". ".join(wrong)) from error
    return as_text(config, asked) if form == "text" else json.dumps(as_json(config, asked), indent=2)


def cost_of_load(
    stage: str, *, messages_per_second: float, seconds: float, fragments_per_batch: int, text_bytes: int
) -> float | None:
    """Return the dollars that the load adds to the stage's bill, or None if cdk.json has no such stage."""
    if stage not in stages():
        return None
    config = load_stage(stages(), stage=stage)
    traffic = Traffic(
        messages_per_day=messages_per_second * 86_400, fragments_per_batch=fragments_per_batch, statuses_per_batch=0,
        text_bytes=text_bytes, active_hours=24, peak=1,
    )  # fmt: skip
    return (total(bill(config, traffic)) - total(bill(config, NO_MESSAGES))) * seconds / SECONDS
