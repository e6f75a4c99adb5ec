"""Chooses a few combinations of settings that together contain every pair of values of two settings.

Most faults need no more than two settings. All combinations of a stage's settings would be millions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

# Each chosen setting with the number of its value.
Row = dict[str, int]
Pair = frozenset[tuple[str, int]]


class Chosen(NamedTuple):
    rows: list[Row]
    impossible: list[Pair]
    """The pairs that `is_valid` refuses."""


def every_pair(values: Mapping[str, int], is_valid: Callable[[Row], bool]) -> Chosen:
    """Return rows in which each possible pair of values occurs.

    `values` has the number of values of each setting. `is_valid` also judges rows that lack some settings.
    """
    missing = {
        frozenset({(one, first), (other, second)})
        for one, other in combinations(values, 2)
        for first in range(values[one])
        for second in range(values[other])
    }
    impossible = sorted((pair for pair in missing if not is_valid(dict(pair))), key=sorted)
    missing -= set(impossible)
    rows: list[Row] = []
    while missing:
        row = dict(min(missing, key=sorted))
        for setting in sorted(values.keys() - row):
            row[setting] = _best(row, setting, range(values[setting]), missing, is_valid)
        rows.append(row)
        found = set(pairs_of(row))
        assert found & missing, f"no valid combination contains {min(missing, key=sorted)}"
        missing -= found
    return Chosen(rows, impossible)


def pairs_of(row: Row) -> Iterable[Pair]:
    return map(frozenset, combinations(row.items(), 2))


def _best(row: Row, setting: str, values: Sequence[int], missing: set[Pair], is_valid: Callable[[Row], bool]) -> int:
    """Return the valid value with which the row gets most of the missing pairs."""

    def gain(value: int) -> int:
        return sum(frozenset({(setting, value), each}) in missing for each in row.items())

    return max((value for value in values if is_valid({**row, setting: value})), key=gain)
