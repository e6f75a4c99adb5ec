"""Makes a model of the learned wait from a stage's own counts, and judges it there.

Each half of the stage's conversations is judged by a model that was trained on the other half. The counts show after
which messages a wait is shorter than the gap that follows: that gap is cut. The gaps of a turn weigh 1 together.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bufferctl.errors import Failed
from bufferctl.learning import Cell, Count, cells_of, finished_of, learn, learn_from
from bufferctl.turns import read_table
from message_buffer.json_object import Json
from message_buffer.limits import SECOND_MS
from message_buffer.rules.learned import EDGES_S, Model, best_wait_ms, hazards
from message_buffer.tuning.curve import MIN_WATCHED, Rate
from message_buffer.tuning.curve import mean_wait_ms as today_ms

# Fewer turns decide nothing.
MIN_TURNS = 1_000
# The logarithm of a price at which waits are still too long, so that none was found.
HIGHEST_PRICE = 0.0


class Judged(NamedTuple):
    turns: int
    mean_wait_ms: float
    """The mean wait of authors who had finished."""
    share_learned: float
    """The share of the gaps inside turns that the learned wait cuts."""
    share_fixed: float
    """The share that one wait for all, with the same mean, cuts."""
    gain: Rate
    """By how much the first share is smaller, with the 95 % interval."""


def learn_and_judge(read: Json, mean_wait_ms: float | None, file: Path | None) -> tuple[Model, Judged]:
    """Return a model with this mean wait or that of today, trained on the counts that `tune.read` returns or on a table
    of turns, and how it does on turns that it was not trained on. Raise Failed if there are too few."""
    sums = sum((Counter(each) for each in read["scopes"].values()), Counter())
    censored = sum(number for name, number in sums.items() if name[0] == "c")
    unresolved = max(sums["batches"] - sums["resolved"], 0) / max(censored, 1)
    halves = [cells_of(each, unresolved) for each in read["cells"]]
    both = cells_of(sum(map(Counter, read["cells"]), Counter()), unresolved)
    turns = turns_in(both)
    if turns < MIN_TURNS or not all(halves):
        raise Failed(
            f"{turns:,} turns were counted for a model, and it needs {MIN_TURNS:,}. Wait, or name more --weeks."
        )
    mean_ms = mean_wait_ms or today_ms(sums)
    if file:
        # Nobody answers between a batch and the next message in such a table, so it says nothing about a batch soon
        # after another one, which therefore waits as any first message does.
        try:
            runs = [run for of_corpus in read_table(file).values() for run in of_corpus]
        except (OSError, EOFError, ValueError, LookupError, StopIteration) as error:
            raise Failed(f"Cannot read {file}: {type(error).__name__}: {error}.") from error
        model = rounded(learn(runs, mean_ms, knows_answers=False))
        return model, judge([(both, model)])
    model, *models = (rounded(learn_from(each, mean_ms)) for each in (both, *halves))
    if max(each[-1] for each in (model, *models)) >= HIGHEST_PRICE:
        raise Failed("Answers come early: too few authors were watched for 30 s, so no model keeps to the mean wait.")
    return model, judge(list(zip(halves, reversed(models), strict=True)))


def turns_in(counts: Mapping[Cell, Count]) -> int:
    """Return how many messages ended a turn."""
    return int(sum(count.finished[0] + sum(count.unwatched) for count in counts.values()))


def judge(parts: Sequence[tuple[Mapping[Cell, Count], Model]]) -> Judged:
    """Return what the models do on these counts."""
    finished = waited_ms = 0.0
    gaps: list[tuple[int, int, float]] = []
    for counts, model in parts:
        for cell, count in counts.items():
            hazard = hazards(model, *cell)
            wait_ms, ends = best_wait_ms(hazard, math.exp(model[-1])), finished_of(count, hazard)
            finished += ends
            waited_ms += ends * wait_ms
            gaps += [(span, wait_ms, weight) for span, weight in enumerate(count.went_on) if weight]
    mean_ms = waited_ms / max(finished, 1)
    of_all = max(sum(weight for _, _, weight in gaps), 1)
    learned = fixed = differ = 0.0
    for span, wait_ms, weight in gaps:
        above_ms, edge_ms = EDGES_S[span] * SECOND_MS, EDGES_S[span + 1] * SECOND_MS
        # Learned waits are edges. Within a span, gaps are taken as spread evenly.
        is_cut, cut = edge_ms > wait_ms, min(max((edge_ms - mean_ms) / (edge_ms - above_ms), 0), 1)
        learned += weight * is_cut / of_all
        fixed += weight * cut / of_all
        differ += weight * (1 - cut if is_cut else cut) / of_all
    gain = fixed - learned
    # A few gaps say nothing, even if they agree.
    error = 1.96 * math.sqrt(max(differ - gain * gain, 0) / of_all) if of_all >= MIN_WATCHED else 1.0
    turns = sum(turns_in(counts) for counts, _ in parts)
    return Judged(turns, mean_ms, learned, fixed, Rate(gain, gain - error, gain + error))


def rounded(model: Model) -> Model:
    """Return the model with the digits that matter, and within the bounds of the rule."""
    return tuple(round(min(max(each, -30.0), 30.0), 3) for each in model)
