"""The alarms of a stage, with their thresholds.

Users notice a symptom, so its alarm should wake an operator (severity `page`). An alarm about a cause can wait until
morning (severity `ticket`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk.aws_cloudwatch import TreatMissingData
from constructs import Construct

from message_buffer.limits import MAX_OVERDUE_MS

from .metrics import FIVE_MINUTES, BufferMetrics, Metrics

RUNBOOK = "docs/runbook.md"

# Above this share of webhooks answered with 5xx, operators are paged. The minimum number of errors prevents a page for
# a single error in a minute with little traffic.
MAX_FAILED_PERCENT, MIN_FAILED_WEBHOOKS = 5, 5
# Property P7 of docs/design.md for the DynamoDB lane: every 30 s a sweep sends new triggers for windows that have been
# overdue for 20 s.
MAX_WINDOW_OVERDUE_MS = 60_000
# The share of the cache's limits above which ElastiCache's documentation advises an alarm.
MAX_CACHE_SHARE = 0.75
# ElastiCache's limit for the connections of a serverless cache.
MAX_CACHE_CONNECTIONS = 65_000
# Limits of alarms: each alarm fires if its event happens more often than this in five minutes.
MAX_LOST_LEASES_A_SHARD = 2
MAX_LOST_LOCKS = 5
MAX_UNAUTHENTIC_WEBHOOKS = 20
MAX_MESSAGES_OVER_QUOTA = 100
# The alarms about refusals by ElastiCache: the alarm's role, ElastiCache's metric, and the alarm's sentence.
SIGN_IN_FAILURES = (
    ("commands", "CommandAuthorizationFailures", "The cache's user may not run a command of a script."),
    ("keys", "KeyAuthorizationFailures", "The cache's user may not use a key of a script."),
    ("throttled", "IamAuthenticationThrottling", "ElastiCache throttles sign-ins."),
)
# A webhook waits in its queue for this long only during a fault, or if its account sends far more than its quota.
MAX_QUEUED_WEBHOOK_SECONDS = 600
# The canary's batch may wait for cold starts of up to four functions. If it is later than this, something is wrong.
MAX_CANARY_LATENESS_MS = 15_000
# The functions that other functions start.
STARTED_BY_US = ("processor", "conversation_processor")


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One alarm. The runbook explains it in a paragraph with the same heading."""

    heading: str
    says: str
    metric: cloudwatch.IMetric
    above: float = 0
    below: float | None = None
    """If given, the alarm fires below this value, and `above` has no effect."""
    periods: int = 1
    out_of: int | None = None
    missing: TreatMissingData = TreatMissingData.NOT_BREACHING
    role: str = ""

    @property
    def anchor(self) -> str:
        return self.heading.lower().replace(" ", "-")


def raise_alarms(
    scope: Construct,
    *,
    stage: str,
    symptoms: Iterable[Watch],
    causes: Iterable[Watch],
    action: cloudwatch.IAlarmAction,
) -> list[cloudwatch.Alarm]:
    """Create and return an alarm for each watch. Each notifies `action` when it fires and when it is over."""
    paged = [_alarm(scope, watch, stage=stage, severity="page") for watch in symptoms]
    ticketed = [_alarm(scope, watch, stage=stage, severity="ticket") for watch in causes]
    for alarm in (*paged, *ticketed):
        alarm.add_alarm_action(action)
        alarm.add_ok_action(action)
    return paged + ticketed


def symptoms(metrics: BufferMetrics) -> Iterable[Watch]:
    """Return the alarms about problems that users notice."""
    config = metrics.config
    return [
        *(_symptoms_of_valkey_lane(metrics) if config.has_valkey_lane else []),
        *(_symptoms_of_dynamodb_lane(metrics) if config.has_dynamodb_lane else []),
        Watch(
            heading="Webhooks fail",
            says=f"The API answers more than {MAX_FAILED_PERCENT} % of the webhooks with 5xx.",
            metric=_refused_percent(metrics),
            above=MAX_FAILED_PERCENT,
        ),
        # At ingest's own address Lambda answers a throttled webhook with 429, which is not a 5xx.
        *([_throttles(metrics, "ingest", above=MIN_FAILED_WEBHOOKS - 1)] if config.api.kind == "url" else []),
        Watch(
            heading="Dead letters",
            says="Some batches could not be emitted, or messages were refused. They wait for an operator's redrive.",
            metric=metrics.waiting_in(metrics.dead_letters, label="dead letters"),
        ),
        *(_symptoms_of_canary(metrics) if config.canary else []),
    ]


