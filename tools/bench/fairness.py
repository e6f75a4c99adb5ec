"""Measure one tenant's lateness while another exceeds its quota: `python -m tools.bench.fairness [--quick]`.

Both tenants send one message per conversation, on one shard. In half of the rounds, the second tenant sends at the rate
of its quota. In the other rounds, it sends ten times as fast, and its quota is used up at the beginning. So the lane
accepts equally many of its messages in every round. The benchmark measures how late the first tenant's batches are.
"""

import random
import time
from collections import defaultdict
from typing import Any

from tools.bench.live import _spread
from tools.bench.measure import ratio
from tools.bench.report import Target, arguments, print_targets, save
from tools.bench.systems import OurSystem, Planned, send_beside
from tools.bench.wire import Wire

RATE, DELAY_MS, WARM_UP_SECONDS = 100, 500, 1.0
# A stage's default quota.
ADMITTED_PER_SECOND = 50
HAMMERED = 10
NEIGHBOUR, ACCOUNT = 1_000_000, "bench/neighbour"
MOST = 1.5


def lateness(*, hammering: bool, seconds: float) -> dict[str, Any]:
    duration = WARM_UP_SECONDS + seconds
    warm_up = int(RATE * WARM_UP_SECONDS)
    plan = [Planned(number * 1_000 / RATE, number, 0, DELAY_MS) for number in range(int(RATE * duration))]
    rate = ADMITTED_PER_SECOND * (HAMMERED if hammering else 1)
    beside = [Planned(number * 1_000 / rate, NEIGHBOUR + number, 0, DELAY_MS) for number in range(int(rate * duration))]
    with OurSystem() as system:
        began_ms = system.send(plan)
        if hammering:
            wire = Wire(system.server.port)
            wire.call("HSET", "{b0}:quota", f"/{ACCOUNT}", int(began_ms + 60_000) * 1_000)
            wire.close()
        send_beside(
            system, beside, began_ms, account=ACCOUNT, conversationsPerMinute=60 * ADMITTED_PER_SECOND * (
                1 if hammering else 2
            ),
        )  # fmt: skip
        system.sent()
        time.sleep(DELAY_MS / 1_000 + 1)
        batches = list(system.batches)
        late = [
            max(batch.claimed_ms - batch.due_ms, 0.0)
            for batch in batches
            if any(warm_up <= conversation < NEIGHBOUR for conversation, _ in batch.messages)
        ]
        admitted = sum(conversation >= NEIGHBOUR for batch in batches for conversation, _ in batch.messages)
    return _spread(late) | {"missing": len(plan) - warm_up - len(late), "neighbour_per_second": admitted / duration}


def main() -> None:
    quick = arguments("tools.bench.fairness", __doc__, quick="two short rounds, nothing is written")
    rounds, seconds = (2, 3.0) if quick.quick else (11, 6.0)
    order, found = random.Random(quick.seed), defaultdict(list)
    for number in range(rounds):
        for hammering in order.sample((False, True), 2):
            shown = lateness(hammering=hammering, seconds=seconds)
            found["hammering" if hammering else "honest"].append(shown)
            print(f"{number}  {'hammering' if hammering else 'honest':<10}  {shown}", flush=True)
    p99 = {name: [each["p99"] for each in all_] for name, all_ in found.items()}
    target = Target(
        "p99 of a tenant's lateness while another sends ten times its quota, divided by that at its quota",
        MOST,
        ratio(p99["hammering"], p99["honest"]),
    )
    print_targets([target])
    result = {"rate": RATE, "admitted": ADMITTED_PER_SECOND, "hammered": HAMMERED, "seconds": seconds, "rounds": found}
    save("fairness", result, [target], quick=quick.quick)


if __name__ == "__main__":
    main()
