"""The settings of a stage: everything that operators may change, read from `stages` in cdk.json.

In cdk.json a stage is an object whose fields have the names below. A field that it leaves out has the default below.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from message_buffer.errors import InvalidRules
from message_buffer.limits import PROCESSOR_LIFE_SECONDS, VALKEY_ANSWER_MS, VALKEY_CONNECT_MS
from message_buffer.rules.layers import DEPLOYED, problems_of_deployed, read_layer, resolve_rules
from message_buffer.rules.queues import DEFAULT, HANDOFF, QUEUE_NAME, unknown_queues
from message_buffer.rules.rules_and_defaults import check_platform_names

from .cli import LOCAL

# A stage that reserves no concurrency for the conversation processor may emit this many batches at once. If the
# account's quota is lower, as in new accounts, the other starts wait in Lambda.
DEFAULT_SLOTS = 200
# ElastiCache's names have at most 40 characters, and those of a stage begin with "message-buffer-".
MAX_STAGE_NAME_LENGTH = 20
# A processor renews its lease after a third of the lease's length. The other two thirds leave time for one search for
# due conversations, one failed call to Valkey, and a second attempt to renew.
MIN_LEASE_MS = 3_000
# The bucket keeps large batches for at least this long, because their events may wait in consumers' queues.
MIN_OVERSIZE_DAYS = 30
# The responder's stack looks up three values for each queue, and CloudFormation throttles dozens of look-ups. The
# functions' variables also have room for little more.
MAX_QUEUES = 10
# The emulator serves an API at a fixed path only if the template gives the API an id.
LOCAL_API_ID = "b0ffe2ed"
# ElastiCache allows no double hyphen in a name.
STAGE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

# The last words of the names of all stacks that a stage can have, in the order of deployment.
STACKS = ("Network", "Cache", "PublicCache", "Buffer", "Responder")

# Regions in which AWS offers no addresses of functions. The source is cfn-lint's copy of AWS's resource types;
# tests/infra/test_nag_and_lint.py compares.
# fmt: off
WITHOUT_FUNCTION_URLS = {
    "ap-east-2", "ap-south-2", "ap-southeast-4", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7", "ca-west-1",
    "cn-northwest-1", "eu-central-2", "il-central-1", "me-central-1", "mx-central-1", "us-gov-east-1", "us-gov-west-1",
}
# fmt: on

# The prefixes of inference profiles that span regions.
PROFILES = ("us.", "us-gov.", "eu.", "apac.", "jp.", "au.", "ca.", "global.")

LogLevel = Literal["INFO", "WARNING", "ERROR"]
MemoryMb = Annotated[int, Field(ge=128, le=10_240)]
Instances = Annotated[int, Field(ge=1, le=10_000)]
ApiKind = Literal["http", "rest", "url"]
AccountId = Annotated[str, Field(pattern=r"^\d{12}$")]
Texts = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(min_length=1),
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]
TopicArn = Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}$")]
Role = Literal[
    "ingest",
    "processor",
    "conversation_processor",
    "watchdog",
    "dynamodb_processor",
    "admin",
    "gate",
    "responder",
    "canary",
]
WarmRole = Literal["ingest", "processor", "conversation_processor"]
MEMORY_MB: dict[Role, int] = dict.fromkeys(get_args(Role), 256) | {"ingest": 512}


class ConfigError(ValueError):
    """Raised if the settings of a stage are not valid. The exception's text names the valid settings."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DomainConfig(Settings):
    """`api.domain`: a domain name of your own for the API."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")]
    """The host name, such as `hooks.example.com`. Point its DNS record at the output `ApiDnsTarget`."""
    certificate_arn: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:acm:")]
    """The ARN of the name's certificate in ACM, in the region of the stage."""


