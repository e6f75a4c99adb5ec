"""Alternatives to compare a stage with: the same stage with the other lane, and a processor that polls."""

from cost.facts import MILLION, SECONDS
from cost.lines import Line
from cost.model import ecpu
from infra.settings_and_defaults import StageConfig

POLL_SECONDS = 0.5


def dynamodb_lane(config: StageConfig) -> StageConfig:
    """Return the same stage with the DynamoDB lane alone."""
    return config.model_copy(update={"lane": "dynamodb"})


def polling(config: StageConfig) -> list[Line]:
    """Return the bill of a processor that always runs and polls twice a second, as in many code samples."""
    shards, asks = config.shards, config.shards * SECONDS / POLL_SECONDS
    return [
        Line("processor", "Lambda: polling", "lambda_arm", shards * SECONDS * config.memory.processor / 1_024,
             "all seconds of the month x shards"),
        Line("cache", "Valkey: polling", "valkey_ecpu", asks * ecpu("look_us") / MILLION,
             "two looks a second x shards"),
    ]  # fmt: skip
