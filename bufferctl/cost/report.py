"""Format a bill: as a table for people, and as JSON for programs."""

from typing import Any

from bufferctl.cost.alternatives import kinds_of_stage
from bufferctl.cost.facts import REGION, prices
from bufferctl.cost.lines import Line, total
from bufferctl.cost.model import bill, floors
from bufferctl.cost.traffic import Traffic
from infra.settings_and_defaults import StageConfig

HEAD = ["component", "quantity", "unit", "unit price", "$/month", "share", "how"]
# Lines below this are summed in one row.
MIN_SHOWN_DOLLARS = 0.01
# Numbers from this on are shown without decimals.
MIN_WHOLE_NUMBER = 100


def rows(lines: list[Line], *, min_dollars: float = MIN_SHOWN_DOLLARS) -> list[list[str]]:
    """Return the cells of the table, the most expensive line first. Lines under `min_dollars` share the last row."""
    whole = total(lines)
    shown = sorted((line for line in lines if line.monthly >= min_dollars), key=lambda line: -line.monthly)
    small = [line for line in lines if line.monthly < min_dollars]
    cells = [
        [
            line.component, number(line.quantity), prices()[line.price].unit, unit_price(prices()[line.price].price),
            f"{line.monthly:.2f}", f"{line.monthly / whole:.1%}", line.formula,
        ]
        for line in shown
    ]  # fmt: skip
    if small:
        more = ["", "", "", f"{total(small):.2f}", f"{total(small) / whole:.1%}", f"each under ${min_dollars:.2f}"]
        cells.append([f"{len(small)} more", *more])
    return cells


def number(value: float) -> str:
    """Return the number with at least three significant digits."""
    return f"{value:,.0f}" if value >= MIN_WHOLE_NUMBER else f"{value:,.3g}"


def unit_price(price: float) -> str:
    """Return a price without an exponent and without trailing zeros."""
    return f"{price:.10f}".rstrip("0") if price < MIN_SHOWN_DOLLARS else f"{price:g}"


def as_text(config: StageConfig, traffic: Traffic) -> str:
    """Return the bill as a table with its total."""
    lines = bill(config, traffic)
    cells = [HEAD, *rows(lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEAD))]
    numeric = {1, 3, 4, 5}
    table = [
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    floor = total(bill(config, Traffic(messages_per_day=0)))
    empty = ", ".join(f"{amount:.2f} with {name}" for name, amount in floors(config).items())
    by_egress = f" ({empty})" if empty else ""
    million = f" ({total(lines) / traffic.messages * 1e6:.2f} a million)" if traffic.messages else ""
    return "\n".join(
        [
            f"Stage {config.name}, {traffic.messages_per_day:,.0f} messages a day{_elsewhere(config)}",
            "",
            *table,
            "",
            f"Total: ${total(lines):.2f} a month{million}. With no messages: ${floor:.2f}{by_egress}.",
            "",
            *_other_kinds(config, traffic),
            "",
            "Free tiers are not subtracted. For the assumptions see docs/cost.md.",
        ]
    )


def _other_kinds(config: StageConfig, traffic: Traffic) -> list[str]:
    """Return a table of the cost of each kind of stage, with this traffic and without messages."""
    kinds = compared(config, traffic)
    width = max(map(len, kinds))
    head = f"{'The same traffic in another kind of stage':<{width}}  $/month  without messages"
    return [head, *(f"{name:<{width}}  {whole:>7,.2f}  {floor:>16,.2f}" for name, (whole, floor) in kinds.items())]


def compared(config: StageConfig, traffic: Traffic) -> dict[str, tuple[float, float]]:
    """Return the dollars a month of each kind of stage, with this traffic and without messages."""
    nobody = Traffic(messages_per_day=0)
    return {
        name: (total(bill(kind, traffic)), total(bill(kind, nobody))) for name, kind in kinds_of_stage(config).items()
    }


def _elsewhere(config: StageConfig) -> str:
    return "" if config.region == REGION else f"; the prices are those of {REGION}, but the stage is in {config.region}"


def as_json(config: StageConfig, traffic: Traffic) -> dict[str, Any]:
    """Return the bill with every quantity and price, for programs."""
    lines = bill(config, traffic)
    return {
        "stage": config.name,
        "region": config.region,
        "pricesOf": REGION,
        "traffic": traffic.model_dump(),
        "lines": [
            {
                "component": line.component,
                "part": line.part,
                "quantity": line.quantity,
                "price": line.price,
                "unit": prices()[line.price].unit,
                "unitPrice": prices()[line.price].price,
                "monthly": line.monthly,
                "formula": line.formula,
            }
            for line in lines
        ],
        "total": total(lines),
        "floor": total(bill(config, Traffic(messages_per_day=0))),
        "floors": floors(config),
        "kinds": {name: {"total": whole, "floor": floor} for name, (whole, floor) in compared(config, traffic).items()},
    }
