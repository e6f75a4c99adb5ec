"""The monthly bill of a stage, line by line."""

from math import ceil
from typing import Any

from cost import window
from cost.facts import DAYS, GB, HOURS, MILLION, SECONDS, used
from cost.lines import Line, billed_seconds, log_lines, total
from cost.traffic import Traffic, processors
from infra.config import StageConfig
from infra.limits import ZONES

PASSES = HOURS * 60 * 2
LOOKS_A_SECOND = 2
RENEW_SECONDS = 5
RULES_CHECK_SECONDS = 5
REPORT_SECONDS = 30
FLOW_RECORD_SECONDS = 600

EGRESSES: dict[str, dict[str, Any]] = {
    "1 NAT gateway": {"egress": "nat", "nat_gateways": 1},
    "2 NAT gateways": {"egress": "nat", "nat_gateways": 2},
    "endpoints": {"egress": "endpoints"},
}


def bill(config: StageConfig, traffic: Traffic) -> list[Line]:
    """Every line of a month. What costs nothing in this stage is left out."""
    lines = [
        *_api(config, traffic),
        *_ingest(config, traffic),
        *_delivery(config, traffic),
        *_secrets(config, traffic),
        *_rules(config, traffic),
        *_watching(config, traffic),
    ]
    if config.has_valkey_lane:
        lines += [*_valkey_lane(config, traffic), *_cache(config, traffic), *_network(config, traffic)]
        if config.has_dynamodb_lane:
            lines += window.as_fallback(config, traffic)
    else:
        lines += window.alone(config, traffic)
    return [line for line in lines if line.quantity]


def floors(config: StageConfig) -> dict[str, float]:
    """The bill of a month in which nobody writes, by how the functions reach AWS; none where they are in no network."""
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
    lines = [
        Line("api", f"API Gateway ({kind.upper()})", f"api_{kind}", millions, "messages and statuses, a request each"),
        Line("api", "Answers to the internet", "internet_out", answers, "requests x answer"),
        *log_lines(config, traffic.webhooks * used("access_log_bytes") / GB, part="api",
                   component="Logs: the API's accesses", formula="requests x line"),
    ]  # fmt: skip
    if kind == "rest":
        lines += [
            Line("api", "WAF: web ACL", "waf_acl", 1, "one"),
            Line("api", "WAF: rules", "waf_rule", used("waf_rules"), "in the ACL"),
            Line("api", "WAF: requests", "waf_requests", millions, "messages and statuses"),
        ]
    return lines


def _valkey_lane(config: StageConfig, traffic: Traffic) -> list[Line]:
    run = processors(traffic, shards=config.shards, timings=config.timings)
    memory = config.memory
    run_seconds = run.seconds + run.starts * used("cold_start_ms") / 1_000
    pass_seconds = PASSES * config.shards * used("sweep_ms") / 1_000
    conversation_processor_seconds = traffic.batches * billed_seconds("executor_ms")
    return [
        Line("processor", "Lambda: processor, requests", "lambda_requests", run.starts / MILLION, "starts of a run"),
        Line("processor", "Lambda: processor, duration", "lambda_arm", run_seconds * memory.processor / 1_024,
             "active seconds x (1 - exp(-batches a second x (wait + idle time))), each shard"),
        Line("conversation_processor", "Lambda: conversation processor, requests", "lambda_requests", traffic.batches
        / MILLION,
             "one a batch"),
        Line("conversation_processor", "Lambda: conversation processor, duration", "lambda_arm",
             conversation_processor_seconds * memory.conversation_processor / 1_024, "batches x billed time"),
        Line("watchdog", "Lambda: watchdog, requests", "lambda_requests", PASSES / MILLION, "two passes a minute"),
        Line("watchdog", "Lambda: watchdog, duration", "lambda_arm", pass_seconds * memory.watchdog / 1_024,
             "passes x shards x billed time"),
        Line("watchdog", "SQS: watchdog's echo", "sqs_requests", (used("queue_polls") + PASSES / 2 * 3) / MILLION,
             "polls, and each minute: send, receive, delete"),
        *_valkey_lane_logs(config, traffic),
    ]  # fmt: skip


def _ingest(config: StageConfig, traffic: Traffic) -> list[Line]:
    gb, warmth = config.memory.ingest / 1_024, config.warmth.ingest
    duration = "lambda_provisioned_duration_arm" if warmth == "provisioned" else "lambda_arm"
    gb_seconds = traffic.webhooks * gb * billed_seconds(_ingest_ms(config))
    logged = traffic.webhooks * (used("ingest_log_bytes") + used("platform_log_bytes")) / GB
    lines = [
        Line("ingest", "Lambda: ingest, requests", "lambda_requests", traffic.webhooks / MILLION,
             "messages and statuses"),
        Line("ingest", "Lambda: ingest, duration", duration, gb_seconds, "requests x billed time"),
        *log_lines(config, logged, part="ingest", component="Logs: ingest", formula="requests x lines"),
    ]  # fmt: skip
    if warmth == "provisioned":
        kept = config.warmth.provisioned_instances * SECONDS * gb
        lines.append(Line("ingest", "Lambda: ingest, kept warm", "lambda_provisioned_arm", kept, "instances x month"))
    if warmth == "snap_start":
        restored = traffic.webhooks * used("cold_share") * gb
        lines += [
            Line("ingest", "Lambda: ingest, snapshot", "lambda_snapshot_kept", SECONDS * gb, "one version x month"),
            Line("ingest", "Lambda: ingest, restored", "lambda_snapshot_restored", restored, "cold starts x memory"),
        ]
    return lines


