"""Measure which turns a wait cuts: `python -m tools.bench.turns TABLE… [--quick]`, for tables of turns of public chats.

A turn is what one author writes with nobody in between and no gap above 30 s. It is cut if a wait inside it is shorter
than the gap that follows. A turn's wait is the one after its last message. All kinds are compared at the same mean.

- fixed: one wait.
- rhythm: the mean of the author's gaps, earlier ones included, plus some deviations. The longest wait is chosen so
  that the mean fits. The better of 4 and 0.1 deviations is shown.
- learned: a model for each fifth of the folds, trained on the others. The price is chosen so that the mean fits,
  without a look at what was cut. If no price fits exactly, the results of the two nearest are mixed.
- learned elsewhere: a model that was trained on the other corpora.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from bufferctl.learning import learn, lowest_price
from bufferctl.turns import Run, read_table, replay, turns_of
from message_buffer.limits import SECOND_MS
from message_buffer.rules.learned import EDGES_S, PLACES, WAITS_S, Model, Seen, best_wait_ms, hazards
from tools.bench.report import report

GROUPS, RESAMPLES = 5, 1_000
DEVIATIONS = (0.1, 4.0)


class Asked(NamedTuple):
    what: str
    mean_ms: int
    waits_s: Sequence[int]
    """The learned waits are some of these, and the rhythm's between the first and the last one."""


ASKED = (
    Asked("3 s", 3_000, EDGES_S),
    Asked("3 s, each from 1 to 15 s", 3_000, WAITS_S),
    Asked("10 s", 10_000, EDGES_S),
)
# In the order of ASKED, in percent.
GOALS = {
    "gitter": (78, 82, 49), "irc": (83, 84, 55), "slack": (85, 89, 59), "zulip": (84, 90, 53), "redial": (75, 79, 43),
    "meetup": (81, 84, 42), "fcc": (77, 81, 50),
}  # fmt: skip


class Tally(NamedTuple):
    """Sums over the turns of one fold."""

    turns: float = 0
    waited_ms: float = 0
    of_several: float = 0
    cut: float = 0


Tallies = dict[int, Tally]
WaitsOfRun = Callable[[Run], Iterable[float]]


