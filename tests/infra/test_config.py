"""The settings of a stage: what is accepted, and the sentence about what is not."""

import ast
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from infra import settings_and_defaults as reference
from infra.buffer import ADMIN_TIMEOUT_SECONDS, GATE_TIMEOUT_SECONDS
from infra.settings_and_defaults import (
    DEFAULT_SLOTS,
    MAX_STAGE_NAME_LENGTH,
    MIN_LEASE_MS,
    ConfigError,
    LimitsConfig,
    Settings,
    StageConfig,
    TimingsConfig,
    load_stage,
)
from infra.valkey_lane import CONVERSATION_PROCESSOR_TIMEOUT_SECONDS, WATCHDOG_TIMEOUT_SECONDS
from lambdas.admin.rules import MIN_MS_LEFT_TO_RETIME
from lambdas.conversation_processor.service import TOKEN_RENEWALS
from lambdas.ingest.handler import MAX_WEBHOOK_WAIT_MS
from lambdas.processor.service import MIN_PAUSE_MS
from lambdas.watchdog.handler import MAX_PROCESSOR_START_MS
from message_buffer.aws.clients import AWS_ATTEMPTS, AWS_HURRIED_ANSWER_SECONDS
from message_buffer.events.emission import RELEASE_MS
from message_buffer.limits import INGEST_TIMEOUT_SECONDS, LEASE_RENEWALS, MAX_CALL_MS, VALKEY_ATTEMPTS
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings
from tests.support.engine import SETTINGS

# Its fields beside the detail: account, region, time, id and the bus's own names.
MAX_ENVELOPE_BYTES = 1_024
STAGES = {"local": {}, "dev": {}, "prod": {"memory": {"ingest": 1024}}}


@pytest.mark.parametrize("stage", ["local", "dev", "prod"])
def test_every_stage_of_cdk_json_is_valid(stage: str, stage_config: Callable[..., StageConfig]) -> None:
    assert stage_config(stage).name == stage


def test_an_unknown_stage_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(ConfigError, match=r"Unknown stage 'staging'\. Valid stages: dev, local, prod\."):
        load_stage(STAGES, stage="staging")