def _symptoms_of_canary(metrics: Metrics) -> Iterable[Watch]:
    # One failed run may be chance, so each alarm needs two. The canary publishes nothing if it fails during a
    # deployment.
    return [
        Watch(
            heading="Canary failed",
            says="The canary writes as a customer, and its batches are missing or wrong.",
            metric=metrics.custom("CanaryFailures", "canary", period=FIVE_MINUTES),
            periods=2,
            out_of=3,
        ),
        Watch(
            heading="Canary failed",
            role="late",
            says=f"Batches of the canary are emitted more than {MAX_CANARY_LATENESS_MS // 1_000} s late.",
            metric=metrics.custom("CanaryLatenessMs", "canary", statistic="Maximum", period=FIVE_MINUTES),
            above=MAX_CANARY_LATENESS_MS,
            periods=2,
            out_of=3,
        ),
    ]


def _symptoms_of_valkey_lane(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Oldest overdue",
            says="Some batches have been due for more than a minute and have not been emitted.",
            metric=metrics.custom("OldestOverdueMs", "watchdog", statistic="Maximum"),
            above=MAX_OVERDUE_MS,
            periods=2,
            # The watchdog sends no values while it cannot check the shards. That must not end the alarm.
            missing=TreatMissingData.IGNORE,
        ),
        Watch(
            heading="Watchdog silent",
            says="For four minutes no pass of the watchdog has reached all shards.",
            metric=metrics.custom_or_zero("Sweeps", "watchdog"),
            below=1,
            # A single minute of 0 is no proof, because CloudWatch may only not have its value yet. So four must be 0.
            # Of six minutes, two may be from before the silence: FILL needs at least one published value.
            periods=4,
            out_of=6,
            missing=TreatMissingData.IGNORE,
        ),
        Watch(
            heading="Store failures",
            says="For minutes Valkey has been unreachable, full, or at its request limit.",
            metric=metrics.custom_sum("StoreFailures"),
            periods=3,
            out_of=5,
        ),
    ]


def _symptoms_of_dynamodb_lane(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Oldest window overdue",
            says="Some windows were due more than a minute ago, and their batches were not emitted.",
            metric=metrics.custom("OldestWindowOverdueMs", "dynamodb_processor", statistic="Maximum"),
            above=MAX_WINDOW_OVERDUE_MS,
            periods=2,
            # The sweep sends no values while it cannot read the windows. That must not end the alarm.
            missing=TreatMissingData.IGNORE,
        ),
        Watch(
            heading="Window sweep silent",
            says="For five minutes no sweep has looked for windows whose trigger was lost.",
            metric=metrics.custom_or_zero("Sweeps", "dynamodb_processor"),
            below=1,
            periods=5,
            out_of=7,
            missing=TreatMissingData.IGNORE,
        ),
    ]


def causes(metrics: BufferMetrics) -> Iterable[Watch]:
    """Return the alarms about causes of symptoms."""
    config = metrics.config
    return chain(
        _causes_in_runtime(metrics),
        chain(_causes_in_valkey_lane(metrics), _causes_in_quotas(metrics), _causes_in_cache(metrics))
        if config.has_valkey_lane
        else [],
        _causes_in_dynamodb_lane(metrics) if config.has_dynamodb_lane else [],
        _causes_in_lambda(metrics),
        _causes_in_whatsapp_queues(metrics),
    )


