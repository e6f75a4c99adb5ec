"""Settings from a function's environment, and how wrong or missing ones are refused."""

from collections.abc import Callable

import pytest

from lambdas import environment as config
from message_buffer.errors import InvalidSettings

COMMON = {
    "STAGE": "test",
    "SHARDS": "2",
    "START_MS": "10000",
    "REDIS_URL": "valkey://127.0.0.1:6379",
    "VALKEY_CONNECT_MS": "6000",
    "VALKEY_ANSWER_MS": "700",
}
QUOTA = {"ACCOUNT_MESSAGES_PER_MINUTE": "600", "ACCOUNT_CONVERSATIONS_PER_MINUTE": "60"}
WAITING = {"MAX_WAITING_MESSAGES": "5000", "MAX_WAITING_BYTES": "33554432"}
INGEST = (
    COMMON
    | QUOTA
    | WAITING
    | {
        "LANE": "valkey",
        "VALKEY_WEBHOOK_MS": "3000",
        "PROCESSOR_FUNCTION_NAME": "p",
        "WEBHOOK_SECRET_ID": "s",
        "GENERIC_TIMESTAMP": "optional",
        "EVENT_BUS_NAME": "b",
        "RULES": '{"silenceMs": 5}',
        "RULES_TABLE": "t",
        "TAKEOVERS_TABLE": "takeovers",
        "ALIASES_TABLE": "a",
    }
)
PROCESSOR = COMMON | {
    "AWS_LAMBDA_FUNCTION_NAME": "p",
    "CONVERSATION_PROCESSOR_FUNCTION_NAME": "c",
    "LEASE_MS": "15000",
    "CLAIM_TIMEOUT_MS": "30000",
    "SLOTS": "50",
    "PROCESSOR_IDLE_MS": "10000",
    "PROCESSOR_HANDOVER_MS": "30000",
}
CONVERSATION_PROCESSOR = COMMON | {
    "PROCESSOR_FUNCTION_NAME": "p",
    "EVENT_BUS_NAME": "b",
    "MAX_EVENT_BYTES": "262144",
    "OVERSIZE_BUCKET": "o",
    "TOKEN_MS": "6000",
    "MAX_ATTEMPTS": "5",
    "DEAD_LETTER_QUEUE_URL": "https://q",
}
WATCHDOG = COMMON | {"PROCESSOR_FUNCTION_NAME": "p"}
ADMIN = COMMON | {
    "LANE": "valkey",
    "RULES": "{}",
    "RULES_TABLE": "t",
    "TAKEOVERS_TABLE": "takeovers",
    "ALIASES_TABLE": "a",
    "PROCESSOR_FUNCTION_NAME": "p",
    "REDRIVE_FUNCTION": "c",
    "EVENT_BUS_NAME": "b",
    "DEAD_LETTER_QUEUE_URL": "https://q",
    "OVERSIZE_BUCKET": "o",
    "AGES_OUT": '{"logs": 14}',
}
GATE = COMMON | {"LANE": "valkey", "PROCESSOR_FUNCTION_NAME": "p"}
DYNAMODB_LANE = {"MESSAGE_TABLE": "h", "TRIGGER_QUEUE_URL": "https://t"}
DYNAMODB_PROCESSOR = DYNAMODB_LANE | {
    "STAGE": "test",
    "EVENT_BUS_NAME": "b",
    "MAX_EVENT_BYTES": "262144",
    "OVERSIZE_BUCKET": "o",
    "MAX_ATTEMPTS": "5",
    "DEAD_LETTER_QUEUE_URL": "https://q",
}
OF_THE_VALKEY_LANE = {*COMMON, *WAITING, "PROCESSOR_FUNCTION_NAME", "VALKEY_WEBHOOK_MS"} - {"STAGE"}


def without_a_cache(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in variables.items() if name not in OF_THE_VALKEY_LANE}
    return kept | DYNAMODB_LANE | {"LANE": "dynamodb"}