def test_an_unknown_setting_is_answered_with_its_valid_neighbours() -> None:
    with pytest.raises(
        ConfigError,
        match=r"limits\.max_event_byte is unknown; valid there: max_attempts, max_event_bytes, max_waiting_messages",
    ):
        load_stage({"dev": {"limits": {"max_event_byte": 1024}}}, stage="dev")
    with pytest.raises(ConfigError, match=r"memory\.ingset: should be 'ingest', 'processor', .* \(given: 'ingset'\)"):
        load_stage({"dev": {"memory": {"ingset": 1024}}}, stage="dev")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"log_level": "LOUD"}, "log_level: should be 'INFO', 'WARNING' or 'ERROR' (given: 'LOUD')"),
        ({"timings": {"processor_handover_ms": 900_000}}, "timings.processor_handover_ms: should be less than 900000"),
        ({"timings": {"processor_handover_ms": 4_000}}, "processor_handover_ms must not be less than lease_ms"),
        (
            {"timings": {"processor_handover_ms": 890_000, "processor_idle_ms": 10_000}},
            "processor_idle_ms must be less than 15 minutes minus processor_handover_ms",
        ),
        (
            {"shards": 3, "concurrency": {"processor": 5}},
            "concurrency.processor must be at least 6, twice the shards",
        ),
        (
            {"shards": 3, "concurrency": {"conversation_processor": 2}},
            "concurrency.conversation_processor must be at least 3: one for each shard",
        ),
        (
            {"concurrency": {"ingest": 2}, "warmth": {"ingest": 3}},
            "warmth.ingest must not exceed concurrency.ingest",
        ),
        ({"rules": {"silenceMS": 500}}, "rules: silenceMS: unknown field; did you mean silenceMs?"),
        ({"rules": {"quota": {"messagesPerMinute": 5}}}, "rules: quota: unknown field; remove it, or set it for"),
        (
            {"rules": {"platformOverrides": {"whatsapp": {"preset": "quickSupport", "waits": 1}}}},
            "rules: platformOverrides.whatsapp.waits: unknown field; did you mean wait?",
        ),
        (
            {"rules": {"platformOverrides": {"whatsapp": 5}}},
            "rules: platformOverrides.whatsapp: got 5; use an object",
        ),
        ({"rules": {"platformOverrides": {"whatsap": {}}}}, "rules: whatsap: unknown platform; did you mean whatsapp?"),
        ({"rules": {"silenceMs": 5_000, "maxWaitMs": 4_000}}, "rules: silenceMs: 5000 is not below maxWaitMs (4000)"),
        ({"rules": {"silenceMs": 60_000}}, "rules: silenceMs: 60000 is not below maxWaitMs (30000)"),
        (
            {"network": {"availability_zones": ["us-east-1a", "us-east-1a"]}},
            "network.availability_zones must be different zones of us-east-1",
        ),
        (
            {"region": "eu-west-1", "network": {"availability_zones": ["us-east-1a", "us-east-1b"]}},
            "network.availability_zones must be different zones of eu-west-1",
        ),
        (
            {
                "region": "eu-west-1",
                "api": {"domain": {"name": "a.example", "certificate_arn": "arn:aws:acm:us-east-1:1:certificate/c"}},
            },
            "api.domain.certificate_arn must name a certificate in eu-west-1, the API's region",
        ),
        ({"api": {"address": "https://hooks.example.com/"}}, "api.address: "),
        ({"api": {"domain": {"name": "nodots", "certificate_arn": "arn:aws:acm:x"}}}, "api.domain.name: "),
        ({"account": "123456789012"}, "a stage with an account must name its network.availability_zones"),
        ({"api": {"kind": "url"}}, "api.kind `url` needs concurrency.ingest: nothing else limits what"),
        (
            {"api": {"kind": "url", "domain": {"name": "a.example", "certificate_arn": "arn:aws:acm:us-east-1:1:c/c"}}},
            "api: an API of the kind `url` cannot have a domain",
        ),
        ({"valkey_url": "valkey://x:1"}, "only the local stage takes valkeyUrl"),
    ],
)
def test_an_invalid_value_is_answered_with_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_stage({"dev": values}, stage="dev")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("Stage 'dev' in cdk.json is not valid. ")
    assert "the stage: " not in str(refused.value), "a rule of the whole stage names its fields itself"


@pytest.mark.parametrize("name", ["Dev", "1st", "dev-", "a--b", "blue_green", "a" * (MAX_STAGE_NAME_LENGTH + 1)])
def test_a_stages_name_is_one_that_elasticache_takes(name: str) -> None:
    with pytest.raises(ConfigError):
        load_stage({name: {}}, stage=name)
    longest = "a-" + "b" * (MAX_STAGE_NAME_LENGTH - 2)
    assert load_stage({longest: {}}, stage=longest).name == longest
    assert len(f"message-buffer-{longest}") <= 40


def test_a_stage_may_set_every_rule() -> None:
    values = Rules().model_dump(mode="json", by_alias=True)
    config = load_stage({"dev": {"rules": {**values, "preset": "quickSupport"}}}, stage="dev")
    assert config.rules["silenceMs"] == values["silenceMs"]


def test_the_settings_reference_explains_every_setting() -> None:
    tree = ast.parse(Path(reference.__file__).read_text("utf-8"))
    groups = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
    classes = Settings.__subclasses__()
    assert {each.__name__ for each in classes} < groups.keys()
    unexplained = []
    for group in (groups[each.__name__] for each in classes):
        assert ast.get_docstring(group), group.name
        for statement, following in pairwise([*group.body, ast.Pass()]):
            explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if isinstance(statement, ast.AnnAssign) and not explained:
                unexplained.append(f"{group.name}.{ast.unparse(statement.target)}")
    assert unexplained == []


def test_the_default_lease_and_token_survive_a_renewal_that_fails_on_a_living_connection() -> None:
    timings = TimingsConfig()
    failing_ms = VALKEY_ATTEMPTS * timings.answer_ms
    renewed_ms = timings.lease_ms // LEASE_RENEWALS + SETTINGS.max_sleep_ms
    assert renewed_ms + failing_ms + MIN_PAUSE_MS < timings.lease_ms
    assert 2 * SETTINGS.token_ms // TOKEN_RENEWALS + failing_ms < SETTINGS.token_ms


