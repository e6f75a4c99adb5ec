"""The monthly bill of a stage, line by line: the prices of prices.toml × the amounts of usage.toml and the traffic."""

import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from math import ceil, exp
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from infra.settings_and_defaults import Role, StageConfig, TimingsConfig
from message_buffer import limits

HERE = Path(__file__).parent
REGION = "us-east-1"
HOURS = 730
SECONDS = HOURS * 3_600
DAYS = HOURS / 24
MILLION = 1_000_000
GB = 1_000_000_000
# A rule starts one half of the watchdog's passes and of the DynamoDB lane's sweeps. A queue message of each of these
# starts the other half.
PASSES = SECONDS * limits.SECOND_MS / limits.WATCHDOG_PASS_MS
MINUTES = SECONDS / 60
SWEEPS = 2 * SECONDS / limits.RULE_SECONDS
CANARY_RUNS = SECONDS * limits.SECOND_MS / limits.CANARY_RUN_MS
# DynamoDB bills one write for each KB of an item, and one read for each 4 KB. It rounds up.
WRITE_BYTES, READ_BYTES = 1_024, 4_096
_Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Price(NamedTuple):
    price: float
    unit: str


@cache
def prices() -> dict[str, Price]:
    return {
        name: Price(price["price"], price["unit"])
        for name, price in tomllib.loads((HERE / "prices.toml").read_text()).items()
    }


@cache
def usage() -> dict[str, Any]:
    return tomllib.loads((HERE / "usage.toml").read_text())


def used(name: str) -> float:
    """Return one amount of usage.toml."""
    amount: float = usage()["amounts"][name]["value"]
    return amount


class Traffic(BaseModel):
    """The traffic. The fields' names are also the options of the command, and their descriptions the options' help."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages_per_day: _Count = Field(100_000, description="messages that people send")
    fragments_per_batch: float = Field(4, ge=1, le=1_000, description="messages in a batch")
    wait_seconds: float = Field(14, gt=0, le=86_400, description="from a batch's first message to its due time")
    statuses_per_batch: _Count = Field(3, description="webhooks without a message: sent, delivered, read")
    text_bytes: float = Field(60, ge=0, le=65_536, description="length of a message's text")
    active_hours: float = Field(16, gt=0, le=24, description="hours of the day in which people write")
    peak: float = Field(5, ge=1, description="traffic of the busiest second, divided by the average")

    @property
    def messages(self) -> float:
        return self.messages_per_day * DAYS

    @property
    def batches(self) -> float:
        return self.messages / self.fragments_per_batch

    @property
    def webhooks(self) -> float:
        return self.messages + self.batches * self.statuses_per_batch

    @property
    def active_seconds(self) -> float:
        return self.active_hours * DAYS * 3_600

    @property
    def busy_hours(self) -> float:
        """Return the share of the month's hours in which metrics are published."""
        return self.active_hours / 24 if self.messages_per_day else 0

    @property
    def event_bytes(self) -> float:
        return used("event_bytes") + self.fragments_per_batch * (used("event_fragment_bytes") + 2 * self.text_bytes)

    @property
    def payload_bytes(self) -> float:
        """Return the size of a message in the form in which it is buffered."""
        return used("fragment_bytes") + self.text_bytes


NO_MESSAGES = Traffic(messages_per_day=0)


class Line(NamedTuple):
    """A quantity that AWS bills at a price. `how` says in words how the quantity is computed."""

    part: str
    component: str
    price: str
    quantity: float
    how: str

    @property
    def monthly(self) -> float:
        return self.quantity * prices()[self.price].price


