"""Remembers how many items of a webhook are done if ingest runs out of time, so that the next delivery goes on there.

Each number is kept for a day, under a digest of the webhook, as a row of the table of takeovers.
"""

from collections.abc import Iterable, Iterator
from hashlib import blake2s
from typing import TypeVar

from message_buffer.aws import clients as aws
from message_buffer.aws.dynamodb import Table, Values, number
from message_buffer.clock import Clock
from message_buffer.limits import REMEMBERED_MS, SECOND_MS

# Do not read the progress of a webhook with fewer items, because these fit into the time.
MIN_ITEMS = 20

T = TypeVar("T")


class ProgressTable(Table):
    def __init__(self, name: str) -> None:
        super().__init__(name, patience=aws.HURRIED)

    def read(self, webhook: str, *, now_ms: int) -> int:
        item = self._get("read progress", _key(webhook))
        return number(item, "done") if number(item, "expires_at") * SECOND_MS > now_ms else 0

    def save(self, webhook: str, done: int, *, now_ms: int) -> None:
        values: Values = {"done": done, "expires": (now_ms + REMEMBERED_MS) // SECOND_MS}
        self._update("save progress", _key(webhook), "SET #done = :done, #expires_at = :expires", values)


class Progress:
    """The progress of one webhook with `count` messages and changes."""

    def __init__(self, table: ProgressTable, platform: str, body: bytes, *, count: int, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._webhook = blake2s(platform.encode() + b"\n" + body, digest_size=16).hexdigest()
        self._done = table.read(self._webhook, now_ms=clock()) if count >= MIN_ITEMS else 0
        self._seen = 0

    def undone(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items that no delivery has done. An item is done when the caller asks for the next one."""
        for item in items:
            self._seen += 1
            if self._seen > self._done:
                yield item
                self._done = self._seen

    def save(self) -> None:
        self._table.save(self._webhook, self._done, now_ms=self._clock())


def _key(webhook: str) -> dict[str, str]:
    return {"conversation": f"webhook:{webhook}"}
