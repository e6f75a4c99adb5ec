"""The monthly bill of a stage, line by line."""

from math import ceil
from typing import Any

from bufferctl.cost import dynamodb_lane, end_user_messaging
from bufferctl.cost.canary import of_canary
from bufferctl.cost.facts import DAYS, GB, HOURS, MILLION, SECONDS, used
from bufferctl.cost.lines import Line, billed_seconds, log_lines, run_logs_gb, total
from bufferctl.cost.traffic import Traffic, processors
from infra.settings_and_defaults import StageConfig, WarmRole
from message_buffer.limits import (
    LEASE_RENEWALS,
    METRICS_EVERY_MS,
    MIN_MS_BETWEEN_RULES_CHECKS,
    PROCESSOR_LOOK_MS,
    SECOND_MS,
    SECRET_LIFE_MS,
    WATCHDOG_PASS_MS,
)

# Passes of the watchdog in a month. A rule starts one half of them, and messages from a queue start the other half.
PASSES = SECONDS * SECOND_MS / WATCHDOG_PASS_MS
QUEUED_PASSES = PASSES / 2
# VPC flow logs aggregate over ten minutes by default.
FLOW_RECORD_SECONDS = 600

EGRESSES: dict[str, dict[str, Any]] = {
    "1 NAT gateway": {"egress": "nat", "nat_gateways": 1},
    "2 NAT gateways": {"egress": "nat", "nat_gateways": 2},
    "endpoints": {"egress": "endpoints"},
    "no network": {"egress": "none"},
}


