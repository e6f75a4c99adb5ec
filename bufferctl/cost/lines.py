"""A line of a bill, and computations that the bills of several parts of a stage share."""

from collections.abc import Iterable
from typing import NamedTuple

from bufferctl.cost.facts import DAYS, GB, prices, used
from infra.settings_and_defaults import StageConfig


class Line(NamedTuple):
    """A quantity that AWS bills at a price. `formula` says in words how the quantity is computed."""

    part: str
    component: str
    price: str
    quantity: float
    formula: str

    @property
    def monthly(self) -> float:
        return self.quantity * prices()[self.price].price


def total(lines: Iterable[Line]) -> float:
    """Return the dollars a month of these lines."""
    return sum(line.monthly for line in lines)


def log_lines(config: StageConfig, gb: float, *, part: str, component: str, formula: str) -> list[Line]:
    """Return the lines for writing and keeping `gb` of logs a month."""
    kept = gb * used("logs_compressed") * config.log_retention_days / DAYS
    return [
        Line(part, component, "logs_written", gb, formula),
        Line(part, f"{component}, kept", "logs_kept", kept, "compressed size x the stage's retention"),
    ]


def run_logs_gb(runs: float, logged: str) -> float:
    """Return the GB that a function's runs log. `logged` is a key in usage.toml: the bytes that one run logs."""
    return runs * (used(logged) + used("platform_log_bytes")) / GB


def billed_seconds(time_ms: str) -> float:
    """Return the billed seconds of an average invocation, including its share of the cold starts."""
    return (used(time_ms) + used("cold_share") * used("cold_start_ms")) / 1_000
