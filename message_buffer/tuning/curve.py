"""How many batches are cut at which silence: a Kaplan–Meier estimate over counts of gaps.

Every message begins a gap, which ends when its author goes on. A gap is *censored* when an answer reached the customer
first, because what the author writes then is a reaction to the answer. `Counts` is the form in which the emitter counts
and the table stores. All its values are numbers:

    g00 … g23   gaps after which the author went on, by length: inside a batch, and from a batch to the next
    c00 … c23   gaps that were censored, by the time from the message to the reply
    e00 … e23   batches, by their wait from the last message to the emission, without those that were on hold
    batches     batches counted
    resolved    batches whose last gap is counted among g and c; the next batch of the conversation resolves it
    waited_ms   the sum of the waits in e00 … e23

The last batch of a conversation is never resolved. The estimate takes it as censored, like the gaps that were.
"""

import bisect
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

# Bin k has the lengths above BINS_MS[k - 1] and up to BINS_MS[k]. The last bin has the longer ones, too.
BINS_MS = (
    *(250, 350, 500, 700, 1_000, 1_300, 1_600, 2_000, 2_500, 3_000, 4_000, 5_000, 6_500, 8_000),
    *(10_000, 13_000, 17_000, 22_000, 30_000, 40_000, 55_000, 75_000, 95_000, 120_000),
)
# A batch is cut if its author goes on within this time of its last message.
WITHIN_MS = 8_000
# A reply is assumed this long after an emission in a conversation in which none was ever noted.
ASSUMED_REPLY_MS = 2_000
MIN_BATCHES = 300
# A recommendation needs at least this many gaps in which no reply came within WITHIN_MS.
MIN_WATCHED = 30

Counts = Mapping[str, int]


def field(kind: str, length_ms: float) -> str:
    """Return the name of the counter for a gap ("g"), a censored gap ("c") or a batch ("e") of this length."""
    return f"{kind}{min(bisect.bisect_left(BINS_MS, length_ms), len(BINS_MS) - 1):02d}"


def mean_wait_ms(counts: Counts) -> float:
    """Return the mean wait of the batches that were not on hold."""
    return counts.get("waited_ms", 0) / max(sum(_by_bin("e", counts)), 1)


class Rate(NamedTuple):
    """A share between 0 and 1 with its 95 % interval."""

    share: float
    low: float
    high: float


def going_on(counts: Counts) -> Rate:
    """Return the share of the batches, at the waits they had, whose authors went on within `WITHIN_MS`.

    A wait counts as the upper end of its bin, because most rules name such a wait.
    """
    life_table, waits = _life_table(counts), _by_bin("e", counts)
    rates = [(batches, _cut_at(ms, life_table)) for batches, ms in zip(waits, BINS_MS, strict=True)]
    return Rate(*(sum(batches * rate[i] for batches, rate in rates) / max(sum(waits), 1) for i in range(3)))


def curve(counts: Counts) -> dict[int, Rate]:
    """Return for each silence the share of the batches that is cut if all of them wait for it. The silence is then
    also their mean wait after the last message."""
    life_table = _life_table(counts)
    return {ms: _cut_at(ms, life_table) for ms in BINS_MS if ms <= WITHIN_MS}


def recommend(
    counts: Counts, *, cut_share: float | None = None, mean_wait_ms: float = WITHIN_MS
) -> tuple[int, Rate] | str:
    """Return the shortest silence that cuts at most `cut_share` of the batches, or the longest one with this mean wait,
    in steps of 100 ms, and the share that it cuts. Return why, if too little was counted for that."""
    life_table = _life_table(counts)
    if (batches := counts.get("batches", 0)) < MIN_BATCHES:
        return f"{batches} batches were counted, and a recommendation needs {MIN_BATCHES}"
    if (watched := int(life_table[-1].watched)) < MIN_WATCHED:
        return f"answers come early: {watched} gaps were watched for {WITHIN_MS} ms, {MIN_WATCHED} are needed"
    silence_ms = min(max(int(mean_wait_ms) // 100 * 100, 200), WITHIN_MS)
    if cut_share is not None:
        silence_ms = next(ms for ms in range(200, WITHIN_MS + 1, 100) if _cut_at(ms, life_table).share <= cut_share)
    return silence_ms, _cut_at(silence_ms, life_table)


def _by_bin(kind: str, counts: Counts) -> list[int]:
    return [counts.get(field(kind, ms), 0) for ms in BINS_MS]


class _Bin(NamedTuple):
    """A row of the life table: how many gaps were watched in the bin, and how many of them ended there."""

    above_ms: int
    edge_ms: int
    watched: float
    ended: int


def _life_table(counts: Counts) -> list[_Bin]:
    """Return the bins up to `WITHIN_MS`."""
    ended, censored = _by_bin("g", counts), _by_bin("c", counts)
    unresolved = counts.get("batches", 0) - counts.get("resolved", 0)
    # Each censored gap also stands for its share of the unresolved batches.
    weight = 1 + unresolved / max(sum(censored), 1)
    if not any(censored):  # the unresolved batches were watched while they waited
        censored, weight = _by_bin("e", counts), unresolved / max(counts.get("batches", 0), 1)
    life_table = []
    for k, (above_ms, edge_ms) in enumerate(pairwise((0, *BINS_MS))):
        # A gap that is censored in this bin was watched for half of it, on average.
        watched = sum(ended[k:]) + weight * (sum(censored[k:]) - censored[k] / 2)
        life_table.append(_Bin(above_ms, edge_ms, watched, ended[k]))
    return [each for each in life_table if each.edge_ms <= WITHIN_MS]


def _cut_at(silence_ms: float, life_table: list[_Bin]) -> Rate:
    """Return the chance that a gap longer than this silence ends within `WITHIN_MS`, with Greenwood's interval."""
    lasting, variance = 1.0, 0.0
    for above_ms, edge_ms, watched, ended in life_table:
        part = min(max((edge_ms - silence_ms) / (edge_ms - above_ms), 0), 1)
        lasting *= (1 - ended / max(watched, 1)) ** part
        # Half a gap more that ended, and half a gap more that did not, because a bin without gaps is not certain.
        variance += part * (ended + 0.5) / ((watched + 1) * (watched - ended + 0.5))
    spread = 1.96 * lasting * math.sqrt(variance)
    return Rate(1 - lasting, max(1 - lasting - spread, 0.0), min(1 - lasting + spread, 1.0))
