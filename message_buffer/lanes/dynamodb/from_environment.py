"""The DynamoDB lane's addresses."""

from typing import NamedTuple


class DynamoDbLaneSettings(NamedTuple):
    """The table that stores messages, and the queue whose triggers end windows."""

    table: str
    queue_url: str
