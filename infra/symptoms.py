"""The symptoms of a stage that is not well: how each is measured, whom it wakes, what it means and what to do.

This table is the one source of the alarms, of the dashboard, of the runbook's section Symptoms (`python -m
tools.runbook` writes it), and of what `bufferctl doctor` advises. A symptom that users notice wakes an operator
(`page`). Another alarm can wait until morning (`ticket`). A cause that one of these alarms shows wakes nobody: the
dashboard and the doctor show it.

In `do`, `logs`, `warnings`, `custom` and `cached` are the shell functions of the runbook.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from message_buffer.limits import MAX_OVERDUE_MS
from message_buffer.rules.queues import DEFAULT

if TYPE_CHECKING:  # the doctor, which imports this module, needs no settings
    from .settings_and_defaults import StageConfig

RUNBOOK = "docs/runbook.md"
EMITTERS = ("conversation_processor", "dynamodb_processor")
# Above this share of webhooks answered with 5xx, operators are paged. The minimum number of errors prevents a page for
# a single error in a minute with little traffic.
MAX_FAILED_PERCENT, MIN_FAILED_WEBHOOKS = 5, 5
# The share of the cache's limits above which ElastiCache's documentation advises an alarm.
MAX_CACHE_SHARE = 0.75
# ElastiCache's limit for the connections of a serverless cache.
MAX_CACHE_CONNECTIONS = 65_000
# Limits of alarms: each alarm fires if its event happens more often than this in five minutes.
MAX_UNAUTHENTIC_WEBHOOKS = 20
MAX_MESSAGES_OVER_QUOTA = 100
# A webhook waits in its queue for this long only during a fault, or if its account sends far more than its quota.
MAX_QUEUED_WEBHOOK_SECONDS = 600
# A batch waits in a queue for this long only if its consumer fails or is too slow, or if the responder's gate keeps it.
MAX_QUEUED_BATCH_SECONDS = 600


class Source(StrEnum):
    """Where CloudWatch keeps a metric. A symptom has no alarm in a stack that lacks the source of its metric."""

    OWN = "own"
    """Published by the function `of`."""
    VALKEY = "valkey"
    """Published by each function that uses Valkey: the sum."""
    LAMBDA = "lambda"
    """Published by Lambda: the sum over all functions of the stack."""
    CACHE = "cache"
    PUBLIC_CACHE = "public cache"
    QUEUE = "queue"
    """The queue `of`. A name that ends in `*` stands for several queues, each of which has an alarm."""
    API = "api"
    """The share of the webhooks that fail."""


class Metric(NamedTuple):
    name: str
    source: Source = Source.OWN
    of: str = ""
    statistic: str = "Sum"
    reason: str = ""
    """The value of the metric's dimension `reason`, or `*` for one line of a graph for each value."""


@dataclass(frozen=True, kw_only=True)
class Symptom:
    name: str
    """The heading in the runbook. The alarm's name is derived from it."""
    means: str
    do: str
    wakes: Literal["page", "ticket", "nobody"] = "nobody"
    metrics: tuple[Metric, ...] = ()
    """Each has an alarm, unless the symptom wakes nobody, and is a line in the symptom's graph."""
    above: float | Callable[[StageConfig], float] = 0
    below: float | None = None
    """If given, the alarm fires below this value, and `above` has no effect."""
    minutes: int = 5
    periods: int = 1
    """The alarm fires if this many periods are bad, of `out_of` if that is given."""
    out_of: int | None = None
    can_occur: Callable[[StageConfig], bool] = lambda _: True
    """A stage in which the symptom cannot occur has neither its alarm nor its graph."""
    keeps_state: bool = False
    """Whether the alarm keeps its state while there are no values."""
    logs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The warnings, by function, that the doctor counts as failed attempts."""

    @property
    def anchor(self) -> str:
        return self.name.lower().replace(" ", "-")

    def limit(self, stage: StageConfig) -> float:
        """Return the alarm's threshold in this stage."""
        return self.above(stage) if callable(self.above) else self.above

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.anchor}"


