"""Measure the engine's cost: `python -m tools.bench.engine [--quick] [--against DIR]`.

All figures come from one machine in one run, in which the contestants take turns in shuffled order. Only the ratios
between the figures are comparable with other runs. A figure is the median of the rounds, with their interquartile range
in brackets.
"""

import argparse
from pathlib import Path

from tools.bench.hot_path import CALLS, CPU, ROUND_TRIPS, SCRIPT, HotPath, measure_hot_path
from tools.bench.measure import figure
from tools.bench.report import Target, print_targets, save


def hot_path_targets(found: HotPath) -> list[Target]:
    return [
        Target("server CPU of a message, of naive's", 0.7, found.ratio("ours", "naive", CPU)),
        Target("script, of naive's script", 1.0, found.ratio("ours", "naive", SCRIPT)),
        Target("script, of the bare script", 3.0, found.ratio("ours", "bare", SCRIPT)),
        Target("round trips of a message", 1, figure(found.values("ours", "mix", ROUND_TRIPS))),
        Target("redis.calls, message that is not the first", 6, figure(found.values("ours", "next", CALLS))),
    ]  # fmt: skip


def print_hot_path(found: HotPath) -> None:
    print(f"\n{'µs a message':22}{'server CPU':>28}{'script':>28}{'redis.calls':>13}")
    for contestant, kind, cpu, script, calls in sorted(found.rows(), key=lambda row: row[:2]):
        print(f"{contestant + ' ' + kind:22}{cpu!s:>28}{script!s:>28}{calls:>13.2f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a figure to cite")
    parser.add_argument(
        "--pipelined", action="store_true", help="many requests a round trip: the socket's share shrinks"
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="a copy of lua/ with a change to be judged")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    wanted = arguments()
    rounds = 6 if wanted.quick else 14
    hot_path = measure_hot_path(
        rounds=rounds,
        conversations=1_000,
        seed=wanted.seed,
        pipelined=wanted.pipelined,
        against=wanted.against,
    )
    print_hot_path(hot_path)
    if wanted.against:
        for kind in ("first", "next", "mix", "duplicate", "ending"):
            print(f"against / ours, script, {kind}: {hot_path.ratio('against', 'ours', SCRIPT, kind=kind)}")
    targets = hot_path_targets(hot_path)
    print_targets(targets)
    result = {"seed": wanted.seed, "rounds": rounds, "hot_path": hot_path.as_json()}
    save("engine", result, targets, quick=wanted.quick or bool(wanted.against) or wanted.pipelined)


if __name__ == "__main__":
    main()
