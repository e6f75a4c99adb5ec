"""Turns for the learned wait: what an author wrote without a silence above 30 s, and before a reply.

A turn is a text without words and names. It has for each message its gap in tenths of a second and its features
(`rules/learned.py`), then what ended the turn: `:230 17:005 /45` is two messages, the second after 1.7 s, and a reply
4.5 s later. The first gap is only there if the author had been answered within it. `/` alone is a silence.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from message_buffer.json_object import Json
from message_buffer.rules.learned import MAX_GAP_MS, seen

# Stands for a turn of which not all messages are known.
UNKNOWN = "?"
# A thousand turns must fit into an item of 400 KB, and those that are read into a response of 6 MB.
MAX_TURN_CHARACTERS = 150


class Gap(NamedTuple):
    """The silence before a message."""

    ms: float
    watched_ms: float = inf
    """When a reply came, after which the author reacts to that."""

    def goes_on(self, within_ms: int) -> bool:
        """Return whether the author went on within this time, and before a reply."""
        return self.ms < self.watched_ms and self.ms <= within_ms


def ended_turns(messages: Sequence[Json], gaps: Sequence[Gap | None], before: str) -> tuple[list[str], str]:
    """Return the turns that ended, and the one that may go on. `before` is the turn that was open before these
    messages, and `gaps` has for each message the gap before it, None if it is not known."""
    ended, turn = [], before
    for message, gap in zip(messages, gaps, strict=True):
        features = "".join(map(str, seen(message["text"], message["receivedAt"])))
        if gap is None:
            turn = UNKNOWN if turn or message is not messages[0] else f":{features}"
        elif gap.goes_on(MAX_GAP_MS):
            is_known = turn not in ("", UNKNOWN) and len(turn) < MAX_TURN_CHARACTERS
            turn = f"{turn} {_tenths(gap.ms)}:{features}" if is_known else UNKNOWN
        else:
            if turn not in ("", UNKNOWN):
                ended.append(f"{turn} /{_tenths(gap.watched_ms)}")
            turn = f"{_tenths(gap.ms)}:{features}"
    return ended, turn


def _tenths(ms: float) -> str:
    """Return a time in tenths of a second, rounded up, or '' if it is longer than any gap inside a turn."""
    return str(-int(-ms // 100)) if ms <= MAX_GAP_MS else ""