class ApiConfig(Settings):
    """`api`: the API that receives the webhooks."""

    kind: ApiKind = "http"
    """`http` suits most teams. Choose `rest`, for more than three times the price, if your rules demand a firewall
    (WAF), and `url`, ingest's own address, if you receive millions of messages a day: requests cost nothing there, but
    the rates below and a domain have no effect (docs/deploy.md#an-address-without-api-gateway)."""
    requests_per_second: Annotated[int, Field(ge=1, le=10_000)] = 500
    """The API answers 429 above this rate. Raise it if your busy minutes exceed the default. Lower it while you do not
    yet trust your consumers."""
    generic_timestamp: Literal["optional", "required"] = "optional"
    """`required` refuses webhooks of the generic platform whose signature does not cover the time, because they could
    be recorded and sent again. Choose it if all your systems sign the time."""
    domain: DomainConfig | None = None
    """Set it if you may move to another stage, and do not want to change the address at each platform."""
    address: Annotated[str, Field(pattern=r"^https://[^?#\s]*[^/?#\s]$")] | None = None
    """The base URL that platforms call, if it is not the API's, such as that of your own CloudFront. Set it if you use
    Twilio, which signs the URL."""

    @model_validator(mode="after")
    def _kind_fits(self) -> ApiConfig:
        if self.domain and self.kind == "url":
            raise ValueError("an API of the kind `url` cannot have a domain")
        return self


class BusConfig(Settings):
    """`bus`: the event bus on which batches are published."""

    archive_days: Annotated[int, Field(ge=0, le=3_650)] = 0
    """How many days the bus keeps events for a replay; 0 keeps none. Set it if your consumers must be able to repeat
    days of work after a mistake of their own."""
    consumer_accounts: tuple[AccountId, ...] = ()
    """AWS accounts that may put rules of their own on the bus, and consume the queues, and so read every tenant's
    batches. Set it if your agents run in other accounts than the buffer."""


