"""What a stage may decide, read from the `stages` of cdk.json and validated before anything is built.

The names in cdk.json are the field names below. A wrong one ends the run with a sentence listing the right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

LOCAL = "local"
# Two of its AWS calls at their slowest, and a call to Valkey.
MIN_CONVERSATION_PROCESSOR_TIMEOUT_MS = 20_000
ZONES = 2
# The emulator serves an API under a known path only if the API asks for an id of its own.
LOCAL_API_ID = "b0ffe2ed"
# ElastiCache's names have 40 characters and no double hyphen; ours begin with "message-buffer-".
STAGE_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
STAGE_NAME_LENGTH = 20
# Two thirds of a lease outlast a look and a call to the store that fails: renewing it can be tried again.
LEAST_LEASE_MS = 3_000
# The functions check the values; a name that they do not know would only come to light in the first message.
RULES = frozenset(
    {
        "preset",
        "silenceMs",
        "typingInferenceMs",
        "maxWaitMs",
        "maxMessages",
        "minMessages",
        "priority",
        "vipSilenceMs",
        "adaptive",
        "adaptiveFloorMs",
        "adaptiveCeilingMs",
        "adaptiveK",
        "mediaSilenceMs",
        "transcriptWaitMs",
        "windowMs",
        "stopWords",
        "flushWords",
        "controlLanguages",
    }
)
OVERRIDES = "platformOverrides"

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR"]
LogRetention = Literal[
    "one_day", "one_week", "two_weeks", "one_month", "three_months", "six_months", "one_year", "ten_years"
]
MemoryMb = Annotated[int, Field(ge=128, le=10_240)]
Instances = Annotated[int, Field(ge=1, le=10_000)]
AccountId = Annotated[str, Field(pattern=r"^\d{12}$")]
Milliseconds = Annotated[int, Field(ge=1)]
Email = Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")]


class ConfigError(ValueError):
    """A stage that cannot be built; the message says what is valid."""


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Memory(Settings):
    """Memory of each function, which is also its share of a CPU."""

    ingest: MemoryMb = 512
    processor: MemoryMb = 256
    conversation_processor: MemoryMb = 256
    watchdog: MemoryMb = 256
    dynamodb_processor: MemoryMb = 256
    admin: MemoryMb = 256
    responder: MemoryMb = 256


class Concurrency(Settings):
    """How many instances a function is kept and held to; none given: it takes of what the account has left."""

    ingest: Instances | None = None
    processor: Instances | None = None
    conversation_processor: Instances | None = None
    watchdog: Instances | None = None
    dynamodb_processor: Instances | None = None
    admin: Instances | None = None
    responder: Instances | None = None


class Warmth(Settings):
    """What ingest pays against cold starts: nothing, a snapshot, or instances that are always there."""

    ingest: Literal["none", "snap_start", "provisioned"] = "none"
    provisioned_instances: Instances = 2


class Domain(Settings):
    """A name of one's own for the API; its certificate is in the stage's region."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")]
    certificate_arn: Annotated[str, Field(pattern=r"^arn:aws[a-z-]*:acm:")]


class Api(Settings):
    # An HTTP API costs less than a third of a REST API; only the latter can stand behind WAF.
    kind: Literal["http", "rest"] = "http"
    requests_per_second: Annotated[int, Field(ge=1, le=10_000)] = 500
    burst: Annotated[int, Field(ge=1, le=10_000)] = 1_000
    domain: Domain | None = None


class Bus(Settings):
    archive_days: Annotated[int, Field(ge=0, le=3_650)] = 0
    # Accounts that may put rules of their own on the bus.
    consumer_accounts: tuple[AccountId, ...] = ()


class Alarms(Settings):
    # Subscribed to the stage's topic; each address confirms once.
    emails: tuple[Email, ...] = ()


class Limits(Settings):
    max_event_bytes: Annotated[int, Field(ge=1_024, le=1_048_576)] = 262_144
    # With pauses that grow to a minute, a quarter of an hour: an outage of the bus is not a poisoned batch.
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 20


class Timings(Settings):
    """How long each of the moving parts may take before another one steps in."""

    claim_timeout_ms: Milliseconds = 30_000
    # It is also the function's time-out, which Lambda counts in seconds.
    conversation_processor_timeout_ms: Annotated[int, Field(ge=1_000, le=900_000, multiple_of=1_000)] = 20_000
    # For so long a shard waits when its processor died.
    lease_ms: Annotated[int, Field(ge=LEAST_LEASE_MS, le=60_000)] = 15_000
    # After that the watchdog, twice a minute, starts a processor anyway.
    start_ms: Annotated[int, Field(ge=1_000, le=30_000)] = 10_000
    processor_idle_ms: Annotated[int, Field(ge=1_000)] = 10_000
    processor_handover_ms: Milliseconds = 30_000
    processor_life_seconds: Annotated[int, Field(ge=10, le=900)] = 900

    @model_validator(mode="after")
    def _one_outlives_the_other(self) -> Timings:
        if self.conversation_processor_timeout_ms >= self.claim_timeout_ms:
            raise ValueError(
                "conversation_processor_timeout_ms must be less than claim_timeout_ms: a claim must outlive"
                " the conversation processor that it started"
            )
        working_ms = self.processor_life_seconds * 1_000 - self.processor_handover_ms
        if working_ms <= 0:
            raise ValueError("processor_handover_ms must be less than processor_life_seconds")
        if self.processor_handover_ms < self.lease_ms:
            raise ValueError(
                "processor_handover_ms must not be less than lease_ms: a processor that hands over must wait for the"
                " conversation processors it started, and start its successor, within one lease"
            )
        if self.processor_idle_ms >= working_ms:
            raise ValueError(
                "processor_idle_ms must be less than processor_life_seconds without processor_handover_ms, or no"
                " processor ever leaves for lack of work"
            )
        return self


