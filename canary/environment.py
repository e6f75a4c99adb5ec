"""Reads the canary's environment. No other module of the canary reads it."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from message_buffer import log_settings
from message_buffer.log_settings import LogSettings
from message_buffer.variables import Variables


class CanarySettings(NamedTuple):
    api_endpoint: str
    webhook_secret_id: str
    queue_url: str
    """The queue that receives the events of the canary's conversations."""
    stack: str
    """The id of the stack that contains the functions. The canary reads from it whether a deployment is running."""


def read_log_settings(environ: Mapping[str, str] | None = None) -> LogSettings:
    return log_settings.read_log_settings(Variables(os.environ if environ is None else environ))


def read_canary(environ: Mapping[str, str] | None = None) -> CanarySettings:
    """Return the settings. Raise InvalidSettings if a variable is missing."""
    env = Variables(os.environ if environ is None else environ)
    return CanarySettings(
        api_endpoint=env.text("API_ENDPOINT"),
        webhook_secret_id=env.text("WEBHOOK_SECRET_ID"),
        queue_url=env.text("QUEUE_URL"),
        stack=env.text("STACK"),
    )
