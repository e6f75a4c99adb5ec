"""The learned wait, for operators: what a model would have cut in a stage's own turns, and the model of its counts."""

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bufferctl.errors import Failed
from bufferctl.learning import cells_of, learn, learn_from
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
    parts = (
        (edge_ms - mean_ms) / (edge_ms - above_ms) for above_ms, edge_ms in zip((0, *BINS_MS), BINS_MS, strict=False)
    )
    longer = sum(number * min(max(part, 0.0), 1.0) for number, part in zip(longest, parts, strict=True))
    return Shadow(
        mine["turns"],
        sum(longest),
        Waits(mean_ms, mine["cut"] / several),
        Waits(mean_ms, longer / several),
        Waits(mine["rules_ms"] / turns, mine["rules_cut"] / several),
    )


def model_of_counts(counters: Mapping[str, int], mean_wait_ms: float) -> Model:
    """Return the model of a stage's own counts. Raise Failed if there are too few."""
    counts = cells_of(counters)
    messages = int(sum(sum(chain(*count)) for count in counts.values()))
    if messages < MIN_TURNS:
        why = f"{messages} messages were counted for it, and a model needs {MIN_TURNS}"
        raise Failed(f"{why}. Deploy the setting tune.learn and wait, or name a --table.")
    return rounded(learn_from(counts, mean_wait_ms))


def model_of_table(path: Path, mean_wait_ms: float) -> Model:
    """Return the model of a table of turns, all corpora together.

    In such a table nobody answers between a batch and the next message, so it says nothing about a batch soon after
    another one, which therefore waits as any first message does.
    """
    runs = [run for of_corpus in read_table(path).values() for run in of_corpus]
    return rounded(learn(runs, mean_wait_ms, knows_answers=False))


def rounded(model: Model) -> Model:
    """Return the model with the digits that matter, and within the bounds of the rule."""
    return Model(tuple(round(min(max(each, -30.0), 30.0), 3) for each in model.numbers), round(model.price, 5))