def test_a_call_to_valkey_with_the_largest_settings_fits_into_every_function() -> None:
    largest = {name: load_largest(name) for name in ("connect_ms", "answer_ms")}
    call_ms = ConnectionSettings("valkey://h:1", largest["connect_ms"], largest["answer_ms"]).max_call_ms
    assert call_ms + MAX_CALL_MS + RELEASE_MS <= CONVERSATION_PROCESSOR_TIMEOUT_SECONDS * 1_000
    assert largest["answer_ms"] + SETTINGS.max_sleep_ms < MIN_LEASE_MS - MIN_LEASE_MS // LEASE_RENEWALS
    assert largest["answer_ms"] < SETTINGS.token_ms - 2 * SETTINGS.token_ms // TOKEN_RENEWALS
    assert call_ms + MAX_PROCESSOR_START_MS < WATCHDOG_TIMEOUT_SECONDS * 1_000
    assert call_ms < MIN_MS_LEFT_TO_RETIME < ADMIN_TIMEOUT_SECONDS * 1_000
    assert call_ms < GATE_TIMEOUT_SECONDS * 1_000
    assert VALKEY_ATTEMPTS * largest["answer_ms"] <= RELEASE_MS
    # After the longest wait for Valkey, ingest must still have time to store the message in the DynamoDB lane.
    assert MAX_WEBHOOK_WAIT_MS + 2 * AWS_ATTEMPTS * AWS_HURRIED_ANSWER_SECONDS * 1_000 < INGEST_TIMEOUT_SECONDS * 1_000


def load_largest(name: str) -> int:
    bounds = TimingsConfig.model_fields[name].metadata
    return int(next(bound.le for bound in bounds if hasattr(bound, "le")))


def test_the_local_stage_asks_for_the_address_of_valkey() -> None:
    with pytest.raises(ConfigError, match="valkeyUrl"):
        load_stage(STAGES, stage="local")


def test_the_dynamodb_lane_asks_for_no_valkey_and_takes_none() -> None:
    assert load_stage(STAGES, stage="local", overrides='{"lane": "dynamodb"}').valkey_url is None
    with pytest.raises(ConfigError, match="has no Valkey: leave valkeyUrl out"):
        load_stage(STAGES, stage="local", valkey_url="valkey://h:1", overrides='{"lane": "dynamodb"}')


@pytest.mark.parametrize(("archive_days", "kept"), [(0, 30), (30, 30), (90, 90)])
def test_large_batches_and_outboxes_outlive_the_archive(archive_days: int, kept: int) -> None:
    """A batch that is replayed from the archive must still be readable, and must not be answered again."""
    config = load_stage({"dev": {"bus": {"archive_days": archive_days}}}, stage="dev")
    assert config.oversize_days == kept
    assert config.outbox_days > kept


@pytest.mark.parametrize("overrides", ["{", "[]", "7"])
def test_overrides_that_are_no_object_are_refused(overrides: str) -> None:
    with pytest.raises(ConfigError, match="takes a JSON object"):
        load_stage(STAGES, stage="dev", overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "slots"),
    [
        ({"concurrency": {"conversation_processor": 50}}, 50),
        ({"concurrency": {"conversation_processor": 50}, "shards": 3}, 16),
        ({"concurrency": {}}, DEFAULT_SLOTS),
        ({"concurrency": {}, "shards": 256}, 1),
    ],
)
def test_shards_share_the_concurrency_of_the_conversation_processor(overrides: dict[str, Any], slots: int) -> None:
    assert load_stage({"s": overrides}, stage="s").slots_of_a_shard == slots


@pytest.mark.parametrize(
    ("limits", "accepted"),
    [(LimitsConfig(), 256 * 1024), (LimitsConfig(max_event_bytes=1_000_000), 1024 * 1024)],
    ids=["an older queue, and the default", "SQS, and the largest"],
)
def test_an_event_of_the_largest_size_fits_into_a_consumers_queue(limits: LimitsConfig, accepted: int) -> None:
    """What EventBridge delivers is larger than the entry that it counts."""
    assert limits.max_event_bytes + MAX_ENVELOPE_BYTES <= accepted
    with pytest.raises(ValidationError):
        LimitsConfig(max_event_bytes=1_000_001)
