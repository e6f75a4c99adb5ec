"""How many batches are cut at which silence: a Kaplan–Meier estimate over counts of gaps.

Every message begins a gap, which ends when its author goes on. A gap is *censored* when an answer reached the customer
first, because what the author writes then is a reaction to the answer. `Counts` is the form in which the emitter counts
and the table stores. All its values are numbers:

    g00 … g23   gaps after which the author went on, by length: inside a batch, and from a batch to the next
    c00 … c23   gaps that were censored, by the time from the message to the reply
    e00 … e23   batches, by their wait from the last message to the emission
    batches     batches counted, which is the sum of e00 … e23
    resolved    batches whose last gap is counted among g and c; the next batch of the conversation resolves it
    waited_ms   the sum of the waits of the batches

The last batch of a conversation is never resolved. The estimate takes it as censored like the gaps that were censored
or, if none was, `ASSUMED_REPLY_MS` after its wait.
"""

import bisect
import math
from collections.abc import Mapping
from typing import NamedTuple

# Bin k has the lengths above BINS_MS[k - 1] and up to BINS_MS[k]. The last bin has the longer ones, too.
BINS_MS = (
    *(250, 350, 500, 700, 1_000, 1_300, 1_600, 2_000, 2_500, 3_000, 4_000, 5_000, 6_500, 8_000),
    *(10_000, 13_000, 17_000, 22_000, 30_000, 40_000, 55_000, 75_000, 95_000, 120_000),
)
# A batch is cut if its author goes on within this time of its last message.
WITHIN_MS = 8_000
ASSUMED_REPLY_MS = 2_000
MIN_TURNS = 300
# A recommendation needs so many gaps that nobody answered for WITHIN_MS.
MIN_WATCHED = 30

Counts = Mapping[str, int]


def field(kind: str, length_ms: float) -> str:
    """Return the name of the counter for a gap ("g"), a censored gap ("c") or a batch ("e") of this length."""
    return f"{kind}{_bin_of(length_ms):02d}"


class Rate(NamedTuple):
    """A share between 0 and 1 with its 95 % interval."""

    share: float
    low: float
    high: float


def going_on(counts: Counts) -> Rate:
    """Return the share of the batches, at the waits they had, whose authors went on within `WITHIN_MS`."""
    survival = _Survival(counts)
    batches = max(sum(survival.entries), 1)
    rates = [(n / batches, survival.cut_at(ms)) for n, ms in zip(survival.entries, survival.waits_ms, strict=True) if n]
    return Rate(*(sum(weight * rate[i] for weight, rate in rates) for i in range(3)))


def curve(counts: Counts) -> dict[int, Rate]:
    """Return the share of the batches that is cut, by the silence that all of them would wait for. That silence is
    also their mean wait after the last message."""
    survival = _Survival(counts)
    return {ms: survival.cut_at(ms) for ms in BINS_MS if ms <= WITHIN_MS}


def recommend(
    counts: Counts, *, cut_share: float | None = None, mean_wait_ms: float = WITHIN_MS
) -> tuple[int, Rate] | str:
    """Return the shortest silence that cuts at most `cut_share` of the batches, or the longest one with this mean wait,
    in steps of 100 ms, and the share that it cuts. Return why, if too little was counted for that."""
    survival = _Survival(counts)
    if (turns := counts.get("batches", 0)) < MIN_TURNS:
        return f"{turns} turns were counted, and a recommendation needs {MIN_TURNS}"
    if (watched := int(survival.watched[_bin_of(WITHIN_MS)])) < MIN_WATCHED:
        return f"answers come early: {watched} gaps were watched for {WITHIN_MS} ms, {MIN_WATCHED} are needed"
    silence_ms = min(max(int(mean_wait_ms) // 100 * 100, 200), WITHIN_MS)
    if cut_share is not None:
        silence_ms = next(ms for ms in range(200, WITHIN_MS + 1, 100) if survival.cut_at(ms).share <= cut_share)
    return silence_ms, survival.cut_at(silence_ms)


class _Survival:
    """The hazard of each bin, and its variance by Greenwood's formula."""

    def __init__(self, counts: Counts) -> None:
        ended, censored, self.entries = (
            [counts.get(f"{kind}{k:02d}", 0) for k in range(len(BINS_MS))] for kind in "gce"
        )
        # All waits are taken at the same place within their bins, at which their sum is `waited_ms`.
        edges = list(zip((0, *BINS_MS), BINS_MS, strict=False))
        low, high = (sum(n * edge[i] for n, edge in zip(self.entries, edges, strict=True)) for i in (0, 1))
        place = min(max((counts.get("waited_ms", 0) - low) / max(high - low, 1), 0), 1)
        self.waits_ms = [above_ms + place * (edge_ms - above_ms) for above_ms, edge_ms in edges]

        like = list(censored)
        if not any(like):
            for number, wait_ms in zip(self.entries, self.waits_ms, strict=True):
                like[_bin_of(wait_ms + ASSUMED_REPLY_MS)] += number
        unresolved = max(counts.get("batches", 0) - counts.get("resolved", 0), 0) / max(sum(like), 1)
        lost = [seen + unresolved * number for seen, number in zip(censored, like, strict=True)]

        self.watched, self.hazards, self.variances = list[float](), list[float](), list[float]()
        at_risk = sum(ended) + sum(lost)
        for events, answered in zip(ended, lost, strict=True):
            # Within a bin, authors go on and answers arrive at constant rates, so both share the fall of the logarithm.
            fall = math.log(max(at_risk, 0.5) / max(at_risk - events - answered, 0.5))
            hazard = fall * events / (events + answered) if events else 0.0
            watched = events / -math.expm1(-hazard) if hazard else at_risk - answered / 2
            self.watched.append(watched)
            self.hazards.append(hazard)
            # The half keeps a bin in which little was watched, and nothing happened, from looking certain.
            self.variances.append((events + 0.5) / max(watched * (watched - events), 0.25))
            at_risk -= events + answered

    def cut_at(self, silence_ms: float) -> Rate:
        """Return the share of the gaps longer than this silence that end within `WITHIN_MS`, with the log-log
        interval."""
        hazard = variance = 0.0
        watched = math.inf
        for k, (above_ms, edge_ms) in enumerate(zip((0, *BINS_MS), BINS_MS, strict=False)):
            part = (min(edge_ms, WITHIN_MS) - max(above_ms, silence_ms)) / (edge_ms - above_ms)
            if part > 0:
                hazard += part * self.hazards[k]
                variance += part * self.variances[k]
                watched = min(watched, self.watched[k])
        if watched < 1:
            return Rate(1 - math.exp(-hazard), 0.0, 1.0)
        if not hazard:
            return Rate(0.0, 0.0, 1 - math.exp(-3 / watched))
        spread = math.exp(1.96 * math.sqrt(variance) / hazard)
        return Rate(*(1 - math.exp(-h) for h in (hazard, hazard / spread, hazard * spread)))


def _bin_of(length_ms: float) -> int:
    return min(bisect.bisect_left(BINS_MS, length_ms), len(BINS_MS) - 1)
