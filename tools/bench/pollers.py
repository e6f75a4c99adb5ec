"""Model the lateness of DynamoDB-lane windows that are due at once: `python -m tools.bench.pollers [--quick]`.

Lambda's pollers cause this lateness: five begin to receive triggers at once, and five more each second. The times of a
run with one window and of a cold start come from bufferctl/cost/usage.toml.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from bufferctl.cost.model import used
from infra.dynamodb_lane import TRIGGERS_IN_A_RUN
from infra.settings_and_defaults import MEMORY_MB
from tools.bench.report import arguments, report

POLLERS, MS_UNTIL_THE_NEXT = 5, 200
BURSTS = (100, 1_000, 10_000)
AT_ONCE = (1, TRIGGERS_IN_A_RUN)
# A function with this memory gets one CPU.
MB_OF_A_CPU = 1_769
# Measured on 2026-11-20, with the deployed processor and a server that answered at once.
WINDOW_CPU_MS = 2.9


def late_ms(windows: int, *, at_once: int, run_ms: Callable[[int], float], cold_ms: float) -> list[float]:
    """Return how late each window is, in ascending order. The first run of each poller is a cold start."""
    runs = -(-windows // at_once)
    free: list[tuple[float, float]] = [(max(n + 1 - POLLERS, 0) * MS_UNTIL_THE_NEXT, cold_ms) for n in range(runs)]
    heapify(free)
    late: list[float] = []
    while len(late) < windows:
        at, start_ms = heappop(free)
        received = min(at_once, windows - len(late))
        ends = at + start_ms + run_ms(received)
        late += [ends] * received
        heappush(free, (ends, 0))
    return sorted(late)


def run_ms(windows: int) -> float:
    """Return how long a run with this many windows takes. A function has less than a CPU, so windows share it."""
    one_more_ms = WINDOW_CPU_MS / (MEMORY_MB["dynamodb_processor"] / MB_OF_A_CPU)
    return used("dynamodb_processor_ms") + (windows - 1) * one_more_ms


def main() -> None:
    wanted = arguments("tools.bench.pollers", __doc__, quick="it computes all of it in a second")
    rows = [["windows due at once", *(f"{at_once} a run: half, last" for at_once in AT_ONCE)]]
    for windows in BURSTS:
        row = [f"{windows:,}"]
        for at_once in AT_ONCE:
            late = late_ms(windows, at_once=at_once, run_ms=run_ms, cold_ms=used("cold_start_ms"))
            row.append(f"{late[windows // 2] / 1_000:.1f} s, {late[-1] / 1_000:.1f} s")
        rows.append(row)
    report("pollers", {"pollers": rows}, quick=wanted.quick)


if __name__ == "__main__":
    main()
