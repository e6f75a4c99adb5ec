"""The learned wait: how long a batch waits after a message, by how likely and how soon its author goes on.

A model gives the hazard, the chance that the author goes on within a span of time if he has not done so before it, by
the gap before the message, its position in the batch, its length, how it ends, and the hour. `packed_waits` reduces a
model to one message's waits, of which a lane picks one by `place_of`. A longer wait joins more fragments, and lets each
author wait longer who had finished. The price is the share of a turn that must be joined for each second of that.
"""

import math
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

from message_buffer.limits import HOUR_MS, SECOND_MS

# A turn ends if its author is silent for longer than the last of these edges.
EDGES_S = (0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 30)
SPANS = len(EDGES_S) - 1
# The waits that a model chooses from.
WAITS_S = EDGES_S[1:9]
MAX_GAP_MS = EDGES_S[-1] * SECOND_MS
GAP_EDGES_MS = (3_000, 6_000, 10_000, 15_000)
LENGTH_EDGES = (5, 10, 20, 40, 80, 160, 320)
# The classes of a text's end. The class 0 is a letter or a digit.
_ENDS = {".": 1, "?": 2, "!": 3, "…": 4, ",": 4, ":": 4, ";": 4}
OTHER_END, EMOJI_END = 5, 6
# A message's place: the first of a batch, the first soon after another batch, the second, or a later one, by its gap.
FIRST, SOON, SECOND, LATER, PLACES = 0, 1, 2, 7, 12
DIGITS = 5
NUMBERS = SPANS + 24
# The logarithm of each span's middle, scaled to about -1.4 … 1.2. Numbers with this factor shift hazards in time.
LATE = tuple(math.log((a + b) / 8) / 1.5 for a, b in pairwise(EDGES_S))

Model = tuple[float, ...]
"""The log-odds of each span, then what each of the `features` adds, and the logarithm of the price."""


class Seen(NamedTuple):
    """The features of a message that ingest knows, each as the number of its bin."""

    length: int
    end: int
    quarter: int
    """The quarter of the day, in UTC."""


def seen(text: str, at_ms: int) -> Seen:
    """Return the features of a message that came at this time. No part of the text can be derived from them."""
    return Seen(bisect_left(LENGTH_EDGES, len(text)), _end_of(text.rstrip()), at_ms // (6 * HOUR_MS) % 4)


def place_of(count: int, gap_ms: float | None) -> int:
    """Return which of a message's waits applies. A lane knows the message's position in the batch, and the gap before
    it, only when it stores the message. A turn whose batch has just left is probably cut already."""
    if count <= 1:
        return FIRST if gap_ms is None or gap_ms > MAX_GAP_MS else SOON
    return (LATER if count > SECOND else SECOND) + bisect_left(GAP_EDGES_MS, gap_ms or 0)


@lru_cache(maxsize=4096)
def packed_waits(model: Model, message: Seen) -> str:
    """Return the message's wait at each place, in five digits each, as one text from which a script can pick one."""
    waits = (best_wait_ms(hazards(model, place, message), math.exp(model[-1])) for place in range(PLACES))
    return "".join(f"{wait_ms:0{DIGITS}}" for wait_ms in waits)


def hazards(model: Model, place: int, message: Seen) -> list[float]:
    """Return for each span the chance that the author goes on in it if he has not done so before."""
    always, late = features(place, message)
    level = sum(map(mul, model[SPANS:], always))
    drift = sum(map(mul, model[SPANS + len(always) :], late))
    return [1 / (1 + math.exp(-(model[b] + level + drift * LATE[b]))) for b in range(SPANS)]


def features(place: int, message: Seen) -> tuple[list[float], list[float]]:
    """Return the features that count in all spans, and those that shift hazards in time."""
    length, follows = (message.length - 3) / 2, place >= SECOND
    gap = (place - SECOND) % (LATER - SECOND) if follows else 0
    always = [
        length, length * length, place == SOON, follows, follows * length, place >= LATER,
        *(gap == each for each in range(1, 5)),
        *(message.end == each for each in range(1, 7)),
        *(message.quarter == each for each in range(1, 4)),
    ]  # fmt: skip
    return always, [length, follows, follows * (gap / 2 - 1), not message.end]


def best_wait_ms(hazard: list[float], price: float, waits_s: Sequence[int] = WAITS_S) -> int:
    """Return the best of these waits, which are edges: the share that it joins, less the price of waiting."""
    # Hazards rise and then fall, so compare all waits, and not only the first one where the gain stops growing.
    silent = list(accumulate(hazard, lambda still, goes_on: still * (1 - goes_on), initial=1.0))
    # Only an author who has finished waits in vain, so the price counts in proportion to his chance.
    worth = {edge: 1 - share - price * silent[-1] * edge for share, edge in zip(silent, EDGES_S, strict=True)}
    return max(waits_s, key=worth.__getitem__) * SECOND_MS


def _end_of(text: str) -> int:
    last = "…" if text.endswith("...") else text[-1:]
    if last in _ENDS:
        return _ENDS[last]
    # A variation selector, a keycap or a skin tone ends an emoji of several code points. Other marks follow letters.
    kind = "So" if last in ("\ufe0f", "\u20e3") else unicodedata.category(last or "a")
    return 0 if kind[0] in "LNM" else EMOJI_END if kind in {"So", "Sk"} else OTHER_END