def processors(traffic: Traffic, *, shards: int, timings: TimingsConfig) -> tuple[float, float]:
    """Return how many seconds a stage's processors run in a month, and how often they start.

    A batch keeps its shard's processor running while it waits, and for `processor_idle_ms` after it is due. These
    intervals begin at random and overlap, so they form an M/G/∞ queue. Such a queue is empty for exp(-rate x length) of
    the time.
    """
    rate = traffic.batches / traffic.active_seconds / shards
    asleep = exp(-rate * (traffic.wait_seconds + timings.processor_idle_ms / 1_000))
    seconds = shards * traffic.active_seconds * (1 - asleep)
    # A processor that is always needed ends each run with a hand-over.
    handed_over = seconds / (limits.PROCESSOR_LIFE_SECONDS - timings.processor_handover_ms / 1_000) * (1 - asleep)
    return seconds, shards * traffic.active_seconds * rate * asleep + handed_over


def total(lines: Iterable[Line]) -> float:
    """Return the dollars a month of these lines."""
    return sum(line.monthly for line in lines)


def bill(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Return every line of a month's bill. Lines with a quantity of zero are left out."""
    parts: list[Callable[[StageConfig, Traffic], list[Line]]] = [_api, _ingest, _events, _secrets, _logs]
    parts += [_rules_and_aliases, _idle_pass, _counts, _metrics_and_alarms]
    if config.has_valkey_lane:
        parts += [_valkey_lane, _cache, _network]
    if config.has_dynamodb_lane:
        parts.append(_dynamodb_lane)
    if config.effective_queues:
        parts.append(_queues)
    if config.responder:
        parts.append(_responder)
    if config.canary:
        parts.append(_canary)
    return [line for part in parts for line in part(config, traffic) if line.quantity]


def _api(config: StageConfig, traffic: Traffic) -> list[Line]:
    millions, kind = traffic.webhooks / MILLION, config.api.kind
    answers = traffic.webhooks * used("answer_bytes") / GB
    lines = [Line("API", "answers to the internet", "internet_out", answers, "webhooks x size of the answer")]
    if kind != "url":
        lines.append(Line("API", f"API Gateway ({kind.upper()})", f"api_{kind}", millions, "messages + statuses"))
    if kind == "rest":
        lines += [
            Line("API", "WAF: web ACL", "waf_acl", 1, "one a stage"),
            Line("API", "WAF: rules", "waf_rule", used("waf_rules"), "rules in the ACL"),
            Line("API", "WAF: requests", "waf_requests", millions, "messages + statuses"),
        ]
    return lines


def _function(config: StageConfig, role: Role, *, runs: float, seconds: float, how: str) -> list[Line]:
    """Return the lines of a function that runs this often, and for this long in all."""
    name, gb = role.replace("_", " "), config.memory[role] / 1_024
    warm = next((count for kept, count in config.warmth.items() if kept == role), 0)
    price = "lambda_provisioned_duration_arm" if warm else "lambda_arm"
    return [
        Line(name, f"Lambda: {name}, requests", "lambda_requests", runs / MILLION, how),
        Line(name, f"Lambda: {name}, duration", price, seconds * gb, f"{how}, x billed time"),
        Line(name, f"Lambda: {name}, kept warm", "lambda_provisioned_arm", warm * SECONDS * gb, "instances x seconds"),
    ]


def billed_seconds(time_ms: str) -> float:
    """Return the billed seconds of an average invocation, including its share of the cold starts."""
    return (used(time_ms) + used("cold_share") * used("cold_start_ms")) / 1_000


def _ingest_seconds(config: StageConfig) -> float:
    return billed_seconds("ingest_ms" if config.has_valkey_lane else "ingest_into_dynamodb_ms")


def _ingest(config: StageConfig, traffic: Traffic) -> list[Line]:
    seconds = traffic.webhooks * _ingest_seconds(config)
    lines = _function(config, "ingest", runs=traffic.webhooks, seconds=seconds, how="messages + statuses")
    if config.end_user_messaging_topic:
        # SNS does not bill what it delivers to SQS.
        requests = (used("queue_polls") + 3 * traffic.webhooks) / MILLION
        lines.append(Line("ingest", "SQS: webhooks", "sqs_requests", requests, "polls + three requests a webhook"))
    return lines


def _valkey_lane(config: StageConfig, traffic: Traffic) -> list[Line]:
    running, starts = processors(traffic, shards=config.shards, timings=config.timings)
    # Each new instance of the processor warms up an instance of the conversation processor.
    starting = starts * used("cold_start_ms") / 1_000
    emitting = traffic.batches * billed_seconds("conversation_processor_ms") + starting
    passing = PASSES * config.shards * used("sweep_ms") / 1_000
    requests = (2 * used("queue_polls") + 3 * PASSES / 2) / MILLION
    return [
        *_function(config, "processor", runs=starts, seconds=running + starting, how="starts"),
        *_function(config, "conversation_processor", runs=traffic.batches + starts, seconds=emitting, how="batches"),
        *_function(config, "watchdog", runs=PASSES, seconds=passing, how="passes, two a minute"),
        Line("watchdog", "SQS: watchdog", "sqs_requests", requests, "polls of two queues + half of the passes x 3"),
    ]


def _cache(config: StageConfig, traffic: Traffic) -> list[Line]:
    stored, calls = stored_gb(traffic), ecpus(config, traffic) / MILLION
    billed = max(stored, used("cache_floor_gb")) * HOURS
    return [
        Line("cache", "Valkey: storage", "valkey_storage", billed, "waiting messages + a day's ids; at least 100 MB"),
        Line("cache", "Valkey: requests", "valkey_ecpu", calls, "calls x the higher of their CPU time and their KB"),
    ]


def stored_gb(traffic: Traffic) -> float:
    """Return the average GB in the cache during the active hours: waiting messages, and a day's message ids."""
    waiting = traffic.batches / traffic.active_seconds * traffic.wait_seconds
    more = max(traffic.fragments_per_batch * traffic.payload_bytes - 200, 0)
    return (waiting * (used("waiting_bytes") + more) + traffic.messages_per_day * used("remembered_bytes")) / GB


def ecpus(config: StageConfig, traffic: Traffic) -> float:
    """Return the ECPUs of all calls of a month."""
    running, _ = processors(traffic, shards=config.shards, timings=config.timings)
    empty_claim, batch = ecpu("empty_claim_us"), traffic.payload_bytes * traffic.fragments_per_batch
    buffering = traffic.messages * ecpu("buffer_us", used("buffer_call_bytes") + traffic.payload_bytes)
    taking = ecpu("take_us", used("take_call_bytes") + batch) + ecpu("take_us")
    looks = (
        running * limits.SECOND_MS * (1 / limits.PROCESSOR_LOOK_MS + limits.LEASE_RENEWALS / config.timings.lease_ms)
    )
    batches = traffic.batches * (empty_claim + ecpu("claim_us") + taking)
    return buffering + batches + (looks + PASSES * config.shards) * empty_claim


def ecpu(time_us: str, moved_bytes: float = 0) -> float:
    """Return the ECPUs of a call: the maximum of 1, its KB, and its time divided by the time of a simple command."""
    return max(used(time_us) / used("simple_command_us"), moved_bytes / 1_000, 1)


def _network(config: StageConfig, traffic: Traffic) -> list[Line]:
    network, call = config.network, used("sdk_call_bytes")
    _, starts = processors(traffic, shards=config.shards, timings=config.timings)
    to_aws = (
        traffic.batches * (1 + bool(config.effective_queues)) * (call + traffic.event_bytes)
        + traffic.batches * call
        + (3 * starts + _once_in(limits.SECRET_LIFE_MS, config, traffic)) * call
    )
    to_cache = traffic.messages * (used("buffer_call_bytes") + 2 * traffic.payload_bytes)
    to_cache += traffic.batches * used("take_call_bytes")
    if network.egress == "none":
        moved, how = 2 * to_cache / GB, "calls of Valkey, both ways; whether AWS bills this is not verified"
        return [Line("network", "public endpoint: data", "public_data", moved, how)]
    crossing = to_cache
    if network.egress == "nat":
        hours: float = network.nat_gateways * HOURS
        crossing += to_aws if network.nat_gateways < network.zones else 0
        lines = [
            Line("network", "NAT gateways", "nat_hour", hours, "gateways x hours"),
            Line("network", "NAT gateways: addresses", "public_address", hours, "gateways x hours"),
            Line("network", "NAT gateways: data", "nat_data", to_aws / GB, "calls of AWS APIs, both ways"),
        ]
    else:
        # Tracing needs one more endpoint, for X-Ray.
        hours = (used("endpoint_services") + config.tracing) * network.zones * HOURS
        lines = [
            Line("network", "interface endpoints", "endpoint_hour", hours, "services x zones x hours"),
            Line("network", "interface endpoints: data", "endpoint_data", to_aws / GB, "calls of AWS APIs, both ways"),
        ]
    # Half of the bytes are sent to the other zone, and AWS bills each of these bytes in both zones.
    return [*lines, Line("network", "between zones", "between_zones", crossing / GB, "half of the bytes x both zones")]


def _dynamodb_lane(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Return the lane's lines. As a fallback it only sweeps, in a month in which Valkey never fails."""
    messages, batches = (0.0, 0.0) if config.has_valkey_lane else (traffic.messages, traffic.batches)
    early = batches * used("early_triggers")
    stored = used("stored_message_bytes") + traffic.payload_bytes
    row = used("window_row_bytes") + traffic.fragments_per_batch * used("message_name_bytes")
    writes_of_message = 2 * ceil(stored / WRITE_BYTES) + 2  # put it, mark it as emitted; count it, note it
    writes_of_batch = 2 * ceil(row / WRITE_BYTES) + 3  # freeze, close; lock, into the index and out of it
    queried = row + traffic.fragments_per_batch * stored + used("tombstones_bytes")
    reads = batches * (1 + ceil(queried / READ_BYTES)) + early + SWEEPS * used("index_slices") / 2
    written = (messages * writes_of_message + batches * writes_of_batch) / MILLION
    seconds = batches * billed_seconds("dynamodb_processor_ms") + early * billed_seconds("early_trigger_ms")
    seconds += SWEEPS * billed_seconds("dynamodb_sweep_ms")
    requests = (used("queue_polls") + 3 * SWEEPS / 2 + 3 * batches + 2 * early) / MILLION
    part, how = "dynamodb processor", "batches, early triggers, sweeps"
    return [
        *_function(config, "dynamodb_processor", runs=batches + early + SWEEPS, seconds=seconds, how=how),
        Line(part, "DynamoDB: writes of the lane", "dynamodb_write", written, "messages and batches x writes of a KB"),
        Line(part, "DynamoDB: reads of the lane", "dynamodb_read", reads / MILLION, f"{how} x reads of 4 KB"),
        Line(part, "SQS: triggers", "sqs_requests", requests, f"polls + {how} x requests"),
    ]


def _events(config: StageConfig, traffic: Traffic) -> list[Line]:
    published, days = traffic.batches * traffic.event_bytes / GB, config.bus.archive_days
    events, archived = traffic.batches * ceil(traffic.event_bytes / 65_536) / MILLION, published if days else 0
    return [
        Line("events", "EventBridge: events", "events", events, "batches x 64 KB begun"),
        Line("events", "EventBridge: archive, written", "events_archived", archived, "batches x size of the event"),
        Line("events", "EventBridge: archive, kept", "events_kept", published * days / DAYS, "written x days kept"),
    ]


def _queues(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Return the queues' lines. SQS bills each 64 KB of a request as one request. Each event is sent and received."""
    polls = len(config.effective_queues) * used("queue_polls")
    requests = (polls + traffic.batches * (2 * ceil(traffic.event_bytes / 65_536) + 2)) / MILLION
    how = "polls of each queue's mapping + batches x (sent, received, hidden, deleted)"
    return [Line("queues", "SQS FIFO: queues", "sqs_fifo_requests", requests, how)]


def _once_in(life_ms: float, config: StageConfig, traffic: Traffic) -> float:
    """Return how often ingest runs a task in a month, if each of its busy instances runs the task every `life_ms`."""
    instances = 1 + traffic.webhooks / traffic.active_seconds * _ingest_seconds(config) * traffic.peak
    return min(traffic.webhooks, traffic.active_seconds * limits.SECOND_MS / life_ms * instances)


def _secrets(config: StageConfig, traffic: Traffic) -> list[Line]:
    reads = _once_in(limits.SECRET_LIFE_MS, config, traffic) / MILLION
    keys = used("keys") if config.has_valkey_lane else used("keys_of_dynamodb_lane")
    return [
        Line("secrets", "Secrets Manager: secret", "secret", 1, "the webhook secrets"),
        Line("secrets", "Secrets Manager: reads", "secret_calls", reads, "instances of ingest x minutes"),
        Line("secrets", "KMS: keys", "kms_key", keys, "keys of the stage"),
        Line("secrets", "KMS: requests", "kms_requests", reads, "reads of the secret"),
    ]


def _rules_and_aliases(config: StageConfig, traffic: Traffic) -> list[Line]:
    part, written = "rules, aliases", used("alias_writes") * traffic.batches / MILLION
    reads = traffic.webhooks * used("cold_share") * ceil(used("rules_bytes") / READ_BYTES)
    reads += _once_in(limits.MIN_MS_BETWEEN_RULES_CHECKS, config, traffic) + used("alias_reads") * traffic.batches
    how = "cold starts x all rules + instances x checks + batches x aliases"
    return [
        Line(part, "DynamoDB: reads of rules, aliases", "dynamodb_read", reads / MILLION, how),
        Line(part, "DynamoDB: writes of aliases", "dynamodb_write", written, "batches x share of new authors"),
    ]


def _idle_pass(config: StageConfig, _traffic: Traffic) -> list[Line]:
    passes, seconds = MINUTES, MINUTES * billed_seconds("dynamodb_sweep_ms")
    return [
        *_function(config, "admin", runs=passes, seconds=seconds, how="passes over silent customers, one a minute"),
        Line("admin", "DynamoDB: reads of idle steps", "dynamodb_read", passes / 2 / MILLION, "passes / 2"),
    ]


def _counts(_config: StageConfig, traffic: Traffic) -> list[Line]:
    minutes = min(traffic.batches, traffic.active_seconds / 60)
    turns = min(traffic.batches, HOURS * used("turns_an_hour"))
    written = (minutes * used("count_writes") + turns * used("turn_writes")) / MILLION
    return [Line("counts", "DynamoDB: writes of counts", "dynamodb_write", written, "minutes with batches x writes")]


def _logs(config: StageConfig, traffic: Traffic) -> list[Line]:
    written = traffic.webhooks * used("webhook_log_bytes")
    if config.api.kind != "url":
        written += traffic.webhooks * used("access_log_bytes")
    if config.has_valkey_lane:
        running, starts = processors(traffic, shards=config.shards, timings=config.timings)
        written += traffic.batches * used("batch_log_bytes") + starts * used("run_log_bytes")
        written += PASSES * config.shards * used("pass_log_bytes")
        written += running * limits.SECOND_MS / limits.METRICS_EVERY_MS * used("report_log_bytes")
    else:
        early = used("early_triggers") * used("early_trigger_log_bytes")
        written += traffic.batches * (used("dynamodb_batch_log_bytes") + early)
    written += SWEEPS * used("sweep_log_bytes") * config.has_dynamodb_lane
    kept = written * used("logs_compressed") * config.log_retention_days / DAYS
    return [
        Line("logs", "Logs: written", "logs_written", written / GB, "webhooks, batches, runs and passes x their lines"),
        Line("logs", "Logs: kept", "logs_kept", kept / GB, "compressed size x the stage's retention"),
    ]


def metrics_of(group: str) -> int:
    """Return the number of metrics of one group of usage.toml. Each value of a dimension is a metric of its own."""
    return sum(sum(names.values()) for names in usage()["metrics"][group].values())


def _metrics_and_alarms(config: StageConfig, traffic: Traffic) -> list[Line]:
    if config.has_valkey_lane:
        always, with_traffic = metrics_of("always") + metrics_of("sweep") * config.has_dynamodb_lane, "valkey"
        alarms = used("alarm_metrics_with_fallback" if config.has_dynamodb_lane else "alarm_metrics")
        alarms += used("alarm_metrics_of_public_cache") * (not config.has_network)
    else:
        always, with_traffic, alarms = metrics_of("sweep"), "dynamodb", used("alarm_metrics_of_dynamodb_lane")
    alarms += used("alarm_metrics_of_queue") * len(config.effective_queues)
    metrics = always + metrics_of(with_traffic) * traffic.busy_hours
    invocations = traffic.webhooks + traffic.batches + PASSES * config.has_valkey_lane
    # X-Ray samples one invocation a second and 5 % of the others.
    sampled = min(invocations, SECONDS + 0.05 * invocations) / MILLION * config.tracing
    part = "metrics, alarms"
    return [
        Line(part, "metrics of our own", "metric", metrics, "metrics always sent + others x hours with traffic"),
        Line(part, "alarms", "alarm", alarms, "metrics that alarms use"),
        Line(part, "dashboard", "dashboard", 1, "one a stage"),
        Line(part, "X-Ray: traces", "traces", sampled, "one invocation a second + 5 % of the others"),
    ]


def _responder(config: StageConfig, traffic: Traffic) -> list[Line]:
    part, batches, millions = "responder", traffic.batches, traffic.batches / MILLION
    seconds = batches * (used("responder_seconds") + 2 * billed_seconds("conversation_processor_ms"))
    return [
        *_function(config, "responder", runs=3 * batches, seconds=seconds, how="replies x (a run and two of the gate)"),
        Line(part, "DynamoDB: writes of replies", "dynamodb_write", millions * used("responder_writes"), "replies"),
        Line(part, "DynamoDB: reads of replies", "dynamodb_read", millions * used("responder_reads"), "replies"),
        Line(part, "EventBridge: events of replies", "events", millions, "replies"),
        Line(part, "Secrets Manager: responder", "secret", 1, "keys of the AI and the channels"),
        Line(part, "AI: tokens of prompts", "input_tokens", millions * used("prompt_tokens"), "replies x tokens"),
        Line(part, "AI: tokens of replies", "output_tokens", millions * used("reply_tokens"), "replies x tokens"),
    ]


def _canary(config: StageConfig, _traffic: Traffic) -> list[Line]:
    """Return the canary's lines. The runs are far apart, so each run starts a processor."""
    part, seconds, runs = "canary", used("canary_run_ms") / 1_000, CANARY_RUNS * (1 + limits.CANARY_FRAGMENTS)
    kept = seconds + (used("cold_start_ms") + config.timings.processor_idle_ms) / 1_000
    processor = CANARY_RUNS * kept * config.has_valkey_lane * config.memory["processor"] / 1_024
    return [
        *_function(config, "canary", runs=runs, seconds=CANARY_RUNS * seconds, how="runs and webhooks"),
        Line(part, "canary: processors", "lambda_arm", processor, "runs x (their time + idle time)"),
        Line(part, "canary: metrics", "metric", metrics_of("canary"), "metrics that its runs cause"),
        Line(part, "canary: alarms", "alarm", used("alarm_metrics_of_canary"), "metrics that alarms read"),
    ]
