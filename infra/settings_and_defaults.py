"""The settings of a stage: everything that operators may change, read from `stages` in cdk.json.

This is the reference of the product's settings. In cdk.json a stage is an object whose fields have the names below; a
setting that a stage leaves out has the default below. `load_stage` validates a stage before anything is
built. Its error messages name the valid settings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from message_buffer.errors import InvalidRules
from message_buffer.limits import VALKEY_ANSWER_MS, VALKEY_CONNECT_MS
from message_buffer.rules.layers import RULE_FIELDS, check_platform_names, problems_of_deployed

from .limits import PROCESSOR_LIFE_SECONDS

# How many conversations may be in flight at once if the stage reserves no concurrency for the conversation processor.
# Lambda's quota for a new account may be lower. Starts that Lambda has accepted then wait in Lambda.
DEFAULT_SLOTS = 200
# ElastiCache's names have at most 40 characters, and ours begin with "message-buffer-".
MAX_STAGE_NAME_LENGTH = 20
# A processor renews its lease after a third of the lease's length. The other two thirds leave time for one search for
# due conversations, one failed call to Valkey, and a second attempt to renew.
MIN_LEASE_MS = 3_000
# The bucket keeps large batches for this long even if the bus has no archive, because consumers' queues may be late.
MIN_OVERSIZE_DAYS = 30
LOCAL = "local"
# The emulator serves an API at a fixed path only if the API requests an id of its own.
LOCAL_API_ID = "b0ffe2ed"
# ElastiCache allows no double hyphen in a name.
STAGE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
OVERRIDES = "platformOverrides"
# A stage names rules only by their wire names, such as `silenceMs`, which operators also use everywhere else.
RULE_NAMES = frozenset({*RULE_FIELDS.values(), "preset"})

# The last words of the names of all stacks that a stage can have, in the order of deployment.
STACKS = ("Network", "Cache", "PublicCache", "Buffer", "Responder", "Operability")

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogRetention = Literal[
    "one_day", "one_week", "two_weeks", "one_month", "three_months", "six_months", "one_year", "ten_years"
]
# Only these are offered, because a deployment knows each by its name.
LOG_RETENTION_DAYS: dict[LogRetention, int] = {
    "one_day": 1,
    "one_week": 7,
    "two_weeks": 14,
    "one_month": 30,
    "three_months": 90,
    "six_months": 180,
    "one_year": 365,
    "ten_years": 3_653,
}
MemoryMb = Annotated[int, Field(ge=128, le=10_240)]
Instances = Annotated[int, Field(ge=1, le=10_000)]
ApiKind = Literal["http", "rest", "url"]
AccountId = Annotated[str, Field(pattern=r"^\d{12}$")]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]
TopicArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}$")]
WarmRole = Literal["ingest", "processor", "conversation_processor"]


class ConfigError(ValueError):
    """Raised if the settings of a stage are not valid. The exception's text says which would be."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MemoryConfig(Settings):
    """`memory`: the memory of each function in MB. Lambda gives a function CPU time in proportion to its memory.

    For a team whose functions are too slow, or run out of memory.
    """

    ingest: MemoryMb = 512
    """Receives the webhooks."""
    processor: MemoryMb = 256
    """Claims due conversations. While messages wait in a shard, one processor runs for it."""
    conversation_processor: MemoryMb = 256
    """Emits one batch at a time in the Valkey lane."""
    watchdog: MemoryMb = 256
    """Repairs what a crash left behind."""
    dynamodb_processor: MemoryMb = 256
    """Empties windows in the DynamoDB lane."""
    admin: MemoryMb = 256
    """Executes the commands of operators."""
    gate: MemoryMb = 256
    """Answers the questions of consumers."""
    responder: MemoryMb = 256
    """Answers batches, in a stage that has a responder."""
    canary: MemoryMb = 256
    """Tries the stage, if it has a canary."""