class QueueConfig(Settings):
    """`queues.<name>`: the batches that a queue gets. All conditions that are given must be met, each by one of its
    texts. A condition is a text or a list of texts."""

    platform: Texts | None = None
    """Such as `"whatsapp"`, or `["instagram", "messenger"]`."""
    agent: Texts | None = None
    """The agent that the message or its account names."""
    tenant: Texts | None = None
    """The tenant that owns the account."""
    account: Texts | None = None
    """The account, such as the id of a WhatsApp number, or the name of a door."""

    @field_validator("platform")
    @classmethod
    def _known_platforms(cls, platforms: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            check_platform_names(platforms or ())
        except InvalidRules as error:
            raise ValueError(str(error).replace("\n", "; ")) from error
        return platforms


class TuneConfig(Settings):
    """`tune`: what is done with the counts of how long authors are silent before they go on."""

    replies: bool = False
    """Also read WhatsApp's reports that a reply was sent, and the copies of apps' replies that Messenger and Instagram
    send, for a call to the lane each. Set it if your consumers do not ask the gate before they reply."""
    weekly_cut_share: Annotated[float, Field(ge=0.01, le=0.9)] | None = None
    """Once a week move the `silenceMs` of each tenant, platform and agent with 300 batches in four weeks, so that at
    most this share of them is cut. Set it, such as to 0.2, if you trust `bufferctl tune` to decide without you."""


class LimitsConfig(Settings):
    """`limits`: bounds on the emission of a batch, and on waiting messages."""

    max_event_bytes: Annotated[int, Field(ge=1_024, le=1_000_000)] = 256_000
    """If an event would be larger, it refers to its messages in the bucket. With the fields that EventBridge adds, the
    default fits into an older queue, which accepts 256 KiB, and the maximum into SQS's 1 MiB. Lower it if a queue or
    workflow of your consumers accepts less."""
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 20
    """A batch becomes a dead letter after this many attempts that failed or did not end. Their pauses grow to a minute,
    so 20 attempts outlast a short outage. Lower it if you prefer an early dead letter to a late batch."""
    max_waiting_messages: Annotated[int, Field(ge=1_000, le=100_000)] = 5_000
    """If this many messages wait in a conversation of the Valkey lane, new messages are answered 503. Raise it if you
    hold busy conversations for hours."""


class TimingsConfig(Settings):
    """`timings`: how long each part of the Valkey lane may take before another part takes over its work."""

    claim_timeout_ms: Annotated[int, Field(ge=3_000)] = 10_000
    """How long a conversation stays claimed if no conversation processor takes its batch. Raise it if conversation
    processors take longer to start in your account, because then each batch causes two starts."""
    lease_ms: Annotated[int, Field(ge=MIN_LEASE_MS, le=60_000)] = 5_000
    """How long a processor owns its shard after it last renewed its lease. Lower it for shorter gaps after a crash.
    Raise it for an unsteady network."""
    start_ms: Annotated[int, Field(ge=1_000, le=30_000)] = 4_000
    """How long a start of a processor may take. After that the next message, or the watchdog, starts another. Raise it
    if Lambda starts functions slowly in your account."""
    processor_idle_ms: Annotated[int, Field(ge=1_000)] = 10_000
    """How long a processor without work continues to run. A higher value costs idle seconds, and saves starts."""
    processor_handover_ms: Annotated[int, Field(ge=1, lt=1_000 * PROCESSOR_LIFE_SECONDS)] = 30_000
    """How long before its end a processor begins to hand over to its successor. Raise it for very busy shards."""
    connect_ms: Annotated[int, Field(ge=1_000, le=8_000)] = VALKEY_CONNECT_MS
    """How long connecting to Valkey, TLS and the sign-in may take together. In a private network, the first connection
    of an instance may take seconds."""
    answer_ms: Annotated[int, Field(ge=100, le=1_000)] = VALKEY_ANSWER_MS
    """If Valkey takes longer to answer on an open connection, it counts as unavailable. Raise it if your cache is
    throttled or distant, and you prefer waiting to the fallback."""

    @model_validator(mode="after")
    def _one_outlives_the_other(self) -> TimingsConfig:
        working_ms = 1_000 * PROCESSOR_LIFE_SECONDS - self.processor_handover_ms
        if self.processor_handover_ms < self.lease_ms:
            raise ValueError("processor_handover_ms must not be less than lease_ms: a handover takes that long")
        if self.processor_idle_ms >= working_ms:
            raise ValueError("processor_idle_ms must be less than 15 minutes minus processor_handover_ms")
        return self


class NetworkConfig(Settings):
    """`network`: how the functions of the Valkey lane reach the cache and AWS."""

    egress: Literal["nat", "endpoints", "none"] = "nat"
    """`nat` leads through NAT gateways. Choose `endpoints` (interface endpoints) if your rules forbid a route to the
    internet, and `none` if you must not pay for a network while idle: the cache then has a public endpoint, for IAM
    users only (docs/deploy.md#valkey-without-a-network)."""
    nat_gateways: Annotated[int, Field(ge=1, le=3)] = 1
    """Raise it if the stage must survive the loss of an availability zone."""
    availability_zones: Annotated[tuple[str, ...], Field(max_length=3)] = ()
    """Two or three zones of the stage's region; by default its first two. Required if the stage names an `account`,
    because CDK would otherwise look them up there. Set it also if the first zones have no serverless caches."""
    flow_logs: bool = False
    """Set it if your auditors demand logs of all connections, which AWS bills by volume."""

    @property
    def zones(self) -> int:
        """Return the number of availability zones. A stage that names none has two, because CDK chooses no more."""
        return len(self.availability_zones) or 2


class CacheConfig(Settings):
    """`cache`: the ElastiCache Serverless cache. No minimum can be set, because AWS would bill it even if unused."""

    max_storage_gb: Annotated[int, Field(ge=1, le=5_000)] = 5
    """At this size the cache refuses new messages. Raise it for long holds or millions of messages a day."""
    max_ecpu_per_second: Annotated[int, Field(ge=1_000, le=15_000_000)] = 30_000
    """Above this rate of its unit of work, ElastiCache throttles requests. Raise it for thousands of messages a second.
    Lower it to limit the bill."""


class AssistantFunction(Settings):
    """`responder.assistant`: a Lambda function of yours, which writes the replies (docs/responder.md)."""

    function: Annotated[
        str, Field(pattern=r"^arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:function:[A-Za-z0-9_:$-]{1,193}$")
    ]
    """The function's ARN. It must be in the region of the stage."""


class ResponderConfig(Settings):
    """`responder`: the optional consumer that answers each batch with an AI. A stage without this object has none."""

    assistant: Literal["echo", "bedrock", "openai", "chat-completions"] | AssistantFunction = "echo"
    """`echo` repeats the batch. `bedrock` is Amazon Bedrock. `openai` and `chat-completions` are OpenAI's two APIs, of
    OpenAI or a compatible service, most of which have only `chat-completions`. `{"function": "<arn>"}` is a Lambda
    function of yours. Choose `echo` to try the responder."""
    model: str = ""
    """The model id to send to Bedrock or the OpenAI-compatible API. Required with these."""
    instructions: str = "You answer the customers of a shop, briefly and kindly."
    """The system prompt. Tenants and conversations may have their own (docs/responder.md#the-table)."""
    assistant_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "https://api.openai.com/v1"
    """The base URL of `openai` and `chat-completions`. Set it for a compatible service, or a model that you run."""
    assistant_seconds: Annotated[int, Field(ge=1, le=600)] = 60
    """How long the assistant may take for a reply. Raise it if your model thinks for minutes."""
    max_reply_tokens: Annotated[int, Field(ge=1, le=32_000)] = 1_024
    """The length of the longest reply. Lower it to limit the bill of the model."""
    max_history_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 8_000
    """How much of the conversation the assistant receives. Lower it to limit the bill. Raise it for more memory."""
    max_replies_an_hour: Annotated[int, Field(ge=1, le=100_000)] = 60
    """How many replies the assistant writes at most in one conversation in an hour, which begins with the first reply.
    This stops two bots that answer each other. Raise it if your customers write more."""
    max_tenant_replies_an_hour: Annotated[int, Field(ge=1, le=10_000_000)] = 3_000
    """How many replies the assistant writes at most for one tenant in an hour of the clock. This bounds the bill if
    someone writes under many invented names. Raise it if you have more customers."""
    gate: Literal["deliver", "discard_and_merge", "interrupt"] = "discard_and_merge"
    """What happens to a reply if the customer writes again before it is sent (docs/responder.md). Choose `deliver` if
    the AI must answer each batch by itself, and `interrupt` if replies have several parts."""
    gate_wait_seconds: Annotated[int, Field(ge=4, le=900)] = 60
    """If the gate has stopped the reply to a batch, how long that batch waits for the customer's next one. It must be
    above the `maxWaitMs` of `rules`; raise it if the rules of a tenant, an agent or a door have a longer one."""
    channel: Literal["platform", "fake"] = "platform"
    """`platform` sends replies by the customer's platform. Choose `fake`, which publishes them on the bus, to try the
    responder, or to send replies by a system of your own."""
    allowed_channels: tuple[str, ...] = ()
    """Set it if the AI should answer on some platforms only."""
    typing_indicator: bool = False
    """Show the customer that a reply is being written. Set it if your model takes more than a few seconds."""
    tools: tuple[Literal["hand_off", "finish_task"], ...] = ()
    """What a model may do besides writing: `hand_off` the conversation to people for a day, and `finish_task`, after
    which it starts without a history (docs/responder.md#tools). Name `hand_off` only if people take over, and tools
    only if the model knows them: another one refuses each question."""
    max_parallel_batches: Annotated[int, Field(ge=2, le=1_000)] = 100
    """How many runs work on each queue at the same time; a run answers up to ten conversations side by side. Without a
    limit, answers that take minutes could use all of the account's concurrency. Choose 2 in an account whose quota is
    10."""
    turn_days: Annotated[int, Field(ge=1, le=4_000)] = 365
    """How many days the responder keeps a conversation's turns and settings after its last batch."""

    @model_validator(mode="after")
    def _has_a_model(self) -> ResponderConfig:
        if self.assistant in {"bedrock", "openai", "chat-completions"} and not self.model:
            raise ValueError(f"model is needed: name the model that {self.assistant} answers with")
        return self


class StageConfig(Settings):
    """A stage: one object in `stages` of cdk.json."""

    name: str
    """The stage's key in `stages`; the object has no such field."""
    account: AccountId | None = None
    """Set it if you have several accounts: no other account's credentials can then deploy the stage."""
    region: str = "us-east-1"
    """The AWS region of the stage. Set it if your customers' data must stay in a region."""
    removal_policy: Literal["destroy", "retain"] = "destroy"
    """Choose `retain` for a stage with customers, to keep the resources that contain data if the stage is deleted."""
    termination_protection: bool = False
    """Protect all stacks from deletion. Set it for a stage with customers."""
    tracing: bool = False
    """Set it if you already follow your requests with X-Ray."""
    lane: Literal["valkey", "dynamodb"] = "valkey"
    """`valkey` emits to the millisecond. Choose `dynamodb`, which needs neither a network nor a cache, if you have
    little traffic, can wait some seconds, and want to pay little while idle."""
    fallback: bool = True
    """Store messages in the DynamoDB lane while Valkey is unavailable. Turn it off if you prefer a late batch."""
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    """Each shard of the conversations has a processor. Raise it if your traffic exceeds one processor
    (docs/performance.md), but change it only when no message waits."""
    log_level: LogLevel = "INFO"
    """Choose `WARNING` if your bill for logs is too high."""
    log_retention_days: Literal[1, 7, 14, 30, 90, 180, 365, 3_653] = 14
    """How long CloudWatch keeps the logs. Set it if your auditors or privacy rules name a time."""
    log_ids: Literal["plain", "hashed"] = "plain"
    """Choose `hashed` if your operators must not see customers' phone numbers, which are in conversation ids. Logs then
    contain hashes under a secret of the stage; `bufferctl logged` computes the hash of an id."""
    memory: dict[Role, MemoryMb] = MEMORY_MB
    """The memory of functions in MB, and in proportion their CPU time. Raise it for a function that is too slow or runs
    out of memory."""
    concurrency: dict[Role, Instances] = {}
    """How many instances of a function Lambda reserves, and runs at most, such as `{"ingest": 100}`. Set it if other
    systems share the account, or to limit a flood of requests. The processor needs two for each shard, because a
    successor overlaps; the watchdog three; the conversation processor one for each batch of the Valkey lane that is
    emitted at the same time (`DEFAULT_SLOTS` without a number); the DynamoDB processor one for ten windows."""
    warmth: dict[WarmRole, Instances] = {}
    """How many instances of a function always run (provisioned concurrency), such as `{"ingest": 2}`. Set it if your
    customers write seldom, and must not wait for a cold start. Keep both processor and conversation processor warm, or
    neither, and the processor with two instances for each shard."""
    api: ApiConfig = ApiConfig()
    """The API that receives the webhooks."""
    end_user_messaging_topic: TopicArn | None = None
    """Set it if you have WhatsApp through AWS: the topic to which AWS End User Messaging Social publishes its webhooks,
    in the stage's region. Its policy should admit only `social-messaging.amazonaws.com`, because whoever may publish to
    it can write as any customer."""
    bus: BusConfig = BusConfig()
    """The event bus."""
    queues: Annotated[dict[str, QueueConfig], Field(max_length=MAX_QUEUES)] = {}
    """Queues that also get the batches, such as `{"sms": {"platform": "twilio"}, "default": {}}`, and hand over one
    conversation's batches in order, one at a time (docs/consumer.md). A batch goes to the first queue whose conditions
    are met, otherwise to `default`. `handoff` gets the batches of conversations that a person has. Set it if your agent
    must never work on two batches of a conversation at once, or if channels must not hold up each other."""
    alarm_emails: tuple[Email, ...] = ()
    """Addresses that receive every alarm, and must confirm that once. A tool for incidents subscribes to the topic."""
    limits: LimitsConfig = LimitsConfig()
    """Bounds on batches and on waiting messages."""
    timings: TimingsConfig = TimingsConfig()
    """Time-outs of the Valkey lane."""
    rules: dict[str, Any] = {}
    """The rules that are deployed with the stage, such as `{"preset": "customers"}`; docs/rules.md helps to choose."""
    tune: TuneConfig = TuneConfig()
    """The right wait, from counts of the authors' gaps."""
    platform_numbers: bool = True
    """Use the waits assumed for SMS, WhatsApp and e-mail (docs/rules.md#platforms) where no rule sets others."""
    network: NetworkConfig = NetworkConfig()
    """The network of the Valkey lane."""
    cache: CacheConfig = CacheConfig()
    """The cache of the Valkey lane."""
    responder: ResponderConfig | None = None
    """The optional responder."""
    canary: bool = False
    """Try the stage every five minutes as a customer, with an alarm. Consumers must ignore its tenant
    (docs/consumer.md). Set it if you must know of a fault before your customers write."""
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
        """Return how many days the bucket keeps large batches: at least as long as the archive keeps their events."""
        return max(MIN_OVERSIZE_DAYS, self.bus.archive_days)

    @property
    def effective_queues(self) -> Mapping[str, QueueConfig]:
        """Return the queues. A stage with a responder has at least one, because the responder consumes queues."""
        return self.queues or ({DEFAULT: QueueConfig()} if self.responder else {})

    @property
    def outbox_days(self) -> int:
        """Return how many days the responder remembers an answered batch: longer than the bus can replay the batch."""
        return self.oversize_days + 5

    @property
    def slots_of_a_shard(self) -> int:
        """Return how many batches of a shard may be emitted at once."""
        return self.concurrency.get("conversation_processor", max(DEFAULT_SLOTS, self.shards)) // self.shards

    def name_of_stack(self, word: str) -> str:
        return f"MessageBuffer-{self.name}-{word}"

    @property
    def stacks(self) -> tuple[str, ...]:
        """Return the last words of the names of this stage's stacks, in the order of deployment."""
        left_out = set()
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

    @field_validator("memory")
    @classmethod
    def _with_defaults(cls, memory: dict[Role, int]) -> dict[Role, int]:
        return MEMORY_MB | memory

    @field_validator("rules")
    @classmethod
    def _valid_rules(cls, rules: dict[str, Any]) -> dict[str, Any]:
        overrides = rules.get("platformOverrides")
        try:
            check_platform_names(overrides if isinstance(overrides, dict) else ())
        except InvalidRules as error:
            raise ValueError(str(error).replace("\n", "; ")) from error
        if problems := problems_of_deployed(rules):
            raise ValueError("; ".join(problems))
        return rules

    @model_validator(mode="after")
    def _queues_fit(self) -> StageConfig:
        for name, queue in self.queues.items():
            if not re.fullmatch(QUEUE_NAME, name) or name.startswith("dead-letters"):
                raise ValueError(
                    f"queues.{name}: a queue's name has at most 31 lower-case letters, digits and hyphens, begins with"
                    " a letter, and does not begin with dead-letters"
                )
            has_conditions = bool(queue.model_dump(exclude_none=True))
            if has_conditions and name in (DEFAULT, HANDOFF):
                raise ValueError(f"queues.{name} has no conditions: leave them out")
            if not has_conditions and name not in (DEFAULT, HANDOFF):
                conditions = ", ".join(QueueConfig.model_fields)
                raise ValueError(f"queues.{name} needs at least one condition: {conditions}")
        if len({name.replace("-", "") for name in self.queues}) < len(self.queues):
            raise ValueError("queues: two names differ only in their hyphens, which the names of outputs leave out")
        if self.responder and self.effective_queues.keys() <= {HANDOFF}:
            raise ValueError(f"queues needs one that the responder consumes, such as `{DEFAULT}`, beside `{HANDOFF}`")
        if problems := [*unknown_queues(self.rules, self.effective_queues)]:
            raise ValueError(f"rules: {'; '.join(problems)}")
        return self

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
            raise ValueError("the local stage needs `-c valkeyUrl=valkey://host:port`; `make up` sets it")
        if not self.is_local and self.valkey_url:
            raise ValueError("only the local stage takes valkeyUrl: the others have a cache of their own")
        if self.account and self.has_network and not self.network.availability_zones:
            raise ValueError("a stage with an account must name its network.availability_zones")
        url = self.responder.assistant_url if self.responder else "https:"
        if not self.is_local and not url.startswith("https:"):
            raise ValueError("responder.assistant_url must begin with https: it receives the key and the messages")
        deployed = read_layer(DEPLOYED, self.rules)
        longest = max(resolve_rules([deployed], each).rules.max_wait_ms for each in ("", *deployed.platform_overrides))
        responder = self.responder
        if responder and responder.gate != "deliver" and responder.gate_wait_seconds * 1_000 <= longest:
            raise ValueError(
                f"responder.gate_wait_seconds must be above {longest / 1_000:g}, the rules' longest maxWaitMs in"
                " seconds, or a stopped reply is sent before the newer messages are due; or choose another gate"
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
        if self.api.kind == "url" and self.region in WITHOUT_FUNCTION_URLS:
            raise ValueError(f"AWS offers no addresses of functions in {self.region}: choose api.kind `http` or `rest`")
        domain = self.api.domain
        if domain and f":acm:{self.region}:" not in domain.certificate_arn:
            raise ValueError(f"api.domain.certificate_arn must name a certificate in {self.region}, the API's region")
        return self

    @model_validator(mode="after")
    def _concurrency_suffices(self) -> StageConfig:
        processors, needed = self.concurrency.get("processor"), 2 * self.shards
        if processors is not None and processors < needed:
            raise ValueError(f"concurrency.processor must be at least {needed}, twice the shards: successors overlap")
        slots = self.concurrency.get("conversation_processor")
        if self.has_valkey_lane and slots is not None and slots < self.shards:
            raise ValueError(f"concurrency.conversation_processor must be at least {self.shards}: one for each shard")
        if self.api.kind == "url" and "ingest" not in self.concurrency and not self.is_local:
            raise ValueError("api.kind `url` needs concurrency.ingest: nothing else limits what a flood can start")
        for role, instances in self.warmth.items():
            if instances > self.concurrency.get(role, instances):
                raise ValueError(f"warmth.{role} must not exceed concurrency.{role}, which includes it")
        return self


def stage_tags(config: StageConfig) -> Mapping[str, str]:
    """Return the tags that every resource of a stage has."""
    return {"product": "message-buffer", "stage": config.name}


def without_profile(model: str) -> str:
    """Return the id of the model that an inference profile, which spans regions, forwards to."""
    return next((model.removeprefix(prefix) for prefix in PROFILES if model.startswith(prefix)), model)


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
        return dict(**json.loads(overrides or "{}"))
    except (TypeError, ValueError) as error:
        raise ConfigError(f'`-c overrides=` takes a JSON object such as {{"shards": 2}}: {error}.') from error


def _merge(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _sentences(error: ValidationError) -> str:
    sentences = []
    for problem in error.errors(include_url=False, include_context=False):
        path = [part for part in problem["loc"] if isinstance(part, str) and part != "[key]"]
        where = ".".join(path)
        if problem["type"] == "extra_forbidden":
            sentences.append(f"{where} is unknown; valid there: {', '.join(_fields_beside(path))}.")
        else:
            what = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
            # If a check concerns the whole stage, `path` is empty, and the check's text already names the fields.
            sentences.append(f"{where}: {what} (given: {problem['input']!r})." if path else f"{what}.")
    return " ".join(sentences)


def _fields_beside(path: list[str]) -> list[str]:
    model: type[BaseModel] = StageConfig
    parts = iter(path[:-1])
    for part in parts:
        annotation = model.model_fields[part].annotation
        # The annotation of an optional group of settings is `Group | None`, that of named groups `dict[str, Group]`.
        kinds = get_args(annotation) or (annotation,)
        annotation = kinds[-1] if get_origin(annotation) is dict and next(parts) else kinds[0]
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return sorted(set(model.model_fields) - {"name"})
