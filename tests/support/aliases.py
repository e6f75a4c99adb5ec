"""Instances of ingest's aliases on a DynamoDB in the tests' own process."""

from typing import Any

from message_buffer.aliases.aliases import Aliases
from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aws import clients as aws
from message_buffer.messages.conversation_id import AuthorIds, ConversationId
from tests.support.engine import ManualClock
from tests.support.fakes import RecordedTelemetry
from tests.support.table_service import empty
from tests.support.window import Wire, WiredClient

TABLE = "aliases"
ACCOUNT = ConversationId("default", "whatsapp", "555", "-")


class WiredAliases(AliasesTable):
    """A table whose requests a test can count, stop and refuse."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(TABLE)
        self._wired = WiredClient(aws.client("dynamodb"), wire)

    @property
    def _client(self) -> Any:
        return self._wired


class AliasScene:
    """Several instances of ingest that share one table."""

    def __init__(self, client: Any, clock: ManualClock | None = None) -> None:
        if TABLE in client.list_tables()["TableNames"]:
            empty(client, TABLE)
        else:
            client.create_table(
                TableName=TABLE,
                KeySchema=[{"AttributeName": "conversation", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "conversation", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
        self._client = client
        self.clock = clock or ManualClock()
        self.wire, self.telemetry = Wire(), RecordedTelemetry()
        self.table = WiredAliases(self.wire)
        self.instance = self.another()

    def another(self) -> Aliases:
        """Return another instance of ingest, which has no copies yet."""
        return Aliases(self.table, self.telemetry, clock=self.clock)

    def user(self, number: str | None, user_id: str | None, *, instance: Aliases | None = None) -> str:
        """Return the user part of the name of the conversation that an author with these ids has."""
        named = ACCOUNT._replace(user=number or user_id or "")
        return (instance or self.another()).conversation_of(named, AuthorIds(number, user_id)).user

    def items(self) -> list[dict[str, Any]]:
        return list(self._client.scan(TableName=TABLE)["Items"])
