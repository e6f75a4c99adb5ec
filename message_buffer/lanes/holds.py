"""Holds: who keeps a conversation's messages back, why, and until when.

A conversation has at most one hold by people and one by consumers. It is on hold until both have ended. If a holder who
already has a hold begins another, the one that ends later counts.
"""

from typing import Literal, NamedTuple

from message_buffer.json_object import Json

Holder = Literal["people", "consumers"]


class Hold(NamedTuple):
    holder: Holder
    until_ms: int
    cause: str
    """If the holder is `people`: `answer`, `operator` or `handoff`. If the holder is `consumers`: a name that the
    consumer gave, which nobody has verified."""


Holds = tuple[Hold, ...]


def end_of(holds: Holds) -> int:
    """Return when the last of these holds ends, or 0 if there are no holds."""
    return max((each.until_ms for each in holds), default=0)


def longest(*holds: Hold) -> Holds:
    """Return one hold for each holder, the one that ends last. People's hold comes first. Of two that end at the same
    time, take the later argument."""
    by_holder = {each.holder: each for each in sorted(holds, key=lambda each: each.until_ms)}
    return tuple(sorted(by_holder.values(), reverse=True))


def unexpired(holds: Holds, now_ms: int) -> Holds:
    return tuple(each for each in holds if each.until_ms > now_ms)


def shown(holds: Holds) -> list[Json]:
    """Return the holds as operators and consumers see them."""
    return [{"holder": each.holder, "cause": each.cause, "until": each.until_ms} for each in holds]
