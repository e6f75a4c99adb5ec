"""When a person is told. Symptoms, which users notice, wake somebody; causes wait until morning."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk.aws_cloudwatch import TreatMissingData
from constructs import Construct

from infra.metrics import FIVE_MINUTES, Metrics

RUNBOOK = "docs/runbook.md"

# One error is nobody's page, nor is a bad minute of little traffic: it takes a share of the webhooks, and a number.
LEAST_REFUSED, REFUSED_PERCENT = 5, 5
OVERDUE_MS = 60_000
# A window's trigger may be lost: then the sweep, once a minute, sends it again.
WINDOW_OVERDUE_MS = 120_000
# ElastiCache's own advice for both of its limits.
CACHE_WARNING = 0.75
LOST_LEASES_A_SHARD = 2
LOST_LOCKS = 5
UNAUTHENTIC = 20
STARTED_BY_US = ("processor", "conversation_processor")
ASYNC = (*STARTED_BY_US, "watchdog")


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One alarm, and by its heading the paragraph of the runbook that answers it."""

    heading: str
    says: str
    metric: cloudwatch.IMetric
    above: float = 0
    below: float | None = None
    """It fires below this, instead of above the other."""
    periods: int = 1
    out_of: int | None = None
    missing: TreatMissingData = TreatMissingData.NOT_BREACHING
    role: str = ""

    @property
    def anchor(self) -> str:
        return self.heading.lower().replace(" ", "-")


def raise_alarms(scope: Construct, metrics: Metrics, *, action: cloudwatch.IAlarmAction) -> list[cloudwatch.Alarm]:
    """All alarms of a stage; each tells `action` when it fires and when it is over."""
    paged = [_alarm(scope, watch, stage=metrics.config.name, severity="page") for watch in symptoms(metrics)]
    ticketed = [_alarm(scope, watch, stage=metrics.config.name, severity="ticket") for watch in causes(metrics)]
    for alarm in (*paged, *ticketed):
        alarm.add_alarm_action(action)
        alarm.add_ok_action(action)
    return paged + ticketed


def symptoms(metrics: Metrics) -> Iterable[Watch]:
    config = metrics.config
    return [
        *(_symptoms_of_valkey_lane(metrics) if config.has_valkey_lane else []),
        *(_symptoms_of_dynamodb_lane(metrics) if config.has_dynamodb_lane else []),
        Watch(
            heading="Webhooks fail",
            says=f"The API answers more than {REFUSED_PERCENT} % of the webhooks with 5xx.",
            metric=_refused_percent(metrics),
            above=REFUSED_PERCENT,
        ),
        Watch(
            heading="Dead letters",
            says="Batches were given up and wait to be sent again.",
            metric=metrics.waiting_in(metrics.dead_letters, label="dead letters"),
        ),
    ]


def _symptoms_of_valkey_lane(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Oldest overdue",
            says="Batches are due for more than a minute and have not left.",
            metric=metrics.custom("OldestOverdueMs", "watchdog", statistic="Maximum"),
            above=OVERDUE_MS,
            periods=2,
            # A watchdog that cannot look does not mean that all is well again.
            missing=TreatMissingData.IGNORE,
        ),
        Watch(
            heading="Watchdog silent",
            says="For three minutes no pass of the watchdog has seen all shards.",
            metric=metrics.custom("Sweeps", "watchdog"),
            below=1,
            periods=3,
            missing=TreatMissingData.BREACHING,
        ),
        Watch(
            heading="Store failures",
            says="Valkey is away, full, or at its request limit, and has been for minutes.",
            metric=metrics.custom_sum("StoreFailures"),
            periods=3,
            out_of=5,
        ),
    ]


def _symptoms_of_dynamodb_lane(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Oldest window overdue",
            says="Windows have ended for more than two minutes, and their batches have not left.",
            metric=metrics.custom("OldestWindowOverdueMs", "dynamodb_processor", statistic="Maximum"),
            above=WINDOW_OVERDUE_MS,
            periods=2,
            # A sweep that cannot look does not mean that all is well again.
            missing=TreatMissingData.IGNORE,
        ),
        Watch(
            heading="Window sweep silent",
            says="For five minutes no sweep has looked for windows whose trigger was lost.",
            metric=metrics.custom("Sweeps", "dynamodb_processor"),
            below=1,
            periods=5,
            missing=TreatMissingData.BREACHING,
        ),
    ]


