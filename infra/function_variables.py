"""The environment variables of every function: which functions get each, in which stages, and what it contains.

The functions are named by their roles; *callers of Valkey* are ingest, admin, gate, processor, conversation_processor
and watchdog. If the third column is empty, every stage has the variable. Otherwise it says which stages have it:
those with the Valkey lane (`Valkey`), such stages in AWS, where functions sign in with IAM (`Valkey in AWS`),
those with the DynamoDB lane, alone or as a fallback (`DynamoDB`), those with `log_ids: hashed` (`hashed ids`), those
with a `log_share` below 1 (`sampled lines`), or those with `end_user_messaging` (`WhatsApp by SNS`).
tests/infra/test_environment_table.py compares this table with the templates, function by function.

| variable | functions | in stages with | contains |
|---|---|---|---|
| STAGE | all | | the stage's name |
| POWERTOOLS_SERVICE_NAME | all | | the function's role, which is in its logs and metrics |
| POWERTOOLS_METRICS_NAMESPACE | all | | the namespace of the stage's metrics |
| POWERTOOLS_LOG_LEVEL | all | | the least severe log line that is written |
| LOG_ID_KEY | all | hashed ids | the key under which ids are logged as hashes |
| LOG_SHARE | all | sampled lines | the share of the conversations that are logged |
| LOG_FOLLOWED | all | sampled lines | conversations that are always logged, one in each line |
| LANE | ingest, admin, gate | | `valkey`, or `dynamodb` in a stage without Valkey |
| REDIS_URL | callers of Valkey | Valkey | `redis://` or `valkey://` (`rediss://`, `valkeys://`: TLS), then an address |
| VALKEY_IAM_USER | callers of Valkey | Valkey in AWS | the user to sign in as |
| VALKEY_CACHE_NAME | callers of Valkey | Valkey in AWS | the cache for which the sign-in token is made |
| SHARDS | callers of Valkey | Valkey | the number of shards |
| START_MS | callers of Valkey | Valkey | how long a start of a processor may take |
| VALKEY_CONNECT_MS | callers of Valkey | Valkey | how long connecting, TLS and the sign-in may take together |
| VALKEY_ANSWER_MS | callers of Valkey | Valkey | how long an answer on an open connection may take |
| VALKEY_WEBHOOK_MS | ingest | Valkey | how long a webhook may wait until Valkey is connected |
| PROCESSOR_FUNCTION_NAME | ingest, admin, gate, conversation_processor, watchdog | Valkey | the function to start |
| CONVERSATION_PROCESSOR_FUNCTION_NAME | processor | Valkey | the function to start |
| LEASE_MS | processor | Valkey | how long the lease on a shard lasts |
| CLAIM_TIMEOUT_MS | processor | Valkey | how long a conversation stays claimed |
| SLOTS | processor | Valkey | how many conversations of a shard may be in flight at once |
| PROCESSOR_IDLE_MS | processor | Valkey | how long the processor runs without work |
| PROCESSOR_HANDOVER_MS | processor | Valkey | how long before its end the processor hands over |
| TOKEN_MS | conversation_processor | Valkey | how long a batch stays taken unless its run renews the token |
| MESSAGE_TABLE | ingest, admin, gate, dynamodb_processor | DynamoDB | the lane's table |
| TRIGGER_QUEUE_URL | ingest, admin, gate, dynamodb_processor | DynamoDB | the lane's queue |
| RULES | ingest, admin | | the rules that are deployed with the stage, as JSON |
| RULES_TABLE | ingest, admin | | the table of the rules that operators change |
| TAKEOVERS_TABLE | ingest, admin | | the table of the conversations that people of the business answer |
| ALIASES_TABLE | ingest, admin | | the table of the names of authors that have several |
| GENERIC_TIMESTAMP | ingest | | `required` or `optional`: whether generic webhooks are signed with their time |
| WEBHOOK_SECRET_ID | ingest, canary | | the secret that `lambdas/ingest/webhook_secrets.py` describes |
| ACCOUNT_MESSAGES_PER_MINUTE | ingest | | the quota of an account for which the rules set none |
| ACCOUNT_CONVERSATIONS_PER_MINUTE | ingest | | the same, in opened buffers |
| MAX_WAITING_MESSAGES | ingest | Valkey | with so many messages waiting, a conversation is full |
| MAX_WAITING_BYTES | ingest | Valkey | the same, in bytes of its large messages |
| WHATSAPP_QUEUE_URL | ingest | WhatsApp by SNS | the queue of webhooks of AWS End User Messaging Social |
| UNREADABLE_QUEUE_URL | ingest | WhatsApp by SNS | the queue for those of them that cannot be read |
| AGES_OUT | admin | | JSON: the copies that `conversation.forget` cannot erase, and for how many days they remain |
| REDRIVE_FUNCTION | admin | | the function that emits dead letters again |
| EVENT_BUS_NAME | ingest, admin, conversation_processor, dynamodb_processor, responder | | the event bus |
| MAX_EVENT_BYTES | conversation_processor, dynamodb_processor | | the size above which a batch goes to the bucket |
| OVERSIZE_BUCKET | admin, conversation_processor, dynamodb_processor, responder | | the bucket for larger batches |
| MAX_ATTEMPTS | conversation_processor, dynamodb_processor | | after how many attempts a batch is a dead letter |
| DEAD_LETTER_QUEUE_URL | admin, conversation_processor, dynamodb_processor | | the queue for dead letters |
| DEAD_LETTER_QUEUE_URL | responder | | the queue for batches that the responder cannot answer |
| RESPONDER | responder | | JSON: the settings `Responder` of `infra/settings_and_defaults.py`, and two times |
| CONVERSATIONS_TABLE | responder | | the responder's table |
| QUEUE_URL | responder | | the queue that the responder consumes |
| QUEUE_URL | canary | | the queue that receives the canary's batches |
| API_ENDPOINT | canary | | the public address of the API |
| STACK | canary | | the id of its own stack, from which it reads whether a deployment is running |
| RESPONDER_SECRET_ID | responder | | the secret that `responder/credentials.py` describes |
| GATE_FUNCTION | responder | | the function that the responder asks about a buffer |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aws_cdk as cdk
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs

from infra.copies import ages_out
from infra.limits import HIDDEN_SECONDS, LOCK_MARGIN_SECONDS, RESPONDER_MARGIN_SECONDS
from infra.settings_and_defaults import ConfigError, Responder, StageConfig

if TYPE_CHECKING:
    # Only for types: `infra.storage` imports `infra.function`, which imports this module.
    from infra.end_user_messaging import WhatsAppQueues
    from infra.storage import EventDestinations, WindowStorage

Environment = Mapping[str, str]

# Lambda's limit for the names and values of a function's variables together.
MAX_ENVIRONMENT_BYTES = 4_096
# A value that is known only after the deployment counts as this many bytes. The longest such values are URLs of queues
# and ARNs of secrets.
BYTES_OF_AN_UNKNOWN_VALUE = 120
# The variables that may make the environment exceed the limit, with the setting that determines their length.
LONG_SETTINGS = {"RULES": "rules", "RESPONDER": "responder.instructions", "LOG_FOLLOWED": "log_followed"}


@dataclass(frozen=True)
class ValkeyAccess:
    """How a function reaches Valkey. Without an IAM user, the URL contains the user and password, if Valkey has any."""

    url: str
    iam_user: str | None = None
    cache_name: str | None = None

    def environment(self) -> Environment:
        """Return the variables with which a function reaches Valkey."""
        named = {
            "REDIS_URL": self.url,
            "VALKEY_IAM_USER": self.iam_user,
            "VALKEY_CACHE_NAME": self.cache_name,
        }
        return {name: value for name, value in named.items() if value is not None}


def common(
    role: str, *, config: StageConfig, valkey: ValkeyAccess | None, log_id_key: str | None = None
) -> Environment:
    """Return the variables that every function gets, and those that every function with Valkey gets."""
    of_valkey = {
        "SHARDS": str(config.shards),
        "START_MS": str(config.timings.start_ms),
        "VALKEY_CONNECT_MS": str(config.timings.connect_ms),
        "VALKEY_ANSWER_MS": str(config.timings.answer_ms),
        **valkey.environment(),
    } if valkey else {}  # fmt: skip
    return {
        "STAGE": config.name,
        "POWERTOOLS_SERVICE_NAME": role,
        "POWERTOOLS_METRICS_NAMESPACE": f"MessageBuffer/{config.name}",
        "POWERTOOLS_LOG_LEVEL": config.log_level,
        **({"LOG_ID_KEY": log_id_key} if log_id_key else {}),
        **_sampled_lines(config),
        **of_valkey,
    }


def _sampled_lines(config: StageConfig) -> Environment:
    if config.log_share >= 1:
        return {}
    followed = {"LOG_FOLLOWED": "\n".join(config.log_followed)} if config.log_followed else {}
    return {"LOG_SHARE": str(config.log_share), **followed}


def check_size(role: str, environment: Environment) -> None:
    """Raise ConfigError, with the settings to shorten, if Lambda would refuse the variables."""
    sizes = {
        name: len(name) + (BYTES_OF_AN_UNKNOWN_VALUE if cdk.Token.is_unresolved(value) else len(value.encode()))
        for name, value in environment.items()
    }
    if sum(sizes.values()) <= MAX_ENVIRONMENT_BYTES:
        return
    long = ", ".join(f"`{LONG_SETTINGS[name]}` with {sizes[name]:,}" for name in LONG_SETTINGS if name in sizes)
    raise ConfigError(
        f"The environment variables of the function {role} would have {sum(sizes.values()):,} bytes, but Lambda accepts"
        f" {MAX_ENVIRONMENT_BYTES:,}. Shorten in cdk.json: {long} bytes."
    )


def responder(
    *,
    config: Responder,
    table: dynamodb.ITable,
    queue: sqs.IQueue,
    dead_letters: sqs.IQueue,
    secret: secretsmanager.ISecret,
    gate: lambda_.IFunction,
    bus: events.IEventBus,
    oversize: s3.IBucket,
) -> Environment:
    lock_seconds = responder_seconds(config) + LOCK_MARGIN_SECONDS
    times = {"lock_ms": lock_seconds * 1_000, "hidden_seconds": HIDDEN_SECONDS}
    options = {**config.model_dump(mode="json"), **times}
    return {
        "CONVERSATIONS_TABLE": table.table_name,
        "QUEUE_URL": queue.queue_url,
        "DEAD_LETTER_QUEUE_URL": dead_letters.queue_url,
        "RESPONDER_SECRET_ID": secret.secret_arn,
        "GATE_FUNCTION": gate.function_name,
        "EVENT_BUS_NAME": bus.event_bus_name,
        "OVERSIZE_BUCKET": oversize.bucket_name,
        "RESPONDER": json.dumps(options, separators=(",", ":"), sort_keys=True),
    }


def responder_seconds(config: Responder) -> int:
    """Return the time-out of the responder's function."""
    return config.assistant_seconds + RESPONDER_MARGIN_SECONDS


