"""Simulated tenants whose share of cut batches is known. `python -m tests.support.gaps` adds one to the local stage."""

import math
import random
from collections import Counter
from statistics import NormalDist

from bufferctl.stage import LOCAL, LOCAL_OUTPUTS, find_account
from message_buffer.aws.dynamodb import encode, expressions
from message_buffer.clock import system_clock
from message_buffer.limits import DAY_MS
from message_buffer.tuning.curve import BINS_MS, WITHIN_MS, Counts, field
from message_buffer.tuning.tuning_table import week_of

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


def main() -> None:
    """Add the counts of two weeks of a simulated tenant to the table of the running local stage."""
    client = find_account(LOCAL, profile=None, region=None, outputs=LOCAL_OUTPUTS).client("dynamodb")
    (table,) = (name for name in client.list_tables()["TableNames"] if "Tuning" in name)
    rng, now_ms = random.Random(31), system_clock()
    for scope, reply_ms in (("acme/whatsapp/sales", 4_000), ("acme/telegram/sales", 7_000), ("acme/generic/", 3_000)):
        for at_ms in (now_ms, now_ms - 7 * DAY_MS):
            turns = 60 if scope.endswith("/") else 1_500
            counts = counts_of(rng, turns=turns, silence_ms=1_000, reply_ms=reply_ms)
            client.update_item(
                TableName=table,
                Key=encode({"scope": scope, "week": week_of(at_ms)}),
                **expressions(counts, UpdateExpression=f"ADD {', '.join(f'#{name} :{name}' for name in counts)}"),
            )


if __name__ == "__main__":
    main()
