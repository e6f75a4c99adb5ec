"""Holds: who keeps a conversation's messages back, why, and until when.

A conversation has at most two, and the later end of the two applies. If a holder holds again, the later end counts, and
its cause is told.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from message_buffer.messages.wire_form import Json

Holder = Literal["people", "consumers"]


class Hold(NamedTuple):
    holder: Holder
    until_ms: int
    cause: str
    """Of people's hold `answer`, `operator` or `handoff`. Of consumers' hold the consumer's name, which is a claim."""

    @property
    def packed(self) -> str:
        """Return end and cause in the form in which both lanes store them."""
        return f"{self.until_ms} {self.cause}"


def unpack_holds(people: str, consumers: str) -> tuple[Hold, ...]:
    """Return the holds that a lane has stored. An empty text is no hold."""
    return (*_unpacked("people", people), *_unpacked("consumers", consumers))


def _unpacked(holder: Holder, packed: str) -> Iterable[Hold]:
    if packed:
        until_ms, cause = packed.split(" ", 1)
        yield Hold(holder, int(until_ms), cause)


def standing(holds: Iterable[Hold], now_ms: int) -> tuple[Hold, ...]:
    """Return the holds that have not ended."""
    return tuple(each for each in holds if each.until_ms > now_ms)


def shown(holds: Iterable[Hold]) -> list[Json]:
    """Return the holds as operators and consumers see them."""
    return [{"holder": each.holder, "cause": each.cause, "until": each.until_ms} for each in holds]
