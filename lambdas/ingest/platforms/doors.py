"""Finds the door that a path names."""

from lambdas.ingest.platforms.base import Platform
from message_buffer.rules.rule_book import RuleBook

DOORS = "custom"
"""The only platform that has doors."""


def platform_of_door(book: RuleBook, platform: str, name: str) -> Platform | None:
    """Return the platform that reads a door's webhooks, or None if the stage has no such door.

    Raise SendFailed if the doors were never read.
    """
    door = book.door(name) if platform == DOORS else None
    if door is None:
        return None
    from lambdas.ingest.platforms.custom import Custom  # noqa: PLC0415 - most stages have no doors

    return Custom(door)
