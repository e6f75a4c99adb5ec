"""Show a bill as text or as JSON, and write docs/cost.md."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from bufferctl.cost.model import HERE, HOURS, NO_MESSAGES, REGION, SECONDS, Line, Traffic, bill, prices, total
from infra.settings_and_defaults import StageConfig, load_stage

STAGE = "prod"
SHOWN = Traffic(messages_per_day=100_000)
VOLUMES = [0, 10_000, 100_000, 1_000_000, 10_000_000]
# One row sums all lines that cost less. The JSON has each of them.
MIN_SHOWN_DOLLARS = 0.5
RESPONDER = {"assistant": "openai", "model": "gpt-4o-mini"}
URL, HTTP = {"kind": "url"}, {"kind": "http"}
# The kinds of stage, and the changes to `prod`, whose bills the page compares.
KINDS: dict[str, dict[str, Any]] = {
    "DynamoDB, own address": {"lane": "dynamodb", "api": URL},
    "DynamoDB": {"lane": "dynamodb", "api": HTTP},
    "Valkey, no network, own address": {"network": {"egress": "none"}, "api": URL},
    "Valkey, no network": {"network": {"egress": "none"}, "api": HTTP},
    "Valkey, 1 NAT gateway": {"network": {"egress": "nat", "nat_gateways": 1}, "api": HTTP},
    "Valkey, endpoints": {"network": {"egress": "endpoints"}, "api": HTTP},
    "Valkey, 2 NAT gateways": {"network": {"egress": "nat", "nat_gateways": 2}, "api": HTTP},
}
CHANGES: dict[str, dict[str, Any]] = {
    "a REST API with WAF": {"api": {"kind": "rest"}},
    "two instances of ingest kept warm": {"warmth": {"ingest": 2}},
    "four shards": {"shards": 4, "concurrency": {"processor": 8}},
    "tracing": {"tracing": True},
    "the canary": {"canary": True},
    "no fallback": {"fallback": False},
    "logs kept for a year": {"log_retention_days": 365},
    "a responder": {"responder": RESPONDER},
}
# The estimates of the original design, by the part of our bill that does the same, and by volume.
ESTIMATE = {
    "cache": "10–15", "ingest": "0.20", "processor": "0.40", "conversation processor": "0.80", "watchdog": "0.11",
    "API": "0.35", "network": "5–10", "events": "0.03",
}  # fmt: skip
ESTIMATED_TOTALS = ["–", "12–18", "17–27", "35–50", "150–200"]


def as_json(config: StageConfig, traffic: Traffic) -> dict[str, Any]:
    """Return the bill with every quantity and price, for programs."""
    lines = bill(config, traffic)
    shown = [{**line._asdict(), "unit_price": prices()[line.price].price, "monthly": line.monthly} for line in lines]
    return {
        "stage": config.name, "region": config.region, "prices_of": REGION, "traffic": traffic.model_dump(),
        "lines": shown, "total": total(lines), "without_messages": total(bill(config, NO_MESSAGES)),
    }  # fmt: skip


def as_text(config: StageConfig, traffic: Traffic) -> str:
    """Return the bill as a table with its total."""
    lines, idle = bill(config, traffic), total(bill(config, NO_MESSAGES))
    million = f" ({total(lines) / traffic.messages * 1e6:.2f} a million)" if traffic.messages else ""
    head = f"Stage {config.name} in {config.region}, {traffic.messages_per_day:,.0f} messages a day, prices of {REGION}"
    foot = f"Total: ${total(lines):.2f} a month{million}. Without messages: ${idle:.2f}. Assumptions: docs/cost.md."
    return f"{head}\n\n{_bill_table(lines)}\n\n{foot}"


def _bill_table(lines: Sequence[Line]) -> str:
    """Return the bill, the most expensive line first. The last row sums all lines under MIN_SHOWN_DOLLARS."""
    shown = sorted((line for line in lines if line.monthly >= MIN_SHOWN_DOLLARS), key=lambda line: -line.monthly)
    rows = []
    for line in shown:
        price = prices()[line.price]
        unit_price = f"{price.price:.10f}".rstrip("0").rstrip(".")
        quantity = f"{line.quantity:,.0f}" if line.quantity >= 100 else f"{line.quantity:.3g}"
        rows.append([line.component, _money(line.monthly), quantity, unit_price, price.unit])
    rows.append([f"{len(lines) - len(shown)} more", _money(total(lines) - total(shown)), "", "", ""])
    return _table(["component", "$/month", "quantity", "unit price", "unit"], rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that can also be read as text. All columns but the first are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    aligned = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in [heads, rule, *rows]
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in aligned)


def _money(dollars: float) -> str:
    return f"{dollars:,.2f}" if dollars < 1_000 else f"{dollars:,.0f}"


def write(folder: Path, stages: Mapping[str, Any]) -> None:
    """Write cost.md into the folder."""

    def stage(settings: Mapping[str, Any]) -> StageConfig:
        return load_stage(stages, stage=STAGE, overrides=json.dumps(settings))

    config = stage({})
    now, idle = bill(config, SHOWN), bill(config, NO_MESSAGES)
    traffics, kinds = [Traffic(messages_per_day=volume) for volume in VOLUMES], {}
    for name, settings in KINDS.items():
        kinds[name] = [_money(total(bill(stage(settings), traffic))) for traffic in traffics]
    volumes = [*([name, *amounts] for name, amounts in kinds.items()), ["the original estimate", *ESTIMATED_TOTALS]]
    changes = []
    for name, settings in CHANGES.items():
        changes.append([name, f"{total(bill(stage(settings), SHOWN)) - total(now):+,.2f}"])
    replies = [line for line in bill(stage({"responder": RESPONDER}), SHOWN) if line.part == "responder"]
    tokens = total(line for line in replies if line.price.endswith("_tokens"))
    waiting = total(line for line in replies if line.price.startswith("lambda"))
    gateway = (prices()["nat_hour"].price + prices()["public_address"].price) * HOURS
    polling = config.memory["processor"] / 1_024 * SECONDS * prices()["lambda_arm"].price
    page = Template((HERE / "cost.md.template").read_text()).substitute(
        stage=STAGE, shown=f"{SHOWN.messages_per_day:,.0f}", total=_money(total(now)), floor=_money(total(idle)),
        dynamodb_floor=kinds["DynamoDB"][0], public_floor=kinds["Valkey, no network"][0], gateway=_money(gateway),
        polling=_money(polling), volumes=_table(["messages a day", *(f"{volume:,}" for volume in VOLUMES)], volumes),
        bill=_bill_table(now), changes=_table(["change", "$/month"], changes), parts=_parts(now, idle),
        tokens=_money(tokens), waiting=_money(waiting),
    )  # fmt: skip
    (folder / "cost.md").write_text(page)


def _parts(now: Sequence[Line], idle: Sequence[Line]) -> str:
    """Return a table of the bill's parts beside the original estimates."""
    parts = [*ESTIMATE, *sorted({line.part for line in now} - ESTIMATE.keys())]
    rows = []
    for part in parts:
        ours = (_money(total(line for line in lines if line.part == part)) for lines in (now, idle))
        rows.append([part, ESTIMATE.get(part, "–"), *ours])
    rows.append(["total", ESTIMATED_TOTALS[VOLUMES.index(100_000)], _money(total(now)), _money(total(idle))])
    return _table(["part", "estimate", "ours", "ours without messages"], rows)