class Network(Settings):
    egress: Literal["nat", "endpoints"] = "nat"
    nat_gateways: Annotated[int, Field(ge=1, le=2)] = 1
    # Needed only with an account: CDK would look them up there, without one it leaves them to CloudFormation.
    availability_zones: tuple[str, ...] = ()
    flow_logs: bool = False


class Cache(Settings):
    # Maxima only: a minimum is billed whether it is used or not.
    max_storage_gb: Annotated[int, Field(ge=1, le=5_000)] = 5
    max_ecpu_per_second: Annotated[int, Field(ge=1_000, le=15_000_000)] = 30_000
    snapshot_days: Annotated[int, Field(ge=0, le=35)] = 0


class Responder(Settings):
    """The reference consumer, and what it does with each batch; a stage has none unless it says so."""

    assistant: Literal["echo", "bedrock", "openai"] = "echo"
    # As the AI calls it; tenants may name another one.
    model: str = ""
    instructions: str = "You answer the customers of a shop, briefly and kindly."
    assistant_url: Annotated[str, Field(pattern=r"^https?://\S+$")] = "https://api.openai.com/v1"
    assistant_seconds: Annotated[int, Field(ge=1, le=600)] = 60
    max_reply_tokens: Annotated[int, Field(ge=1, le=32_000)] = 1_024
    max_history_tokens: Annotated[int, Field(ge=1, le=1_000_000)] = 8_000
    # What becomes of a reply whose reader has written again.
    gate: Literal["deliver", "discard_and_merge", "interrupt", "queue"] = "discard_and_merge"
    gate_wait_seconds: Annotated[int, Field(ge=4, le=900)] = 30
    # `fake` puts replies on the bus, whatever the platform.
    channel: Literal["platform", "fake"] = "platform"
    # None given: all that there are.
    allowed_channels: tuple[str, ...] = ()
    typing_indicator: bool = False
    unknown_conversation: Literal["create", "drop"] = "create"
    inactive_project: Literal["drop", "hold"] = "drop"
    channel_not_allowed: Literal["drop", "hold"] = "drop"
    handed_to_human: Literal["hold", "drop"] = "hold"
    # How long the buffer is held, but for a hand-off, which has its own end.
    hold_seconds: Annotated[int, Field(ge=1, le=86_400)] = 3_600
    # A delivery that had to wait for another one has been counted, too.
    max_attempts: Annotated[int, Field(ge=1, le=50)] = 12
    # For so long a batch that comes again is known; at least as long as events are archived.
    outbox_days: Annotated[int, Field(ge=1, le=4_000)] = 35

    @model_validator(mode="after")
    def _has_a_model(self) -> Responder:
        if self.assistant != "echo" and not self.model:
            raise ValueError(f"model is needed: which one {self.assistant} is to answer with")
        return self