def ingest(  # noqa: PLR0913 - the stack makes each of them
    *,
    config: StageConfig,
    processor: lambda_.IFunction | None,
    windows: WindowStorage | None,
    webhook_secrets: secretsmanager.ISecret,
    rules_table: dynamodb.ITable,
    takeovers_table: dynamodb.ITable,
    aliases_table: dynamodb.ITable,
    bus: events.IEventBus,
    whatsapp_queues: WhatsAppQueues | None,
) -> Environment:
    of_whatsapp = {
        "WHATSAPP_QUEUE_URL": whatsapp_queues.webhooks.queue_url,
        "UNREADABLE_QUEUE_URL": whatsapp_queues.unreadable.queue_url,
    } if whatsapp_queues else {}  # fmt: skip
    return {
        "LANE": config.lane,
        "EVENT_BUS_NAME": bus.event_bus_name,
        "RULES": _rules(config),
        "RULES_TABLE": rules_table.table_name,
        "TAKEOVERS_TABLE": takeovers_table.table_name,
        "ALIASES_TABLE": aliases_table.table_name,
        "WEBHOOK_SECRET_ID": webhook_secrets.secret_arn,
        "ACCOUNT_MESSAGES_PER_MINUTE": str(config.quota.account_messages_per_minute),
        "ACCOUNT_CONVERSATIONS_PER_MINUTE": str(config.quota.account_conversations_per_minute),
        **of_whatsapp,
        **_waiting(config),
        "GENERIC_TIMESTAMP": config.api.generic_timestamp,
        **_starting(processor),
        **_windows(windows),
    }


