"""Reads each function's settings from its environment. No other module reads environment variables.

`infra/function_variables.py` lists the variables and says where they come from.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lambdas.limits import MIN_MAX_EVENT_BYTES
from message_buffer import log_settings
from message_buffer.errors import InvalidSettings
from message_buffer.events.from_environment import EmissionSettings
from message_buffer.lanes.dynamodb.from_environment import DynamoDbLaneSettings
from message_buffer.lanes.valkey.from_environment import ConnectionSettings, IamAccess, StoreSettings, ValkeySettings
from message_buffer.log_settings import LogSettings
from message_buffer.rules.quota import Quota
from message_buffer.variables import Variables

LANES = ("valkey", "dynamodb")


class IngestSettings(NamedTuple):
    valkey: ValkeySettings | None
    """None on a stage with the DynamoDB lane alone."""
    dynamodb_lane: DynamoDbLaneSettings | None
    """None if the Valkey lane has no fallback."""
    webhook_ms: int
    """The time that one webhook may wait until Valkey is connected; 0 on a stage with the DynamoDB lane alone."""
    webhook_secret_id: str
    time_is_required: bool
    """True if webhooks of the generic platform must be signed together with their time."""
    event_bus: str
    rules: Mapping[str, Any]
    """The rules layer that is deployed with the stage, as parsed JSON."""
    rules_table: str
    takeovers_table: str
    aliases_table: str
    account_quota: Quota
    """The quota of an account for which the rules set none."""
    whatsapp_queue: tuple[str, str] | None
    """The URLs of the queue of WhatsApp's webhooks, and of the queue of those that cannot be read. None on a stage
    without AWS End User Messaging Social."""


class ProcessorSettings(NamedTuple):
    valkey: ValkeySettings
    conversation_processor_function: str
    idle_ms: int
    handover_ms: int


class ConversationProcessorSettings(NamedTuple):
    valkey: ValkeySettings
    emission: EmissionSettings


class DynamoDbProcessorSettings(NamedTuple):
    dynamodb_lane: DynamoDbLaneSettings
    emission: EmissionSettings


class WatchdogSettings(NamedTuple):
    valkey: ValkeySettings


class AdminSettings(NamedTuple):
    valkey: ValkeySettings | None
    """None on a stage with the DynamoDB lane alone."""
    dynamodb_lane: DynamoDbLaneSettings | None
    """None if the Valkey lane has no fallback."""
    redrive_function: str
    event_bus: str
    dead_letter_queue_url: str
    rules: Mapping[str, Any]
    """The rules layer that is deployed with the stage, as parsed JSON."""
    rules_table: str
    takeovers_table: str
    aliases_table: str
    oversize_bucket: str
    ages_out: Sequence[Mapping[str, Any]]
    """The copies that remain when a conversation is forgotten, as parsed JSON."""


class GateSettings(NamedTuple):
    valkey: ValkeySettings | None
    """None on a stage with the DynamoDB lane alone."""
    dynamodb_lane: DynamoDbLaneSettings | None
    """None if the Valkey lane has no fallback."""


class _Environment(Variables):
    """Reads the settings that several functions share."""

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

    def lanes(self, **bounds: str) -> tuple[ValkeySettings | None, DynamoDbLaneSettings | None]:
        """Return the settings of the stage's lanes; at least one of the two is not None.

        `bounds` names numeric settings of the Valkey lane, and for each the variable that contains it.
        """
        if self.is_dynamodb_lane():
            return None, self.dynamodb_lane()
        numbers: dict[str, Any] = {name: self.whole(variable) for name, variable in bounds.items()}
        return self.valkey(**numbers), self.fallback()

    def emission(self) -> EmissionSettings:
        return EmissionSettings(
            event_bus=self.text("EVENT_BUS_NAME"),
            max_event_bytes=self.whole("MAX_EVENT_BYTES", at_least=MIN_MAX_EVENT_BYTES),
            oversize_bucket=self.text("OVERSIZE_BUCKET"),
            max_attempts=self.whole("MAX_ATTEMPTS"),
            dead_letter_queue_url=self.text("DEAD_LETTER_QUEUE_URL"),
        )

    def valkey(self, *, processor: str = "PROCESSOR_FUNCTION_NAME", **timings: int) -> ValkeySettings:
        return ValkeySettings(
            connection=ConnectionSettings(
                self.text("REDIS_URL"),
                self.whole("VALKEY_CONNECT_MS"),
                self.whole("VALKEY_ANSWER_MS"),
                self.optional("VALKEY_CA_FILE"),
            ),
            iam=self._iam(),
            store=StoreSettings(shards=self.whole("SHARDS"), start_ms=self.whole("START_MS"), **timings),
            processor_function=self.text(processor),
        )

    def _iam(self) -> IamAccess | None:
        if self.optional("VALKEY_IAM_USER") is None:
            return None
        return IamAccess(self.text("VALKEY_IAM_USER"), self.text("VALKEY_CACHE_NAME"), self.text("AWS_REGION"))


def read_log_settings(environ: Mapping[str, str] | None = None) -> LogSettings:
    return log_settings.read_log_settings(_environment(environ))


def read_ingest(environ: Mapping[str, str] | None = None) -> IngestSettings:
    env = _environment(environ)
    valkey, dynamodb_lane = env.lanes(max_waiting="MAX_WAITING_MESSAGES", max_waiting_bytes="MAX_WAITING_BYTES")
    return IngestSettings(
        valkey=valkey,
        dynamodb_lane=dynamodb_lane,
        webhook_ms=env.whole("VALKEY_WEBHOOK_MS") if valkey else 0,
        webhook_secret_id=env.text("WEBHOOK_SECRET_ID"),
        time_is_required=env.text("GENERIC_TIMESTAMP") == "required",
        event_bus=env.text("EVENT_BUS_NAME"),
        rules=env.object("RULES"),
        rules_table=env.text("RULES_TABLE"),
        takeovers_table=env.text("TAKEOVERS_TABLE"),
        aliases_table=env.text("ALIASES_TABLE"),
        account_quota=Quota(
            messages_per_minute=env.whole("ACCOUNT_MESSAGES_PER_MINUTE"),
            conversations_per_minute=env.whole("ACCOUNT_CONVERSATIONS_PER_MINUTE"),
        ),
        whatsapp_queue=(env.text("WHATSAPP_QUEUE_URL"), env.text("UNREADABLE_QUEUE_URL"))
        if env.optional("WHATSAPP_QUEUE_URL")
        else None,
    )


def read_processor(environ: Mapping[str, str] | None = None) -> ProcessorSettings:
    env = _environment(environ)
    return ProcessorSettings(
        valkey=env.valkey(
            # A processor starts its successor by invoking its own function, whose name Lambda puts into this variable.
            processor="AWS_LAMBDA_FUNCTION_NAME",
            lease_ms=env.whole("LEASE_MS"),
            claim_ms=env.whole("CLAIM_TIMEOUT_MS"),
            slots=env.whole("SLOTS"),
        ),
        conversation_processor_function=env.text("CONVERSATION_PROCESSOR_FUNCTION_NAME"),
        idle_ms=env.whole("PROCESSOR_IDLE_MS"),
        handover_ms=env.whole("PROCESSOR_HANDOVER_MS"),
    )


def read_conversation_processor(environ: Mapping[str, str] | None = None) -> ConversationProcessorSettings:
    env = _environment(environ)
    return ConversationProcessorSettings(
        valkey=env.valkey(token_ms=env.whole("TOKEN_MS")),
        emission=env.emission(),
    )


def read_dynamodb_processor(environ: Mapping[str, str] | None = None) -> DynamoDbProcessorSettings:
    env = _environment(environ)
    return DynamoDbProcessorSettings(
        dynamodb_lane=env.dynamodb_lane(),
        emission=env.emission(),
    )


def read_watchdog(environ: Mapping[str, str] | None = None) -> WatchdogSettings:
    return WatchdogSettings(_environment(environ).valkey())


def read_admin(environ: Mapping[str, str] | None = None) -> AdminSettings:
    env = _environment(environ)
    valkey, dynamodb_lane = env.lanes()
    return AdminSettings(
        valkey=valkey,
        dynamodb_lane=dynamodb_lane,
        redrive_function=env.text("REDRIVE_FUNCTION"),
        event_bus=env.text("EVENT_BUS_NAME"),
        dead_letter_queue_url=env.text("DEAD_LETTER_QUEUE_URL"),
        rules=env.object("RULES"),
        rules_table=env.text("RULES_TABLE"),
        takeovers_table=env.text("TAKEOVERS_TABLE"),
        aliases_table=env.text("ALIASES_TABLE"),
        oversize_bucket=env.text("OVERSIZE_BUCKET"),
        ages_out=[{"place": place, "days": days} for place, days in env.object("AGES_OUT").items()],
    )


def read_gate(environ: Mapping[str, str] | None = None) -> GateSettings:
    return GateSettings(*_environment(environ).lanes())


def _environment(environ: Mapping[str, str] | None) -> _Environment:
    return _Environment(os.environ if environ is None else environ)
