"""The learned wait, for operators: what a model would have cut in a stage's own turns, and the model of its counts."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bufferctl.errors import Failed
from bufferctl.learning import ROUNDS, cells_of, counts_of, learn, learn_from
from bufferctl.turns import read_table
from message_buffer.rules.learned import Model
from message_buffer.tuning.curve import BINS_MS
from message_buffer.tuning.turn_counts import NAME_CHARACTERS

# Fewer turns decide nothing.
MIN_TURNS = 1_000


class Waits(NamedTuple):
    """What one kind of wait does."""

    mean_wait_ms: float
    cut: float
    """The share of the turns of several messages that it cuts."""


class Shadow(NamedTuple):
    turns: int
    of_several: int
    learned: Waits
    fixed: Waits
    """One wait for all, with the mean of the learned waits."""
    rules: Waits
    """The waits that were in force."""


def shadow_of(counts: Mapping[str, int], name: str) -> Shadow:
    """Return what the model of this name would have cut of the turns that were counted for it."""
    mine = Counter({key[NAME_CHARACTERS:]: number for key, number in counts.items() if key.startswith(name)})
    longest = [mine[f"m{k:02d}"] for k in range(len(BINS_MS))]
    several, turns = max(sum(longest), 1), max(mine["turns"], 1)
    mean_ms = mine["ms"] / turns
    # Within a bin, gaps are taken as spread evenly.
    parts = ((edge_ms - mean_ms) / (edge_ms - above_ms) for above_ms, edge_ms in zip((0, *BINS_MS), BINS_MS, strict=False))
    longer = sum(number * min(max(part, 0.0), 1.0) for number, part in zip(longest, parts, strict=True))
    return Shadow(
        mine["turns"],
        sum(longest),
        Waits(mean_ms, mine["cut"] / several),
        Waits(mean_ms, longer / several),
        Waits(mine["rules_ms"] / turns, mine["rules_cut"] / several),
    )
