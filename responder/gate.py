"""Whether a reply may still go out, although its author may have written again.

| policy | closes | what was not said |
|---|---|---|
| deliver | never | |
| discard_and_merge | before the first part | is not said; the next batch is answered together with this one |
| interrupt | before any part | as above; what was said stays in the history |
| queue | before the first part | waits, and goes out before the next batch is answered |

A reply that a gate has closed on is parked for a bounded time. If by then no newer batch has been answered, it
goes out after all: what was newer may have been cancelled.
"""

from typing import NamedTuple, Protocol

from responder.event import Batch

DELIVER, DISCARD_AND_MERGE, INTERRUPT, QUEUE = "deliver", "discard_and_merge", "interrupt", "queue"
POLICIES = (DELIVER, DISCARD_AND_MERGE, INTERRUPT, QUEUE)
# Each is kept on the record, beside the newest turns, until a later batch has been answered.
MOST_PARKED = 5
MOST_PARKED_BYTES = 12_288


class Parked(NamedTuple):
    """A batch that waits for the next one."""

    batch_id: str
    generation: int
    lane: str
    text: str
    said: str
    """The parts that were out when the gate closed."""


class Buffer(Protocol):
    def newest(self, batch: Batch) -> int: ...


class Gate:
    def __init__(self, policy: str, buffer: Buffer) -> None:
        self._policy = policy
        self._buffer = buffer

    def merges(self) -> bool:
        return self._policy in (DISCARD_AND_MERGE, INTERRUPT)

    def queues(self) -> bool:
        return self._policy == QUEUE

    def is_closed(self, batch: Batch, *, parked: list[Parked], answered: int, parts_out: int) -> bool:
        """`answered`: the newest generation of its lane that has been. What is newer than that is yet to come."""
        if self._policy == DELIVER or len(parked) >= MOST_PARKED:
            return False
        if any(each.batch_id == batch.batch_id for each in parked):
            # It has waited once.
            return False
        if parts_out and self._policy != INTERRUPT:
            return False
        newest = self._buffer.newest(batch)
        # An idle conversation is forgotten, and counts from the beginning: then nothing can be told from `answered`.
        return newest > max(batch.generation, answered if answered <= newest else 0)
