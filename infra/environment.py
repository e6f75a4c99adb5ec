"""The environment of every function, in one place: what the runtime is told, and where it comes from.

Of *emitters* there is one a lane: conversation_processor and dynamodb_processor. *Doors* are ingest and admin.

| variable | functions | is |
|---|---|---|
| STAGE | all | the stage's name |
| LANE | doors, dynamodb_processor | `valkey`, or `dynamodb` where that lane stands alone, without Valkey |
| REDIS_URL | all, with Valkey | `valkey://` or, with TLS, `valkeys://` + `[user:password@]host:port?cluster=true` |
| VALKEY_IAM_USER, VALKEY_CACHE_NAME | all, with Valkey, in AWS | sign in with a token of this user for this cache |
| SHARDS | all, with Valkey | how many processors share the conversations |
| START_MS | all, with Valkey | how long a reserved start of a processor may take |
| POWERTOOLS_SERVICE_NAME, _METRICS_NAMESPACE, _LOG_LEVEL | all | Powertools' own names |
| PROCESSOR_FUNCTION_NAME | all with Valkey but the processor and dynamodb_processor | whom to start |
| MESSAGE_TABLE, TRIGGER_QUEUE_URL | doors, emitters, with that lane | where it keeps messages, what ends a window |
| RULES | doors | the layer of the rules that is deployed with the stage, JSON |
| RULES_TABLE | doors | the layers that operators change |
| WEBHOOK_SECRET_ID | ingest | the platforms' secrets; `lambdas/ingest/webhook_secrets.py` says what is in it |
| LEASE_MS, CLAIM_TIMEOUT_MS, PROCESSOR_IDLE_MS, PROCESSOR_HANDOVER_MS | processor | its timings |
| CONVERSATION_PROCESSOR_FUNCTION_NAME | processor | whom to hand a claimed conversation to |
| REDRIVE_FUNCTION | admin | whom to hand a dead letter to |
| EVENT_BUS_NAME | doors, emitters | where amendments, batches and cancellations go |
| MAX_EVENT_BYTES, OVERSIZE_BUCKET | emitters | where batches go that are too large for the bus |
| CONVERSATION_PROCESSOR_TIMEOUT_MS | conversation_processor | how long one may work on a batch |
| MAX_ATTEMPTS | emitters | when a batch is given up |
| DEAD_LETTER_QUEUE_URL | emitters, admin, responder | where it is put then |
| RESPONDER | responder | what it goes by, JSON: `Responder` of `infra/config.py`, and two times |
| CONVERSATIONS_TABLE, QUEUE_URL, RESPONDER_SECRET_ID | responder | its table, its queue, its keys |
| ADMIN_FUNCTION | responder | whom it asks about the buffer |
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_secretsmanager as secretsmanager
from aws_cdk import aws_sqs as sqs

from infra.config import Responder, StageConfig

Environment = Mapping[str, str]

# Beyond what its assistant takes: for the channel, the table, and to put the delivery back.
RESPONDER_MARGIN_SECONDS = 45
# A lock outlives the function that holds it, also if hosts' clocks differ.
LOCK_MARGIN_SECONDS = 5
HIDDEN_SECONDS = 30


@dataclass(frozen=True)
class ValkeyAccess:
    """How a function reaches Valkey. Without an IAM user the URL says everything."""

    url: str
    iam_user: str | None = None
    cache_name: str | None = None

    def environment(self) -> Environment:
        named = {
            "REDIS_URL": self.url,
            "VALKEY_IAM_USER": self.iam_user,
            "VALKEY_CACHE_NAME": self.cache_name,
        }
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class EventDestinations:
    """Where what leaves the buffer goes, on each of its ways."""

    bus: events.IEventBus
    oversize: s3.IBucket
    dead_letters: sqs.IQueue


@dataclass(frozen=True)
class TableAndTriggers:
    """Where the DynamoDB lane keeps messages, and the queue whose delay ends a window."""

    table: dynamodb.ITable
    triggers: sqs.IQueue


def common(role: str, *, config: StageConfig, valkey: ValkeyAccess | None) -> Environment:
    of_valkey = {
        "SHARDS": str(config.shards),
        "START_MS": str(config.timings.start_ms),
        **valkey.environment(),
    } if valkey else {}  # fmt: skip
    return {
        "STAGE": config.name,
        "POWERTOOLS_SERVICE_NAME": role,
        "POWERTOOLS_METRICS_NAMESPACE": f"MessageBuffer/{config.name}",
        "POWERTOOLS_LOG_LEVEL": config.log_level,
        **of_valkey,
    }


def responder(
    *,
    config: Responder,
    table: dynamodb.ITable,
    queue: sqs.IQueue,
    dead_letters: sqs.IQueue,
    secret: secretsmanager.ISecret,
    admin: lambda_.IFunction,
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
        "ADMIN_FUNCTION": admin.function_name,
        "EVENT_BUS_NAME": bus.event_bus_name,
        "OVERSIZE_BUCKET": oversize.bucket_name,
        "RESPONDER": json.dumps(options, separators=(",", ":"), sort_keys=True),
    }


def responder_seconds(config: Responder) -> int:
    """The function's time-out."""
    return config.assistant_seconds + RESPONDER_MARGIN_SECONDS