class ConcurrencyConfig(Settings):
    """`concurrency`: how many instances of a function may run at once.

    Lambda reserves this number for the function and never runs more. Functions without a number share the account's
    unreserved concurrency. For a team that shares its account with other systems, or bounds what strangers can start.
    """

    ingest: Instances | None = None
    """At least `warmth.ingest`."""
    processor: Instances | None = None
    """At least twice the number of shards, because a processor and its successor overlap."""
    conversation_processor: Instances | None = None
    """Limits how many batches of the Valkey lane are emitted at the same time. The shards share these slots equally, so
    there must be at least one slot for each shard. Without a number there are `DEFAULT_SLOTS`."""
    watchdog: Instances | None = None
    """Three are enough: one for a regular pass, and two for passes after a processor has failed."""
    dynamodb_processor: Instances | None = None
    """Limits how many windows are emptied at the same time."""
    admin: Instances | None = None
    """Limits how many commands of operators run at the same time."""
    gate: Instances | None = None
    """Limits how many requests of consumers run at the same time."""
    responder: Instances | None = None
    """Limits how many batches are answered at the same time."""


class DomainConfig(Settings):
    """`api.domain`: a domain name of your own for the API."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")]
    """The host name, such as `hooks.example.com`. Point its DNS record at the output `ApiDnsTarget`."""
    certificate_arn: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:acm:")]
    """The ARN of the name's certificate in ACM, in the region of the stage."""


class ApiConfig(Settings):
    """`api`: the API that receives the webhooks."""

    kind: ApiKind = "http"
    """`http` costs less than a third of `rest`. Only a REST API can have a firewall (WAF) in front of it. `url` is an
    address of ingest itself, without API Gateway: a request costs nothing there, but the rates below and a domain have
    no effect, and only `concurrency.ingest` limits a flood (docs/deploy.md#an-address-without-api-gateway). `http`
    suits most teams; `rest` is for a team whose rules demand a firewall, `url` for one that sends millions of messages
    a day."""
    requests_per_second: Annotated[int, Field(ge=1, le=10_000)] = 500
    """The API answers 429 above this rate. For a team whose busy minutes exceed the default, or which wants less before
    it trusts its consumers."""
    generic_timestamp: Literal["optional", "required"] = "optional"
    """`required` refuses webhooks of the generic platform whose signature does not cover the time, because a recorded
    webhook could be sent again at any later time. For a team whose own systems all sign the time."""
    domain: DomainConfig | None = None
    """Without a domain, the API has the address that AWS gives it. For a team that wants to move to another stage
    without new addresses at its platforms."""

    @model_validator(mode="after")
    def _kind_fits(self) -> ApiConfig:
        if self.domain and self.kind == "url":
            raise ValueError("an API of the kind `url` cannot have a domain")
        return self


class BusConfig(Settings):
    """`bus`: the event bus on which batches are published."""

    archive_days: Annotated[int, Field(ge=0, le=3_650)] = 0
    """How long the bus keeps events for a replay; 0 keeps none. For a team whose consumers must be able to repeat days
    of work after a mistake of their own."""
    consumer_accounts: tuple[AccountId, ...] = ()
    """AWS accounts that may put rules of their own on the bus and read batches that are too large for an event. They
    can read the events of every tenant. For a company whose agents run in other accounts than the buffer."""