def processor(*, config: StageConfig, conversation_processor: lambda_.IFunction) -> Environment:
    return {
        "CONVERSATION_PROCESSOR_FUNCTION_NAME": conversation_processor.function_name,
        "LEASE_MS": str(config.timings.lease_ms),
        "CLAIM_TIMEOUT_MS": str(config.timings.claim_timeout_ms),
        "SLOTS": str(config.slots_of_a_shard),
        "PROCESSOR_IDLE_MS": str(config.timings.processor_idle_ms),
        "PROCESSOR_HANDOVER_MS": str(config.timings.processor_handover_ms),
    }


def conversation_processor(
    *,
    config: StageConfig,
    processor: lambda_.IFunction,
    destinations: EventDestinations,
) -> Environment:
    return {
        "TOKEN_MS": str(config.timings.token_ms),
        **_emitting(config, destinations),
        **_starting(processor),
    }


def dynamodb_processor(*, config: StageConfig, windows: WindowStorage, destinations: EventDestinations) -> Environment:
    return {**_emitting(config, destinations), **_windows(windows)}


def watchdog(*, processor: lambda_.IFunction) -> Environment:
    return _starting(processor)


def admin(
    *,
    config: StageConfig,
    processor: lambda_.IFunction | None,
    windows: WindowStorage | None,
    redrive: lambda_.IFunction,
    destinations: EventDestinations,
    rules_table: dynamodb.ITable,
    takeovers_table: dynamodb.ITable,
    aliases_table: dynamodb.ITable,
) -> Environment:
    return {
        "LANE": config.lane,
        "REDRIVE_FUNCTION": redrive.function_name,
        "EVENT_BUS_NAME": destinations.bus.event_bus_name,
        "DEAD_LETTER_QUEUE_URL": destinations.dead_letters.queue_url,
        "OVERSIZE_BUCKET": destinations.oversize.bucket_name,
        "AGES_OUT": json.dumps(ages_out(config), separators=(",", ":")),
        "RULES": _rules(config),
        "RULES_TABLE": rules_table.table_name,
        "TAKEOVERS_TABLE": takeovers_table.table_name,
        "ALIASES_TABLE": aliases_table.table_name,
        **_starting(processor),
        **_windows(windows),
    }