class StageConfig(Settings):
    name: str
    account: AccountId | None = None
    region: str = "us-east-1"
    removal_policy: Literal["destroy", "retain"] = "destroy"
    # The stacks that hold something refuse to be deleted.
    termination_protection: bool = False
    # X-Ray samples the functions' invocations.
    tracing: bool = False
    # `dynamodb` holds messages in DynamoDB for a fixed time: it needs neither a network nor a cache.
    lane: Literal["valkey", "dynamodb"] = "valkey"
    # Beside `valkey`, the DynamoDB lane takes messages while Valkey cannot be reached.
    fallback: bool = True
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    log_level: LogLevel = "INFO"
    log_retention: LogRetention = "two_weeks"
    oversize_retention_days: Annotated[int, Field(ge=1, le=365)] = 30
    memory: Memory = Memory()
    concurrency: Concurrency = Concurrency()
    warmth: Warmth = Warmth()
    api: Api = Api()
    bus: Bus = Bus()
    alarms: Alarms = Alarms()
    limits: Limits = Limits()
    timings: Timings = Timings()
    rules: dict[str, Any] = {}
    network: Network = Network()
    cache: Cache = Cache()
    responder: Responder | None = None
    # The local stage has no cache of its own: whoever starts Valkey says where it listens.
    valkey_url: str | None = None

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
    def roles(self) -> set[str]:
        """The functions that this stage has."""
        main = {"processor", "conversation_processor", "watchdog"} if self.has_valkey_lane else set()
        window = {"dynamodb_processor"} if self.has_dynamodb_lane else set()
        return {"ingest", "admin"} | main | window | ({"responder"} if self.responder else set())

    @field_validator("rules")
    @classmethod
    def _known(cls, rules: dict[str, Any]) -> dict[str, Any]:
        overrides = rules.get(OVERRIDES, {})
        if not isinstance(overrides, dict) or not all(isinstance(layer, dict) for layer in overrides.values()):
            raise ValueError(f"{OVERRIDES} should be an object with an object of rules for each platform")
        unknown = [name for name in rules if name not in RULES | {OVERRIDES}]
        unknown += [
            f"{OVERRIDES}.{platform}.{name}"
            for platform, layer in overrides.items()
            for name in layer
            if name not in RULES
        ]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} is unknown; valid there: {', '.join(sorted(RULES | {OVERRIDES}))}")
        return rules

    @model_validator(mode="after")
    def _complete(self) -> StageConfig:
        if not STAGE_NAME.fullmatch(self.name) or len(self.name) > STAGE_NAME_LENGTH:
            raise ValueError(
                f"a stage's name has at most {STAGE_NAME_LENGTH} lower-case letters, digits and single hyphens,"
                " and begins with a letter"
            )
        if self.valkey_url and not self.has_valkey_lane:
            raise ValueError("a stage with `lane: dynamodb` has no Valkey: leave valkeyUrl out")
        if self.is_local and self.has_valkey_lane and not self.valkey_url:
            raise ValueError("the local stage needs `-c valkeyUrl=valkey://host:port?cluster=true`; `make up` gives it")
        if not self.is_local and self.valkey_url:
            raise ValueError("only the local stage takes valkeyUrl: the others have a cache of their own")
        if not self.is_local and self.timings.conversation_processor_timeout_ms < MIN_CONVERSATION_PROCESSOR_TIMEOUT_MS:
            raise ValueError(
                f"timings.conversation_processor_timeout_ms must be at least {MIN_CONVERSATION_PROCESSOR_TIMEOUT_MS}:"
                " in less time a conversation processor cannot wait for a slow AWS and still put its batch back"
            )
        has_network = self.has_valkey_lane and not self.is_local
        if self.account and has_network and len(self.network.availability_zones) != ZONES:
            raise ValueError("a stage with an account names two network.availability_zones")
        return self

    @model_validator(mode="after")
    def _can_respond(self) -> StageConfig:
        if self.responder is None:
            return self
        if not self.is_local and not self.responder.assistant_url.startswith("https:"):
            raise ValueError("responder.assistant_url must begin with https: the key goes there, and what people wrote")
        if self.responder.outbox_days <= self.bus.archive_days:
            raise ValueError("responder.outbox_days must exceed bus.archive_days: replayed batches are known by it")
        return self

    @model_validator(mode="after")
    def _fits_its_region(self) -> StageConfig:
        zones = self.network.availability_zones
        if len(set(zones)) != len(zones) or not all(zone.startswith(self.region) for zone in zones):
            raise ValueError(f"network.availability_zones must be different zones of {self.region}")
        domain = self.api.domain
        if domain and f":acm:{self.region}:" not in domain.certificate_arn:
            raise ValueError(f"api.domain.certificate_arn must be of a certificate in {self.region}, as the API is")
        return self

    @model_validator(mode="after")
    def _concurrency_suffices(self) -> StageConfig:
        processors, needed = self.concurrency.processor, 2 * self.shards
        if processors is not None and processors < needed:
            raise ValueError(f"concurrency.processor must be at least {needed}, twice the shards: successors overlap")
        provisioned = self.warmth.provisioned_instances if self.warmth.ingest == "provisioned" else 0
        if self.concurrency.ingest is not None and provisioned > self.concurrency.ingest:
            raise ValueError("warmth.provisioned_instances must not exceed concurrency.ingest, which they are part of")
        return self


def load_stage(
    stages: Mapping[str, Any] | None,
    *,
    stage: str | None,
    valkey_url: str | None = None,
    overrides: str | None = None,
) -> StageConfig:
    """The configuration of one stage, or ConfigError saying what is wrong with it and what would be right.

    `overrides` is a JSON object laid over the stage's values, for the tests of the local stage.
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
            # A rule of the whole stage names its fields itself.
            sentences.append(f"{where}: {what} (given: {problem['input']!r})." if path else f"{what}.")
    return " ".join(sentences)


def _fields_beside(path: list[str]) -> list[str]:
    model: type[BaseModel] = StageConfig
    for part in path[:-1]:
        annotation = model.model_fields[part].annotation
        # A part that a stage may do without is `Part | None`.
        (annotation, *_) = get_args(annotation) or (annotation,)
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        model = annotation
    return sorted(set(model.model_fields) - {"name"})
