"""Reads the responder's environment; no other module of the responder does."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from message_buffer import log_settings
from message_buffer.errors import InvalidSettings
from message_buffer.log_settings import LogSettings
from message_buffer.variables import Variables


class ResponderOptions(NamedTuple):
    """The stage's settings for its responder. `Responder` in `infra/settings_and_defaults.py` explains each field."""

    assistant: str
    model: str
    instructions: str
    assistant_url: str
    assistant_seconds: int
    max_reply_tokens: int
    max_history_tokens: int
    max_question_tokens: int
    max_replies_an_hour: int
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
    turn_days: int
    lock_ms: int
    """How long a run owns its conversation. This is longer than the function's time-out."""
    hidden_seconds: int
    """How long each call hides a delivery. After a crash the queue delivers it again when this time is over."""


class ResponderSettings(NamedTuple):
    conversations_table: str
    queue_url: str
    dead_letter_queue_url: str
    secret_id: str
    gate_function: str
    event_bus: str
    oversize_bucket: str
    options: ResponderOptions


def read_log_settings(environ: Mapping[str, str] | None = None) -> LogSettings:
    return log_settings.read_log_settings(Variables(os.environ if environ is None else environ))


def read_responder(environ: Mapping[str, str] | None = None) -> ResponderSettings:
    """Return the settings. Raise InvalidSettings if a variable is missing or has an invalid value."""
    env = Variables(os.environ if environ is None else environ)
    try:
        options = ResponderOptions(**env.object("RESPONDER"))
    except TypeError as error:
        fields = ", ".join(ResponderOptions._fields)
        raise InvalidSettings(f"The environment variable RESPONDER must have exactly the fields {fields}.") from error
    return ResponderSettings(
        conversations_table=env.text("CONVERSATIONS_TABLE"),
        queue_url=env.text("QUEUE_URL"),
        dead_letter_queue_url=env.text("DEAD_LETTER_QUEUE_URL"),
        secret_id=env.text("RESPONDER_SECRET_ID"),
        gate_function=env.text("GATE_FUNCTION"),
        event_bus=env.text("EVENT_BUS_NAME"),
        oversize_bucket=env.text("OVERSIZE_BUCKET"),
        options=options,
    )
