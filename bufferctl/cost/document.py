"""Write docs/cost.md and docs/cost.svg. Every number in them comes from the model."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from bufferctl.cost.alternatives import (
    KINDS,
    changed,
    dynamodb_lane,
    kinds_of_stage,
    polling,
)
from bufferctl.cost.chart import Series, svg
from bufferctl.cost.facts import HOURS, MILLION, prices, used
from bufferctl.cost.lines import Line, total
from bufferctl.cost.model import bill, floors, with_egress
from bufferctl.cost.report import HEAD, number, rows
from bufferctl.cost.traffic import Traffic, processors
from infra.settings_and_defaults import StageConfig, load_stage

HERE = Path(__file__).parent
STAGE = "prod"
VOLUMES = [10_000, 100_000, 1_000_000, 10_000_000]
# The volumes in the table about polling. The table omits higher volumes, at which our processor runs all day as a
# polling one does.
POLLED = VOLUMES[:3]
SHOWN = 100_000
# The page sums all lines that cost less than this in one row. The command prints each of these lines.
MIN_DOLLARS_OF_A_ROW = 0.75
CENTS_UP_TO = 1_000
# The settings whose cost the table shows: for each a name, and the values that replace those of the stage.
LEVERS: list[tuple[str, dict[str, Any]]] = [
    ("one NAT gateway", {"network": {"egress": "nat", "nat_gateways": 1}}),
    ("two NAT gateways", {"network": {"egress": "nat", "nat_gateways": 2}}),
    ("interface endpoints", {"network": {"egress": "endpoints"}}),
    ("no network", {"network": {"egress": "none"}}),
    ("ingest's own address", {"api": {"kind": "url"}}),
    ("a REST API with WAF", {"api": {"kind": "rest"}}),
    ("2 instances of ingest kept warm", {"warmth": {"ingest": 2}}),
    ("four shards", {"shards": 4, "concurrency": {"processor": 8}}),
    ("tracing", {"tracing": True}),
    ("no flow logs", {"network": {"flow_logs": False}}),
    ("no fallback", {"fallback": False}),
    ("no archive", {"bus": {"archive_days": 0}}),
    ("logs kept for a year", {"log_retention_days": 365}),
]

Stages = Mapping[str, Any]


def write(folder: Path, stages: Stages) -> None:
    """Write the page and its picture into `folder`."""
    (folder / "cost.md").write_text(text(stages))
    (folder / "cost.svg").write_text(picture(stages))


def text(stages: Stages) -> str:
    config = load_stage(stages, stage=STAGE)
    traffic = Traffic(messages_per_day=SHOWN)
    template = Template((HERE / "cost.md.template").read_text())
    return template.substitute(
        _words(config, traffic),
        volumes=_volumes(config),
        bill=_bill(config, traffic),
        idle_parts=_idle_parts(config),
        levers=_levers(stages, traffic),
        lanes=_lanes(config),
        polling=_polling(config),
    )


def picture(stages: Stages) -> str:
    """Return the picture of cost against volume."""
    config = load_stage(stages, stage=STAGE)
    volumes = [10 ** (exponent / 4) for exponent in range(12, 29)]
    bills = {
        name: [total(bill(with_egress(config, name), Traffic(messages_per_day=volume))) for volume in volumes]
        for name in floors(config)
    }
    bills["DynamoDB lane"] = [
        total(bill(dynamodb_lane(config), Traffic(messages_per_day=volume))) for volume in volumes
    ]
    return svg([Series(name, list(zip(volumes, amounts, strict=True))) for name, amounts in bills.items()])


def _words(config: StageConfig, traffic: Traffic) -> dict[str, str]:
    """Return the numbers that the template's sentences contain."""
    price = {name: found.price for name, found in prices().items()}
    gateway, minimum = price["nat_hour"] * HOURS, price["valkey_storage"] * HOURS
    endpoint = price["endpoint_hour"] * HOURS
    nobody = Traffic(messages_per_day=0)
    floor = total(bill(config, nobody))
    at_scale = Traffic(messages_per_day=VOLUMES[-1])
    cheapest = bill(changed(config, KINDS["Valkey, no network, own address"]), at_scale)
    return {
        "stage": config.name,
        "shown": f"{SHOWN:,}",
        "total": _money(total(bill(config, traffic))),
        "floor": _money(floor),
        "fragments": f"{traffic.fragments_per_batch:g}",
        "network_floor": _money(_part(bill(config, nobody), "network")),
        "nat_whole": _money(gateway + price["public_address"] * HOURS),
        "endpoint": _money(endpoint),
        "endpoints_count": number(used("endpoint_services")),
        "endpoints_all": _money(endpoint * used("endpoint_services") * 2),
        "break_even": number(_break_even_gb(config)),
        "moved": number(_gb_out(config, VOLUMES[-1])),
        "cache_floor": _money(minimum * used("cache_floor_gb")),
        "cache_minimum": _money(minimum),
        "redis_floor": _money(price["redis_storage"] * HOURS),
        "polling_lambda": _money(_lambda(polling(config)) / config.shards),
        "metrics_max": _money(
            price["metric"] * (used("metrics_always") + used("metrics_of_sweep") + used("metrics_with_traffic"))
        ),
        "ecpu_message": f"{used('buffer_us') / used('simple_command_us'):.2f}",
        "queue_empty": _money(used("queue_polls") / MILLION * price["sqs_requests"]),
        "public_floor": _money(floors(config)["no network"]),
        "million_at_scale": _money(total(cheapest) / at_scale.messages * 1e6),
        "dynamodb_floor": _money(total(bill(dynamodb_lane(config), nobody))),
        "lane_until": f"{_lane_until(config):,.0f}",
        "statuses": f"{traffic.statuses_per_batch:g}",
    }


