"""The outbox of a batch: the parts of its reply, stored before any of them is sent.

    planned ──> sending ──> sent
       ^           │  └───> unconfirmed
       └───────────┘

A part becomes `planned` again if the channel certainly did not accept it. If it is unknown whether the channel accepted
the part, the part becomes `unconfirmed` and is never sent again.
"""

from collections.abc import Sequence
from typing import NamedTuple

PLANNED, SENDING, SENT, UNCONFIRMED = "planned", "sending", "sent", "unconfirmed"


class Part(NamedTuple):
    """One message to the customer, with its state."""

    text: str
    state: str = PLANNED


class Outbox(NamedTuple):
    parts: Sequence[Part] = ()
    """Their texts are removed when the batch is finished, because the conversation's turns then contain the reply."""
    also_answers: Sequence[str] = ()
    """Ids of the parked batches that this reply also answers."""
    input_tokens: int = 0
    output_tokens: int = 0
    answered_by: str | None = None
    """Id of the later batch whose reply also answers this batch."""
    outcome: str | None = None
    """Set when the batch is finished. A run that sees it does nothing more."""
