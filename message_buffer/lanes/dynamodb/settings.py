"""Where the DynamoDB lane is."""

from typing import NamedTuple


class DynamoDbLaneSettings(NamedTuple):
    """Where the DynamoDB lane stores messages, and the queue whose triggers end its windows."""

    table: str
    queue_url: str
