"""The table of customers who fell silent: one that records the calls, and DynamoDB's own, in the tests' process."""

from typing import Any

from message_buffer.events.idle import BY_TIME, IdleTable
from tests.support.fakes import RecordedTelemetry
from tests.support.table_service import empty

NAME = "idle"


class FakeIdle(IdleTable):
    def __init__(self) -> None:
        super().__init__(NAME, RecordedTelemetry())
        self.calls: list[tuple[Any, ...]] = []
        self.items: set[str] = set()

    def begin(self, conversation: str, *rest: Any, **named: Any) -> None:
        # The steps begin only if the batch has any, so only those calls count.
        if rest[1].idle_after_ms:
            self.calls.append(("begin", conversation, rest[1].idle_after_ms))

    def is_used(self) -> bool:
        return True

    def move(self, conversation: str, at_ms: int) -> None:
        self.calls.append(("move", conversation, at_ms))

    def cancel(self, conversation: str, *, upto_ms: int | None = None) -> None:
        self.calls.append(("cancel", conversation, upto_ms))

    def count(self, conversation: str) -> int:
        return int(conversation in self.items)

    def forget(self, conversation: str, *, until_ms: int | None = None) -> int:
        found = self.count(conversation)
        self.items.discard(conversation)
        return found


def make_table(database: Any) -> None:
    """Make the table as `infra/storage.py` does, or empty it."""
    if NAME in database.list_tables()["TableNames"]:
        empty(database, NAME)
        return
    types = {"conversation": "S", "part": "N", "at": "N"}
    keys = [{"AttributeName": "part", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}]
    database.create_table(
        TableName=NAME,
        KeySchema=[{"AttributeName": "conversation", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()],
        GlobalSecondaryIndexes=[
            {"IndexName": BY_TIME, "KeySchema": keys, "Projection": {"ProjectionType": "KEYS_ONLY"}}
        ],
        BillingMode="PAY_PER_REQUEST",
    )
