"""The outbox of a batch: the parts of its reply, written down before any of them is sent.

    planned ──> sending ──> sent
       ^           │  └───> unconfirmed
       └───────────┘

A part goes back to `planned` if the channel surely did not take it. It becomes `unconfirmed` if nothing is known about
it, and is never sent again.
"""

from collections.abc import Sequence
from typing import NamedTuple

PLANNED, SENDING, SENT, UNCONFIRMED = "planned", "sending", "sent", "unconfirmed"


class Part(NamedTuple):
    """One message of the channel, with its state."""

    text: str
    state: str = PLANNED


class Outbox(NamedTuple):
    parts: Sequence[Part] = ()
    """Empty once the batch is finished: the history has the words."""
    also_answers: Sequence[str] = ()
    """Ids of the parked batches that this reply also answers."""
    input_tokens: int = 0
    output_tokens: int = 0
    answered_by: str | None = None
    """Id of the batch whose reply also answers this one."""
    outcome: str | None = None
    """Set when the batch is finished; nothing more is done for it."""
