"""Holds: who keeps a conversation's messages back, why, and until when.

A conversation has at most two, and the later end applies. If a holder holds again, the hold that ends later counts.
"""

from typing import Literal, NamedTuple

from message_buffer.messages.wire_form import Json

Holder = Literal["people", "consumers"]


class Hold(NamedTuple):
    holder: Holder
    until_ms: int
    cause: str
    """Of people's hold `answer`, `operator` or `handoff`. Of consumers' hold the consumer's name, which is a claim."""


Holds = tuple[Hold, ...]


def end_of(holds: Holds) -> int:
    """Return when the last of the holds ends, or 0 if there is none."""
    return max((each.until_ms for each in holds), default=0)


def standing(holds: Holds, now_ms: int) -> Holds:
    """Return the holds that have not ended."""
    return tuple(each for each in holds if each.until_ms > now_ms)


def shown(holds: Holds) -> list[Json]:
    """Return the holds as operators and consumers see them."""
    return [{"holder": each.holder, "cause": each.cause, "until": each.until_ms} for each in holds]
