"""Trains the model of the learned wait on turns, and finds its price.

Turns are reduced to counts. For each combination of binned features they say how often an author went on in each span
of time, had finished, or was answered first. The model is a logistic regression on a few thousand counts, so pure
Python is fast enough.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add, mul
from typing import NamedTuple

from bufferctl.turns import Run, WaitsOf, replay, turns_of
from message_buffer.limits import SECOND_MS
from message_buffer.rules.learned import (
    EDGES_S,
    FIRST,
    LATE,
    MAX_GAP_MS,
    NUMBERS,
    PLACES,
    SOON,
    SPANS,
    WAITS_S,
    Model,
    Seen,
    best_wait_ms,
    features,
    hazards,
)

ROUNDS, MAX_STEPS = 3, 30
# How many numbers of a model add to those of the spans.
EFFECTS = NUMBERS - SPANS - 1
# Pulls the numbers of rare features towards 0, as this many observations would.
_RIDGE = 2.0
# Near its wait a gap counts as joined in part, so that weights do not jump from round to round.
_SOFT_MS, _MIN_JOINED = 1_000, 0.02

Cell = tuple[int, Seen]
"""A place (`place_of`), and the features of a message."""


class Count(NamedTuple):
    """The counted outcomes of a cell's messages. All numbers are sums of weights."""

    went_on: list[float]
    """By the span in which the author's next message came."""
    unwatched: list[float]
    """By the first span that was not watched to its end, because an answer reached the author."""
    finished: list[float]
    """One number: the messages after which the author was silent beyond the last edge."""

    @property
    def watched(self) -> list[float]:
        """Return how many messages were watched in each span."""
        return [sum(self.went_on[b:]) + sum(self.unwatched[b + 1 :]) + self.finished[0] for b in range(SPANS)]


Counts = Mapping[Cell, Count]


def nothing() -> Count:
    return Count([0.0] * SPANS, [0.0] * SPANS, [0.0])


def counts_of(runs: Iterable[Run], waits_of_message: WaitsOf | None = None) -> dict[Cell, Count]:
    """Return the counts of whole runs. To join all but one gap of a turn gains nothing, so a gap weighs as much as the
    chance that these waits join the turn's other gaps. Without waits, the gaps of a turn weigh 1 together."""
    counts: dict[Cell, Count] = defaultdict(nothing)
    for run in runs:
        replayed = replay(run, waits_of_message or (lambda _: [MAX_GAP_MS] * PLACES))
        messages = iter(zip(run.fragments, replayed, strict=True))
        for excess_ms, _ in turns_of(run, (wait_ms for _, wait_ms in replayed)):
            joined = [max(1 / (1 + math.exp(min(each / _SOFT_MS, 50))), _MIN_JOINED) for each in excess_ms]
            for own in joined:
                fragment, (place, _) = next(messages)
                span = bisect_left(EDGES_S, (fragment.gap_after_ms or 0) / SECOND_MS, 1) - 1
                weight = math.prod(joined) / own if waits_of_message else 1 / len(joined)
                counts[place, fragment.message].went_on[span] += weight
            fragment, (place, _) = next(messages)
            count = counts[place, fragment.message]
            if run.replied_ms is None or fragment is not run.fragments[-1]:
                count.finished[0] += 1
            else:
                count.unwatched[bisect_left(EDGES_S, run.replied_ms / SECOND_MS, 1) - 1] += 1
    return counts


def learn(
    runs: Sequence[Run],
    mean_wait_ms: float,
    *,
    waits_s: Sequence[int] = WAITS_S,
    knows_answers: bool = True,
) -> Model:
    """Return the model whose waits cut the fewest of these turns, with at most this mean. Each round weighs the gaps
    by the waits of the one before. Unless `knows_answers`, ignore whether a first message came soon after a batch."""

    def counted(waits_of_message: WaitsOf | None = None) -> Counts:
        counts = counts_of(runs, waits_of_message)
        return counts if knows_answers else _soon_as_first(counts)

    counts = counted()
    model = learn_from(counts, mean_wait_ms, waits_s=waits_s)
    for _ in range(ROUNDS - 1):
        waits = {message: waits_of(model, message, waits_s) for message in {message for _, message in counts}}
        counts = _mean(counts, counted(waits.__getitem__))
        model = learn_from(counts, mean_wait_ms, waits_s=waits_s, start=model)
    return model