def _ingest_ms(config: StageConfig) -> str:
    return "ingest_ms" if config.has_valkey_lane else "window_ingest_ms"


def _cache(config: StageConfig, traffic: Traffic) -> list[Line]:
    stored = stored_gb(traffic)
    return [
        Line("cache", "Valkey: storage", "valkey_storage", max(stored, used("cache_floor_gb")) * HOURS,
             "what waits, and ids of a day; at least 100 MB"),
        Line("cache", "Valkey: requests", "valkey_ecpu", ecpus(config, traffic) / MILLION,
             "each call the higher of its CPU time and its KB"),
        Line("cache", "Valkey: snapshots", "valkey_snapshot", stored * config.cache.snapshot_days,
             "storage x days kept, without the floor"),
    ]  # fmt: skip


def stored_gb(traffic: Traffic) -> float:
    """Average of the active hours; a remembered id lives for a day."""
    waiting = traffic.batches / traffic.active_seconds * traffic.wait_seconds
    more = max(traffic.fragments_per_batch * traffic.payload_bytes - 200, 0)
    ids = traffic.messages_per_day * used("remembered_bytes")
    return (waiting * (used("waiting_bytes") + more) + ids) / GB


def ecpus(config: StageConfig, traffic: Traffic) -> float:
    """Of all calls of a month."""
    run = processors(traffic, shards=config.shards, timings=config.timings)
    look = ecpu("look_us")
    payload, batch = traffic.payload_bytes, traffic.payload_bytes * traffic.fragments_per_batch
    buffering = traffic.messages * ecpu("buffer_us", used("buffer_call_bytes") + payload)
    batches = traffic.batches * (
        look + ecpu("claim_us") + ecpu("take_us", used("take_call_bytes") + batch) + ecpu("take_us")
    )
    looking = run.seconds * (LOOKS_A_SECOND + 1 / RENEW_SECONDS) * look
    return buffering + batches + looking + PASSES * config.shards * look


def ecpu(time_us: str, moved_bytes: float = 0) -> float:
    """A simple command is one ECPU; another costs the higher of its time in simple commands and the KB it moves."""
    return max(used(time_us) / used("simple_command_us"), moved_bytes / 1_000, 1)


def _network(config: StageConfig, traffic: Traffic) -> list[Line]:
    run = processors(traffic, shards=config.shards, timings=config.timings)
    call = used("sdk_call_bytes")
    to_aws = (
        traffic.batches * (2 * call + traffic.event_bytes) + (2 * run.starts + _secret_calls(config, traffic)) * call
    )
    to_cache = traffic.messages * (used("buffer_call_bytes") + 2 * traffic.payload_bytes)
    to_cache += traffic.batches * used("take_call_bytes")
    crossing = to_cache
    network = config.network
    if network.egress == "nat":
        if network.nat_gateways < ZONES:
            crossing += to_aws
        lines = [
            Line("network", "NAT gateways", "nat_hour", network.nat_gateways * HOURS, "gateways x hours"),
            Line("network", "NAT gateways: addresses", "public_address", network.nat_gateways * HOURS,
                 "one each x hours"),
            Line("network", "NAT gateways: data", "nat_data", to_aws / GB, "calls of AWS APIs, both ways"),
        ]  # fmt: skip
    else:
        # X-Ray is a service more.
        endpoints = (used("endpoint_services") + config.tracing) * ZONES
        lines = [
            Line("network", "Interface endpoints", "endpoint_hour", endpoints * HOURS, "services x zones x hours"),
            Line("network", "Interface endpoints: data", "endpoint_data", to_aws / GB, "calls of AWS APIs, both ways"),
        ]
    # Half of it meets its partner in the other zone, and is billed where it leaves and where it arrives.
    lines.append(Line("network", "Between zones", "between_zones", crossing / GB, "half of the bytes, at both ends"))
    if config.network.flow_logs:
        running = 1 + run.seconds / SECONDS + _instances(traffic, traffic.webhooks, "ingest_ms")
        running += _instances(traffic, traffic.batches, "executor_ms")
        written = running * used("flows") * used("flow_record_bytes") * SECONDS / FLOW_RECORD_SECONDS / GB
        lines += log_lines(
            config, written, part="network", component="Flow logs", formula="running functions x flows in ten minutes"
        )
    return lines


