"""Find the first limit that traffic reaches, and a month's cost: `python -m tools.bench.model [--seed N] [--seconds
N]`.

It simulates the busiest time of a day, with the traffic of the cost model and random numbers from a seed. Conversations
begin, write their fragments, are due, and are answered. It counts the demand on each AWS limit for every second, and
compares the busiest second with the default quota. Times and ECPUs come from bufferctl/cost/usage.toml. Some of them
are measured, and some are assumed.
"""

import argparse
import json
import random
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, log
from pathlib import Path
from typing import Any, NamedTuple

from bufferctl.cost.facts import used
from bufferctl.cost.lines import total
from bufferctl.cost.traffic import Traffic

from bufferctl.cost.model import bill, ecpu
from infra.settings_and_defaults import StageConfig, load_stage
from tools.bench.report import save

HERE = Path(__file__).parent
VOLUMES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
STAGE = "prod"
# A function with this memory gets one CPU.
MB_OF_A_CPU = 1_769
# The platform reports on the delivery of a reply within this time.
STATUS_SECONDS = 10.0


class Limit(NamedTuple):
    name: str
    value: float
    per_shard: bool


@dataclass
class Load:
    """The demand by second, or by second and shard if each shard has its own limit."""

    requests: Counter[int] = field(default_factory=Counter)
    busy: Counter[int] = field(default_factory=Counter)
    """The microseconds that functions run in this second, added up over all instances."""
    events: Counter[int] = field(default_factory=Counter)
    ecpus: Counter[tuple[int, int]] = field(default_factory=Counter)
    starts: Counter[tuple[int, int]] = field(default_factory=Counter)


def limits(config: StageConfig, region: str) -> dict[str, Limit]:
    shown = tomllib.loads((HERE / "quotas.toml").read_text("utf-8"))
    regions = shown["put_events"]["regions"]
    start_ms = json.loads((HERE / "results" / "starts.json").read_text("utf-8"))["cpu_ms"]
    # A noisy run has no median, so use the slow end of the interquartile range.
    cpu_ms = start_ms.get("median", start_ms["q3"])
    values = {
        "put_events": regions.get(region, regions["other"]),
        "conversation_processor_starts": round(config.memory["processor"] / MB_OF_A_CPU / cpu_ms * 1_000),
    }
    return {
        name: Limit(each["name"], float(values.get(name, each.get("value", 0))), each["scope"] == "shard")
        for name, each in shown.items()
    }


def simulate(traffic: Traffic, *, shards: int, seconds: int, seed: int) -> Load:
    """Return the load of the busiest seconds. Start earlier, so that conversations are already in progress."""
    drawn, load = random.Random(seed), Load()
    rate = traffic.batches / traffic.active_seconds * traffic.peak
    lead = traffic.wait_seconds + STATUS_SECONDS
    at = -lead
    while (at := at + drawn.expovariate(rate)) < seconds:
        shard = drawn.randrange(shards)
        fragments = _fragments(traffic.fragments_per_batch, drawn)
        for each in range(fragments):
            # The first fragment begins the wait, and the others come during the wait.
            sent = at + drawn.uniform(0, traffic.wait_seconds) * (each > 0)
            _ingest(load, sent, drawn)
            load.ecpus[int(sent), shard] += round(ecpu("buffer_us", used("buffer_call_bytes") + traffic.payload_bytes))
        due = at + traffic.wait_seconds
        _emit(load, int(due), shard, traffic.payload_bytes * fragments)
        for _ in range(_whole(traffic.statuses_per_batch, drawn)):
            _ingest(load, due + drawn.uniform(0, STATUS_SECONDS), drawn)
    return load


def _fragments(mean: float, drawn: random.Random) -> int:
    return 1 if mean <= 1 else 1 + int(log(1 - drawn.random()) / log(1 - 1 / mean))


def _whole(mean: float, drawn: random.Random) -> int:
    return int(mean) + (drawn.random() < mean % 1)


def _ingest(load: Load, at: float, drawn: random.Random) -> None:
    load.requests[int(at)] += 1
    cold = used("cold_start_ms") * (drawn.random() < used("cold_share"))
    load.busy[int(at)] += round((used("ingest_ms") + cold) * 1_000)