def tallies(runs: Iterable[Run], waits_ms: WaitsOfRun) -> Tallies:
    """Return the sums by fold, if the messages of each run wait this long."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0] * 4)
    for run in runs:
        mine = sums[run.fold]
        for excess_ms, wait_ms in turns_of(run, waits_ms(run)):
            mine[0] += 1
            mine[1] += wait_ms
            mine[2] += bool(excess_ms)
            mine[3] += any(each > 0 for each in excess_ms)
    return {fold: Tally(*each) for fold, each in sums.items()}


def mean_wait_ms(found: Tallies) -> float:
    return sum(each.waited_ms for each in found.values()) / sum(each.turns for each in found.values())


def cut_share(found: Iterable[Tally]) -> float:
    cut, of_several = map(sum, zip(*((each.cut, each.of_several) for each in found), strict=True))
    return float(100 * cut / of_several)


def at_mean(play: Callable[[float], Tallies], mean_ms: float) -> Tallies:
    """Return the tallies at exactly this mean wait: a mix of those at two neighbouring prices."""
    long, short = map(play, lowest_price(lambda price: mean_wait_ms(play(price)) > mean_ms))
    difference = mean_wait_ms(long) - mean_wait_ms(short)
    part = (mean_ms - mean_wait_ms(short)) / difference if difference > 0 else 0
    part = min(max(part, 0), 1)
    return {
        fold: Tally(*(part * a + (1 - part) * b for a, b in zip(long[fold], short[fold], strict=True))) for fold in long
    }


def learned(runs: Sequence[Run], models: Sequence[tuple[Sequence[Run], Model]], asked: Asked) -> Tallies:
    """Return the tallies of `runs` at one price. `models` has each part of the runs with its model."""
    messages = {fragment.message for run in runs for fragment in run.fragments}
    parts = [
        (of_part, {each: [hazards(model, at, each) for at in range(PLACES)] for each in messages})
        for of_part, model in models
    ]

    def play(price: float) -> Tallies:
        found: Tallies = {}
        for of_part, hazards_of in parts:
            waits: dict[Seen, list[int]] = {
                message: [best_wait_ms(each, price, asked.waits_s) for each in by_place]
                for message, by_place in hazards_of.items()
            }
            found |= tallies(of_part, lambda run, known=waits: [wait for _, wait in replay(run, known.__getitem__)])  # type: ignore[misc]
        return found

    return at_mean(play, asked.mean_ms)


def rhythm(runs: Sequence[Run], asked: Asked, deviations: float) -> Tallies:
    """Return the tallies of waits by rhythm. The longest wait is chosen so that the mean fits."""

    min_ms, max_ms = (asked.waits_s[at] * SECOND_MS for at in (0, -1))

    def play(price: float) -> Tallies:
        longest_ms = max(min(int(300 / price), max_ms), min_ms, 1)
        return tallies(runs, lambda run: _waits_by_rhythm(run, max(500, min_ms), longest_ms, deviations))

    return at_mean(play, asked.mean_ms)


def _waits_by_rhythm(run: Run, shortest_ms: int, longest_ms: int, deviations: float) -> Iterable[float]:
    """Yield waits that follow the author's gaps, as TCP's follow round-trip times (RFC 6298). Longer gaps than the
    longest wait do not count, because the author has begun a new thought."""
    mean_ms = run.author_gap_ms
    deviation_ms = (mean_ms or 0) / 2
    for _, gap_ms, _ in run.fragments:
        if gap_ms is not None and gap_ms <= longest_ms:
            first = mean_ms is None
            deviation_ms = gap_ms / 2 if first else 0.75 * deviation_ms + 0.25 * abs((mean_ms or 0) - gap_ms)
            mean_ms = gap_ms if first else 0.875 * (mean_ms or 0) + 0.125 * gap_ms
        wait_ms = longest_ms if mean_ms is None else max(mean_ms + deviations * deviation_ms, shortest_ms)
        yield min(wait_ms, longest_ms)


def row(corpora: dict[str, list[Run]], corpus: str, asked: Asked) -> list[str]:
    """Return a row of the table: one corpus at one mean wait."""
    runs = corpora[corpus]
    parts = [[run for run in runs if run.fold % GROUPS == group] for group in range(GROUPS)]
    models = [
        (part, learn([run for run in runs if run.fold % GROUPS != group], asked.mean_ms, waits_s=asked.waits_s))
        for group, part in enumerate(parts)
        if part
    ]
    own = learned(runs, models, asked)
    others = [run for name, of_other in corpora.items() if name != corpus for run in of_other]
    fixed = tallies(runs, lambda run: repeat(asked.mean_ms, len(run.fragments)))
    by_rhythm = min(cut_share(rhythm(runs, asked, each).values()) for each in DEVIATIONS)
    elsewhere = learned(runs, [(runs, learn(others, asked.mean_ms, waits_s=asked.waits_s))], asked) if others else None
    goals = dict(zip(ASKED, GOALS.get(corpus, ()), strict=False))
    share = cut_share(own.values())
    verdict = f"{goals[asked]} {'pass' if share <= goals[asked] else 'miss'}" if asked in goals else "–"
    return [
        f"{corpus}, {asked.what}", f"{cut_share(fixed.values()):.1f}", f"{by_rhythm:.1f}",
        f"{share:.1f} ({interval(own)})", f"{cut_share(elsewhere.values()):.1f}" if elsewhere else "–", verdict,
    ]  # fmt: skip


def interval(found: Tallies) -> str:
    """Return the middle 95 % of the shares, if folds are drawn with replacement."""
    draw = random.Random(1)
    folds = list(found.values())
    shares = sorted(cut_share(draw.choices(folds, k=len(folds))) for _ in range(RESAMPLES))
    return f"{shares[RESAMPLES // 40]:.1f}–{shares[-RESAMPLES // 40]:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.turns", description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE")
    parser.add_argument("--quick", action="store_true", help="a look, which writes nothing: the first corpus at 3 s")
    parser.add_argument("--workers", type=int, default=2)
    wanted = parser.parse_args()
    corpora: dict[str, list[Run]] = defaultdict(list)
    for table in wanted.tables:
        for corpus, runs in read_table(table).items():
            corpora[corpus] += runs
    asked = [(corpus, each) for corpus in sorted(corpora) for each in ASKED][: 1 if wanted.quick else None]
    with ProcessPoolExecutor(wanted.workers) as workers:
        rows = []
        for found in workers.map(row, repeat(dict(corpora)), *zip(*asked, strict=True)):
            print(*found, sep=" | ", flush=True)
            rows.append(found)
    heads = ["corpus, mean wait", "fixed", "rhythm", "learned (95 %)", "learned elsewhere", "goal"]
    report("turns", {"turns": [heads, *rows]}, quick=wanted.quick)


if __name__ == "__main__":
    main()
