"""The table of takeovers in memory. `test_takeovers_table.py` runs its tests on this table and on the real one.

It only records the calls about the steps after a customer's silence. `test_idle.py` tests these on the real table.
"""

from collections import Counter
from typing import Any

from message_buffer.errors import SendFailed
from message_buffer.events.batch_ready import Content
from message_buffer.events.idle import BY_TIME, IdleTable
from message_buffer.lanes.holds import NO_END_MS
from message_buffer.limits import HOUR_MS
from message_buffer.takeovers import takeovers_table
from message_buffer.takeovers.takeover import Takeover
from tests.support.table_service import empty


class FakeTakeovers(IdleTable):
    def __init__(self) -> None:
        super().__init__("takeovers")
        self.states: dict[str, Takeover] = {}
        self.begun: Counter[int] = Counter()
        self.calls: list[str] = []
        self.failures: list[str] = []
        """Names of calls that fail, each once."""
        self.steps: list[tuple[Any, ...]] = []
        """The calls about steps."""

    def read(self, conversation: str) -> Takeover:
        self._called("read")
        return self.states.get(conversation, Takeover())

    def save(self, conversation: str, takeover: Takeover, *, now_ms: int) -> bool:
        self._called("save")
        found = self.states.get(conversation, Takeover())
        if found.version != takeover.version - 1:
            return False
        self.states[conversation] = takeover
        return True

    def mark_published(self, conversation: str, *, began_at_ms: int) -> bool:
        self._called("mark_published")
        found = self.states.get(conversation, Takeover())
        if found.began_at_ms != began_at_ms or not found.until_ms:
            return False
        self.states[conversation] = found._replace(is_published=True)
        return True

    def count_hand_off(self, now_ms: int) -> bool:
        hour = now_ms // HOUR_MS
        if self.begun[hour] >= takeovers_table.MAX_CONSUMERS_HAND_OFFS_IN_AN_HOUR:
            return False
        self.begun[hour] += 1
        return True

    def count(self, conversation: str) -> int:
        return int(conversation in self.states)

    def forget(self, conversation: str) -> int:
        found = self.count(conversation)
        self.states.pop(conversation, None)
        return found

    def begin_steps(self, conversation: str, _taken: object, content: Content, *, now_ms: int) -> None:
        del now_ms
        self.steps.append(("begin", conversation, content.idle_after_ms))

    def is_used(self, now_ms: int) -> bool:
        del now_ms
        return True

    def note_reply(self, conversation: str, *, at_ms: int) -> None:
        self.steps.append(("reply", conversation, at_ms))

    def end_steps(self, conversation: str, *, upto_ms: int = NO_END_MS) -> None:
        self.steps.append(("end", conversation, upto_ms))

    def undo_steps(self, conversation: str, *, last_at_ms: int) -> None:
        self.steps.append(("undo", conversation, last_at_ms))

    def forget_steps(self, conversation: str, *, until_ms: int) -> None:
        self.steps.append(("forget", conversation, until_ms))

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            self.failures.remove(name)
            raise SendFailed(f"{name}: ThrottlingException")


def make_takeovers_table(database: Any, name: str) -> None:
    """Make the table with the index that `infra/buffer.py` adds, or empty it."""
    if name in database.list_tables()["TableNames"]:
        empty(database, name)
        return
    types = {"conversation": "S", "idle": "S", "at": "N"}
    keys = [{"AttributeName": "idle", "KeyType": "HASH"}, {"AttributeName": "at", "KeyType": "RANGE"}]
    database.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "conversation", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()],
        GlobalSecondaryIndexes=[
            {"IndexName": BY_TIME, "KeySchema": keys, "Projection": {"ProjectionType": "KEYS_ONLY"}}
        ],
        BillingMode="PAY_PER_REQUEST",
    )
