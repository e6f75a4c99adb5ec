"""Computes what the messages of `bufferctl verify --load` add to a stage's bill."""

import json

from bufferctl.cost.facts import SECONDS
from bufferctl.cost.lines import total
from bufferctl.cost.model import bill
from bufferctl.cost.traffic import Traffic
from bufferctl.stage import ROOT
from infra.settings_and_defaults import load_stage


def of_load(
    stage_name: str, *, messages_per_second: float, seconds: float, fragments_per_batch: int, text_bytes: int
) -> float | None:
    """Return the added cost in dollars, or None if cdk.json has no such stage."""
    stages = json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]["stages"]
    if stage_name not in stages:
        return None
    config = load_stage(stages, stage=stage_name)
    traffic = Traffic(
        messages_per_day=messages_per_second * 86_400, fragments_per_batch=fragments_per_batch, statuses_per_batch=0,
        text_bytes=text_bytes, active_hours=24, peak=1, oversize_share=0,
    )  # fmt: skip
    monthly = total(bill(config, traffic)) - total(bill(config, Traffic(messages_per_day=0)))
    return monthly * seconds / SECONDS