def waits_of(model: Model, message: Seen, waits_s: Sequence[int] = WAITS_S) -> list[int]:
    """Return the message's wait at each place. Each is one of `waits_s`."""
    price = math.exp(model[-1])
    return [best_wait_ms(hazards(model, place, message), price, waits_s) for place in range(PLACES)]


def learn_from(
    counts: Counts,
    mean_wait_ms: float,
    *,
    waits_s: Sequence[int] = WAITS_S,
    start: Model | None = None,
) -> Model:
    """Return the model of these counts, at the lowest price at which authors who have finished wait for no longer than
    this, on average."""
    numbers = _fitted(counts, list(start[:-1] if start else [-4.0] * SPANS + [0.0] * EFFECTS))
    cells = []
    for cell, count in counts.items():
        hazard = hazards(numbers, *cell)
        cells.append((hazard, finished_of(count, hazard)))
    of_all = sum(finished for _, finished in cells)

    def is_too_long(price: float) -> bool:
        waited = sum(best_wait_ms(hazard, price, waits_s) * finished for hazard, finished in cells)
        return bool(waited > mean_wait_ms * of_all)

    return (*numbers, math.log(lowest_price(is_too_long)[1]))


def finished_of(count: Count, hazard: Sequence[float]) -> float:
    """Return after how many messages the author had finished, if the chances of those who were no longer watched are
    those of the hazard."""
    stays_silent = [math.prod(1 - each for each in hazard[b:]) for b in range(SPANS)]
    return sum(map(mul, count.unwatched, stays_silent), count.finished[0])


def lowest_price(is_too_long: Callable[[float], bool]) -> tuple[float, float]:
    """Return two prices, 1 % apart. At the lower one waits are too long, at the higher one they are not."""
    low, high = 1e-4, 1.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_too_long(middle) else (low, middle)
    return low, high


def _fitted(counts: Counts, numbers: list[float]) -> tuple[float, ...]:
    """Return the most likely numbers for these counts, by Newton's method."""
    rows = []
    for cell, count in counts.items():
        always, late = features(*cell)
        effects = [(SPANS + at, value) for at, value in enumerate(always) if value]
        late_effects = [(SPANS + len(always) + at, value) for at, value in enumerate(late) if value]
        for b, (went_on, watched) in enumerate(zip(count.went_on, count.watched, strict=True)):
            if watched:
                row = [(b, 1.0), *effects, *((at, value * LATE[b]) for at, value in late_effects)]
                rows.append((row, went_on, watched))
    for _ in range(MAX_STEPS):
        slope = [0.0] * SPANS + [-_RIDGE * each for each in numbers[SPANS:]]
        bend = [[0.0] * len(numbers) for _ in numbers]
        for at in range(len(numbers)):
            bend[at][at] = _RIDGE if at >= SPANS else 0.01
        for row, went_on, watched in rows:
            chance = 1 / (1 + math.exp(-sum(numbers[at] * value for at, value in row)))
            weight, missed = watched * chance * (1 - chance), went_on - watched * chance
            for at, value in row:
                slope[at] += missed * value
                line, share = bend[at], weight * value
                for other, factor in row:
                    line[other] += share * factor
        step = _solved(bend, slope)
        # A longer step could overshoot where few authors went on.
        part = 1 / max(1.0, *map(abs, step))
        numbers = [each + part * by for each, by in zip(numbers, step, strict=True)]
        if max(map(abs, step)) < 0.005:
            break
    return tuple(numbers)


def _solved(lines: list[list[float]], right: list[float]) -> list[float]:
    """Return the solution of positive definite linear equations."""
    lines = [[*line, each] for line, each in zip(lines, right, strict=True)]
    for at in range(len(lines)):
        pivot = [each / lines[at][at] for each in lines[at]]
        lines[at] = pivot
        for other, line in enumerate(lines):
            if other != at:
                lines[other] = [each - line[at] * by for each, by in zip(line, pivot, strict=True)]
    return [line[-1] for line in lines]


def _soon_as_first(counts: Counts) -> Counts:
    found: dict[Cell, Count] = defaultdict(nothing)
    for (place, message), count in counts.items():
        for sums, more in zip(found[FIRST if place == SOON else place, message], count, strict=True):
            sums[:] = map(add, sums, more)
    return found


def _mean(before: Counts, after: Counts) -> Counts:
    return {
        cell: Count(
            *(
                [(a + b) / 2 for a, b in zip(*both, strict=True)]
                for both in zip(before.get(cell, nothing()), after.get(cell, nothing()), strict=True)
            )
        )
        for cell in {*before, *after}
    }