READERS: list[tuple[Callable[..., object], dict[str, str]]] = [
    (config.read_ingest, INGEST),
    (config.read_processor, PROCESSOR),
    (config.read_conversation_processor, CONVERSATION_PROCESSOR),
    (config.read_watchdog, WATCHDOG),
    (config.read_admin, ADMIN),
    (config.read_gate, GATE),
    (config.read_dynamodb_processor, DYNAMODB_PROCESSOR),
    (config.read_ingest, without_a_cache(INGEST)),
    (config.read_admin, without_a_cache(ADMIN)),
    (config.read_gate, without_a_cache(GATE)),
    (config.read_ingest, INGEST | DYNAMODB_LANE),
    (config.read_admin, ADMIN | DYNAMODB_LANE),
]


@pytest.mark.parametrize(
    ("read", "complete", "name"),
    [(read, complete, name) for read, complete in READERS for name in complete if name != "STAGE"],
)
def test_a_missing_variable_is_named_in_a_sentence(
    read: Callable[..., object], complete: dict[str, str], name: str
) -> None:
    for without in ({k: v for k, v in complete.items() if k != name}, complete | {name: ""}):
        with pytest.raises(InvalidSettings, match=rf"^The environment variable {name} is missing\.$"):
            read(without)


@pytest.mark.parametrize("lane", ["Window", "both"])
def test_what_is_no_lane_is_refused(lane: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^The environment variable LANE must be one of valkey, dynamodb\.$"):
        config.read_ingest(INGEST | {"LANE": lane})


def test_a_lane_without_a_cache_asks_for_none() -> None:
    ingest, admin = config.read_ingest(without_a_cache(INGEST)), config.read_admin(without_a_cache(ADMIN))
    for settings in (ingest, admin):
        assert settings.valkey is None
        assert settings.dynamodb_lane == ("h", "https://t")


def test_beside_the_valkey_lane_its_functions_are_told_where_the_dynamodb_lane_is() -> None:
    for settings in (config.read_ingest(INGEST | DYNAMODB_LANE), config.read_admin(ADMIN | DYNAMODB_LANE)):
        assert settings.dynamodb_lane == ("h", "https://t")


def test_without_a_fallback_nothing_is_held() -> None:
    for settings in (config.read_ingest(INGEST), config.read_admin(ADMIN)):
        assert settings.dynamodb_lane is None


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "¼"])
def test_what_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^The environment variable SHARDS must be a whole number from 1\.$"):
        config.read_watchdog(WATCHDOG | {"SHARDS": value})


@pytest.mark.parametrize("value", ["[]", "{", "7"])
def test_rules_must_be_an_object(value: str) -> None:
    with pytest.raises(InvalidSettings, match=r"^The environment variable RULES must be a JSON object\.$"):
        config.read_ingest(INGEST | {"RULES": value})


def test_timings_reach_the_store() -> None:
    store = config.read_processor(PROCESSOR).valkey.store
    assert (store.shards, store.lease_ms, store.claim_ms, store.start_ms) == (2, 15_000, 30_000, 10_000)
    assert store.slots == 50


def test_time_outs_reach_the_connection() -> None:
    connection, webhook_ms = config.read_watchdog(WATCHDOG).valkey.connection, config.read_ingest(INGEST).webhook_ms
    assert (connection.connect_timeout_ms, connection.answer_timeout_ms, webhook_ms) == (6_000, 700, 3_000)
    assert connection.max_call_ms == 6_000 + 2 * 700


def test_the_token_reaches_the_store() -> None:
    assert config.read_conversation_processor(CONVERSATION_PROCESSOR).valkey.store.token_ms == 6_000


def test_iam_needs_all_of_its_names() -> None:
    iam = {"VALKEY_IAM_USER": "u", "VALKEY_CACHE_NAME": "c", "AWS_REGION": "eu-central-1"}
    assert config.read_watchdog(WATCHDOG | iam).valkey.iam == ("u", "c", "eu-central-1")
    assert config.read_watchdog(WATCHDOG).valkey.iam is None
    with pytest.raises(InvalidSettings, match="VALKEY_CACHE_NAME is missing"):
        config.read_watchdog(WATCHDOG | iam | {"VALKEY_CACHE_NAME": ""})


def test_without_an_argument_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in WATCHDOG.items():
        monkeypatch.setenv(name, value)
    assert config.read_watchdog().valkey.processor_function == "p"
