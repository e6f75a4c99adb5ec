"""Remembers in a DynamoDB table which batches a consumer has answered.

The table has the partition key `id` (a string) and the time-to-live attribute `expiresAt`.
"""

from collections.abc import Collection

from message_buffer.aws.dynamodb import Table
from message_buffer.clock import Clock, system_clock
from message_buffer.limits import DAY_MS, SECOND_MS

# The bus's archive can replay a batch, and a person can move a dead letter back, after weeks.
KEPT_MS = 35 * DAY_MS


class TableMarks(Table):
    def __init__(self, name: str, *, clock: Clock = system_clock) -> None:
        super().__init__(name)
        self._clock = clock

    def answered(self, batch_ids: Collection[str]) -> set[str]:
        """Return those of the batches that were answered before."""
        return {batch_id for batch_id in batch_ids if self._get("read mark", {"id": batch_id})}

    def mark(self, batch_ids: Collection[str]) -> None:
        """Remember that these batches were answered."""
        expires_at = (self._clock() + KEPT_MS) // SECOND_MS
        for batch_id in batch_ids:
            self._put("mark batch", {"id": batch_id, "expiresAt": expires_at}, only_if="attribute_not_exists(#id)")