def _causes_in_valkey_lane(metrics: Metrics) -> Iterable[Watch]:
    shards, idle_ms = metrics.config.shards, metrics.config.timings.processor_idle_ms
    # A processor runs for at least its idle time, so a shard needs at most one start per idle time. Twice that rate
    # means that processors end early.
    max_starts = 2 * shards * FIVE_MINUTES.to_milliseconds() / idle_ms
    return [
        Watch(
            heading="Lease flapping",
            role="lost",
            says="Processors repeatedly lose their shard to another processor.",
            metric=metrics.custom("ProcessorExits", "processor", reason="lost", period=FIVE_MINUTES),
            above=MAX_LOST_LEASES_A_SHARD * shards,
        ),
        Watch(
            heading="Lease flapping",
            role="starts",
            says="Processors are started more often than their idle time explains.",
            metric=metrics.custom_sum("ProcessorStarts", period=FIVE_MINUTES),
            above=max_starts,
        ),
        Watch(
            heading="Processor start failures",
            says="Lambda refuses to start processors.",
            metric=metrics.custom_sum("ProcessorStartFailures", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Conversation processor start failures",
            says="Lambda refuses to start conversation processors; the processor puts their conversations back.",
            metric=metrics.custom("ConversationProcessorStartFailures", "processor", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Sweeps cut",
            says="The watchdog has too little time for all shards in one pass.",
            metric=metrics.custom("SweepsCut", "watchdog", period=FIVE_MINUTES),
        ),
        _emission_retries(metrics, "conversation_processor"),
    ]


def _causes_in_dynamodb_lane(metrics: Metrics) -> Iterable[Watch]:
    watches = [
        _emission_retries(metrics, "dynamodb_processor", role="dynamodb_processor"),
        Watch(
            heading="Window locks lost",
            says="DynamoDB processors repeatedly lose their conversation to another run.",
            metric=metrics.custom("LockLost", "dynamodb_processor", period=FIVE_MINUTES),
            above=MAX_LOST_LOCKS,
        ),
    ]
    if metrics.config.has_valkey_lane:
        watches += [
            Watch(
                heading="Fallback in use",
                says="Valkey could not be reached; meanwhile the DynamoDB lane stores the messages.",
                metric=metrics.custom("FallbackMessages", "ingest"),
            ),
        ]
    return watches


def _emission_retries(metrics: Metrics, emitter: str, *, role: str = "") -> Watch:
    return Watch(
        heading="Emission retries",
        role=role,
        says="Batches cannot be published on the bus; after the last attempt they become dead letters.",
        metric=metrics.custom("Retries", emitter),
        periods=5,
    )


def _causes_in_runtime(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Ingest crashes",
            says="A webhook was answered 500 because of an unexpected error.",
            metric=metrics.custom("Crashes", "ingest", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Rules skipped",
            says="The rules of a scope are not valid, so those of the next scope are used.",
            metric=metrics.custom("RulesSkipped", "ingest", period=FIVE_MINUTES),
        ),
        Watch(
            heading="Rules unreachable",
            says="The table of rules does not answer: changes have no effect, and new instances accept no messages.",
            metric=metrics.custom("RulesUnreachable", "ingest", period=FIVE_MINUTES),
            periods=2,
        ),
        Watch(
            heading="Aliases unreachable",
            says="The table of aliases does not answer, so authors who hide their number begin new conversations.",
            metric=metrics.custom("AliasesUnreachable", "ingest", period=FIVE_MINUTES),
            periods=2,
        ),
        Watch(
            heading="No secret",
            says="Webhooks of a platform that has no secret in this stage are refused.",
            metric=metrics.custom("NoSecret", "ingest", period=FIVE_MINUTES),
            periods=3,
        ),
        Watch(
            heading="Unauthentic webhooks",
            says="Many signatures are wrong: either a secret differs from the platform's, or this is an attack.",
            metric=metrics.custom("Unauthentic", "ingest", period=FIVE_MINUTES),
            above=MAX_UNAUTHENTIC_WEBHOOKS,
        ),
    ]


def _causes_in_quotas(metrics: Metrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Over quota",
            says="Accounts or tenants send more than their quotas; their platforms are asked to send again later.",
            metric=metrics.custom("OverQuota", "ingest", period=FIVE_MINUTES),
            above=MAX_MESSAGES_OVER_QUOTA,
            periods=3,
        ),
        Watch(
            heading="Conversations full",
            says="So many messages wait in a conversation that new ones are refused.",
            metric=metrics.custom("ConversationsFull", "ingest", period=FIVE_MINUTES),
            periods=3,
        ),
    ]


def _causes_in_cache(metrics: BufferMetrics) -> Iterable[Watch]:
    limits = metrics.config.cache
    return [
        Watch(
            heading="Cache storage",
            says=f"The cache is filled to {MAX_CACHE_SHARE:.0%} of its limit.",
            metric=metrics.cache("BytesUsedForCache", statistic="Maximum"),
            above=MAX_CACHE_SHARE * limits.max_storage_gb * 10**9,
            periods=5,
        ),
        Watch(
            heading="Cache requests",
            says=f"The cache uses {MAX_CACHE_SHARE:.0%} of its limit of ECPUs.",
            metric=metrics.cache("ElastiCacheProcessingUnits", statistic="Sum"),
            above=MAX_CACHE_SHARE * limits.max_ecpu_per_second * 60,
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
        *(
            Watch(
                heading="Cache sign-ins",
                role=role,
                says=says,
                metric=metrics.cache(name, statistic="Sum", period=FIVE_MINUTES),
            )
            for role, name, says in SIGN_IN_FAILURES
        ),
        Watch(
            heading="Cache evictions",
            says="The cache is full and evicts keys: it may treat redelivered messages as new.",
            metric=metrics.cache("Evictions", statistic="Sum", period=FIVE_MINUTES),
        ),
        *(_causes_in_public_cache(metrics) if not metrics.config.has_network else []),
    ]


def _causes_in_public_cache(metrics: BufferMetrics) -> Iterable[Watch]:
    return [
        Watch(
            heading="Cache connections",
            says=f"The public cache uses {MAX_CACHE_SHARE:.0%} of its connections, perhaps because of a flood.",
            metric=metrics.cache("CurrConnections", statistic="Maximum"),
            above=MAX_CACHE_SHARE * MAX_CACHE_CONNECTIONS,
            periods=3,
            out_of=5,
        )
    ]


def _causes_in_lambda(metrics: Metrics) -> Iterable[Watch]:
    for role in metrics.functions:
        name = role.replace("_", " ")
        yield Watch(
            heading=f"{name.capitalize()} errors",
            says=f"Runs of the {name} fail or time out.",
            metric=metrics.function(role, "Errors", period=FIVE_MINUTES),
        )
        # An operator whose command is throttled sees the error. If ingest has its own address, its throttling is a
        # symptom.
        if role != "admin" and not (role == "ingest" and metrics.config.api.kind == "url"):
            yield _throttles(metrics, role)
    # Lambda drops a start that fails, is throttled or waits too long. The alarms above fire for failed and throttled
    # starts, and this alarm fires for waiting ones.
    for role in filter(metrics.functions.__contains__, STARTED_BY_US):
        yield Watch(
            heading="Starts wait",
            role=role,
            says=f"Starts of the {role.replace('_', ' ')} wait in Lambda for longer than start_ms.",
            metric=metrics.function(role, "AsyncEventAge", statistic="Maximum"),
            above=metrics.config.timings.start_ms,
            periods=3,
            out_of=5,
        )


def _throttles(metrics: Metrics, role: str, *, above: float = 0) -> Watch:
    return Watch(
        heading="Throttles",
        role=role,
        says=f"Lambda throttles the {role.replace('_', ' ')}: its concurrency, or the account's, is used up.",
        metric=metrics.function(role, "Throttles", period=FIVE_MINUTES),
        above=above,
    )


def _causes_in_whatsapp_queues(metrics: BufferMetrics) -> Iterable[Watch]:
    if metrics.whatsapp_queues is None:
        return
    yield Watch(
        heading="Queued webhooks wait",
        says=f"For {MAX_QUEUED_WEBHOOK_SECONDS // 60} minutes a webhook of AWS End User Messaging has been refused.",
        metric=metrics.whatsapp_queues.webhooks.metric_approximate_age_of_oldest_message(
            period=FIVE_MINUTES, statistic="Maximum", label="age of the oldest queued webhook"
        ),
        above=MAX_QUEUED_WEBHOOK_SECONDS,
    )
    yield Watch(
        heading="Unreadable webhooks",
        says="Some notifications of AWS End User Messaging could not be read; their messages are not buffered.",
        metric=metrics.waiting_in(metrics.whatsapp_queues.unreadable, label="unreadable webhooks"),
    )


def causes_in_responder(metrics: Metrics) -> Iterable[Watch]:
    """Return the responder's alarms. All are tickets: after a dead letter, a customer waits for a person to reply."""
    yield from _causes_in_lambda(metrics)
    yield Watch(
        heading="Reply dead letters",
        says="The responder could not answer some batches; their customers wait.",
        metric=metrics.waiting_in(metrics.dead_letters, label="reply dead letters"),
    )
    yield Watch(
        heading="Processing errors",
        says="Replies fail and are retried.",
        metric=metrics.custom("ProcessingErrors", "responder", period=FIVE_MINUTES),
        periods=3,
    )
    yield Watch(
        heading="Replies of a tenant",
        says="A tenant has used up its replies of this hour; the AI does not answer its customers.",
        metric=metrics.custom("RepliesWithheld", "responder", period=FIVE_MINUTES, reason="too_many_replies_of_tenant"),
    )
    yield Watch(
        heading="Unconfirmed sends",
        says="It is unknown whether a reply has reached the customer; it is not sent again.",
        metric=metrics.custom("UnconfirmedSends", "responder", period=FIVE_MINUTES),
    )


def _refused_percent(metrics: BufferMetrics) -> cloudwatch.MathExpression:
    """Return the share of webhooks that the API answers with 5xx."""
    return cloudwatch.MathExpression(
        expression=f"IF(errors >= {MIN_FAILED_WEBHOOKS}, 100 * errors / requests, 0)",
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
        # The name becomes the subject of the mail.
        alarm_name=f"message-buffer-{stage}-{name}",
        # A subscriber can filter by the severity, with which the description begins.
        alarm_description=f"[{severity}] {watch.says} Runbook: {RUNBOOK}#{watch.anchor}",
        metric=watch.metric,
        threshold=watch.above if watch.below is None else watch.below,
        comparison_operator=compare.GREATER_THAN_THRESHOLD if watch.below is None else compare.LESS_THAN_THRESHOLD,
        evaluation_periods=watch.out_of or watch.periods,
        datapoints_to_alarm=watch.periods,
        treat_missing_data=watch.missing,
    )