def _bill(config: StageConfig, traffic: Traffic) -> str:
    """Return the bill without its last column, because only the command prints the formulas."""
    body = [cells[:-1] for cells in rows(bill(config, traffic), min_dollars=MIN_DOLLARS_OF_A_ROW)]
    return _table(HEAD[:-1], body, right={1, 3, 4, 5})


def _volumes(config: StageConfig) -> str:
    """Return a row for each kind of stage, sorted by the cost without messages."""
    volumes = [0, *VOLUMES]
    bills = {
        name: [total(bill(kind, Traffic(messages_per_day=volume))) for volume in volumes]
        for name, kind in kinds_of_stage(config).items()
    }
    body = [[name, *map(_money, amounts)] for name, amounts in sorted(bills.items(), key=lambda item: item[1])]
    heads = ["messages a day:", *(f"{volume:,}" for volume in volumes)]
    return _table(heads, body, right=set(range(1, len(heads))))


def _idle_parts(config: StageConfig) -> str:
    lines = bill(config, Traffic(messages_per_day=0))
    parts = sorted({line.part for line in lines}, key=lambda part: -_part(lines, part))
    body = [[part, _money(_part(lines, part)), f"{_part(lines, part) / total(lines):.0%}"] for part in parts]
    return _table(["part", "$/month", "share"], body, right={1, 2})


def _levers(stages: Stages, traffic: Traffic) -> str:
    before = load_stage(stages, stage=STAGE)
    body = []
    for name, over in LEVERS:
        after = load_stage(stages, stage=STAGE, overrides=json.dumps(over))
        if after != before:
            difference = total(bill(after, traffic)) - total(bill(before, traffic))
            body.append([name, f"{difference:+,.2f}"])
    return _table(["change", "$/month"], body, right={1})


def _lanes(config: StageConfig) -> str:
    body = []
    for volume in [0, *VOLUMES]:
        traffic = Traffic(messages_per_day=volume)
        ours, lane = bill(config, traffic), bill(dynamodb_lane(config), traffic)
        dynamodb = total(line for line in lane if line.price.startswith("dynamodb"))
        fallback = total(ours) - total(bill(_without_fallback(config), traffic))
        body.append([
            f"{volume:,}", _money(_part(ours, "network")), _money(_part(ours, "cache")), _money(fallback),
            _money(dynamodb),
        ])  # fmt: skip
    heads = [
        "messages a day",
        "Valkey lane: network",
        "its cache",
        "its fallback",
        "DynamoDB lane: DynamoDB",
    ]
    return _table(heads, body, right=set(range(len(heads))))


def _polling(config: StageConfig) -> str:
    polls = _lambda(polling(config))
    body = []
    for volume in [0, 1_000, *POLLED]:
        traffic = Traffic(messages_per_day=volume)
        run = processors(traffic, shards=config.shards, timings=config.timings)
        ours = _lambda(line for line in bill(config, traffic) if line.part == "processor")
        body.append([
            f"{volume:,}", f"{run.seconds / config.shards / (HOURS * 36):.0f} %", f"{run.starts / (HOURS / 24):,.0f}",
            _money(ours), _money(polls),
        ])  # fmt: skip
    heads = ["messages a day", "share of the day awake", "starts a day", "our processor", "polling"]
    return _table(heads, body, right=set(range(len(heads))))


def _gb_out(config: StageConfig, volume: int) -> float:
    lines = bill(with_egress(config, "endpoints"), Traffic(messages_per_day=volume))
    return sum(line.quantity for line in lines if line.price == "endpoint_data")


def _break_even_gb(config: StageConfig) -> float:
    """Return the GB a month above which endpoints are cheaper than one NAT gateway."""
    more = floors(config)["endpoints"] - floors(config)["1 NAT gateway"]
    return more / (prices()["nat_data"].price - prices()["endpoint_data"].price)


def _lane_until(config: StageConfig) -> float:
    """Return the messages a day, to two digits, below which the DynamoDB lane is cheaper than a stage with a NAT
    gateway."""
    low, high = 1.0, float(VOLUMES[-1])
    one_nat = with_egress(config, "1 NAT gateway")
    while high - low > 1:
        middle = (low + high) / 2
        traffic = Traffic(messages_per_day=middle)
        if total(bill(dynamodb_lane(config), traffic)) < total(bill(one_nat, traffic)):
            low = middle
        else:
            high = middle
    return float(f"{low:.2g}")


def _without_fallback(config: StageConfig) -> StageConfig:
    return config.model_copy(update={"fallback": False})


def _lambda(lines: Iterable[Line]) -> float:
    return total(line for line in lines if line.price.startswith("lambda"))


def _part(lines: list[Line], part: str) -> float:
    return total(line for line in lines if line.part == part)


def _money(amount: float) -> str:
    return f"{amount:,.2f}" if amount < CENTS_UP_TO else f"{amount:,.0f}"


def _table(heads: list[str], body: list[list[str]], *, right: set[int]) -> str:
    rule = "|".join("---:" if column in right else "---" for column in range(len(heads)))
    first, *others = (f"| {' | '.join(cells)} |" for cells in [heads, *body])
    return "\n".join([first, f"|{rule}|", *others])
