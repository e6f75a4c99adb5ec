"""The dashboards of a stage, with the symptoms that users notice at the top."""

from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from message_buffer.limits import MAX_OVERDUE_MS

from .alarms import MAX_WINDOW_OVERDUE_MS, SIGN_IN_FAILURES, STARTED_BY_US
from .metrics import MINUTE, BufferMetrics, Metrics

WIDTH, HEIGHT = 24, 6
REFUSED = [metric for _, metric, _ in SIGN_IN_FAILURES]
GIGABYTE = 10**9

Line = cloudwatch.IMetric
Axis = cloudwatch.YAxisProps
Rows = list[list[cloudwatch.IWidget]]


def draw_dashboard(
    scope: Construct, name: str, rows: Rows, *, alarms: Sequence[cloudwatch.Alarm]
) -> cloudwatch.Dashboard:
    """Create the dashboard `message-buffer-<name>`. Each alarm appears in its first row."""
    return cloudwatch.Dashboard(
        scope,
        "Dashboard",
        dashboard_name=f"message-buffer-{name}",
        default_interval=cdk.Duration.hours(3),
        widgets=[
            [cloudwatch.AlarmStatusWidget(title="Alarms", alarms=list(alarms), width=WIDTH, height=4)],
            *rows,
        ],
    )


def rows_of_buffer(metrics: BufferMetrics) -> Rows:
    """Return the rows of graphs about all parts of the stage except the responder."""
    config = metrics.config
    return [
        *_titled("Is it working?", _health(metrics)),
        *_titled("Traffic", _traffic(metrics)),
        *(_titled("Batches", _batches(metrics)) if config.has_valkey_lane else []),
        *(_titled("Processors", _processors(metrics)) if config.has_valkey_lane else []),
        *(_titled("DynamoDB lane", _dynamodb_lane(metrics)) if config.has_dynamodb_lane else []),
        *_titled("Functions", _functions(metrics)),
        *(_titled("Cache", _cache(metrics)) if config.has_valkey_lane else []),
    ]


def rows_of_responder(metrics: Metrics) -> Rows:
    """Return the rows of graphs about the responder's function."""
    return _titled("Functions", _functions(metrics))


def _titled(title: str, widgets: Sequence[cloudwatch.IWidget]) -> Rows:
    heading = cloudwatch.TextWidget(
        markdown=f"## {title}", width=WIDTH, height=1, background=cloudwatch.TextWidgetBackground.TRANSPARENT
    )
    return [[heading], list(widgets)]


def _graph(
    title: str,
    lines: Sequence[Line],
    *,
    unit: str,
    right: Sequence[Line] = (),
    limit: float | None = None,
    stacked: bool = False,
) -> cloudwatch.GraphWidget:
    """Return a graph. `unit` labels the left axis; `limit` is drawn as a red line."""
    red = cloudwatch.HorizontalAnnotation(value=limit, label="limit", color=cloudwatch.Color.RED) if limit else None
    return cloudwatch.GraphWidget(
        title=title,
        left=list(lines),
        right=list(right),
        left_y_axis=Axis(label=unit, show_units=False, min=0),
        right_y_axis=Axis(show_units=False, min=0),
        left_annotations=[red] if red else [],
        stacked=stacked,
        width=WIDTH // 4,
        height=HEIGHT,
    )


def _percentiles(metrics: Metrics, name: str, service: str, label: str) -> list[Line]:
    return [
        metrics.custom(name, service, statistic=statistic).with_(label=f"{label} {statistic}")
        for statistic in ("p50", "p99")
    ]


