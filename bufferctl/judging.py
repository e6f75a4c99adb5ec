"""Makes a model of the learned wait from a stage's own turns, and judges it there.

Each half of the conversations is judged by a model that was trained on the other half. A turn is cut if a wait inside
it is shorter than the gap that follows. The learned wait is compared with one wait for all that has the same mean.
"""

import math
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from bufferctl.errors import Failed
from bufferctl.learning import learn, waits_of
from bufferctl.turns import Run, read_table, replay, run_of
from message_buffer.json_object import Json
from message_buffer.rules.learned import Model
from message_buffer.tuning.curve import MIN_WATCHED, Rate
from message_buffer.tuning.curve import mean_wait_ms as today_ms

# Fewer turns decide nothing.
MIN_TURNS = 1_000
# Nor do the turns of fewer folds of conversations: an interval by few resampled folds is too narrow.
MIN_FOLDS = 10
RESAMPLES = 1_000
# The logarithm of a price at which waits are still too long, so that none was found.
HIGHEST_PRICE = 0.0


class Judged(NamedTuple):
    turns: int
    mean_wait_ms: float
    """The mean wait after the last message of a turn."""
    share_learned: float
    """The share of the turns of several messages that the learned wait cuts."""
    share_fixed: float
    """The share that one wait for all, with the same mean, cuts."""
    gain: Rate
    """By how much the first share is smaller, with the 95 % interval."""
    more_batches: int
    """How many more batches the learned wait makes of these turns. It may cut fewer turns, but those more often."""


class Replayed(NamedTuple):
    """The turns of some conversations, replayed with learned waits."""

    turns: int
    waited_ms: int
    """The sum of the waits after their last messages."""
    cut: int
    """How many turns the learned waits cut."""
    longest_ms: list[float]
    """The longest gap inside each turn of several messages, in rising order."""
    cut_gaps: int
    gaps_ms: list[float]
    """All gaps, in rising order."""


def learn_and_judge(read: Json, mean_wait_ms: float | None, file: Path | None) -> tuple[Model, Judged]:
    """Train a model with this mean wait, or today's, on a table of turns or on those that `tune.read` returned. Return
    it, and how it does on other turns of the stage. Raise Failed if the stage kept too few."""
    runs = [*map(run_of, read["turns"])]
    halves = [[run for run in runs if run.fold % 2 == half] for half in (0, 1)]
    if len(runs) < MIN_TURNS or not all(halves):
        raise Failed(
            f"{len(runs):,} turns were kept for a model, and it needs {MIN_TURNS:,}. Wait, or name more --weeks."
        )
    mean_ms = mean_wait_ms or today_ms(sum((Counter(each) for each in read["scopes"].values()), Counter()))
    if file:
        # Nobody answers between a batch and the next message in such a table, so it says nothing about a batch soon
        # after another one, which therefore waits as any first message does.
        try:
            others = [run for of_corpus in read_table(file).values() for run in of_corpus]
        except (OSError, EOFError, ValueError, LookupError, StopIteration) as error:
            raise Failed(f"Cannot read {file}: {type(error).__name__}: {error}.") from error
        model = rounded(learn(others, mean_ms, knows_answers=False))
        return model, judge([(runs, model)])
    model, *models = (rounded(learn(each, mean_ms)) for each in (runs, *halves))
    if max(each[-1] for each in (model, *models)) >= HIGHEST_PRICE:
        raise Failed("Answers come early: too few authors were watched for 30 s, so no model keeps to the mean wait.")
    return model, judge(list(zip(halves, reversed(models), strict=True)))


def judge(parts: Sequence[tuple[Sequence[Run], Model]]) -> Judged:
    """Judge each model on its own part of the runs. Each run is one turn."""
    folds = []
    for runs, model in parts:
        by_fold: dict[int, list[Run]] = defaultdict(list)
        for run in runs:
            by_fold[run.fold].append(run)
        folds += [_replayed(each, model) for each in by_fold.values()]
    mean_ms, learned, fixed = _shares(folds)
    more_batches = sum(each.cut_gaps - _longer(each.gaps_ms, mean_ms) for each in folds)
    draw = random.Random(1)  # so that the same turns have the same interval
    drawn = (_shares(draw.choices(folds, k=len(folds))) for _ in range(RESAMPLES))
    gains = sorted(by_one - by_model for _, by_model, by_one in drawn)
    low, high = gains[RESAMPLES // 40], gains[-RESAMPLES // 40]
    # A few turns of several messages say nothing, even if they agree. Nor do those of a few conversations.
    if sum(len(each.longest_ms) for each in folds) < MIN_WATCHED or len(folds) < MIN_FOLDS:
        low, high = -1.0, 1.0
    gain = Rate(fixed - learned, low, high)
    return Judged(sum(each.turns for each in folds), mean_ms, learned, fixed, gain, more_batches)


def _replayed(runs: Sequence[Run], model: Model) -> Replayed:
    waits_of_message = cache(lambda message: waits_of(model, message))
    waited_ms, cut, longest, cut_gaps, every = 0, 0, list[float](), 0, list[float]()
    for run in runs:
        waits_ms = [wait_ms for _, wait_ms in replay(run, waits_of_message)]
        gaps_ms = [each.gap_after_ms or 0 for each in run.fragments[:-1]]
        waited_ms += waits_ms[-1]
        cuts = sum(gap_ms > wait_ms for gap_ms, wait_ms in zip(gaps_ms, waits_ms, strict=False))
        cut, cut_gaps = cut + (cuts > 0), cut_gaps + cuts
        longest += [max(gaps_ms)] if gaps_ms else []
        every += gaps_ms
    return Replayed(len(runs), waited_ms, cut, sorted(longest), cut_gaps, sorted(every))


def _shares(folds: Sequence[Replayed]) -> tuple[float, float, float]:
    """Return the mean learned wait, the share that the learned waits cut, and the share that one such wait cuts."""
    mean_ms = sum(each.waited_ms for each in folds) / sum(each.turns for each in folds)
    of_several = max(sum(len(each.longest_ms) for each in folds), 1)
    cut = sum(_longer(each.longest_ms, mean_ms) for each in folds)
    return mean_ms, sum(each.cut for each in folds) / of_several, cut / of_several


def _longer(gaps_ms: Sequence[float], wait_ms: float) -> int:
    """Return how many gaps, in rising order, exceed a wait. They are kept in tenths of a second, rounded up. If the
    wait were not, it would cut gaps that it joins."""
    return len(gaps_ms) - bisect_right(gaps_ms, math.ceil(wait_ms / 100) * 100)


def rounded(model: Model) -> Model:
    """Return the model with three decimals, each number within the bounds of the rule."""
    return tuple(round(min(max(each, -30.0), 30.0), 3) for each in model)
