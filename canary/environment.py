"""Reads the canary's environment. No other module of the canary reads it."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from message_buffer.variables import Variables


class CanarySettings(NamedTuple):
    api_endpoint: str
    webhook_secret_id: str
    queue_url: str
    """The queue that receives the events of the canary's conversations."""
    stack: str
    """The id of the stack that contains the functions. The canary reads from it whether a deployment is running."""


def log_id_key(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the key under which ids are hashed in logs, or None if ids are logged unchanged."""
    return Variables(os.environ if environ is None else environ).optional("LOG_ID_KEY")


def read_canary(environ: Mapping[str, str] | None = None) -> CanarySettings:
    """Return the settings. Raise InvalidSettings if a variable is missing."""
    env = Variables(os.environ if environ is None else environ)
    return CanarySettings(
        api_endpoint=env.text("API_ENDPOINT"),
        webhook_secret_id=env.text("WEBHOOK_SECRET_ID"),
        queue_url=env.text("QUEUE_URL"),
        stack=env.text("STACK"),
    )
