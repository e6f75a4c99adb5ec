"""How cheap the engine is: `python -m bench.engine [--quick] [--scale] [--json FILE]`.

All figures come from one machine in one run, the contestants taking turns in shuffled order; what counts are
the ratios between them. A figure is the median of the rounds, with their middle half in brackets.
"""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from bench.hot_path import CALLS, CPU, ROUND_TRIPS, SCRIPT, HotPath, measure_hot_path
from bench.measure import figure
from bench.report import Target, commit, machine, print_targets
from bench.scale import Scale, measure_scale


def hot_path_targets(found: HotPath) -> list[Target]:
    return [
        Target("server CPU of a message, of naive's", 0.7, found.ratio("ours", "naive", CPU)),
        Target("script, of naive's script", 1.0, found.ratio("ours", "naive", SCRIPT)),
        Target("script, of the bare script", 3.0, found.ratio("ours", "bare", SCRIPT)),
        Target("round trips of a message", 1, figure(found.values("ours", "mix", ROUND_TRIPS))),
        Target("redis.calls, message that is not the first", 6, figure(found.values("ours", "next", CALLS))),
    ]  # fmt: skip


def scale_targets(found: Scale) -> list[Target]:
    sizes = f"{found.sizes[0].size:,} to {found.sizes[-1].size:,}"
    claims = [what for what in found.kinds if what.startswith("claim")]
    return [
        Target(f"buffering, {sizes}", 1.6, found.growth("ingest ours")),
        *(Target(f"{what} at once, {sizes}", 2.5, found.growth(what)) for what in claims),
    ]


def print_hot_path(found: HotPath) -> None:
    print(f"\n{'µs a message':22}{'server CPU':>28}{'script':>28}{'redis.calls':>13}")
    for contestant, kind, cpu, script, calls in sorted(found.rows(), key=lambda row: row[:2]):
        print(f"{contestant + ' ' + kind:22}{cpu!s:>28}{script!s:>28}{calls:>13.2f}")


def print_scale(found: Scale) -> None:
    print(f"\n{'conversations waiting':22}" + "".join(f"{size.size:>26,}" for size in found.sizes) + f"{'growth':>26}")
    for name in found.sizes[0].bytes_each:
        cells = "".join(f"{size.bytes_each[name]:>26.0f}" for size in found.sizes)
        print(f"{'bytes each, ' + name:22}{cells}")
    for what in found.kinds:
        cells = "".join(f"{found.cost(size, what)!s:>26}" for size in found.sizes)
        print(f"{'µs, ' + what:22}{cells}{found.growth(what)!s:>26}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rounds, and no million: a look, not a figure to cite"
    )
    parser.add_argument(
        "--scale",
        action="store_true",
        help="also with 10,000, 100,000 and 1,000,000 waiting (2.5 GB, minutes)",
    )
    parser.add_argument(
        "--pipelined", action="store_true", help="many requests a round trip: the socket's share shrinks"
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="a copy of lua/ with a change to be judged")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--date", help="of the run, for the file", default=datetime.now(UTC).date().isoformat())
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    wanted = arguments()
    rounds = 6 if wanted.quick else 20
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
    result = {
        "date": wanted.date,
        "commit": commit(),
        "machine": machine(),
        "seed": wanted.seed,
        "rounds": rounds,
        "hot_path": hot_path.as_json(),
    }
    if wanted.scale:
        sizes = [10_000, 100_000] if wanted.quick else [10_000, 100_000, 1_000_000]
        scale = measure_scale(sizes, rounds=5 if wanted.quick else 11, seed=wanted.seed, say=print)
        print_scale(scale)
        targets += scale_targets(scale)
        result["scale"] = scale.as_json()
    print_targets(targets)
    if wanted.json:
        wanted.json.parent.mkdir(parents=True, exist_ok=True)
        result["targets"] = [target.as_json() for target in targets]
        wanted.json.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
