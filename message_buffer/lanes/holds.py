"""Holds: who keeps a conversation's messages back, why, and until when.

A conversation has at most one hold by people and one by consumers. It is on hold until both have ended. If a holder who
already has a hold begins another, the one that ends later counts.

The hold of the holder `handoff` is a hand-off mark. It keeps nothing back, and is handed out with each batch.
"""

from typing import Literal, NamedTuple

from message_buffer.json_object import Json

Holder = Literal["people", "consumers", "handoff"]

# The end of a hand-off mark without a limit, in the year 2286. It has 13 digits, like every time in the scripts.
NO_END_MS = 9_999_999_999_999


class Hold(NamedTuple):
    holder: Holder
    until_ms: int
    cause: str
    """If the holder is `people`: `answer`, `operator` or `handoff`. If it is `handoff`: `answer`, `operator` or a
    consumer's name. If it is `consumers`: a consumer's name. Nobody has verified a consumer's name."""


Holds = tuple[Hold, ...]


def end_of(holds: Holds) -> int:
    """Return when the last of the holds that keep messages back ends, or 0 if there is none."""
    return max((each.until_ms for each in holds if each.holder != "handoff"), default=0)


def handoff_of(holds: Holds, now_ms: int) -> Hold | None:
    """Return the hand-off mark, unless there is none or it has ended."""
    return next((each for each in unexpired(holds, now_ms) if each.holder == "handoff"), None)


def longest(*holds: Hold) -> Holds:
    """Return one hold for each holder, the one that ends last. People's hold comes first. Of two that end at the same
    time, take the later argument."""
    by_holder = {each.holder: each for each in sorted(holds, key=lambda each: each.until_ms)}
    return tuple(sorted(by_holder.values(), reverse=True))


def unexpired(holds: Holds, now_ms: int) -> Holds:
    return tuple(each for each in holds if each.until_ms > now_ms)


def shown_end(until_ms: int) -> int | None:
    """Return the end as operators and consumers see it: None if there is no limit."""
    return None if until_ms >= NO_END_MS else until_ms


def shown(holds: Holds) -> list[Json]:
    """Return the holds as operators and consumers see them."""
    return [{"holder": each.holder, "cause": each.cause, "until": shown_end(each.until_ms)} for each in holds]
