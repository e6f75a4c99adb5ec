"""Simulated tenants whose share of cut batches is known."""

import math
import random
from collections import Counter
from statistics import NormalDist

from message_buffer.tuning.curve import BINS_MS, WITHIN_MS, Counts, field

GOES_ON = 0.5
MEDIAN_MS, SPREAD = 4_000, 0.9


def gap_ms(rng: random.Random) -> float:
    """Return how long an author is silent before they go on, or infinity if they are done."""
    return rng.lognormvariate(math.log(MEDIAN_MS), SPREAD) if rng.random() < GOES_ON else math.inf


def truly_cut(silence_ms: float) -> float:
    """Return the share of the batches with this silence whose authors go on within `WITHIN_MS`."""
    return 1 - _lasts(WITHIN_MS) / _lasts(silence_ms)


def _lasts(ms: float) -> float:
    return 1 - GOES_ON * NormalDist(math.log(MEDIAN_MS), SPREAD).cdf(math.log(ms))


def counts_of(rng: random.Random, *, turns: int, silence_ms: int, reply_ms: float, last: float = 0.3) -> Counts:
    """Return what a stage would count. Its answers take about `reply_ms` after a batch, and after this share of the
    answered batches the customer never comes back."""
    counts: Counter[str] = Counter()
    for _ in range(turns):
        while (gap := gap_ms(rng)) <= silence_ms:
            counts[field("g", gap)] += 1
        counts.update({"batches": 1, "waited_ms": silence_ms, field("e", silence_ms): 1})
        answered_ms = silence_ms + rng.lognormvariate(math.log(reply_ms), 0.5)
        if gap < min(answered_ms, BINS_MS[-1]):
            counts.update({field("g", gap): 1, "resolved": 1})
        elif rng.random() > last:
            counts.update({field("c", min(answered_ms, BINS_MS[-1])): 1, "resolved": 1})
    return counts