def _health(metrics: BufferMetrics) -> list[cloudwatch.IWidget]:
    queues = [metrics.waiting_in(metrics.dead_letters, label="dead letters")]
    if metrics.whatsapp_queues:
        queues.append(metrics.waiting_in(metrics.whatsapp_queues.unreadable, label="unreadable webhooks"))
    overdue, lateness = _promptness(metrics)
    if metrics.config.canary:
        lateness.append(metrics.custom("CanaryLatenessMs", "canary", statistic="Maximum").with_(label="canary"))
    failures: list[Line] = [
        metrics.custom_sum("StoreFailures"),
        metrics.custom("Refused", "ingest"),
        metrics.custom("Crashes", "ingest"),
    ]
    if metrics.config.has_valkey_lane:
        failures += [metrics.custom("SweepFailures", "watchdog"), metrics.custom("SweepsCut", "watchdog")]
    return [
        overdue,
        _graph("Lateness, after the due time", lateness, unit="ms"),
        _graph("Dead letters", queues, unit="messages in the queue"),
        _graph("Failures", failures, unit="per minute"),
    ]


def _promptness(metrics: Metrics) -> tuple[cloudwatch.IWidget, list[Line]]:
    """Return a graph of the main lane's oldest overdue batch, and the lines for a graph of that lane's lateness."""
    if not metrics.config.has_valkey_lane:
        return _oldest_window(metrics), _percentiles(metrics, "EmitLatenessMs", "dynamodb_processor", "emitted")
    overdue = metrics.custom("OldestOverdueMs", "watchdog", statistic="Maximum")
    lateness = [
        *_percentiles(metrics, "LatenessMs", "processor", "claimed"),
        *_percentiles(metrics, "EmitLatenessMs", "conversation_processor", "emitted"),
    ]
    return _graph("Oldest overdue", [overdue], unit="ms", limit=MAX_OVERDUE_MS), lateness


def _oldest_window(metrics: Metrics) -> cloudwatch.GraphWidget:
    oldest = metrics.custom("OldestWindowOverdueMs", "dynamodb_processor", statistic="Maximum")
    return _graph("Oldest window overdue", [oldest], unit="ms", limit=MAX_WINDOW_OVERDUE_MS)


def _traffic(metrics: BufferMetrics) -> list[cloudwatch.IWidget]:
    api = metrics.api
    return [
        _graph(
            "Messages",
            [metrics.custom(name, "ingest") for name in ("Messages", "Duplicates", "Ignored")],
            unit="per minute",
        ),
        _graph(
            "Refused messages",
            [metrics.custom(name, "ingest") for name in ("Refused", "Unauthentic", "RulesSkipped", "RulesUnreachable")],
            unit="per minute",
        ),
        _graph(
            "API requests",
            [
                api.metric_count(period=MINUTE, statistic="Sum").with_(label="requests"),
                api.metric_client_error(period=MINUTE, statistic="Sum").with_(label="4xx"),
                api.metric_server_error(period=MINUTE, statistic="Sum").with_(label="5xx"),
            ],
            unit="per minute",
        ),
    ]


def _batches(metrics: Metrics) -> list[cloudwatch.IWidget]:
    conversation_processor = "conversation_processor"
    return [
        _graph(
            "Waiting and in flight",
            [metrics.custom(name, "watchdog", statistic="Maximum") for name in ("Pending", "InFlight")],
            unit="conversations",
        ),
        _graph(
            "Batches, and their size",
            [metrics.custom("Batches", conversation_processor)],
            right=[
                metrics.custom("BatchSize", conversation_processor, statistic="Average").with_(
                    label="messages, average"
                ),
                metrics.custom("BatchSize", conversation_processor, statistic="Maximum").with_(
                    label="messages, largest"
                ),
            ],
            unit="per minute",
        ),
        _graph(
            "Time from first message to batch",
            _percentiles(metrics, "WaitMs", conversation_processor, "waited"),
            unit="ms",
        ),
        _graph(
            "Batches by reason",
            [metrics.custom_by_reason("FlushReasons", conversation_processor)],
            unit="per minute",
            stacked=True,
        ),
    ]