class LimitsConfig(Settings):
    """`limits`: bounds on the emission of a batch, and on waiting messages."""

    max_event_bytes: Annotated[int, Field(ge=1_024, le=1_048_576)] = 262_144
    """If an event would be larger, its messages are put into the bucket, and the event contains a reference to them.
    For a team whose consumers stand behind a queue or a workflow that accepts less."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 20
    """A batch becomes a dead letter after this many attempts that failed or did not end. The pauses between attempts
    grow to a minute, so 20 attempts take more than ten minutes, in which a short outage can end, or a bad deployment
    can be undone. For a team that prefers an early dead letter to a late answer, or the reverse."""
    max_waiting_messages: Annotated[int, Field(ge=1_000, le=100_000)] = 5_000
    """If so many messages wait in a conversation of the Valkey lane, because it is on hold or its batch cannot be
    emitted, new messages are answered 503. The number is checked with every eighth message. For a team that holds busy
    conversations for hours."""


class TimingsConfig(Settings):
    """`timings`: how long each part of the Valkey lane may take before another part takes over its work."""

    claim_timeout_ms: Annotated[int, Field(ge=3_000)] = 10_000
    """How long a conversation stays claimed if no conversation processor takes its batch. After that it is claimed
    again. If a start of the conversation processor usually takes longer, each batch causes two starts. For an account
    in which Lambda starts functions slowly."""
    lease_ms: Annotated[int, Field(ge=MIN_LEASE_MS, le=60_000)] = 5_000
    """How long a processor owns its shard without renewing the lease; after a crash the shard waits for this time. For
    a team that wants shorter gaps after a crash, or has an unsteady network."""
    start_ms: Annotated[int, Field(ge=1_000, le=30_000)] = 4_000
    """How long a start of a processor may take. After that the next message, or the watchdog, starts another. For an
    account in which Lambda starts functions slowly."""
    processor_idle_ms: Annotated[int, Field(ge=1_000)] = 10_000
    """How long a processor without work continues to run. For a team that pays some idle seconds for fewer starts."""
    processor_handover_ms: Annotated[int, Field(ge=1, lt=1_000 * PROCESSOR_LIFE_SECONDS)] = 30_000
    """How long before the end of its life a processor begins to hand over to its successor. For a team whose busy
    shards need longer to hand over."""
    connect_ms: Annotated[int, Field(ge=1_000, le=8_000)] = VALKEY_CONNECT_MS
    """How long connecting to Valkey, TLS and the sign-in may take together. In a private network this may take seconds
    for the first connection of a function's instance. For an account in which networks of new functions are slow."""
    answer_ms: Annotated[int, Field(ge=100, le=1_000)] = VALKEY_ANSWER_MS
    """How long Valkey may take to answer on an open connection. If it takes longer, it counts as unavailable. For a
    team whose cache is throttled or distant, and which prefers waiting to the fallback."""

    @model_validator(mode="after")
    def _one_outlives_the_other(self) -> TimingsConfig:
        working_ms = 1_000 * PROCESSOR_LIFE_SECONDS - self.processor_handover_ms
        if self.processor_handover_ms < self.lease_ms:
            raise ValueError(
                "processor_handover_ms must not be less than lease_ms: a processor that hands over must wait for the"
                " conversation processors it started, and start its successor, within one lease"
            )
        if self.processor_idle_ms >= working_ms:
            raise ValueError(
                "processor_idle_ms must be less than 15 minutes minus processor_handover_ms: otherwise no"
                " processor ever ends because it has no work"
            )
        return self


class NetworkConfig(Settings):
    """`network`: how the functions of the Valkey lane reach the cache and AWS."""

    egress: Literal["nat", "endpoints", "none"] = "nat"
    """`nat`: from private subnets, through NAT gateways. `endpoints`: from private subnets, through interface
    endpoints, with no route to the internet. `none`: there is no network. The cache has a public endpoint, which admits
    only IAM users, and the other settings of `network` have no effect (docs/deploy.md#valkey-without-a-network).
    `endpoints` is for a team whose rules forbid a route to the internet, `none` for one that must not pay for a network
    at rest."""
    nat_gateways: Annotated[int, Field(ge=1, le=3)] = 1
    """With one gateway, the loss of its availability zone stops all zones. For a team that must survive the loss of a
    zone."""
    availability_zones: Annotated[tuple[str, ...], Field(max_length=3)] = ()
    """Two or three zones of the stage's region. Required if the stage names an `account`, because CDK would otherwise
    look them up in that account. A stage without an account may leave the choice to CloudFormation, which takes two.
    For a team whose account is fixed, whose first zones have no serverless caches, or which wants a third zone."""
    flow_logs: bool = False
    """Log the connections in the network. AWS bills flow logs by volume. For a team whose auditors demand them."""

    @property
    def zones(self) -> int:
        """Return the number of availability zones. Without names CDK can choose no more than two."""
        return len(self.availability_zones) or 2


class CacheConfig(Settings):
    """`cache`: the ElastiCache Serverless cache. There are only maxima, because AWS bills a minimum even if unused."""

    max_storage_gb: Annotated[int, Field(ge=1, le=5_000)] = 5
    """At this size the cache refuses new messages until enough waiting messages have been emitted. For a team with long
    holds or millions of messages a day."""
    max_ecpu_per_second: Annotated[int, Field(ge=1_000, le=15_000_000)] = 30_000
    """Above this rate ElastiCache throttles requests. The ECPU is its unit of work. For a team with thousands of
    messages a second, or one that wants a bound on the bill."""
    snapshot_days: Annotated[int, Field(ge=0, le=35)] = 0
    """How long daily snapshots are kept; 0 makes none. For a team that must be able to see later which messages were
    waiting."""