def without_links(text: str) -> str:
    """Return the text as it is read outside the runbook."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)


def own(name: str, of: str, statistic: str = "Sum", *, reason: str = "") -> Metric:
    return Metric(name, Source.OWN, of, statistic, reason)


def in_queue(name: str, of: str) -> Metric:
    return Metric(name, Source.QUEUE, of, "Maximum")


SYMPTOMS = (
    Symptom(
        name="Oldest overdue",
        wakes="page",
        metrics=tuple(own("OldestOverdueMs", role, "Maximum") for role in ("watchdog", "dynamodb_processor")),
        above=MAX_OVERDUE_MS,
        minutes=1,
        periods=2,
        # The watchdog and the sweep send no values while they cannot look. That must not end the alarm.
        keeps_state=True,
        means="For two minutes a conversation of the Valkey lane (`-watchdog`) or of the DynamoDB lane "
        "(`-dynamodb-processor`) has been due for more than 60 s, and its batch was not emitted.",
        do="`bufferctl why <id>` names the cause for one conversation. `logs Processor 10m`: does a processor "
        "begin, and why does it stop? If none begins, see [start failures](#start-failures) and "
        "[throttles](#throttles). If it stops with `store_unavailable`, see "
        "[store failures](#store-failures). If `custom watchdog InFlight Maximum` stays at "
        "`concurrency.conversation_processor` (200 if unset), raise that setting. If `Pending` grows, give "
        "the processor more memory, or use more [shards](#changing-the-number-of-shards). In the DynamoDB "
        'lane `warnings DynamodbProcessor`: see [emission retries](#emission-retries) after "window failed"; '
        "if it is always the same conversation, raise `memory.dynamodb_processor`.",
        logs={"dynamodb_processor": ("trigger sent again",)},
    ),
    Symptom(
        name="Sweeps silent",
        wakes="page",
        metrics=tuple(own("Sweeps", role) for role in ("watchdog", "dynamodb_processor")),
        below=1,
        minutes=1,
        # A single minute of 0 is no proof, because CloudWatch may only not have its value yet. Of seven minutes, two
        # may be from before the silence: FILL needs at least one published value.
        periods=5,
        out_of=7,
        keeps_state=True,
        means="For five minutes no pass of the watchdog has checked all shards, or no sweep of the DynamoDB lane "
        "has succeeded. Crashed work is not put back, and windows whose trigger was lost stay open.",
        do="`warnings Watchdog`, or `warnings DynamodbProcessor`. During [a Valkey outage](#a-valkey-outage) the "
        'watchdog must fail. After "pass cut" give it more memory, or use fewer shards. Without any line, '
        'invoke it (`aws lambda invoke --function-name "$(output WatchdogFunction)" /dev/stdout`), check that '
        "its rule is `ENABLED` (`aws events list-rules`), and see [throttles](#throttles).",
        logs={"watchdog": ("pass cut",)},
    ),
    Symptom(
        name="Webhooks fail",
        wakes="page",
        metrics=(Metric("5xx", Source.API),),
        above=MAX_FAILED_PERCENT,
        means=f"In five minutes at least {MIN_FAILED_WEBHOOKS} webhooks, and more than {MAX_FAILED_PERCENT} % of "
        "them, were answered 5xx, or throttled by Lambda. Platforms deliver again, Meta for up to seven days, "
        "Twilio once.",
        do='`warnings Ingest`: "refused for now" names what failed. If it is Valkey, see [store '
        "failures](#store-failures). If it is the message table or its queue: at `AccessDenied…` roll back, "
        "at `Throttling…` wait until the table has scaled. If it is the secret, [put it](#webhook-secrets). "
        "If nothing is logged, see [function errors](#function-errors) and [throttles](#throttles).",
        logs={"ingest": ("refused for now",)},
    ),
    Symptom(
        name="Store failures",
        wakes="page",
        metrics=(Metric("StoreFailures", Source.VALKEY),),
        minutes=1,
        periods=3,
        out_of=5,
        means="In three of five minutes a function could not use Valkey. The fallback takes new messages; without "
        "one webhooks are answered 503. Buffered messages wait.",
        do="`warnings Watchdog`: `reason`. If Valkey is away, see [a Valkey outage](#a-valkey-outage); if it is "
        "full, [cache storage](#cache-storage); if it throttles or refuses, [cache "
        "refusals](#cache-refusals).",
        logs={
            "processor": ("store fails",),
            "conversation_processor": ("store failed",),
            "watchdog": ("shard not checked",),
        },
    ),
    Symptom(
        name="Dead letters",
        wakes="page",
        metrics=(in_queue("ApproximateNumberOfMessagesVisible", "dead letters"),),
        minutes=1,
        means="Batches became dead letters after 20 attempts, or because they cannot be read; or messages of Meta "
        "or Telegram were refused; or the responder could not forget a conversation.",
        do="`bufferctl dead list`: the `reason` of each. Remove the cause, then "
        "[redrive](#handling-dead-letters) them.",
    ),
    Symptom(
        name="Queue waits",
        wakes="page",
        metrics=(in_queue("ApproximateAgeOfOldestMessage", "queue *"),),
        above=lambda stage: MAX_QUEUED_BATCH_SECONDS + (stage.responder.gate_wait_seconds if stage.responder else 0),
        means="A batch has been in this queue of the stage for ten minutes (with a responder, also for "
        "`responder.gate_wait_seconds`), so a customer waits for an answer. The queue keeps it for 14 days.",
        do="Is it a consumer of your own: does it run, and does it delete what it has answered? Is it the responder: "
        "see [processing errors](#processing-errors) and [throttles](#throttles), and raise "
        "`responder.max_parallel_batches` if all its runs are in use. A batch that fails holds up the later ones of "
        "its conversation until it is given up.",
    ),
    Symptom(
        name="Queue dead letters",
        wakes="ticket",
        metrics=(in_queue("ApproximateNumberOfMessagesVisible", "dead letters of *"),),
        minutes=1,
        means="A consumer, such as the responder, gave up on batches of this queue, or received them 20 times without "
        "deleting them; their customers wait.",
        do="`bufferctl doctor` names the responder's reasons. A dead letter without the attribute `reason` was "
        "received 20 times: its consumer crashed, or failed each time. `status 4xx`: the channel refuses this "
        "recipient, or our keys. `the responder's secret has no …`: add the missing key. `the model said nothing`: "
        "check the model's limits and guardrails. `not an event …`: another program wrote to the queue. Then [send "
        "them again](#sending-replies-again).",
    ),
    Symptom(
        name="Batches without queue",
        wakes="ticket",
        metrics=tuple(own("BatchesWithoutQueue", role) for role in EMITTERS),
        can_occur=lambda stage: bool(stage.queues) and DEFAULT not in stage.queues,
        means="Batches met the conditions of none of the stage's `queues`, and there is no queue `default`. They are "
        "on the bus only.",
        do='`warnings ConversationProcessor`, or `warnings DynamodbProcessor`: "batch without queue", `conversation`. '
        "Add a queue or a condition for them, or the queue `default`, and deploy.",
        logs=dict.fromkeys(EMITTERS, ("batch without queue",)),
    ),
    Symptom(
        name="Canary failed",
        wakes="page",
        metrics=(own("CanaryFailures", "canary"),),
        # One failed run may be chance, or a deployment.
        periods=2,
        out_of=3,
        means="Two of three runs of the canary failed: it writes as a customer, and its batches are missing, wrong, "
        "or more than 15 s late. Customers are affected, too.",
        do="`bufferctl doctor`, then `warnings Canary`: `reason`. See [webhooks fail](#webhooks-fail), or, if no "
        "event arrived, [oldest overdue](#oldest-overdue).",
        logs={"canary": ("canary failed",)},
    ),
    Symptom(
        name="Function errors",
        wakes="ticket",
        metrics=(Metric("Errors", Source.LAMBDA), own("Crashes", "ingest")),
        means="Runs of a function failed, timed out, or met an unexpected error. SQS, Lambda or the next pass "
        "repeats the work; a webhook was answered 500 (`-ingest`).",
        do="The dashboard names the function. `warnings <Function> 1h`: `error`, `reason`, `place`; or `aws logs "
        "tail \"$(output IngestLogGroup)\" --since 1h --filter-pattern '?\"Task timed out\" ?\"ImportModuleError\" "
        "?\"Runtime.ExitError\"'`. At time-outs, Valkey or AWS is slow ([store failures](#store-failures)), or "
        "the function needs more `memory`. At any other error roll back: it is a bug, or a wrong setting.",
    ),
    Symptom(
        name="Throttles",
        wakes="ticket",
        metrics=(Metric("Throttles", Source.LAMBDA),),
        means="A function's reserved concurrency is used up, or the account's.",
        do="The dashboard names the function. `aws lambda get-account-settings --query AccountLimit`; raise "
        "`concurrency` (a processor needs two for each shard, one for its successor), or [the account's "
        "quota](#raising-limits).",
    ),
    Symptom(
        name="Rules skipped",
        wakes="ticket",
        metrics=(own("RulesSkipped", "ingest"),),
        means="The rules of a scope are invalid, or conflict with layers beneath, so that scope is left out. Each "
        "instance counts it once, so the alarm may end while the rules are still wrong.",
        do='`warnings Ingest 1h`: "rules skipped" (`layer`, `reason`). If the layer is `deployed`, correct '
        "`rules` in `cdk.json` and deploy. For any other layer, use `bufferctl rules get <layer>`, and "
        "correct it with [`rules set`](bufferctl.md#rules).",
        logs={"ingest": ("rules skipped",)},
    ),
    Symptom(
        name="Tables unreachable",
        wakes="ticket",
        metrics=(own("TablesUnreachable", "ingest"),),
        periods=2,
        means="For ten minutes ingest has failed to read the table of rules (it uses the rules read last, and a new "
        "instance answers 503) or the [table of aliases](sending.md#one-author-one-conversation) (no message "
        "is lost, but conversations may be split).",
        do="`warnings Ingest`: `reason`. At `AccessDenied…`, the function's role or the network's gateway "
        "endpoint was changed: deploy again. At a time-out of DynamoDB you can only wait.",
        logs={"ingest": ("rules not renewed", "aliases unreachable", "webhook secrets not renewed")},
    ),
    Symptom(
        name="Unauthentic webhooks",
        wakes="ticket",
        metrics=(own("Unauthentic", "ingest"),),
        above=MAX_UNAUTHENTIC_WEBHOOKS,
        means=f"More than {MAX_UNAUTHENTIC_WEBHOOKS} webhooks in five minutes were answered 401. Somebody guesses, "
        "or a platform's secret is wrong or missing.",
        do='`warnings Ingest`: "signature refused", `platform`. If this platform delivers no message (`logs '
        "Ingest`), [put the right secret](#webhook-secrets). If it does, the refused ones are forged and only "
        "cost money; `api.kind: rest` has a firewall.",
    ),
    Symptom(
        name="Over quota",
        wakes="ticket",
        metrics=(own("OverQuota", "ingest"),),
        above=MAX_MESSAGES_OVER_QUOTA,
        periods=3,
        means=f"Three times in a row, more than {MAX_MESSAGES_OVER_QUOTA} messages, changes and control words were "
        "refused in five minutes: they exceeded a quota, or their conversation is full (`waiting`).",
        do='`warnings Ingest`: "over quota": which quota, and whose (`accounts`). If the traffic is legitimate, '
        "raise [the quota](rules.md#quotas) before Meta switches the webhook off. Otherwise lower it, or "
        "[remove the account's secret](#webhook-secrets), which is the only way to stop Twilio's messages "
        "(`taken`). Meta's and Telegram's `dropped` changes and control words are lost. A conversation is "
        "full if it is on hold (`bufferctl conversation resume <id>`), or if its batch cannot be emitted "
        "([emission retries](#emission-retries)).",
        logs={"ingest": ("over quota",)},
    ),
    Symptom(
        name="Cache storage",
        wakes="ticket",
        metrics=(Metric("BytesUsedForCache", Source.CACHE, statistic="Maximum"),),
        above=lambda stage: MAX_CACHE_SHARE * stage.cache.max_storage_gb * 10**9,
        minutes=1,
        periods=5,
        means="The cache holds 75 % of `cache.max_storage_gb` (a GB taken as 10⁹ bytes). At the limit Valkey evicts "
        "[memories](../lua/README.md#limits), then refuses new messages, which the fallback takes (without "
        "one: 503).",
        do="`cached BytesUsedForCache Maximum`, and `custom watchdog Pending Maximum`: does the number fall? If "
        "not, see [oldest overdue](#oldest-overdue). Otherwise [raise the limit](#raising-limits).",
    ),
    Symptom(
        name="Cache connections",
        wakes="ticket",
        metrics=(Metric("CurrConnections", Source.PUBLIC_CACHE, statistic="Maximum"),),
        above=MAX_CACHE_SHARE * MAX_CACHE_CONNECTIONS,
        minutes=1,
        periods=3,
        out_of=5,
        means="A public cache has three quarters of its 65,000 connections, perhaps because of a flood. At the "
        "limit the fallback takes new messages.",
        do="`cached CurrConnections Maximum`, `cached NewConnections`, `cached IamAuthenticationThrottling`. Tell "
        "AWS's support, and [give the stage a network](deploy.md#valkey-without-a-network).",
    ),
    Symptom(
        name="Queued webhooks wait",
        wakes="ticket",
        metrics=(in_queue("ApproximateAgeOfOldestMessage", "queued webhooks"),),
        above=MAX_QUEUED_WEBHOOK_SECONDS,
        means="For ten minutes ingest has refused a webhook of AWS End User Messaging. The queue keeps it for 14 "
        "days.",
        do='`warnings Ingest 1h`: repair the cause that the line names; after "over quota" raise [the '
        "quota](rules.md#quotas).",
        logs={"ingest": ("queued webhook stays",)},
    ),
    Symptom(
        name="Unreadable webhooks",
        wakes="ticket",
        metrics=(in_queue("ApproximateNumberOfMessagesVisible", "unreadable webhooks"),),
        minutes=1,
        means="Notifications of AWS End User Messaging, or parts of them, could not be read.",
        do='`aws sqs receive-message --queue-url "$(output UnreadableWebhooksQueueUrl)" '
        "--message-attribute-names problem` shows the problem of one. Deploy a version that reads them, send "
        "them to the queue `WhatsAppWebhooks` again, then delete them.",
    ),
    Symptom(
        name="Replies of a tenant",
        wakes="ticket",
        metrics=(own("RepliesWithheld", "responder", reason="too_many_replies_of_tenant"),),
        means="A tenant's customers got as many replies in this hour of the clock as `max_tenant_replies_an_hour` "
        "allows. Until the next hour the AI answers none of them, and "
        "[`messages.reply.withheld`](responder.md#who-is-not-answered) says so for each batch.",
        do='`aws logs tail "$(output ResponderLogGroup Responder)" --since 1h --filter-pattern '
        "'\"too_many_replies_of_tenant\"'`: the conversations, whose ids begin with the tenant. Many "
        "conversations with one or two batches each are a flood: set [a quota](rules.md#quotas). If they are "
        "its customers, raise the setting and deploy.",
    ),
    Symptom(
        name="Unconfirmed sends",
        wakes="ticket",
        metrics=(own("UnconfirmedSends", "responder"),),
        means="The responder called a channel, but got no response. That part of the reply [is never sent "
        "again](adr/0026-a-reply-is-written-down-before-it-is-sent.md).",
        do="`aws logs tail \"$(output ResponderLogGroup Responder)\" --since 1h --filter-pattern '\"not "
        "confirmed\"'`: conversation, batch, part, `reason`. `bufferctl conversation history <id> --messages` "
        "shows the reply, the provider's console whether it was sent. If not, send it yourself. If there are "
        "many, the channel responds late.",
        logs={"responder": ("send was not confirmed",)},
    ),
    Symptom(
        name="Start failures",
        metrics=(Metric("StartFailures", Source.VALKEY), Metric("ProcessorStarts", Source.VALKEY)),
        means="Lambda refused to start a processor or a conversation processor. A pass of the watchdog, or the "
        "processor within 5 s, tries again; until then batches are [overdue](#oldest-overdue).",
        do='`warnings Ingest`, `warnings Watchdog`, `warnings Processor`: "could not be started", `reason`. At '
        "`TooManyRequests` see [throttles](#throttles); at another error roll back.",
        logs={
            "ingest": ("processor could not be started",),
            "processor": ("processor could not be started", "conversation processor could not be started"),
            "watchdog": ("processor could not be started",),
        },
    ),
    Symptom(
        name="Processor exits",
        metrics=(own("ProcessorExits", "processor", reason="*"),),
        means="`idle` and `handed_over` are normal, `held` at times. `lost`: processors are paused for longer than "
        "their lease. Latency and cost rise.",
        do='`logs Processor 15m`: the `reason` of each "processor stopped", and "lease lost". At `lost`, raise '
        "`memory.processor`. At often `held`, Lambda delays starts for longer than `timings.start_ms`: see "
        "[throttles](#throttles). At `error` see [function errors](#function-errors), at `store_unavailable` "
        "[store failures](#store-failures).",
        logs={"processor": ("lease lost",)},
    ),
    Symptom(
        name="Emission retries",
        metrics=tuple(own("Retries", role) for role in EMITTERS),
        means="Batches cannot be put on the bus, or into S3. After 20 attempts, more than ten minutes, a batch "
        "becomes a [dead letter](#dead-letters).",
        do='`warnings ConversationProcessor`, or `warnings DynamodbProcessor`: "emit failed" or "window failed", '
        "`reason`. Check the permissions and quotas of the bus and the bucket, and the route to them (NAT "
        "gateways or endpoints).",
        logs={"conversation_processor": ("emit failed",), "dynamodb_processor": ("window failed", "window not locked")},
    ),
    Symptom(
        name="Fallback in use",
        metrics=(own("FallbackMessages", "ingest"),),
        means="Ingest could not use Valkey and gave messages to the [DynamoDB "
        "lane](lanes.md#when-valkey-cannot-be-reached), which emits them.",
        do="`custom ingest FallbackMessages`: is it over? If Valkey fails, see [store "
        "failures](#store-failures). If ingest logs `slow connection to Valkey`, raise `memory.ingest`, or "
        "`timings.connect_ms`. Otherwise check `cached SuccessfulWriteRequestLatency Maximum`, and raise "
        "`timings.answer_ms`.",
        logs={"ingest": ("the DynamoDB lane stands in",)},
    ),
    Symptom(
        name="Cache refusals",
        metrics=tuple(
            Metric(name, Source.CACHE)
            for name in (
                "AuthenticationFailures", "IamAuthenticationThrottling", "CommandAuthorizationFailures",
                "KeyAuthorizationFailures", "ThrottledCmds", "Evictions",
            )
        ),
        means="The cache refused a sign-in, a command or a key, throttled sign-ins or requests, or evicted "
        "[memories](../lua/README.md#limits). One slot, and so one shard, can use 30,000 ECPU/s.",
        do="`cached <metric>` with the metric that rises. If sign-ins are refused, compare `elasticache:Connect` "
        "in the functions' roles with the names of the cache and the user. If a command or key is refused, "
        "roll back, and compare the access string of the cache's user in AWS with `infra/cache.py`. If "
        "sign-ins are throttled, lower `concurrency`, or see [cache connections](#cache-connections). If "
        "requests are throttled, compare `cached ElastiCacheProcessingUnits` with 60 × "
        "`cache.max_ecpu_per_second`: below the limit, wait until the cache has scaled; at the limit, [raise "
        "it](#raising-limits); at 30,000 for a shard, use more shards.",
    ),
    Symptom(
        name="Processing errors",
        metrics=(own("ProcessingErrors", "responder"),),
        means="Replies fail and are tried again, up to 12 times.",
        do="`aws logs tail \"$(output ResponderLogGroup Responder)\" --since 15m --filter-pattern '\"tried "
        "again\"'`: `reason`, by conversation and batch. `status 429`, `converse: ThrottlingException`: the "
        "quota of the AI or the channel is used up. `converse: AccessDeniedException`: [allow the "
        "model](responder.md#turning-it-on). `gate: unavailable`: the function `gate` or Valkey fails. `no "
        "connection`: the AI or the channel cannot be reached. `read secret: …`: the responder cannot read "
        "its secret.",
        logs={"responder": ("reply is tried again",)},
    ),
)  # fmt: skip
BY_NAME = {symptom.name: symptom for symptom in SYMPTOMS}


class Graph(NamedTuple):
    """A graph of what a stage does, healthy or not."""

    title: str
    unit: str
    metrics: tuple[Metric, ...]


GRAPHS = (
    Graph("Messages", "per minute", tuple(own(name, "ingest") for name in ("Messages", "Duplicates"))),
    Graph("Ignored items, by kind", "per minute", (own("IgnoredKinds", "ingest", reason="*"),)),
    Graph("Lost changes, refused bodies", "per minute", (own("Dropped", "ingest"), own("BodiesRefused", "ingest"))),
    Graph(
        "Lateness, after the due time",
        "ms",
        (
            own("LatenessMs", "processor", "p99"),
            *(own("EmitLatenessMs", role, statistic) for role in EMITTERS for statistic in ("p50", "p99")),
            own("CanaryLatenessMs", "canary", "Maximum"),
        ),
    ),
    Graph(
        "Waiting and in flight",
        "conversations",
        (
            own("Pending", "watchdog", "Maximum"),
            own("InFlight", "watchdog", "Maximum"),
            own("Pending", "dynamodb_processor", "Maximum"),
        ),
    ),
    Graph("Batches", "per minute", tuple(own("Batches", role) for role in EMITTERS)),
    Graph("Batch size", "messages", tuple(own("BatchSize", role, "Average") for role in EMITTERS)),
    Graph("Time from first message to batch", "ms", tuple(own("WaitMs", role, "p99") for role in EMITTERS)),
    Graph("Going-on rate", "%", tuple(own("GoingOnRate", role, "Average") for role in EMITTERS)),
    Graph("Batches, by reason", "per minute", tuple(own("FlushReasons", role, reason="*") for role in EMITTERS)),
    Graph(
        "Repaired",
        "per minute",
        (
            *(own("Recovered", role) for role in ("processor", "watchdog", "dynamodb_processor")),
            Metric("StoreRetries", Source.VALKEY),
        ),
    ),
    Graph("Replies", "per minute", (own("Replies", "responder"), own("RepliesWithheld", "responder", reason="*"))),
    Graph("Tokens of the AI", "per minute", (own("InputTokens", "responder"), own("OutputTokens", "responder"))),
    Graph("Duration", "ms", (Metric("Duration", Source.LAMBDA, statistic="p99"),)),
    Graph("Concurrency", "instances", (Metric("ConcurrentExecutions", Source.LAMBDA, statistic="Maximum"),)),
    Graph("Starts that wait", "ms", (Metric("AsyncEventAge", Source.LAMBDA, statistic="Maximum"),)),
    Graph("Cache requests", "ECPU a minute", (Metric("ElastiCacheProcessingUnits", Source.CACHE),)),
    Graph(
        "Cache latency",
        "µs",
        tuple(
            Metric(f"Successful{kind}RequestLatency", Source.CACHE, statistic="Maximum") for kind in ("Read", "Write")
        ),
    ),
)