def _processors(metrics: Metrics) -> list[cloudwatch.IWidget]:
    return [
        _graph(
            "Starts, by the function that started",
            [
                metrics.custom("ProcessorStarts", role).with_(label=role)
                for role, function in metrics.functions.items()
                if function.calls_valkey
            ],
            unit="per minute",
            stacked=True,
        ),
        _graph(
            "Exits, by reason",
            [metrics.custom_by_reason("ProcessorExits", "processor")],
            unit="per minute",
            stacked=True,
        ),
        _graph(
            "Starts that failed",
            [
                metrics.custom_sum("ProcessorStartFailures"),
                metrics.custom("ConversationProcessorStartFailures", "processor"),
                *(
                    metrics.function(role, "AsyncEventsDropped").with_(label=f"dropped: {role}")
                    for role in (*STARTED_BY_US, "watchdog")
                ),
            ],
            unit="per minute",
        ),
        _graph(
            "Repaired",
            [
                metrics.custom("Recovered", "watchdog"),
                metrics.custom("Retries", "conversation_processor"),
                metrics.custom("DeadLetters", "conversation_processor"),
                metrics.custom("Sweeps", "watchdog"),
            ],
            unit="per minute",
        ),
    ]


def _dynamodb_lane(metrics: Metrics) -> list[cloudwatch.IWidget]:
    emitter = "dynamodb_processor"
    repaired = ["Retries", "DeadLetters", "TriggersReturned", "TriggersResent", "LockLost", "Sweeps"]
    if metrics.config.has_valkey_lane:
        taken = [metrics.custom(name, "ingest") for name in ("FallbackMessages", "FallbackOpened")]
        first = _graph("Messages in an outage", taken, unit="per minute")
    else:
        reasons = metrics.custom_by_reason("FlushReasons", emitter)
        first = _graph("Batches of windows by reason", [reasons], unit="per minute", stacked=True)
    return [
        first,
        _graph(
            "Open windows",
            [metrics.custom("OpenWindows", emitter, statistic="Maximum")],
            right=[metrics.custom("OldestWindowOverdueMs", emitter, statistic="Maximum")],
            unit="windows",
        ),
        _graph(
            "Batches of windows, and their size",
            [metrics.custom("Batches", emitter)],
            right=[metrics.custom("BatchSize", emitter, statistic="Average").with_(label="messages, average")],
            unit="per minute",
        ),
        _graph("Repaired in windows", [metrics.custom(name, emitter) for name in repaired], unit="per minute"),
    ]


def _functions(metrics: Metrics) -> list[cloudwatch.IWidget]:
    def of_each(name: str, statistic: str) -> list[Line]:
        return [metrics.function(role, name, statistic=statistic) for role in metrics.functions]

    return [
        _graph("Errors", of_each("Errors", "Sum"), unit="per minute"),
        _graph("Throttles", of_each("Throttles", "Sum"), unit="per minute"),
        _graph("Duration p99", of_each("Duration", "p99"), unit="ms"),
        _graph("Concurrency", of_each("ConcurrentExecutions", "Maximum"), unit="instances"),
    ]


def _cache(metrics: BufferMetrics) -> list[cloudwatch.IWidget]:
    limits = metrics.config.cache
    return [
        _graph(
            "Storage",
            [metrics.cache("BytesUsedForCache", statistic="Maximum")],
            unit="bytes",
            limit=limits.max_storage_gb * GIGABYTE,
        ),
        _graph(
            "ECPUs",
            [
                cloudwatch.MathExpression(
                    expression="units / 60",
                    using_metrics={"units": metrics.cache("ElastiCacheProcessingUnits", statistic="Sum")},
                    label="ECPU/s, average of the minute",
                    period=MINUTE,
                )
            ],
            unit="per second",
            limit=limits.max_ecpu_per_second,
        ),
        _graph(
            "Refused by the cache",
            [
                metrics.cache(name, statistic="Sum")
                for name in ("ThrottledCmds", "Evictions", "AuthenticationFailures", *REFUSED)
            ],
            unit="per minute",
        ),
        _graph(
            "Latency, and connections",
            [
                metrics.cache(name, statistic=statistic)
                for name in ("SuccessfulReadRequestLatency", "SuccessfulWriteRequestLatency")
                for statistic in ("Average", "Maximum")
            ],
            right=[metrics.cache("CurrConnections", statistic="Maximum")],
            unit="µs",
        ),
    ]
