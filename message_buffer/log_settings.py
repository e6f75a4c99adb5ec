"""Reads how a function logs: the least severe level, whether ids are hashed, and which conversations have lines for
messages and batches.
"""

from typing import NamedTuple

from message_buffer.errors import InvalidSettings
from message_buffer.variables import Variables

ALL = 1.0


class LogSettings(NamedTuple):
    id_key: str | None = None
    """The key under which ids are logged as hashes, or None if they are logged as they are."""
    share: float = ALL
    """The share of the conversations whose messages and batches have log lines. Warnings and errors are always
    logged."""
    followed: frozenset[str] = frozenset()
    """The ids of conversations that always have these lines."""
    level: str | None = None
    """The least severe lines that are written, or None if the logger decides."""


def read_log_settings(env: Variables) -> LogSettings:
    """Return the settings. Raise InvalidSettings if a variable has an invalid value."""
    share, followed = env.optional("LOG_SHARE"), env.optional("LOG_FOLLOWED")
    return LogSettings(
        id_key=env.optional("LOG_ID_KEY"),
        share=ALL if share is None else _share(share),
        followed=frozenset(followed.split("\n")) if followed else frozenset(),
        level=env.optional("POWERTOOLS_LOG_LEVEL"),
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1
    if not 0 <= share <= ALL:
        raise InvalidSettings("The environment variable LOG_SHARE must be a number from 0 to 1.")
    return share