def causes(metrics: Metrics) -> Iterable[Watch]:
    config = metrics.config
    return chain(
        _causes_in_runtime(metrics),
        chain(_causes_in_valkey_lane(metrics), _causes_in_cache(metrics)) if config.has_valkey_lane else [],
        _causes_in_dynamodb_lane(metrics) if config.has_dynamodb_lane else [],
        _causes_in_lambda(metrics),
        _causes_in_responder(metrics),
    )


def _causes_in_valkey_lane(metrics: Metrics) -> Iterable[Watch]:
    shards, idle_ms = metrics.config.shards, metrics.config.timings.processor_idle_ms
    # A processor that was started stays for its idle time: twice as many starts mean that they do not stay.
    most_starts = 2 * shards * FIVE_MINUTES.to_milliseconds() / idle_ms
    return [
        Watch(
            heading="Lease flapping",
            role="lost",
            says="Processors lose their shard to another one, again and again.",
            metric=metrics.custom("ProcessorExits", "processor", reason="lost", period=FIVE_MINUTES),
            above=LOST_LEASES_A_SHARD * shards,
        ),
        Watch(
            heading="Lease flapping",
            role="starts",
            says="Processors are started more often than their idle time explains.",
            metric=metrics.custom_sum("ProcessorStarts", period=FIVE_MINUTES),
            above=most_starts,
        ),
        Watch(
            heading="Processor start failures",
            says="Lambda refuses to start processors.",
            metric=metrics.custom_sum("ProcessorStartFailures", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Conversation processor start failures",
            says="Lambda refuses to start conversation processors; their conversations are put back.",
            metric=metrics.custom("ConversationProcessorStartFailures", "processor", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Sweeps cut",
            says="The watchdog does not get round to all shards in one pass.",
            metric=metrics.custom("SweepsCut", "watchdog", period=FIVE_MINUTES),
        ),
        _emission_retries(metrics, "conversation_processor"),
    ]


def _causes_in_dynamodb_lane(metrics: Metrics) -> Iterable[Watch]:
    watches = [
        _emission_retries(metrics, "dynamodb_processor", role="dynamodb_processor"),
        Watch(
            heading="Window locks lost",
            says="Window processors lose their conversation to another one, again and again.",
            metric=metrics.custom("LockLost", "dynamodb_processor", period=FIVE_MINUTES),
            above=LOST_LOCKS,
        ),
    ]
    if metrics.config.has_valkey_lane:
        watches.append(
            Watch(
                heading="Fallback in use",
                says="Valkey could not be reached, and the DynamoDB lane takes the messages meanwhile.",
                metric=metrics.custom("FallbackMessages", "ingest"),
            )
        )
    return watches


def _emission_retries(metrics: Metrics, emitter: str, *, role: str = "") -> Watch:
    return Watch(
        heading="Emission retries",
        role=role,
        says="Batches cannot be put on the bus; after the last attempt they become dead letters.",
        metric=metrics.custom("Retries", emitter),
        periods=5,
    )


def _causes_in_runtime(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Ingest crashes",
            says="A webhook was answered 500: something nobody foresaw.",
            metric=metrics.custom("Crashes", "ingest", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Rules skipped",
            says="Rules of a scope are wrong, and those of the scope beneath stand in.",
            metric=metrics.custom("RulesSkipped", "ingest", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Rules unreachable",
            says="The table of rules does not answer: changes are not seen, and new instances take no messages.",
            metric=metrics.custom("RulesUnreachable", "ingest", period=FIVE_MINUTES),
            periods=2,
        ),
        Watch(
            heading="No secret",
            says="Webhooks come in for a platform that has no secret in this stage, and are refused.",
            metric=metrics.custom("NoSecret", "ingest", period=FIVE_MINUTES),
            periods=3,
        ),
        Watch(
            heading="Unauthentic webhooks",
            says="Many signatures are wrong: a secret that differs from the platform's, or an attack.",
            metric=metrics.custom("Unauthentic", "ingest", period=FIVE_MINUTES),
            above=UNAUTHENTIC,
        ),
    ]


def _causes_in_cache(metrics: Metrics) -> Iterable[Watch]:
    limits = metrics.config.cache
    return [
        Watch(
            heading="Cache storage",
            says=f"The cache is filled to {CACHE_WARNING:.0%} of its limit.",
            metric=metrics.cache("BytesUsedForCache", statistic="Maximum"),
            above=CACHE_WARNING * limits.max_storage_gb * 10**9,
            periods=5,
        ),
        Watch(
            heading="Cache requests",
            says=f"The cache works at {CACHE_WARNING:.0%} of its limit of ECPUs.",
            metric=metrics.cache("ElastiCacheProcessingUnits", statistic="Sum"),
            above=CACHE_WARNING * limits.max_ecpu_per_second * 60,
            periods=3,
            out_of=5,
        ),
        Watch(
            heading="Cache throttled",
            says="ElastiCache throttles requests.",
            metric=metrics.cache("ThrottledCmds", statistic="Sum"),
            periods=2,
            out_of=5,
        ),
        Watch(
            heading="Cache evictions",
            says="The cache is full and forgets: redeliveries may be taken for new messages.",
            metric=metrics.cache("Evictions", statistic="Sum", period=FIVE_MINUTES),
        ),
    ]


def _causes_in_lambda(metrics: Metrics) -> Iterable[Watch]:
    for role in metrics.functions:
        name = role.replace("_", " ")
        yield Watch(
            heading=f"{name.capitalize()} errors",
            says=f"Runs of the {name} fail or time out.",
            metric=metrics.function(role, "Errors", period=FIVE_MINUTES),
        )
        yield Watch(
            heading="Throttles",
            role=role,
            says=f"Lambda holds the {name} back: its concurrency, or the account's, is used up.",
            metric=metrics.function(role, "Throttles", period=FIVE_MINUTES),
        )
    for role in filter(metrics.functions.__contains__, ASYNC):
        yield Watch(
            heading="Starts dropped",
            role=role,
            says=f"Lambda dropped starts of the {role.replace('_', ' ')}.",
            metric=metrics.function(role, "AsyncEventsDropped", period=FIVE_MINUTES),
        )
    for role in filter(metrics.functions.__contains__, STARTED_BY_US):
        yield Watch(
            heading="Starts wait",
            role=role,
            says=f"Starts of the {role.replace('_', ' ')} wait in Lambda for longer than a start is reserved.",
            metric=metrics.function(role, "AsyncEventAge", statistic="Maximum"),
            above=metrics.config.timings.start_ms,
            periods=3,
            out_of=5,
        )
    if metrics.undelivered:
        yield Watch(
            heading="Undelivered starts",
            says="Lambda gave up starts and kept them.",
            metric=metrics.waiting_in(metrics.undelivered, label="undelivered"),
        )


def _causes_in_responder(metrics: Metrics) -> Iterable[Watch]:
    if metrics.reply_dead_letters is None:
        return
    yield Watch(
        heading="Reply dead letters",
        says="The responder gave up batches, and their customers wait for an answer.",
        metric=metrics.waiting_in(metrics.reply_dead_letters, label="reply dead letters"),
    )
    yield Watch(
        heading="Processing errors",
        says="Replies fail and are tried again.",
        metric=metrics.custom("ProcessingErrors", "responder", period=FIVE_MINUTES),
        periods=3,
    )
    yield Watch(
        heading="Unconfirmed sends",
        says="Nobody knows whether a reply has reached its reader; it is not sent again.",
        metric=metrics.custom("UnconfirmedSends", "responder", period=FIVE_MINUTES),
    )


def _refused_percent(metrics: Metrics) -> cloudwatch.MathExpression:
    return cloudwatch.MathExpression(
        expression=f"IF(errors >= {LEAST_REFUSED}, 100 * errors / requests, 0)",
        using_metrics={
            "errors": metrics.api.metric_server_error(period=FIVE_MINUTES, statistic="Sum"),
            "requests": metrics.api.metric_count(period=FIVE_MINUTES, statistic="Sum"),
        },
        label="5xx, % of the webhooks",
        period=FIVE_MINUTES,
    )


def _alarm(scope: Construct, watch: Watch, *, stage: str, severity: str) -> cloudwatch.Alarm:
    name = "-".join(filter(None, [watch.anchor, watch.role.replace("_", "-")]))
    compare = cloudwatch.ComparisonOperator
    return cloudwatch.Alarm(
        scope,
        "".join(word.capitalize() for word in name.split("-")),
        # The subject of the mail.
        alarm_name=f"message-buffer-{stage}-{name}",
        # Who subscribes can filter by how it begins.
        alarm_description=f"[{severity}] {watch.says} Runbook: {RUNBOOK}#{watch.anchor}",
        metric=watch.metric,
        threshold=watch.above if watch.below is None else watch.below,
        comparison_operator=compare.GREATER_THAN_THRESHOLD if watch.below is None else compare.LESS_THAN_THRESHOLD,
        evaluation_periods=watch.out_of or watch.periods,
        datapoints_to_alarm=watch.periods,
        treat_missing_data=watch.missing,
    )