class ResponderConfig(Settings):
    """`responder`: the optional consumer that answers each batch with an AI. A stage without this object has none."""

    assistant: Literal["echo", "bedrock", "openai"] = "echo"
    """`echo` repeats the batch. `bedrock` is Amazon Bedrock; `openai` is any API compatible with OpenAI's.
    `echo` is for a team that tries the responder."""
    model: str = ""
    """The model id to send to Bedrock or the OpenAI-compatible API. Required unless the assistant is `echo`. For every
    team with an AI."""
    instructions: str = "You answer the customers of a shop, briefly and kindly."
    """The system prompt. For every team with an AI; tenants and conversations may have their own
    (docs/responder.md#the-table)."""
    assistant_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "https://api.openai.com/v1"
    """The base URL of the API of an `openai` assistant. It must be https outside of the local stage. For a team with a
    compatible service, or a model of its own."""
    assistant_seconds: Annotated[int, Field(ge=1, le=600)] = 60
    """How long the assistant may take for a reply. For a team whose model thinks for minutes."""
    max_reply_tokens: Annotated[int, Field(ge=1, le=32_000)] = 1_024
    """The length of the longest reply. For a team that pays by the token."""
    max_history_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 8_000
    """How much of the conversation's history the assistant is sent. For a team that pays by the token, or needs long
    memories."""
    max_question_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 32_000
    """A longer batch is not answered, and none is cut. Twenty of WhatsApp's longest messages have 27,000 tokens. For a
    team whose customers paste documents, or whose model accepts little."""
    max_replies_an_hour: Annotated[int, Field(ge=1, le=100_000)] = 60
    """The number of replies that the assistant writes in a conversation within an hour, which begins with a reply. This
    stops two bots that answer each other. For a team whose customers write much more, or that pays by the token."""
    max_tenant_replies_an_hour: Annotated[int, Field(ge=1, le=10_000_000)] = 3_000
    """The number of replies that the assistant writes for a tenant within an hour of the clock. This bounds what a
    flood of invented authors costs. For a team that pays by the token, or that has more customers."""
    gate: Literal["deliver", "discard_and_merge", "interrupt", "queue"] = "discard_and_merge"
    """What happens to a reply if the customer writes again before it is sent: a policy of docs/responder.md.
    `discard_and_merge` suits most teams. `deliver` is for one whose customers rarely write again, `interrupt` for one
    whose replies have several parts, and `queue` for one that must answer each batch by itself."""
    gate_wait_seconds: Annotated[int, Field(ge=4, le=900)] = 60
    """How long a batch whose reply the gate has stopped waits for the customer's next batch. For a team whose rules
    have a longer `maxWaitMs`."""
    channel: Literal["platform", "fake"] = "platform"
    """`platform` sends a reply by the platform of the customer's messages. `fake` publishes it on the bus instead. For
    a team that tries the responder, or sends by its own system."""
    allowed_channels: tuple[str, ...] = ()
    """The platforms on which the responder may answer; an empty list allows all. For a team that answers by AI on one
    platform only."""
    typing_indicator: bool = False
    """Show the customer that a reply is being written. For a team whose model takes more than a few seconds."""
    unknown_conversation: Literal["create", "drop"] = "create"
    """The treatment of a batch from a conversation of which the responder has no record. `drop` is for a team whose own
    system enters the conversations that the AI may answer."""
    inactive_project: Literal["drop", "hold"] = "drop"
    """The treatment of a batch if the settings' `projectStatus` is not `active`. For a team that pauses the AI of a
    tenant."""
    channel_not_allowed: Literal["drop", "hold"] = "drop"
    """The treatment of a batch from a platform that is not in `allowed_channels`. `hold` is for a team that answers by
    hand on the other platforms."""
    turn_days: Annotated[int, Field(ge=1, le=4_000)] = 365
    """How long after its last batch the responder keeps a conversation's turns and its own settings. For a team whose
    privacy rules name a time."""

    @model_validator(mode="after")
    def _has_a_model(self) -> ResponderConfig:
        if self.assistant != "echo" and not self.model:
            raise ValueError(f"model is needed: name the model that {self.assistant} answers with")
        return self