def _delivery(config: StageConfig, traffic: Traffic) -> list[Line]:
    oversize = traffic.batches * traffic.oversize_share
    events = traffic.batches * ceil(traffic.event_bytes / 65_536)
    published = traffic.batches * traffic.event_bytes / GB
    days = config.bus.archive_days
    kept = oversize * used("oversize_bytes") / GB * config.oversize_retention_days / DAYS
    return [
        Line("delivery", "EventBridge: events", "events", events / MILLION, "batches x 64 KB begun"),
        Line("delivery", "EventBridge: archive, written", "events_archived", published if days else 0,
             "batches x event"),
        Line("delivery", "EventBridge: archive, kept", "events_kept", published * days / DAYS, "the days of the stage"),
        Line("delivery", "S3: over-size batches, put", "s3_put", oversize / MILLION, "batches x share"),
        Line("delivery", "S3: over-size batches, kept", "s3_storage", kept, "the days of the stage"),
    ]  # fmt: skip


def _secrets(config: StageConfig, traffic: Traffic) -> list[Line]:
    calls = _secret_calls(config, traffic)
    keys = used("keys") if config.has_valkey_lane else used("keys_of_dynamodb_lane")
    return [
        Line("secrets", "Secrets Manager: secret", "secret", used("secrets"), "the webhook secrets"),
        Line("secrets", "Secrets Manager: reads", "secret_calls", calls / MILLION,
             "each running ingest, once a minute"),
        Line("secrets", "KMS: keys", "kms_key", keys, "of the stage's own"),
        Line("secrets", "KMS: requests", "kms_requests", calls / MILLION, "one for each read of the secret"),
    ]  # fmt: skip


def _secret_calls(config: StageConfig, traffic: Traffic) -> float:
    return _once_in(60, config, traffic)


def _rules(config: StageConfig, traffic: Traffic) -> list[Line]:
    whole = ceil(used("rules_bytes") / 4_096)
    read = _once_in(RULES_CHECK_SECONDS, config, traffic) + traffic.webhooks * used("cold_share") * whole
    return [
        Line("rules", "DynamoDB: reads", "dynamodb_read", read / MILLION,
             "each running ingest, its version every 5 s; each cold start, all by 4 KB"),
    ]  # fmt: skip


def _once_in(seconds: float, config: StageConfig, traffic: Traffic) -> float:
    """How often the running instances of ingest do what each does once in so many seconds, if it has work."""
    instances = 1 + _instances(traffic, traffic.webhooks, _ingest_ms(config))
    return min(traffic.webhooks, traffic.active_seconds / seconds * instances)


def _instances(traffic: Traffic, invocations: float, time_ms: str) -> float:
    """How many run side by side in the busiest second."""
    return invocations / traffic.active_seconds * billed_seconds(time_ms) * traffic.peak


def _valkey_lane_logs(config: StageConfig, traffic: Traffic) -> list[Line]:
    run = processors(traffic, shards=config.shards, timings=config.timings)
    platform = used("platform_log_bytes")
    sweep = used("sweep_log_bytes") * (1 + config.shards) / 2
    written = {
        "processor": ("processor", traffic.batches * used("claim_log_bytes")
                      + run.starts * (used("run_log_bytes") + platform)
                      + run.seconds / REPORT_SECONDS * used("report_log_bytes"), "claims, runs, and each 30 s"),
        "conversation_processor": ("conversation processor",
                      traffic.batches * (used("conversation_processor_log_bytes") + platform), "batches x lines"),
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
        Line("watching", "Metrics of our own", "metric", metrics, "sent always, and in hours with traffic"),
        Line("watching", "Alarms", "alarm", alarms, "of the stage"),
        Line("watching", "Dashboard", "dashboard", used("dashboards"), "of the stage"),
    ]
    if config.tracing:
        invocations = traffic.webhooks + traffic.batches + PASSES * config.has_valkey_lane
        invocations += window.SWEEPS * config.has_dynamodb_lane
        # X-Ray takes one a second and a twentieth of the rest.
        sampled = min(invocations, SECONDS + 0.05 * invocations)
        lines.append(Line("watching", "X-Ray: traces", "traces", sampled / MILLION, "one a second and 5 % of the rest"))
    return lines


def _watched(config: StageConfig) -> tuple[float, float, float]:
    """Metrics that are always sent, those that are sent with traffic, and those that alarms look at."""
    if not config.has_valkey_lane:
        always, with_traffic = used("metrics_of_sweep"), used("metrics_of_dynamodb_lane")
        return always, with_traffic, used("alarm_metrics_of_dynamodb_lane")
    swept = used("metrics_of_sweep") if config.has_dynamodb_lane else 0
    alarms = used("alarm_metrics_with_fallback") if config.has_dynamodb_lane else used("alarm_metrics")
    return used("metrics_always") + swept, used("metrics_with_traffic"), alarms