def _emit(load: Load, second: int, shard: int, batch_bytes: float) -> None:
    load.starts[second, shard] += 1
    load.events[second] += 1
    load.busy[second] += round(used("conversation_processor_ms") * 1_000)
    taken = used("take_call_bytes") + batch_bytes
    calls = ecpu("empty_claim_us") + ecpu("claim_us") + ecpu("take_us", taken) + ecpu("take_us")
    load.ecpus[second, shard] += round(calls)


def busiest(load: Load, *, seconds: int, shards: int) -> dict[str, float]:
    """Return the demand on each limit in the busiest second."""

    def most(counted: Counter[Any]) -> float:
        seconds_of = ((key[0] if isinstance(key, tuple) else key, count) for key, count in counted.items())
        return max((count for second, count in seconds_of if 0 <= second < seconds), default=0)

    requests = most(load.requests)
    return {
        "api_requests": requests,
        "ingest_requests": requests,
        # Each shard has one processor, and during a handover also the next one.
        "lambda_concurrency": ceil(most(load.busy) / 1e6) + 2 * shards,
        "slot_ecpu": most(load.ecpus),
        "conversation_processor_starts": most(load.starts),
        "put_events": most(load.events),
    }


def row(config: StageConfig, messages_per_day: int, *, region: str, seconds: int, seed: int) -> dict[str, Any]:
    traffic = Traffic(messages_per_day=messages_per_day)
    allowed = limits(config, region)
    one = busiest(simulate(traffic, shards=1, seconds=seconds, seed=seed), seconds=seconds, shards=1)
    # With this many shards, each shard needs at most three quarters of its quotas.
    needed = max(ceil(one[name] / (0.75 * limit.value)) for name, limit in allowed.items() if limit.per_shard)
    asked = busiest(simulate(traffic, shards=needed, seconds=seconds, seed=seed), seconds=seconds, shards=needed)
    share = {name: round(asked[name] / limit.value, 4) for name, limit in allowed.items()}
    sized = config.model_copy(update={"shards": needed})
    return {
        "messages_per_day": messages_per_day,
        "busiest_second": {name: round(value) for name, value in asked.items()},
        "one_shard": {name: round(one[name] / limit.value, 4) for name, limit in allowed.items() if limit.per_shard},
        "shards": needed,
        "share_of_quota": share,
        "first": allowed[max(share, key=lambda name: share[name])].name,
        "beyond": [allowed[name].name for name, part in share.items() if part > 1],
        "dollars_a_month": round(total(bill(sized, traffic)), 2),
    }


def reached_at(config: StageConfig, *, region: str, seconds: int, seed: int) -> dict[str, int]:
    """Return how many messages a day use up each quota in the busiest second, with one shard. Round to two digits."""
    volume = VOLUMES[-2]
    traffic = Traffic(messages_per_day=volume)
    asked = busiest(simulate(traffic, shards=1, seconds=seconds, seed=seed), seconds=seconds, shards=1)
    allowed = limits(config, region)
    return {name: int(float(f"{volume * limit.value / asked[name]:.1e}")) for name, limit in allowed.items()}


def show(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"{'messages a day':>16}{'shards':>8}{'dollars a month':>17}  nearest to its quota, with these shards"
    for each in rows:
        shares = sorted(each["share_of_quota"].items(), key=lambda item: -item[1])[:3]
        shown = ", ".join(f"{name} {part:.1%}" for name, part in shares)
        yield f"{each['messages_per_day']:>16,}{each['shards']:>8}{each['dollars_a_month']:>17,.0f}  {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.model", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=30, help="of the busiest time that is simulated")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--quick", action="store_true", help="a look: writes nothing")
    wanted = parser.parse_args()
    stages = json.loads((HERE.parents[1] / "cdk.json").read_text("utf-8"))["context"]["stages"]
    config = load_stage(stages, stage=STAGE)
    drawn: dict[str, Any] = {"region": wanted.region, "seconds": wanted.seconds, "seed": wanted.seed}
    rows = [row(config, volume, **drawn) for volume in VOLUMES]
    print("\n".join(show(rows)))
    reached = reached_at(config, **drawn)
    for name, volume in sorted(reached.items(), key=lambda item: item[1]):
        print(f"{name:20} is reached at {volume:>12,} messages a day (one shard)")
    quotas = {name: limit._asdict() for name, limit in limits(config, wanted.region).items()}
    save("model", drawn | {"stage": STAGE, "quotas": quotas, "rows": rows, "reached_at": reached}, quick=wanted.quick)


if __name__ == "__main__":
    main()