class StageConfig(Settings):
    """A stage: one object in `stages` of cdk.json."""

    name: str
    """The stage's key in `stages`; the object has no such field."""
    account: AccountId | None = None
    """The AWS account of the stage. If it is given, no other account's credentials can deploy the stage. For a team
    with several accounts."""
    region: str = "us-east-1"
    """The AWS region of the stage. For a team whose customers' data must stay in a region."""
    removal_policy: Literal["destroy", "retain"] = "destroy"
    """Whether the resources that contain data are deleted with the stage, or kept. `destroy` suits a stage for tests,
    `retain` one that has customers."""
    termination_protection: bool = False
    """Protect all stacks except that of operability from deletion. For a stage that has customers."""
    tracing: bool = False
    """Trace the functions with X-Ray, which samples their invocations. For a team that already follows its requests
    with X-Ray."""
    lane: Literal["valkey", "dynamodb"] = "valkey"
    """`valkey` emits to the millisecond. `dynamodb` emits seconds later, and needs neither a network nor a cache.
    `dynamodb` is for a team with little traffic that can wait some seconds, and pays little at rest."""
    fallback: bool = True
    """With `lane: valkey`: store messages in the DynamoDB lane while Valkey is unavailable. A team turns it off if a
    late answer is better than one by another lane."""
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    """How many shards conversations are divided into, each with a processor. Change it only when no message waits. For
    a team whose traffic exceeds one processor (docs/performance.md)."""
    log_level: LogLevel = "INFO"
    """The least severe log lines that the functions write. `DEBUG` is for developers, `WARNING` for a team whose bill
    for logs is too high."""
    log_retention: LogRetention = "two_weeks"
    """How long CloudWatch keeps the logs. For a team whose auditors or privacy rules name a time."""
    log_ids: Literal["plain", "hashed"] = "plain"
    """How log lines name conversations and batches. Conversation ids contain phone numbers; `hashed` replaces ids with
    hashes under a secret of the stage. `bufferctl logged` computes the hash of an id. For a team whose operators must
    not see customers' phone numbers."""
    memory: MemoryConfig = MemoryConfig()
    """The memory of each function."""
    concurrency: ConcurrencyConfig = ConcurrencyConfig()
    """The reserved concurrency of each function."""
    warmth: dict[WarmRole, Instances] = {}
    """How many instances of a function always run (provisioned concurrency), such as `{"ingest": 2}`. A new instance of
    the processor starts one of the conversation processor in advance, but one that always runs does not, so keep both
    warm or neither. A processor needs two instances for each shard. For a team whose customers write seldom, and must
    not wait for a cold start."""
    api: ApiConfig = ApiConfig()
    """The API that receives the webhooks."""
    end_user_messaging_topic: TopicArn | None = None
    """The topic of SNS to which AWS End User Messaging Social publishes the webhooks of your WhatsApp Business Account,
    in the stage's region. A principal that may publish to it can write as any customer, so its policy should admit only
    `social-messaging.amazonaws.com`. For a team that has WhatsApp by AWS and no token of Meta."""
    bus: BusConfig = BusConfig()
    """The event bus."""
    alarm_emails: tuple[Email, ...] = ()
    """Addresses that receive every alarm. Each address must confirm its subscription once. For a team without a tool
    for incidents; others subscribe theirs to the topic."""
    limits: LimitsConfig = LimitsConfig()
    """Bounds on batches and on waiting messages."""
    timings: TimingsConfig = TimingsConfig()
    """Time-outs of the Valkey lane."""
    rules: dict[str, Any] = {}
    """The rules that are deployed with the stage, such as `{"preset": "customers"}`; docs/rules.md helps to choose."""
    network: NetworkConfig = NetworkConfig()
    """The network of the Valkey lane."""
    cache: CacheConfig = CacheConfig()
    """The cache of the Valkey lane."""
    responder: ResponderConfig | None = None
    """The optional responder."""
    canary: bool = False
    """Try the stage every five minutes as a customer, with an alarm. Consumers must ignore its tenant
    (docs/consumer.md), or they receive a batch from each run. For a team that must know of a fault before its customers
    write."""
    valkey_url: str | None = None
    """The URL of Valkey on the local stage, which has no cache of its own. `make up` sets it; other stages must not."""

    @property
    def is_local(self) -> bool:
        return self.name == LOCAL

    @property
    def has_valkey_lane(self) -> bool:
        return self.lane == "valkey"

    @property
    def has_dynamodb_lane(self) -> bool:
        return self.fallback or not self.has_valkey_lane

    @property
    def has_cache(self) -> bool:
        """Return whether the stage has an ElastiCache cache. The local stage has a Valkey of its own."""
        return self.has_valkey_lane and not self.is_local

    @property
    def has_network(self) -> bool:
        """Return whether the cache, and the functions that call it, are in a network."""
        return self.has_cache and self.network.egress != "none"

    @property
    def oversize_days(self) -> int:
        """Return how long the bucket keeps batches that were too large for an event: at least as long as the bus."""
        return max(MIN_OVERSIZE_DAYS, self.bus.archive_days)

    @property
    def outbox_days(self) -> int:
        """Return how long the responder recognises a batch that it has answered: longer than the bus can replay it."""
        return self.oversize_days + 5

    @property
    def slots_of_a_shard(self) -> int:
        """Return how many conversations of a shard may be in flight at once."""
        return (self.concurrency.conversation_processor or max(DEFAULT_SLOTS, self.shards)) // self.shards

    @property
    def stacks(self) -> tuple[str, ...]:
        """Return the last words of the names of this stage's stacks, in the order of deployment."""
        left_out = {"Operability"} if self.is_local else set()
        if not self.has_network:
            left_out |= {"Network", "Cache"}
        if self.has_network or not self.has_cache:
            left_out |= {"PublicCache"}
        return tuple(stack for stack in STACKS if stack not in left_out)

    @property
    def roles(self) -> set[str]:
        """Return the roles of the functions that this stage has."""
        valkey = {"processor", "conversation_processor", "watchdog"} if self.has_valkey_lane else set()
        dynamodb = {"dynamodb_processor"} if self.has_dynamodb_lane else set()
        optional = {name for name, chosen in (("responder", self.responder), ("canary", self.canary)) if chosen}
        return {"ingest", "admin", "gate"} | valkey | dynamodb | optional

    @field_validator("rules")
    @classmethod
    def _valid_rules(cls, rules: dict[str, Any]) -> dict[str, Any]:
        names = {name: name for name in rules if name != OVERRIDES}
        overrides = rules.get(OVERRIDES)
        for platform, layer in overrides.items() if isinstance(overrides, dict) else ():
            if isinstance(layer, dict):
                names |= {f"{OVERRIDES}.{platform}.{name}": name for name in layer}
        if unknown := [where for where, name in names.items() if name not in RULE_NAMES]:
            valid = ", ".join(sorted(RULE_NAMES | {OVERRIDES}))
            raise ValueError(f"{', '.join(unknown)} is unknown; valid there: {valid}")
        try:
            check_platform_names(overrides if isinstance(overrides, dict) else ())
        except InvalidRules as error:
            raise ValueError(str(error).replace("\n", "; ")) from error
        if problems := problems_of_deployed(rules):
            raise ValueError("; ".join(problems))
        return rules

    @model_validator(mode="after")
    def _complete(self) -> StageConfig:
        if not STAGE_NAME.fullmatch(self.name) or len(self.name) > MAX_STAGE_NAME_LENGTH:
            raise ValueError(
                f"a stage's name has at most {MAX_STAGE_NAME_LENGTH} lower-case letters, digits and single hyphens,"
                " and begins with a letter"
            )
        if self.valkey_url and not self.has_valkey_lane:
            raise ValueError("a stage with `lane: dynamodb` has no Valkey: leave valkeyUrl out")
        if self.is_local and self.has_valkey_lane and not self.valkey_url:
            raise ValueError("the local stage needs `-c valkeyUrl=valkey://host:port?cluster=true`; `make up` sets it")
        if not self.is_local and self.valkey_url:
            raise ValueError("only the local stage takes valkeyUrl: the others have a cache of their own")
        if self.account and self.has_network and not self.network.availability_zones:
            raise ValueError("a stage with an account must name its network.availability_zones")
        return self

    @model_validator(mode="after")
    def _can_respond(self) -> StageConfig:
        if self.responder is None:
            return self
        if not self.is_local and not self.responder.assistant_url.startswith("https:"):
            raise ValueError(
                "responder.assistant_url must begin with https: the API key and customers' messages are sent there"
            )
        return self

    @model_validator(mode="after")
    def _fits_its_region(self) -> StageConfig:
        zones = self.network.availability_zones
        if len(zones) == 1 or self.network.nat_gateways > self.network.zones:
            raise ValueError("a network has two or three zones, and at most one NAT gateway in each")
        if len(set(zones)) != len(zones) or not all(zone.startswith(self.region) for zone in zones):
            raise ValueError(f"network.availability_zones must be different zones of {self.region}")
        topic = self.end_user_messaging_topic
        if topic and f":sns:{self.region}:" not in topic:
            raise ValueError(f"end_user_messaging_topic must name a topic in {self.region}, the stage's region")
        domain = self.api.domain
        if domain and f":acm:{self.region}:" not in domain.certificate_arn:
            raise ValueError(
                f"api.domain.certificate_arn must name a certificate in {self.region}, the region of the API"
            )
        return self

    @model_validator(mode="after")
    def _concurrency_suffices(self) -> StageConfig:
        processors, needed = self.concurrency.processor, 2 * self.shards
        if processors is not None and processors < needed:
            raise ValueError(f"concurrency.processor must be at least {needed}, twice the shards: successors overlap")
        slots = self.concurrency.conversation_processor
        if self.has_valkey_lane and slots is not None and slots < self.shards:
            raise ValueError(
                f"concurrency.conversation_processor must be at least {self.shards}: each shard needs a conversation"
                " processor"
            )
        if self.api.kind == "url" and self.concurrency.ingest is None and not self.is_local:
            raise ValueError(
                "api.kind `url` needs concurrency.ingest: nothing else limits how many functions a flood can start"
            )
        for role, instances in self.warmth.items():
            reserved = getattr(self.concurrency, role)
            if reserved is not None and instances > reserved:
                raise ValueError(f"warmth.{role} must not exceed concurrency.{role}, which includes it")
        return self


