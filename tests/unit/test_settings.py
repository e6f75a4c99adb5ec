"""A function's settings in its environment variables, and how wrong or missing ones are refused."""

import json
from typing import Any

import pytest

from message_buffer.errors import InvalidSettings
from message_buffer.settings import (
    AdminSettings,
    ConnectionSettings,
    DynamoDbLaneSettings,
    IamAccess,
    LogSettings,
    ProcessorSettings,
    ValkeySettings,
    read_settings,
    to_variables,
)
from tests.support.engine import SETTINGS

VALKEY = ValkeySettings(
    ConnectionSettings("valkey://127.0.0.1:6379", connect_timeout_ms=6_000),
    IamAccess("user", "cache", "eu-central-1"),
    SETTINGS,
    processor_function="p",
)
PROCESSOR = ProcessorSettings(LogSettings(), VALKEY, "c", idle_ms=10_000, handover_ms=30_000)
ADMIN = AdminSettings(
    log=LogSettings("a key", "INFO"),
    valkey=None,
    dynamodb_lane=DynamoDbLaneSettings("table", "https://queue"),
    redrive_function="r",
    ingest_function="i",
    event_bus="b",
    dead_letter_queue_url="https://dead",
    rules={"silenceMs": 5, "stopWords": ["arrête"]},
    platform_numbers=False,
    rules_table="t",
    takeovers_table="k",
    aliases_table="a",
    tuning_table="u",
    oversize_bucket="o",
    ages_out={"logs": 14},
)


@pytest.mark.parametrize("settings", [PROCESSOR, ADMIN])
def test_a_function_reads_the_settings_that_it_was_given(settings: Any) -> None:
    assert read_settings(type(settings), to_variables(settings)) == settings


def test_the_settings_that_the_design_names_have_variables_of_their_own() -> None:
    variables = to_variables(PROCESSOR)
    assert variables.keys() == {
        "REDIS_URL", "PROCESSOR_FUNCTION_NAME", "CONVERSATION_PROCESSOR_FUNCTION_NAME", "SETTINGS",
    }  # fmt: skip
    assert (
        read_settings(ProcessorSettings, {**variables, "REDIS_URL": "valkey://h"}).valkey.connection.url == "valkey://h"
    )
    for name in variables:
        with pytest.raises(InvalidSettings, match=f"^{name} is missing"):
            read_settings(ProcessorSettings, {key: value for key, value in variables.items() if key != name})


def changed(path: str, **change: Any) -> dict[str, str]:
    """Return the processor's variables with other fields at a path; None removes a field."""
    variables = to_variables(PROCESSOR)
    settings = place = json.loads(variables["SETTINGS"])
    for name in path.split(".") if path else ():
        place = place[name]
    place |= change
    for name in [name for name, value in change.items() if value is None]:
        del place[name]
    return variables | {"SETTINGS": json.dumps(settings)}


@pytest.mark.parametrize(
    ("path", "change", "sentence"),
    [
        ("", {"idle_ms": None}, "SETTINGS.idle_ms is missing."),
        ("valkey.store", {"shards": None}, "SETTINGS.valkey.store.shards is missing."),
        ("valkey.store", {"shards": "2 secrets"}, "SETTINGS.valkey.store.shards must have the type int."),
        ("valkey.store", {"shard": 2}, "SETTINGS.valkey.store.shard is unknown."),
        ("", {"valkey": 1}, "SETTINGS.valkey must be a JSON object."),
        ("valkey", {"iam": {"user": "u"}}, "SETTINGS.valkey.iam.cache_name is missing."),
    ],
)
def test_a_wrong_field_is_refused_by_its_name_without_its_value(
    path: str, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidSettings) as raised:
        read_settings(ProcessorSettings, changed(path, **change))
    assert str(raised.value) == sentence


@pytest.mark.parametrize(("text", "sentence"), [("{", "is missing or not JSON."), ("[]", "must be a JSON object.")])
def test_settings_must_be_a_json_object(text: str, sentence: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        read_settings(ProcessorSettings, {"SETTINGS": text})
    assert str(raised.value) == f"SETTINGS {sentence}"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__ or raised.value.__context__ is None
