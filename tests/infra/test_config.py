from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from infra.config import ConfigError, StageConfig, load_stage

STAGES = {"local": {}, "dev": {}, "prod": {"memory": {"ingest": 1024}}}


@pytest.mark.parametrize("stage", ["local", "dev", "prod"])
def test_every_stage_of_cdk_json_is_valid(stage: str, stage_config: Callable[..., StageConfig]) -> None:
    assert stage_config(stage).name == stage


def test_an_unknown_stage_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown stage 'staging'\. Valid stages: dev, local, prod\."):
        load_stage(STAGES, stage="staging")


def test_no_stage_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"No stage given.*valid stages: dev, local, prod\."):
        load_stage(STAGES, stage=None)


def test_an_unknown_setting_is_answered_with_its_valid_neighbours() -> None:
    with pytest.raises(ConfigError, match=r"memory\.ingset is unknown; valid there: conversation_processor, ing"):
        load_stage({"dev": {"memory": {"ingset": 1024}}}, stage="dev")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"log_level": "LOUD"}, "log_level: should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR' (given: 'LOUD')"),
        ({"log_retention": "8 days"}, "log_retention: should be 'one_day', 'one_week'"),
        ({"shards": 0}, "shards: should be greater than or equal to 1 (given: 0)"),
        ({"network": {"egress": "carrier pigeon"}}, "network.egress: should be 'nat' or 'endpoints'"),
        ({"timings": {"claim_timeout_ms": 5}}, "executor_timeout_ms must be less than claim_timeout_ms"),
        ({"timings": {"processor_life_seconds": 20}}, "processor_handover_ms must be less than"),
        ({"account": "123456789012"}, "a stage with an account names two network.availability_zones"),
        ({"valkey_url": "valkey://x:1"}, "only the local stage takes valkeyUrl"),
    ],
)
def test_an_invalid_value_is_answered_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_stage({"dev": values}, stage="dev")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("Stage 'dev' in cdk.json is not valid. ")


def test_the_local_stage_asks_for_the_address_of_valkey() -> None:
    with pytest.raises(ConfigError, match="valkeyUrl"):
        load_stage(STAGES, stage="local")


def test_overrides_change_only_what_they_name() -> None:
    config = load_stage(STAGES, stage="prod", overrides='{"memory": {"watchdog": 512}, "shards": 2}')
    assert (config.memory.ingest, config.memory.watchdog, config.shards) == (1024, 512, 2)


@pytest.mark.parametrize("overrides", ["{", "[]", "7"])
def test_overrides_that_are_no_object_are_refused(overrides: str) -> None:
    with pytest.raises(ConfigError, match="takes a JSON object"):
        load_stage(STAGES, stage="dev", overrides=overrides)


def test_a_configuration_cannot_be_changed() -> None:
    config = load_stage(STAGES, stage="dev")
    with pytest.raises(ValidationError, match="frozen"):
        config.shards = 3  # type: ignore[misc] # the point of the test