def ingest(
    *,
    config: StageConfig,
    processor: lambda_.IFunction | None,
    table_and_triggers: TableAndTriggers | None,
    webhook_secrets: secretsmanager.ISecret,
    rules_table: dynamodb.ITable,
    bus: events.IEventBus,
) -> Environment:
    return {
        "LANE": config.lane,
        "EVENT_BUS_NAME": bus.event_bus_name,
        "RULES": _rules(config),
        "RULES_TABLE": rules_table.table_name,
        "WEBHOOK_SECRET_ID": webhook_secrets.secret_arn,
        **_starting(processor),
        **_table_and_triggers(table_and_triggers),
    }


def processor(*, config: StageConfig, conversation_processor: lambda_.IFunction) -> Environment:
    return {
        "CONVERSATION_PROCESSOR_FUNCTION_NAME": conversation_processor.function_name,
        "LEASE_MS": str(config.timings.lease_ms),
        "CLAIM_TIMEOUT_MS": str(config.timings.claim_timeout_ms),
        "PROCESSOR_IDLE_MS": str(config.timings.processor_idle_ms),
        "PROCESSOR_HANDOVER_MS": str(config.timings.processor_handover_ms),
    }


def conversation_processor(
    *,
    config: StageConfig,
    processor: lambda_.IFunction,
    table_and_triggers: TableAndTriggers | None,
    destinations: EventDestinations,
) -> Environment:
    return {
        "CONVERSATION_PROCESSOR_TIMEOUT_MS": str(config.timings.conversation_processor_timeout_ms),
        **_emitting(config, destinations),
        **_starting(processor),
        **_table_and_triggers(table_and_triggers),
    }


def dynamodb_processor(
    *, config: StageConfig, table_and_triggers: TableAndTriggers, destinations: EventDestinations
) -> Environment:
    return {**_emitting(config, destinations), **_table_and_triggers(table_and_triggers)}


def watchdog(*, processor: lambda_.IFunction) -> Environment:
    return _starting(processor)


def admin(
    *,
    config: StageConfig,
    processor: lambda_.IFunction | None,
    table_and_triggers: TableAndTriggers | None,
    redrive: lambda_.IFunction,
    destinations: EventDestinations,
    rules_table: dynamodb.ITable,
) -> Environment:
    return {
        "LANE": config.lane,
        "REDRIVE_FUNCTION": redrive.function_name,
        "EVENT_BUS_NAME": destinations.bus.event_bus_name,
        "DEAD_LETTER_QUEUE_URL": destinations.dead_letters.queue_url,
        "RULES": _rules(config),
        "RULES_TABLE": rules_table.table_name,
        **_starting(processor),
        **_table_and_triggers(table_and_triggers),
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


def _table_and_triggers(table_and_triggers: TableAndTriggers | None) -> Environment:
    if table_and_triggers is None:
        return {}
    return {
        "MESSAGE_TABLE": table_and_triggers.table.table_name,
        "TRIGGER_QUEUE_URL": table_and_triggers.triggers.queue_url,
    }


def _rules(config: StageConfig) -> str:
    return json.dumps(config.rules, separators=(",", ":"), sort_keys=True)
