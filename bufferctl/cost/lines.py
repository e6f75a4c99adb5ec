"""A line of a bill, and computations that the bills of several parts of a stage share."""

from collections.abc import Iterable
from typing import NamedTuple

from bufferctl.cost.facts import DAYS, GB, prices, used
from infra.settings_and_defaults import LOG_RETENTION_DAYS, StageConfig
from message_buffer.limits import MAX_METRICS_AGE_MS, SECOND_MS

<<<<<<< ours
||||||| base
# These two numbers repeat those of the runtime, which this package may not import; a test compares them. In a stage
# that logs a share of its conversations, an instance writes its metrics once in this time, or when a metric has this
# many values.
WRITE_SECONDS = 10
MAX_RUNS_A_WRITE = 100

=======
# Powertools writes the metrics of an instance when a metric has this many values.
MAX_RUNS_A_WRITE = 100

>>>>>>> theirs

class Line(NamedTuple):
    """A quantity of something that AWS prices. `formula` says in words how the quantity is computed."""

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
    kept = gb * used("logs_compressed") * LOG_RETENTION_DAYS[config.log_retention] / DAYS
    return [
        Line(part, component, "logs_written", gb, formula),
        Line(part, f"{component}, kept", "logs_kept", kept, "compressed size x the stage's retention"),
    ]


<<<<<<< ours
def run_logs_gb(runs: float, logged: str) -> float:
    """Return the GB that runs of a function log. `logged` names the bytes of one run in bufferctl/cost/usage.toml."""
    return runs * (used(logged) + used("platform_log_bytes")) / GB
||||||| base
class RunLogs(NamedTuple):
    """The names in bufferctl/cost/usage.toml of what one run of a function logs."""

    whole: str
    line: str
    metrics: str
    values: str


INGEST_LOGS = RunLogs("ingest_log_bytes", "ingest_line_bytes", "ingest_metrics_bytes", "ingest_value_bytes")
BATCH_LOGS = RunLogs(
    "conversation_processor_log_bytes",
    "conversation_processor_line_bytes",
    "conversation_processor_metrics_bytes",
    "conversation_processor_value_bytes",
)


def run_logs_gb(config: StageConfig, traffic: Traffic, runs: float, logs: RunLogs) -> float:
    """Return the GB that all runs of a function log in a month.

    A stage that logs a share of its conversations writes neither Lambda's lines nor metrics for each run. It writes the
    metrics of many runs together.
    """
    if config.log_share >= 1:
        return runs * (used(logs.whole) + used("platform_log_bytes")) / GB
    timely = traffic.active_seconds / WRITE_SECONDS * _busy(traffic, runs)
    writes = min(runs, max(runs / MAX_RUNS_A_WRITE, timely))
    lines = config.log_share * runs * used(logs.line)
    return (lines + writes * used(logs.metrics) + runs * used(logs.values)) / GB


def _busy(traffic: Traffic, runs: float) -> float:
    """Return how many instances run: at least one, and as many as the runs of the busiest second need.

    Take every run to be as long as the slowest function's, so that the estimate is too high rather than too low.
    """
    return 1 + runs / traffic.active_seconds * traffic.peak * billed_seconds("dynamodb_processor_ms")
=======
class RunLogs(NamedTuple):
    """The names in bufferctl/cost/usage.toml of what one run of a function logs."""

    whole: str
    line: str
    metrics: str
    values: str


INGEST_LOGS = RunLogs("ingest_log_bytes", "ingest_line_bytes", "ingest_metrics_bytes", "ingest_value_bytes")
BATCH_LOGS = RunLogs(
    "conversation_processor_log_bytes",
    "conversation_processor_line_bytes",
    "conversation_processor_metrics_bytes",
    "conversation_processor_value_bytes",
)


def run_logs_gb(config: StageConfig, traffic: Traffic, runs: float, logs: RunLogs) -> float:
    """Return the GB that all runs of a function log in a month.

    A stage that logs a share of its conversations writes neither Lambda's lines nor metrics for each run. It writes the
    metrics of many runs together.
    """
    if config.log_share >= 1:
        return runs * (used(logs.whole) + used("platform_log_bytes")) / GB
    timely = traffic.active_seconds * SECOND_MS / MAX_METRICS_AGE_MS * _busy(traffic, runs)
    writes = min(runs, max(runs / MAX_RUNS_A_WRITE, timely))
    lines = config.log_share * runs * used(logs.line)
    return (lines + writes * used(logs.metrics) + runs * used(logs.values)) / GB


def _busy(traffic: Traffic, runs: float) -> float:
    """Return how many instances run: at least one, and as many as the runs of the busiest second need.

    Take every run to be as long as the slowest function's, so that the estimate is too high rather than too low.
    """
    return 1 + runs / traffic.active_seconds * traffic.peak * billed_seconds("dynamodb_processor_ms")
>>>>>>> theirs


def billed_seconds(time_ms: str) -> float:
    """Return the billed seconds of an average invocation, including its share of the cold starts."""
    return (used(time_ms) + used("cold_share") * used("cold_start_ms")) / 1_000