def gate(*, config: StageConfig, processor: lambda_.IFunction | None, windows: WindowStorage | None) -> Environment:
    return {"LANE": config.lane, **_starting(processor), **_windows(windows)}


def canary(
    *, api_url: str, webhook_secrets: secretsmanager.ISecret, queue: sqs.IQueue, stack: cdk.Stack
) -> Environment:
    return {
        "API_ENDPOINT": api_url,
        "WEBHOOK_SECRET_ID": webhook_secrets.secret_arn,
        "QUEUE_URL": queue.queue_url,
        "STACK": stack.stack_id,
    }


def _emitting(config: StageConfig, destinations: EventDestinations) -> Environment:
    return {
        "EVENT_BUS_NAME": destinations.bus.event_bus_name,
        "MAX_EVENT_BYTES": str(config.limits.max_event_bytes),
        "OVERSIZE_BUCKET": destinations.oversize.bucket_name,
        "MAX_ATTEMPTS": str(config.limits.max_attempts),
        "DEAD_LETTER_QUEUE_URL": destinations.dead_letters.queue_url,
    }


def _starting(processor: lambda_.IFunction | None) -> Environment:
    return {"PROCESSOR_FUNCTION_NAME": processor.function_name} if processor else {}


def _windows(windows: WindowStorage | None) -> Environment:
    if windows is None:
        return {}
    return {
        "MESSAGE_TABLE": windows.table.table_name,
        "TRIGGER_QUEUE_URL": windows.triggers.queue_url,
    }


def _waiting(config: StageConfig) -> Environment:
    if not config.has_valkey_lane:
        return {}
    return {
        "MAX_WAITING_MESSAGES": str(config.limits.max_waiting_messages),
        "MAX_WAITING_BYTES": str(config.limits.max_waiting_bytes),
        "VALKEY_WEBHOOK_MS": str(config.timings.webhook_ms),
    }


def _rules(config: StageConfig) -> str:
    return json.dumps(config.rules, separators=(",", ":"), sort_keys=True)
