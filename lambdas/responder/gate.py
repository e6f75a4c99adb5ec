"""Decides whether a reply may still be sent. A human agent may have taken over, or the customer may have written again.

While the conversation is on hold by anyone but the responder, nothing is sent, whatever the policy. Otherwise:

| policy | the gate may close | then an unsent reply |
|---|---|---|
| deliver | never | |
| discard_and_merge | before the first part | is discarded; the next batch's reply answers both |
| interrupt | before any part | is discarded; the parts that were sent stay in the history |
| queue | before the first part | waits, and is sent before the next batch is answered |

If the gate closes, the batch is parked for a bounded time. If no newer batch has been answered by then,
the reply is sent after all, because the newer messages may have been cancelled.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lambdas.responder.batch import Batch
from lambdas.responder.gate_client import Buffer, OthersHold

# If this many batches are parked, the next batch is answered at once, so that customers who never stop writing get a
# reply, too.
MAX_PARKED_BATCHES = 5
DELIVER, DISCARD_AND_MERGE, INTERRUPT, QUEUE = "deliver", "discard_and_merge", "interrupt", "queue"


class ParkedBatch(NamedTuple):
    """A batch whose reply the gate has stopped, and which waits for the next batch."""

    batch_id: str
    generation: int
    lane: str
    text: str
    sent_text: str
    """The parts of the reply that were sent before the gate closed."""


class GateCheck(NamedTuple):
    """The buffer's response to the question whether a part may be sent."""

    hold: OthersHold | None
    """A hold by people or by another consumer. While there is one, nothing may be sent."""
    newer: bool
    """The customer has written messages after the batch, and the policy lets them close the gate."""


class ReplyGate:
    def __init__(self, policy: str, buffer: Buffer) -> None:
        self._policy = policy
        self._buffer = buffer

    def merges(self) -> bool:
        return self._policy in (DISCARD_AND_MERGE, INTERRUPT)

    def queues(self) -> bool:
        return self._policy == QUEUE

    def check(self, batch: Batch, *, parked: Sequence[ParkedBatch], answered: int, parts_sent: int) -> GateCheck:
        """Ask the buffer whether the next part may be sent. The result may be outdated at once.

        `answered` is the highest generation of the batch's lane that has been answered. Messages of a higher generation
        will arrive in a later batch.
        """
        if not self._obeys_newer_messages(batch, parked, parts_sent):
            return GateCheck(self._buffer.hold_of_another(batch), newer=False)
        newest, hold = self._buffer.newest_generation(batch)
        # If `answered` is higher than `newest`, ignore it, because the buffer has forgotten the conversation since then
        # and counts from 1 again.
        return GateCheck(hold, newer=newest > max(batch.generation, answered if answered <= newest else 0))

    def _obeys_newer_messages(self, batch: Batch, parked: Sequence[ParkedBatch], parts_sent: int) -> bool:
        if self._policy == DELIVER or len(parked) >= MAX_PARKED_BATCHES:
            return False
        waits_only_once = any(each.batch_id == batch.batch_id for each in parked)
        return not waits_only_once and (not parts_sent or self._policy == INTERRUPT)
