"""Reads the settings of each function from its environment variables. No other module reads them.

`infra/environment.py` lists the variables and says where they come from.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from lambdas.limits import MIN_MAX_EVENT_BYTES, TOKEN_MARGIN_MS
from message_buffer.errors import InvalidSettings
from message_buffer.events.emission import EmissionSettings
from message_buffer.lanes.valkey.settings import ConnectionSettings, IamAccess, StoreSettings, ValkeySettings
from message_buffer.variables import Variables

LANES = ("valkey", "dynamodb")


class DynamoDbLaneSettings(NamedTuple):
    """The table of the DynamoDB lane's messages, and the queue of its triggers."""

    table: str
    queue_url: str


class IngestSettings(NamedTuple):
    valkey: ValkeySettings | None
    """None on a stage without Valkey, like `processor_function`."""
    processor_function: str | None
    dynamodb_lane: DynamoDbLaneSettings | None
    """None on a stage without a fallback."""
    webhook_secret_id: str
    event_bus: str
    rules: Mapping[str, Any]
    """The rules that are deployed with the stage, as JSON has them."""
    rules_table: str


class ProcessorSettings(NamedTuple):
    valkey: ValkeySettings
    processor_function: str
    conversation_processor_function: str
    idle_ms: int
    handover_ms: int


class ConversationProcessorSettings(NamedTuple):
    valkey: ValkeySettings
    processor_function: str
    dynamodb_lane: DynamoDbLaneSettings | None
    """None on a stage without a fallback."""
    emission: EmissionSettings


class DynamoDbProcessorSettings(NamedTuple):
    dynamodb_lane: DynamoDbLaneSettings
    emission: EmissionSettings


class WatchdogSettings(NamedTuple):
    valkey: ValkeySettings
    processor_function: str


class AdminSettings(NamedTuple):
    valkey: ValkeySettings | None
    """None on a stage without Valkey, like `processor_function`."""
    processor_function: str | None
    dynamodb_lane: DynamoDbLaneSettings | None
    """None on a stage without a fallback."""
    redrive_function: str
    event_bus: str
    dead_letter_queue_url: str
    rules: Mapping[str, Any]
    """The rules that are deployed with the stage, as JSON has them."""
    rules_table: str


class _Environment(Variables):
    """The environment, with the settings that several functions have in common."""

    def is_dynamodb_lane(self) -> bool:
        lane = self.text("LANE")
        if lane not in LANES:
            raise InvalidSettings(f"The environment variable LANE must be one of {', '.join(LANES)}.")
        return lane == "dynamodb"

    def dynamodb_lane(self) -> DynamoDbLaneSettings:
        return DynamoDbLaneSettings(table=self.text("MESSAGE_TABLE"), queue_url=self.text("TRIGGER_QUEUE_URL"))

    def fallback(self) -> DynamoDbLaneSettings | None:
        if self.optional("MESSAGE_TABLE") is None and self.optional("TRIGGER_QUEUE_URL") is None:
            return None
        return self.dynamodb_lane()

    def lanes(self) -> tuple[ValkeySettings | None, str | None, DynamoDbLaneSettings | None]:
        """Return the settings of Valkey, the processor's name, and the settings of the DynamoDB lane.

        The first two are None on a stage without Valkey, the last on a stage without a fallback.
        """
        if self.is_dynamodb_lane():
            return None, None, self.dynamodb_lane()
        return self.valkey(), self.text("PROCESSOR_FUNCTION_NAME"), self.fallback()

    def emission(self) -> EmissionSettings:
        return EmissionSettings(
            event_bus=self.text("EVENT_BUS_NAME"),
            max_event_bytes=self.whole("MAX_EVENT_BYTES", at_least=MIN_MAX_EVENT_BYTES),
            oversize_bucket=self.text("OVERSIZE_BUCKET"),
            max_attempts=self.whole("MAX_ATTEMPTS"),
            dead_letter_queue_url=self.text("DEAD_LETTER_QUEUE_URL"),
        )

    def valkey(self, **timings: int) -> ValkeySettings:
        return ValkeySettings(
            connection=ConnectionSettings(self.text("REDIS_URL"), ca_file=self.optional("VALKEY_CA_FILE")),
            iam=self._iam(),
            store=StoreSettings(shards=self.whole("SHARDS"), start_ms=self.whole("START_MS"), **timings),
        )

    def _iam(self) -> IamAccess | None:
        if self.optional("VALKEY_IAM_USER") is None:
            return None
        return IamAccess(self.text("VALKEY_IAM_USER"), self.text("VALKEY_CACHE_NAME"), self.text("AWS_REGION"))


def read_ingest(environ: Mapping[str, str] | None = None) -> IngestSettings:
    env = _environment(environ)
    valkey, processor_function, dynamodb_lane = env.lanes()
    return IngestSettings(
        valkey=valkey,
        processor_function=processor_function,
        dynamodb_lane=dynamodb_lane,
        webhook_secret_id=env.text("WEBHOOK_SECRET_ID"),
        event_bus=env.text("EVENT_BUS_NAME"),
        rules=env.object("RULES"),
        rules_table=env.text("RULES_TABLE"),
    )


def read_processor(environ: Mapping[str, str] | None = None) -> ProcessorSettings:
    env = _environment(environ)
    return ProcessorSettings(
        valkey=env.valkey(lease_ms=env.whole("LEASE_MS"), claim_ms=env.whole("CLAIM_TIMEOUT_MS")),
        # Lambda sets this variable: a processor's successor is the same function.
        processor_function=env.text("AWS_LAMBDA_FUNCTION_NAME"),
        conversation_processor_function=env.text("CONVERSATION_PROCESSOR_FUNCTION_NAME"),
        idle_ms=env.whole("PROCESSOR_IDLE_MS"),
        handover_ms=env.whole("PROCESSOR_HANDOVER_MS"),
    )


def read_conversation_processor(environ: Mapping[str, str] | None = None) -> ConversationProcessorSettings:
    env = _environment(environ)
    return ConversationProcessorSettings(
        valkey=env.valkey(executor_ms=env.whole("CONVERSATION_PROCESSOR_TIMEOUT_MS") + TOKEN_MARGIN_MS),
        processor_function=env.text("PROCESSOR_FUNCTION_NAME"),
        dynamodb_lane=env.fallback(),
        emission=env.emission(),
    )


def read_dynamodb_processor(environ: Mapping[str, str] | None = None) -> DynamoDbProcessorSettings:
    env = _environment(environ)
    return DynamoDbProcessorSettings(
        dynamodb_lane=env.dynamodb_lane(),
        emission=env.emission(),
    )


def read_watchdog(environ: Mapping[str, str] | None = None) -> WatchdogSettings:
    env = _environment(environ)
    return WatchdogSettings(valkey=env.valkey(), processor_function=env.text("PROCESSOR_FUNCTION_NAME"))


def read_admin(environ: Mapping[str, str] | None = None) -> AdminSettings:
    env = _environment(environ)
    valkey, processor_function, dynamodb_lane = env.lanes()
    return AdminSettings(
        valkey=valkey,
        processor_function=processor_function,
        dynamodb_lane=dynamodb_lane,
        redrive_function=env.text("REDRIVE_FUNCTION"),
        event_bus=env.text("EVENT_BUS_NAME"),
        dead_letter_queue_url=env.text("DEAD_LETTER_QUEUE_URL"),
        rules=env.object("RULES"),
        rules_table=env.text("RULES_TABLE"),
    )


def _environment(environ: Mapping[str, str] | None) -> _Environment:
    return _Environment(os.environ if environ is None else environ)
