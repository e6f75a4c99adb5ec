"""Runs and turns of authors, from a table or a stage, replayed to see which batches some waits would have made.

A run is what one author wrote with nobody in between. A turn is a part of a run without a gap above `MAX_GAP_MS`.
"""

import csv
import gzip
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from message_buffer.limits import SECOND_MS
from message_buffer.rules.learned import (
    EMOJI_END,
    LENGTH_EDGES,
    MAX_GAP_MS,
    OTHER_END,
    Seen,
    place_of,
)

# The table's codes of what a text ends with, as the model's.
_ENDS = (0, 1, 2, 3, 4, 4, 4, 4, OTHER_END, EMOJI_END, OTHER_END)
_COLUMNS = ("corpus", "turn", "pos", "fold", "gap", "n_chars", "end", "hour", "a_n", "a_gap")


class Fragment(NamedTuple):
    """A message of a run. A gap is None before the first message and after the last one."""

    message: Seen
    gap_before_ms: float | None
    gap_after_ms: float | None


class Run(NamedTuple):
    fold: int
    fragments: list[Fragment]
    author_gap_ms: float | None = None
    """The author's mean gap before this run. None if it is not known."""
    replied_ms: float | None = None
    """How long after the last message a reply ended the run. None if the author was silent for long."""


WaitsOf = Callable[[Seen], Sequence[int]]


def read_table(path: Path) -> dict[str, list[Run]]:
    """Return the runs of a table of turns, by corpus."""
    rows_by_run: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        rows = csv.reader(lines)
        heads = next(rows)
        wanted = [heads.index(column) for column in _COLUMNS]
        for row in rows:
            corpus, turn, *rest = (row[at] for at in wanted)
            rows_by_run[corpus, turn].append(tuple(rest))
    corpora: dict[str, list[Run]] = defaultdict(list)
    for (corpus, _), of_run in rows_by_run.items():
        corpora[corpus].append(_run(sorted(of_run, key=lambda row: int(row[0]))))
    return corpora


def _run(rows: list[tuple[str, ...]]) -> Run:
    _, fold, _, _, _, _, earlier, mean_log_gap = rows[0]
    messages = [
        Seen(bisect_left(LENGTH_EDGES, int(length)), _ENDS[int(end)], max(int(hour), 0) // 6)
        for _, _, _, length, end, hour, _, _ in rows
    ]
    gaps = [float(row[2]) * SECOND_MS for row in rows[:-1]]
    author_gap_ms = (math.exp(float(mean_log_gap)) - 0.5) * SECOND_MS if int(earlier) else None
    return Run(int(fold), list(map(Fragment, messages, [None, *gaps], [*gaps, None])), author_gap_ms)


def run_of(turn: str) -> Run:
    """Return the run of a stored turn: its fold, then what `message_buffer/tuning/turns.py` describes."""
    fold, *messages, end = turn.split()
    gaps, features = zip(*(each.split(":") for each in messages), strict=True)
    before = [int(gap) * 100 if gap else None for gap in gaps]
    fragments = map(Fragment, (Seen(*map(int, each)) for each in features), before, [*before[1:], None])
    return Run(int(fold), list(fragments), replied_ms=int(end[1:]) * 100 if end[1:] else None)


def replay(run: Run, waits_of_message: WaitsOf) -> list[tuple[int, int]]:
    """Return each message's place and wait, if each batch ends when a gap exceeds its wait."""
    found: list[tuple[int, int]] = []
    count, wait_ms = 0, 0
    for message, gap_ms, _ in run.fragments:
        count = 1 if gap_ms is None or gap_ms > wait_ms else count + 1
        place = place_of(count, gap_ms)
        wait_ms = waits_of_message(message)[place]
        found.append((place, wait_ms))
    return found


def turns_of(run: Run, waits_ms: Iterable[float]) -> Iterator[tuple[list[float], float]]:
    """Yield for each turn the gaps inside it, each minus its wait, and the wait after its last message."""
    excess_ms: list[float] = []
    for (_, _, gap_ms), wait_ms in zip(run.fragments, waits_ms, strict=True):
        if gap_ms is not None and gap_ms <= MAX_GAP_MS:
            excess_ms.append(gap_ms - wait_ms)
        else:
            yield excess_ms, wait_ms
            excess_ms = []
