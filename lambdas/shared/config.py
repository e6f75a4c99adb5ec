"""What each function is told by its environment: the only module that reads it.

`infra/environment.py` lists the variables and says where they come from.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from lambdas.shared.errors import InvalidSettings
from lambdas.shared.store.settings import ConnectionSettings, IamAccess, StoreSettings, ValkeySettings

# An executor is killed at its time-out. Until its token has run out too nobody else may emit the batch, so the
# token lasts longer: by the rounding of the time-out to whole seconds, and by what hosts' clocks may differ.
TOKEN_MARGIN_MS = 2_000

LANES = ("debounce", "window")


class HoldingSettings(NamedTuple):
    """Where the window lane keeps messages, and what ends a window."""

    table: str
    queue_url: str


class EmissionSettings(NamedTuple):
    """Where batches go, whichever lane took them, and what does not go there."""

    event_bus: str
    max_event_bytes: int
    oversize_bucket: str
    max_attempts: int
    dead_letter_queue_url: str


class IngestSettings(NamedTuple):
    valkey: ValkeySettings | None
    """`None` where the window lane stands alone; so is the processor."""
    processor_function: str | None
    holding: HoldingSettings | None
    """`None` where the main lane has no fallback."""
    webhook_secret_id: str
    event_bus: str
    rules: Mapping[str, Any]
    """The layer that is deployed with the stage, as JSON has it."""
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
    holding: HoldingSettings | None
    """`None` where the main lane has no fallback."""
    emission: EmissionSettings


class WindowProcessorSettings(NamedTuple):
    holding: HoldingSettings
    emission: EmissionSettings


class WatchdogSettings(NamedTuple):
    valkey: ValkeySettings
    processor_function: str


class AdminSettings(NamedTuple):
    valkey: ValkeySettings | None
    """`None` where the window lane stands alone; so is the processor."""
    processor_function: str | None
    holding: HoldingSettings | None
    """`None` where the main lane has no fallback."""
    redrive_function: str
    event_bus: str
    dead_letter_queue_url: str
    rules: Mapping[str, Any]
    """The layer that is deployed with the stage, as JSON has it."""
    rules_table: str


class ResponderOptions(NamedTuple):
    """What a stage decides about its responder, by the names of `infra/config.py`."""

    assistant: str
    model: str
    instructions: str
    assistant_url: str
    assistant_seconds: int
    max_reply_tokens: int
    max_history_tokens: int
    gate: str
    gate_wait_seconds: int
    channel: str
    allowed_channels: list[str]
    typing_indicator: bool
    unknown_conversation: str
    inactive_project: str
    channel_not_allowed: str
    handed_to_human: str
    hold_seconds: int
    max_attempts: int
    outbox_days: int
    lock_ms: int
    """It outlives the function, so nobody else works on a conversation while somebody does."""
    hidden_seconds: int
    """For so long a delivery is hidden at a time: what a crash leaves behind comes back then."""


class ResponderSettings(NamedTuple):
    conversations_table: str
    queue_url: str
    dead_letter_queue_url: str
    secret_id: str
    admin_function: str
    event_bus: str
    oversize_bucket: str
    options: ResponderOptions


class _Environment:
    """Variables by name and kind; what is missing or wrong is named in a sentence, never shown."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def optional(self, name: str) -> str | None:
        return self._variables.get(name) or None

    def text(self, name: str) -> str:
        value = self.optional(name)
        if value is None:
            raise InvalidSettings(f"The environment variable {name} is missing.")
        return value

    def whole(self, name: str, *, at_least: int = 1) -> int:
        text = self.text(name)
        if not (text.isascii() and text.isdigit()) or int(text) < at_least:
            raise InvalidSettings(f"The environment variable {name} must be a whole number from {at_least}.")
        return int(text)

    def object(self, name: str) -> dict[str, Any]:
        try:
            value = json.loads(self.text(name))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise InvalidSettings(f"The environment variable {name} must be a JSON object.")
        return value

    def is_window_lane(self) -> bool:
        lane = self.text("LANE")
        if lane not in LANES:
            raise InvalidSettings(f"The environment variable LANE must be one of {', '.join(LANES)}.")
        return lane == "window"

    def holding(self) -> HoldingSettings:
        return HoldingSettings(table=self.text("HOLDING_TABLE"), queue_url=self.text("TRIGGER_QUEUE_URL"))

    def fallback(self) -> HoldingSettings | None:
        if self.optional("HOLDING_TABLE") is None and self.optional("TRIGGER_QUEUE_URL") is None:
            return None
        return self.holding()

    def lanes(self) -> tuple[ValkeySettings | None, str | None, HoldingSettings | None]:
        """Valkey and the processor, which the window lane alone has not; where messages are held, if anywhere."""
        if self.is_window_lane():
            return None, None, self.holding()
        return self.valkey(), self.text("PROCESSOR_FUNCTION"), self.fallback()

    def emission(self) -> EmissionSettings:
        return EmissionSettings(
            event_bus=self.text("EVENT_BUS_NAME"),
            max_event_bytes=self.whole("MAX_EVENT_BYTES", at_least=1_024),
            oversize_bucket=self.text("OVERSIZE_BUCKET"),
            max_attempts=self.whole("MAX_ATTEMPTS"),
            dead_letter_queue_url=self.text("DEAD_LETTER_QUEUE_URL"),
        )

    def valkey(self, **timings: int) -> ValkeySettings:
        return ValkeySettings(
            connection=ConnectionSettings(self.text("VALKEY_URL"), ca_file=self.optional("VALKEY_CA_FILE")),
            iam=self._iam(),
            store=StoreSettings(shards=self.whole("SHARDS"), start_ms=self.whole("START_MS"), **timings),
        )

    def _iam(self) -> IamAccess | None:
        if self.optional("VALKEY_IAM_USER") is None:
            return None
        return IamAccess(self.text("VALKEY_IAM_USER"), self.text("VALKEY_CACHE_NAME"), self.text("AWS_REGION"))


