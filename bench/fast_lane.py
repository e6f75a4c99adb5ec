"""Measure how late VIPs are during a backlog: `python -m bench.fast_lane [--quick]`.

Many ordinary conversations fall due at once, and each occupies a slot for 0.2 s. Meanwhile VIPs write. Some rounds have
no VIPs, to show by how much VIPs delay the others. BullMQ gets as many slots, and runs jobs of priority 1 (VIPs) before
those of priority 2 (the others). Lateness is measured as in `bench.live`.
"""

import random
from collections import defaultdict
from typing import Any

from bench import bullmq
from bench.live import _spread
from bench.measure import figure, ratio
from bench.report import Target, arguments, print_targets, save
from bench.systems import BullMqSystem, OurSystem, Planned, System

SLOTS, WORK_MS = 50, 200
VIPS_PER_SECOND = 10
ORDINARY, ROUNDS = 5_000, 3
# The ordinary conversations write during this time, and are due at its end.
WRITING_MS = 3_000
VIP = 1_000_000


def measured(kind: type[System], *, ordinary: int, vips_per_second: int) -> dict[str, Any]:
    """Return how many seconds after their due time all ordinary conversations were done, and how late VIPs were."""
    backlog_ms = ordinary * WORK_MS // SLOTS
    plan = [
        Planned(at_ms, number, 0, round(WRITING_MS - at_ms), priority=2)
        for number in range(ordinary)
        for at_ms in [number * 0.8 * WRITING_MS / ordinary]
    ]
    vips = [
        Planned(WRITING_MS + number * 1_000 / vips_per_second, VIP + number, 0, 0, priority=1)
        for number in range(vips_per_second * backlog_ms // 1_000)
    ]
    count = len(plan) + len(vips)
    with kind(work_ms=WORK_MS, slots=SLOTS) as system:
        due_ms = system.send([*plan, *vips]) + WRITING_MS
        system.sent()
        system.drain(messages=count, at_most_seconds=2 * backlog_ms / 1_000 + 10)
        batches = list(system.batches)
    late: dict[bool, list[float]] = {True: [], False: []}
    done_ms = due_ms
    for batch in batches:
        is_vip = batch.messages[0][0] >= VIP
        late[is_vip].append(max(batch.claimed_ms - batch.due_ms, 0.0))
        if not is_vip:
            done_ms = max(done_ms, batch.claimed_ms + WORK_MS)
    found = {"seconds": round((done_ms - due_ms) / 1_000, 3), "missing": count - len(late[True]) - len(late[False])}
    return found | ({"vips": _spread(late[True])} if vips else {})


def main() -> None:
    quick = arguments("bench.fast_lane", __doc__, quick="one short round, nothing is written")
    rounds, ordinary = (1, 1_000) if quick.quick else (ROUNDS, ORDINARY)
    bullmq.install()
    order = random.Random(quick.seed)
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(rounds):
        turns = [(kind, vips) for kind in (OurSystem, BullMqSystem) for vips in (0, VIPS_PER_SECOND)]
        for kind, vips in order.sample(turns, len(turns)):
            told = measured(kind, ordinary=ordinary, vips_per_second=vips)
            found[f"{kind.name}, {'with' if vips else 'without'} VIPs"].append(told)
            print(f"{number}  {kind.name:<8}{vips:>3} VIPs a second  {told}", flush=True)

    def seconds(name: str) -> list[float]:
        return [each["seconds"] for each in found[name]]

    p99 = [each["vips"]["p99"] for each in found["ours, with VIPs"]]
    targets = [
        Target("p99 of VIPs' lateness behind 5,000 due conversations, ms", 300, figure(p99)),
        Target(
            "time of 5,000 due conversations beside VIPs, of that without VIPs",
            1.08,
            ratio(seconds("ours, with VIPs"), seconds("ours, without VIPs")),
        ),
    ]
    print_targets(targets)
    result = {
        "slots": SLOTS, "work_ms": WORK_MS, "vips_per_second": VIPS_PER_SECOND, "ordinary": ordinary, "rounds": found,
    }  # fmt: skip
    save("fast_lane", result, targets, quick=quick.quick)


if __name__ == "__main__":
    main()
