"""Alternatives whose bills are compared with a stage's: other kinds of the same stage, and a processor that polls."""

from typing import Any

from bufferctl.cost.facts import MILLION, SECONDS
from bufferctl.cost.lines import Line
from bufferctl.cost.model import EGRESSES, ecpu
from infra.settings_and_defaults import StageConfig

POLL_SECONDS = 0.5
# The settings of the two kinds of API that the tables compare. `changed` merges them into a stage.
OWN_ADDRESS: dict[str, dict[str, Any]] = {"api": {"kind": "url"}}
GATEWAY: dict[str, dict[str, Any]] = {"api": {"kind": "http"}}
# The kinds of stage of each lane, from the one with the most parts to the one with the fewest.
KINDS: dict[str, dict[str, Any]] = {
    **{f"Valkey, {name}": {"lane": "valkey", "network": network} for name, network in EGRESSES.items()},
    "Valkey, no network, own address": {"lane": "valkey", "network": EGRESSES["no network"], **OWN_ADDRESS},
    "DynamoDB": {"lane": "dynamodb"},
    "DynamoDB, own address": {"lane": "dynamodb", **OWN_ADDRESS},
}  # fmt: skip


def kinds_of_stage(config: StageConfig) -> dict[str, StageConfig]:
    """Return the stage changed to each kind in KINDS, by the kind's name. A kind without `api` gets an API Gateway."""
    return {name: changed(config, {**GATEWAY, **settings}) for name, settings in KINDS.items()}


def changed(config: StageConfig, settings: dict[str, Any]) -> StageConfig:
    """Return a copy of the stage with these settings. If a setting is a group, only the named values in it change."""
    update = {}
    for name, value in settings.items():
        group = getattr(config, name)
        update[name] = group.model_copy(update=value) if isinstance(value, dict) else value
    return config.model_copy(update=update)


def dynamodb_lane(config: StageConfig) -> StageConfig:
    """Return the same stage with the DynamoDB lane alone."""
    return config.model_copy(update={"lane": "dynamodb"})


def polling(config: StageConfig) -> list[Line]:
    """Return the bill of a processor that always runs and polls twice a second, as in many code samples."""
    shards, asks = config.shards, config.shards * SECONDS / POLL_SECONDS
    return [
        Line("processor", "Lambda: polling", "lambda_arm", shards * SECONDS * config.memory["processor"] / 1_024,
             "all seconds of the month x shards"),
        Line("cache", "Valkey: polling", "valkey_ecpu", asks * ecpu("empty_claim_us") / MILLION,
             "two polls a second x shards"),
    ]  # fmt: skip