def read_ingest(environ: Mapping[str, str] | None = None) -> IngestSettings:
    env = _environment(environ)
    valkey, processor_function, holding = env.lanes()
    return IngestSettings(
        valkey=valkey,
        processor_function=processor_function,
        holding=holding,
        webhook_secret_id=env.text("WEBHOOK_SECRET_ID"),
        event_bus=env.text("EVENT_BUS_NAME"),
        rules=env.object("RULES"),
        rules_table=env.text("RULES_TABLE"),
    )


def read_processor(environ: Mapping[str, str] | None = None) -> ProcessorSettings:
    env = _environment(environ)
    return ProcessorSettings(
        valkey=env.valkey(lease_ms=env.whole("LEASE_MS"), claim_ms=env.whole("CLAIM_TIMEOUT_MS")),
        # Lambda itself says so: its successor is the same function.
        processor_function=env.text("AWS_LAMBDA_FUNCTION_NAME"),
        conversation_processor_function=env.text("CONVERSATION_PROCESSOR_FUNCTION"),
        idle_ms=env.whole("PROCESSOR_IDLE_MS"),
        handover_ms=env.whole("PROCESSOR_HANDOVER_MS"),
    )


def read_conversation_processor(environ: Mapping[str, str] | None = None) -> ConversationProcessorSettings:
    env = _environment(environ)
    return ConversationProcessorSettings(
        valkey=env.valkey(executor_ms=env.whole("EXECUTOR_TIMEOUT_MS") + TOKEN_MARGIN_MS),
        processor_function=env.text("PROCESSOR_FUNCTION"),
        holding=env.fallback(),
        emission=env.emission(),
    )


def read_window_processor(environ: Mapping[str, str] | None = None) -> WindowProcessorSettings:
    env = _environment(environ)
    return WindowProcessorSettings(
        holding=env.holding(),
        emission=env.emission(),
    )


def read_watchdog(environ: Mapping[str, str] | None = None) -> WatchdogSettings:
    env = _environment(environ)
    return WatchdogSettings(valkey=env.valkey(), processor_function=env.text("PROCESSOR_FUNCTION"))


def read_admin(environ: Mapping[str, str] | None = None) -> AdminSettings:
    env = _environment(environ)
    valkey, processor_function, holding = env.lanes()
    return AdminSettings(
        valkey=valkey,
        processor_function=processor_function,
        holding=holding,
        redrive_function=env.text("REDRIVE_FUNCTION"),
        event_bus=env.text("EVENT_BUS_NAME"),
        dead_letter_queue_url=env.text("DEAD_LETTER_QUEUE_URL"),
        rules=env.object("RULES"),
        rules_table=env.text("RULES_TABLE"),
    )


def read_responder(environ: Mapping[str, str] | None = None) -> ResponderSettings:
    env = _environment(environ)
    try:
        options = ResponderOptions(**env.object("RESPONDER"))
    except TypeError as error:
        raise InvalidSettings("The environment variable RESPONDER has other fields than it should.") from error
    return ResponderSettings(
        conversations_table=env.text("CONVERSATIONS_TABLE"),
        queue_url=env.text("QUEUE_URL"),
        dead_letter_queue_url=env.text("DEAD_LETTER_QUEUE_URL"),
        secret_id=env.text("RESPONDER_SECRET_ID"),
        admin_function=env.text("ADMIN_FUNCTION"),
        event_bus=env.text("EVENT_BUS_NAME"),
        oversize_bucket=env.text("OVERSIZE_BUCKET"),
        options=options,
    )


def _environment(environ: Mapping[str, str] | None) -> _Environment:
    return _Environment(os.environ if environ is None else environ)