def load_stage(
    stages: Mapping[str, Any] | None,
    *,
    stage: str | None,
    valkey_url: str | None = None,
    overrides: str | None = None,
) -> StageConfig:
    """Return the settings of one stage. Raise ConfigError if they are not valid.

    `overrides` is a JSON object that is merged over the stage's values.
    """
    stages = stages or {}
    valid = ", ".join(sorted(stages)) or "none: cdk.json has no stages"
    if not stage:
        raise ConfigError(f"No stage given. Use `-c stage=<name>`; valid stages: {valid}.")
    if stage not in stages:
        raise ConfigError(f"Unknown stage '{stage}'. Valid stages: {valid}.")
    values = {**_merge(stages[stage], _parse(overrides)), "name": stage}
    if valkey_url is not None:
        values["valkey_url"] = valkey_url
    try:
        return StageConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"Stage '{stage}' in cdk.json is not valid. {_sentences(error)}") from error


def _parse(overrides: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(overrides or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(f'`-c overrides=` takes a JSON object such as {{"shards": 2}}: {error}.') from error
    if not isinstance(parsed, dict):
        raise ConfigError('`-c overrides=` takes a JSON object such as {"shards": 2}.')
    return parsed


def _merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _sentences(error: ValidationError) -> str:
    sentences = []
    for problem in error.errors(include_url=False, include_context=False):
        path = [part for part in problem["loc"] if isinstance(part, str)]
        where = ".".join(path)
        if problem["type"] == "extra_forbidden":
            sentences.append(f"{where} is unknown; valid there: {', '.join(_fields_beside(path))}.")
        else:
            what = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            # The text of a check on the whole stage already names the fields.
            sentences.append(f"{where}: {what} (given: {problem['input']!r})." if path else f"{what}.")
    return " ".join(sentences)


def _fields_beside(path: list[str]) -> list[str]:
    model: type[BaseModel] = StageConfig
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation
        # An optional group of settings is annotated `Group | None`.
        (annotation, *_) = get_args(annotation) or (annotation,)
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return sorted(set(model.model_fields) - {"name"})