def bill(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Return every line of a month's bill. Lines with a quantity of zero are left out."""
    lines = [
        *_api(config, traffic),
        *_ingest(config, traffic),
        *_delivery(config, traffic),
        *_secrets(config, traffic),
        *_rules(config, traffic),
        *_aliases(traffic),
        *_watching(config, traffic),
    ]
    if config.has_valkey_lane:
        lines += [*_valkey_lane(config, traffic), *_cache(config, traffic), *_network(config, traffic)]
        if config.has_dynamodb_lane:
            lines += dynamodb_lane.idle(config)
    else:
        lines += dynamodb_lane.alone(config, traffic)
    if config.end_user_messaging_topic:
        lines += end_user_messaging.queue(traffic)
    if config.canary:
        lines += of_canary(config)
    return [line for line in lines if line.quantity]


def floors(config: StageConfig) -> dict[str, float]:
    """Return the cost in dollars of an idle month, by kind of egress.

    The result is empty on a stage without Valkey, because its functions are in no network.
    """
    if not config.has_valkey_lane:
        return {}
    nobody = Traffic(messages_per_day=0)
    return {name: total(bill(with_egress(config, name), nobody)) for name in EGRESSES}


def with_egress(config: StageConfig, name: str) -> StageConfig:
    network = config.network.model_copy(update=EGRESSES[name])
    return config.model_copy(update={"network": network})


def _api(config: StageConfig, traffic: Traffic) -> list[Line]:
    millions = traffic.webhooks / MILLION
    answers = traffic.webhooks * used("answer_bytes") / GB
    kind = config.api.kind
    lines = [Line("api", "Answers to the internet", "internet_out", answers, "requests x size of the answer")]
    if kind == "url":
        return lines
    lines.append(Line("api", f"API Gateway ({kind.upper()})", f"api_{kind}", millions, "messages + statuses"))
    lines += log_lines(
        config,
        traffic.webhooks * used("access_log_bytes") / GB,
        part="api",
        component="Logs: the API's accesses",
        formula="requests x line",
    )
    if kind == "rest":
        lines += [
            Line("api", "WAF: web ACL", "waf_acl", 1, "one a stage"),
            Line("api", "WAF: rules", "waf_rule", used("waf_rules"), "rules in the ACL"),
            Line("api", "WAF: requests", "waf_requests", millions, "messages + statuses"),
        ]
    return lines


def _valkey_lane(config: StageConfig, traffic: Traffic) -> list[Line]:
    run = processors(traffic, shards=config.shards, timings=config.timings)
    memory = config.memory
    run_seconds = run.seconds + run.starts * used("cold_start_ms") / 1_000
    pass_seconds = PASSES * config.shards * used("sweep_ms") / 1_000
    # Each new instance of the processor warms up an instance of the conversation processor.
    conversation_processor_seconds = (
        traffic.batches * billed_seconds("conversation_processor_ms") + run.starts * used("cold_start_ms") / 1_000
    )
    return [
        Line("processor", "Lambda: processor, requests", "lambda_requests", run.starts / MILLION,
             "starts of processors"),
        Line("processor", "Lambda: processor, duration", _duration(config, "processor"),
             run_seconds * memory["processor"] / 1_024,
             "shards x active seconds x (1 - exp(-batches a second x (wait + idle time)))"),
        Line("conversation_processor", "Lambda: conversation processor, requests", "lambda_requests",
             (traffic.batches + run.starts) / MILLION, "batches + starts of processors"),
        Line("conversation_processor", "Lambda: conversation processor, duration",
             _duration(config, "conversation_processor"),
             conversation_processor_seconds * memory["conversation_processor"] / 1_024,
             "batches x billed time + starts of processors"),
        Line("watchdog", "Lambda: watchdog, requests", "lambda_requests", PASSES / MILLION, "passes, two a minute"),
        Line("watchdog", "Lambda: watchdog, duration", "lambda_arm", pass_seconds * memory["watchdog"] / 1_024,
             "passes x shards x billed time"),
        Line("watchdog", "SQS: watchdog's second pass, records of failed processors", "sqs_requests",
             (2 * used("queue_polls") + QUEUED_PASSES * 3) / MILLION,
             "polls of two queues + every other pass x (send, receive, delete)"),
        *_kept_warm(config, "processor"),
        *_kept_warm(config, "conversation_processor"),
        *_valkey_lane_logs(config, traffic),
    ]  # fmt: skip


def _ingest(config: StageConfig, traffic: Traffic) -> list[Line]:
    gb = config.memory["ingest"] / 1_024
    gb_seconds = traffic.webhooks * gb * billed_seconds(_ingest_ms(config))
    logged = run_logs_gb(traffic.webhooks, "ingest_log_bytes")
    return [
        Line("ingest", "Lambda: ingest, requests", "lambda_requests", traffic.webhooks / MILLION,
             "messages + statuses"),
        Line("ingest", "Lambda: ingest, duration", _duration(config, "ingest"), gb_seconds, "requests x billed time"),
        *log_lines(config, logged, part="ingest", component="Logs: ingest", formula="requests x lines"),
        *_kept_warm(config, "ingest"),
    ]  # fmt: skip


def _duration(config: StageConfig, role: WarmRole) -> str:
    return "lambda_provisioned_duration_arm" if role in config.warmth else "lambda_arm"


def _kept_warm(config: StageConfig, role: WarmRole) -> list[Line]:
    kept = config.warmth.get(role, 0) * SECONDS * config.memory[role] / 1_024
    name = f"Lambda: {role.replace('_', ' ')}, kept warm"
    return [Line(role, name, "lambda_provisioned_arm", kept, "instances x seconds of the month")]


def _ingest_ms(config: StageConfig) -> str:
    return "ingest_ms" if config.has_valkey_lane else "ingest_into_dynamodb_ms"


def _cache(config: StageConfig, traffic: Traffic) -> list[Line]:
    stored = stored_gb(traffic)
    return [
        Line("cache", "Valkey: storage", "valkey_storage", max(stored, used("cache_floor_gb")) * HOURS,
             "waiting messages + message ids of a day; at least 100 MB"),
        Line("cache", "Valkey: requests", "valkey_ecpu", ecpus(config, traffic) / MILLION,
             "calls x the higher of their CPU time and their KB"),
        Line("cache", "Valkey: snapshots", "valkey_snapshot", stored * config.cache.snapshot_days,
             "storage x days kept, without the minimum"),
    ]  # fmt: skip


def stored_gb(traffic: Traffic) -> float:
    """Return the average GB in the cache during the active hours: waiting messages, and a day's message ids."""
    waiting = traffic.batches / traffic.active_seconds * traffic.wait_seconds
    more = max(traffic.fragments_per_batch * traffic.payload_bytes - 200, 0)
    ids = traffic.messages_per_day * used("remembered_bytes")
    return (waiting * (used("waiting_bytes") + more) + ids) / GB


def ecpus(config: StageConfig, traffic: Traffic) -> float:
    """Return the ECPUs of all calls of a month."""
    run = processors(traffic, shards=config.shards, timings=config.timings)
    empty_claim = ecpu("empty_claim_us")
    payload, batch = traffic.payload_bytes, traffic.payload_bytes * traffic.fragments_per_batch
    buffering = traffic.messages * ecpu("buffer_us", used("buffer_call_bytes") + payload)
    batches = traffic.batches * (
        empty_claim + ecpu("claim_us") + ecpu("take_us", used("take_call_bytes") + batch) + ecpu("take_us")
    )
    polling = run.seconds * SECOND_MS * (1 / PROCESSOR_LOOK_MS + LEASE_RENEWALS / config.timings.lease_ms) * empty_claim
    return buffering + batches + polling + PASSES * config.shards * empty_claim


def ecpu(time_us: str, moved_bytes: float = 0) -> float:
    """Return the ECPUs of a call: the maximum of 1, its KB, and its time divided by the time of a simple command."""
    return max(used(time_us) / used("simple_command_us"), moved_bytes / 1_000, 1)


def _network(config: StageConfig, traffic: Traffic) -> list[Line]:
    run = processors(traffic, shards=config.shards, timings=config.timings)
    call = used("sdk_call_bytes")
    to_aws = (
        traffic.batches * (2 * call + traffic.event_bytes) + (3 * run.starts + _secret_calls(config, traffic)) * call
    )
    to_cache = traffic.messages * (used("buffer_call_bytes") + 2 * traffic.payload_bytes)
    to_cache += traffic.batches * used("take_call_bytes")
    crossing = to_cache
    network = config.network
    if network.egress == "none":
        crossed = 2 * (to_cache + traffic.messages * traffic.payload_bytes) / GB
        return [
            Line("network", "Public endpoint: data", "public_data", crossed,
                 "calls of Valkey, both ways; whether AWS bills this is not verified"),
        ]  # fmt: skip
    if network.egress == "nat":
        if network.nat_gateways < network.zones:
            crossing += to_aws
        lines = [
            Line("network", "NAT gateways", "nat_hour", network.nat_gateways * HOURS, "gateways x hours"),
            Line("network", "NAT gateways: addresses", "public_address", network.nat_gateways * HOURS,
                 "gateways x hours"),
            Line("network", "NAT gateways: data", "nat_data", to_aws / GB, "calls of AWS APIs, both ways"),
        ]  # fmt: skip
    else:
        # Tracing needs one more endpoint, for X-Ray.
        endpoints = (used("endpoint_services") + config.tracing) * network.zones
        lines = [
            Line("network", "Interface endpoints", "endpoint_hour", endpoints * HOURS, "services x zones x hours"),
            Line("network", "Interface endpoints: data", "endpoint_data", to_aws / GB, "calls of AWS APIs, both ways"),
        ]
    # Half of the bytes are sent to the other zone, and AWS bills each of these bytes in both zones.
    lines.append(Line("network", "Between zones", "between_zones", crossing / GB, "half of the bytes x both zones"))
    if config.network.flow_logs:
        running = 1 + run.seconds / SECONDS + _instances(traffic, traffic.webhooks, "ingest_ms")
        running += _instances(traffic, traffic.batches, "conversation_processor_ms")
        written = running * used("flows") * used("flow_record_bytes") * SECONDS / FLOW_RECORD_SECONDS / GB
        lines += log_lines(
            config,
            written,
            part="network",
            component="Flow logs",
            formula="running functions x flow records in ten minutes",
        )
    return lines


def _delivery(config: StageConfig, traffic: Traffic) -> list[Line]:
    oversize = traffic.batches * traffic.oversize_share
    events = traffic.batches * ceil(traffic.event_bytes / 65_536)
    published = traffic.batches * traffic.event_bytes / GB
    days = config.bus.archive_days
    kept = oversize * used("oversize_bytes") / GB * config.oversize_days / DAYS
    return [
        Line("delivery", "EventBridge: events", "events", events / MILLION, "batches x 64 KB begun"),
        Line("delivery", "EventBridge: archive, written", "events_archived", published if days else 0,
             "batches x size of the event"),
        Line("delivery", "EventBridge: archive, kept", "events_kept", published * days / DAYS,
             "events x the stage's archive_days"),
        Line("delivery", "S3: over-size batches, put", "s3_put", oversize / MILLION, "batches x share of large ones"),
        Line("delivery", "S3: over-size batches, kept", "s3_storage", kept,
             "large batches x the days until they are deleted"),
    ]  # fmt: skip


def _secrets(config: StageConfig, traffic: Traffic) -> list[Line]:
    calls = _secret_calls(config, traffic)
    keys = used("keys") if config.has_valkey_lane else used("keys_of_dynamodb_lane")
    return [
        Line("secrets", "Secrets Manager: secret", "secret", used("secrets"), "the webhook secrets"),
        Line("secrets", "Secrets Manager: reads", "secret_calls", calls / MILLION,
             "instances of ingest x minutes"),
        Line("secrets", "KMS: keys", "kms_key", keys, "keys of the stage"),
        Line("secrets", "KMS: requests", "kms_requests", calls / MILLION, "reads of the secret"),
    ]  # fmt: skip


def _secret_calls(config: StageConfig, traffic: Traffic) -> float:
    return _once_in(SECRET_LIFE_MS / SECOND_MS, config, traffic)


def _rules(config: StageConfig, traffic: Traffic) -> list[Line]:
    whole = ceil(used("rules_bytes") / 4_096)
    checks = _once_in(MIN_MS_BETWEEN_RULES_CHECKS / SECOND_MS, config, traffic)
    read = checks + traffic.webhooks * used("cold_share") * whole
    return [
        Line("rules", "DynamoDB: reads", "dynamodb_read", read / MILLION,
             "instances of ingest x a check every 5 s; cold starts x all rules, by 4 KB"),
    ]  # fmt: skip


def _aliases(traffic: Traffic) -> list[Line]:
    read, written = used("alias_reads") * traffic.batches, used("alias_writes") * traffic.batches
    return [
        Line("aliases", "DynamoDB: reads of aliases", "dynamodb_read", read / MILLION, "batches x reads"),
        Line("aliases", "DynamoDB: writes of aliases", "dynamodb_write", written / MILLION, "batches x writes"),
    ]


def _once_in(seconds: float, config: StageConfig, traffic: Traffic) -> float:
    """Return how often ingest runs a task in a month, if each of its busy instances runs the task every `seconds`."""
    instances = 1 + _instances(traffic, traffic.webhooks, _ingest_ms(config))
    return min(traffic.webhooks, traffic.active_seconds / seconds * instances)


def _instances(traffic: Traffic, invocations: float, time_ms: str) -> float:
    """Return how many instances run at the same time in the busiest second."""
    return invocations / traffic.active_seconds * billed_seconds(time_ms) * traffic.peak


def _valkey_lane_logs(config: StageConfig, traffic: Traffic) -> list[Line]:
    run = processors(traffic, shards=config.shards, timings=config.timings)
    platform = used("platform_log_bytes")
    sweep = used("sweep_log_bytes") * (1 + config.shards) / 2
    written = {
        "processor": ("processor", traffic.batches * used("claim_log_bytes")
                      + run.starts * (used("run_log_bytes") + platform)
                      + run.seconds * SECOND_MS / METRICS_EVERY_MS * used("report_log_bytes"),
                      "batches, starts, and each 30 s of a run x lines"),
        "conversation_processor": ("conversation processor",
                      GB * run_logs_gb(traffic.batches, "conversation_processor_log_bytes"), "batches x lines"),
        "watchdog": ("watchdog", PASSES * (sweep + platform), "passes x lines"),
    }  # fmt: skip
    lines: list[Line] = []
    for part, (what, size, formula) in written.items():
        lines += log_lines(config, size / GB, part=part, component=f"Logs: {what}", formula=formula)
    return lines


def _watching(config: StageConfig, traffic: Traffic) -> list[Line]:
    always, with_traffic, alarms = _watched(config)
    metrics = always + with_traffic * traffic.busy_hours
    lines = [
        Line(
            "watching",
            "Metrics of our own",
            "metric",
            metrics,
            "metrics that are always sent + others x share of hours with traffic",
        ),
        Line("watching", "Alarms", "alarm", alarms, "metrics that alarms use"),
        Line("watching", "Dashboard", "dashboard", used("dashboards"), "dashboards of the stage"),
    ]
    if config.tracing:
        invocations = traffic.webhooks + traffic.batches + PASSES * config.has_valkey_lane
        invocations += dynamodb_lane.SWEEPS * config.has_dynamodb_lane
        # X-Ray samples one invocation a second and 5 % of the others.
        sampled = min(invocations, SECONDS + 0.05 * invocations)
        lines.append(
            Line(
                "watching", "X-Ray: traces", "traces", sampled / MILLION, "one invocation a second + 5 % of the others"
            )
        )
    return lines


def _watched(config: StageConfig) -> tuple[float, float, float]:
    """Return three numbers of metrics: those sent always, those sent only with traffic, and those that alarms watch."""
    if not config.has_valkey_lane:
        always, with_traffic = used("metrics_of_sweep"), used("metrics_of_dynamodb_lane")
        return always, with_traffic, used("alarm_metrics_of_dynamodb_lane")
    swept = used("metrics_of_sweep") if config.has_dynamodb_lane else 0
    alarms = used("alarm_metrics_with_fallback") if config.has_dynamodb_lane else used("alarm_metrics")
    alarms += 0 if config.has_network else used("alarm_metrics_of_public_cache")
    return used("metrics_always") + swept, used("metrics_with_traffic"), alarms
