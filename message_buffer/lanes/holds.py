"""Holds: who keeps a conversation's messages back, why, and until when.

A conversation has at most two, and the later end of the two applies. If a holder holds again, the later end counts, and
its cause is told.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

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


def with_hold(holds: Holds, new: Hold) -> Holds:
    """Return the holds with a new one, unless its holder's hold ends no earlier."""
    longest = {each.holder: each for each in sorted((new, *holds), key=lambda each: each.until_ms)}
    return tuple(longest[holder] for holder in get_args(Holder) if holder in longest)


def without_hold(holds: Holds, holder: Holder | None, cause: str | None) -> Holds:
    """Return the holds without those of this holder, or of both, that have this cause, or any."""
    return tuple(each for each in holds if holder not in (None, each.holder) or cause not in (None, each.cause))


def shown(holds: Iterable[Hold]) -> list[Json]:
    """Return the holds as operators and consumers see them."""
    return [{"holder": each.holder, "cause": each.cause, "until": each.until_ms} for each in holds]
