"""The settings of each function, and the parts that several functions share.

`infra/` builds these objects, and `to_variables` passes them to the functions. The numbers come from the stage's
settings: `infra/settings_and_defaults.py` explains them and checks their bounds.
"""

import json
import os
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

from message_buffer import limits
from message_buffer.errors import InvalidSettings

# -- parts that several functions share ----------------------------------------------------------------------


class LogSettings(NamedTuple):
    id_key: str | None = None
    """The key under which ids are logged as hashes, or None if they are logged as they are."""
    level: str | None = None
    """The lowest severity that is logged. None if the logger decides."""


class ConnectionSettings(NamedTuple):
    """Valkey's address, and its time-outs."""

    url: str  # valkey://[user:password@]host:port, valkeys:// for TLS
    connect_timeout_ms: int = limits.VALKEY_CONNECT_MS  # for TCP, TLS and the sign-in together
    answer_timeout_ms: int = limits.VALKEY_ANSWER_MS  # for an answer on an open connection
    ca_file: str | None = None

    @property
    def max_call_ms(self) -> int:
        """Return the longest time of a call. A call waits for a connection only once, even if it is tried again."""
        return self.connect_timeout_ms + limits.VALKEY_ATTEMPTS * self.answer_timeout_ms


class IamAccess(NamedTuple):
    """The user that signs in to a cache that accepts IAM tokens."""

    user: str
    cache_name: str
    region: str


class StoreSettings(NamedTuple):
    """The times and bounds of the Valkey lane, which are the same in each function of a stage."""

    shards: int
    start_ms: int  # a reserved start has failed if no processor has acquired the lease in this time
    lease_ms: int  # a processor that has not renewed its lease for this long is dead
    claim_ms: int  # the time from the claim to the take
    slots: int  # conversations of a shard that may be in flight at once
    max_waiting: int  # messages in one conversation
    # For work that is due later than this, no processor is started yet. The watchdog starts one, because it makes three
    # passes before then.
    horizon_ms: int = 3 * limits.WATCHDOG_PASS_MS
    # A run must complete its batch, or renew its token, within this time. If the run crashes, its batch may wait this
    # long.
    token_ms: int = 6_000
    max_waiting_bytes: int = 32 * 1024 * 1024  # bytes of messages of more than 4 KiB, in one conversation
    # If this many conversations are on hold, a consumer may not hold another, because it may invent conversations.
    max_held: int = 10_000  # conversations of a shard
    max_sleep_ms: int = limits.PROCESSOR_LOOK_MS
    seen_ms: int = limits.REMEMBERED_MS
    max_batch: int = limits.MAX_MESSAGES_IN_A_BATCH
    max_batch_bytes: int = limits.MAX_BYTES_IN_A_BATCH
    # If a message is not at its expected position, search this many of the newest messages, which is twice a full
    # batch.
    max_search: int = 2_000
    search_bytes: int = 64 * 1024  # payloads to search in a call, so that other clients' calls run in between
    max_emitted: int = 100  # batches to remember: the event about an edit after the emission names the batch
    max_seen: int = 5_000  # message ids to remember; the oldest are forgotten, but never those of waiting messages


class ValkeySettings(NamedTuple):
    connection: ConnectionSettings
    iam: IamAccess | None
    """None if the URL contains the user and the password, or if Valkey requires no sign-in."""
    store: StoreSettings
    processor_function: str
    """The function to start when a script has reserved the start of a processor."""


class DynamoDbLaneSettings(NamedTuple):
    """The table that stores messages, and the queue of triggers."""

    table: str
    queue_url: str


class EmissionSettings(NamedTuple):
    """The places to which batches are emitted, and the limits of an emission."""

    event_bus: str
    max_event_bytes: int
    oversize_bucket: str
    max_attempts: int
    dead_letter_queue_url: str
    takeovers_table: str
    tuning_table: str
    queues: dict[str, str] = {}  # noqa: RUF012 - nobody changes settings
    """The URL of each of the stage's queues by its name."""


class WhatsAppQueueSettings(NamedTuple):
    """The queue of webhooks from AWS End User Messaging Social, and the queue for webhooks that cannot be read."""

    queue_url: str
    unreadable_queue_url: str


# -- functions of the buffer ---------------------------------------------------------------------------------
#
# `valkey` is None in a stage with the DynamoDB lane alone. `dynamodb_lane` is None if the Valkey lane has no fallback.


class IngestSettings(NamedTuple):
    log: LogSettings
    valkey: ValkeySettings | None
    dynamodb_lane: DynamoDbLaneSettings | None
    webhook_secret_id: str
    """The secret that `lambdas/ingest/webhook_secrets.py` describes."""
    time_is_required: bool
    """True if the signature of the generic platform's webhooks must cover their time."""
    event_bus: str
    rules: dict[str, Any]
    """The rules layer that is deployed with the stage."""
    platform_numbers: bool
    rules_table: str
    takeovers_table: str
    aliases_table: str
    dead_letter_queue_url: str
    whatsapp_queue: WhatsAppQueueSettings | None
    """None in a stage without AWS End User Messaging Social."""
    address: str | None = None
    """The base URL that platforms call, if something stands before the API. None if they call the API itself."""
    queues: dict[str, Any] = {}  # noqa: RUF012 - nobody changes settings
    """The stage's queues in the order in which they are tried: the name, and the conditions by field. `default` and
    `handoff` have no conditions."""
    notes_replies: bool = False
    """True if the lanes note replies that platforms report."""


class ProcessorSettings(NamedTuple):
    log: LogSettings
    valkey: ValkeySettings
    conversation_processor_function: str
    idle_ms: int
    """How long the processor keeps running while it has no work."""
    handover_ms: int
    """How long before its time-out the processor hands over to its successor."""


class ConversationProcessorSettings(NamedTuple):
    log: LogSettings
    valkey: ValkeySettings
    emission: EmissionSettings


class DynamoDbProcessorSettings(NamedTuple):
    log: LogSettings
    dynamodb_lane: DynamoDbLaneSettings
    emission: EmissionSettings


class WatchdogSettings(NamedTuple):
    log: LogSettings
    valkey: ValkeySettings


class AdminSettings(NamedTuple):
    log: LogSettings
    valkey: ValkeySettings | None
    dynamodb_lane: DynamoDbLaneSettings | None
    redrive_function: str
    """The function that emits dead letters again."""
    ingest_function: str
    """The function that buffers the message of a dead letter that has no batch."""
    event_bus: str
    dead_letter_queue_url: str
    rules: dict[str, Any]
    """The rules layer that is deployed with the stage."""
    platform_numbers: bool
    rules_table: str
    takeovers_table: str
    aliases_table: str
    tuning_table: str
    oversize_bucket: str
    ages_out: dict[str, int]
    """The places that still contain copies of a conversation after `forget`, each with the days until its copies
    expire."""
    queues: tuple[str, ...] = ()
    """The names of the stage's queues."""
    queue_dead_letter_urls: tuple[str, ...] = ()
    """The dead-letter queue of each of the stage's queues. `forget` also erases there."""


class GateSettings(NamedTuple):
    log: LogSettings
    valkey: ValkeySettings | None
    dynamodb_lane: DynamoDbLaneSettings | None
    event_bus: str
    takeovers_table: str
    queues: tuple[str, ...] = ()
    """The names of the stage's queues."""


# -- functions beside the buffer -----------------------------------------------------------------------------


class ResponderOptions(NamedTuple):
    """The stage's settings of its responder, which `ResponderConfig` in `infra/settings_and_defaults.py` explains."""

    assistant: str
    """`echo`, `bedrock`, `openai`, `chat-completions`, or the ARN of a function."""
    model: str
    instructions: str
    assistant_url: str
    assistant_seconds: int
    max_reply_tokens: int
    max_history_tokens: int
    max_replies_an_hour: int
    max_tenant_replies_an_hour: int
    gate: str
    gate_wait_seconds: int
    channel: str
    allowed_channels: tuple[str, ...]
    typing_indicator: bool
    tools: tuple[str, ...]
    turn_days: int
    outbox_days: int
    """How long the responder remembers a batch, so that it recognises a redelivery."""
    max_question_tokens: int = 32_000
    """The responder does not answer a longer batch, because it never shortens one. Twenty of WhatsApp's longest
    messages have 27,000 tokens."""
    max_attempts: int = 12
    """After this many deliveries the responder gives a batch up. Each delivery by the queue counts, even if the gate
    has stopped the reply, or if an earlier batch of the conversation has failed."""


class ResponderSettings(NamedTuple):
    log: LogSettings
    conversations_table: str
    queues: dict[str, Any]
    """The queues that the responder consumes: the name -> {"url", "dead_letter_url"}. A batch that the responder cannot
    answer goes into the dead-letter queue of its queue."""
    secret_id: str
    """The secret that `lambdas/responder/credentials.py` describes."""
    secret_prefix: str
    """The beginning of the names of the secrets to which that secret may refer."""
    gate_function: str
    """The function that the responder asks whether a customer has written again."""
    event_bus: str
    oversize_bucket: str
    options: ResponderOptions


class CanarySettings(NamedTuple):
    log: LogSettings
    api_endpoint: str
    webhook_secret_id: str
    queue_url: str
    """The queue that receives the events of the canary's conversations."""


# -- environment variables -----------------------------------------------------------------------------------
#
# Almost all settings of a function are in its environment variable SETTINGS, as JSON. A field that is None or has its
# default value is left out. A function also has the variables in OWN_VARIABLES, and two variables for Powertools: the
# name of the service, and the namespace of the metrics.

S = TypeVar("S")

SETTINGS = "SETTINGS"
# The path of a setting -> its own variable, which docs/from-the-design.md names.
OWN_VARIABLES = {
    "valkey.connection.url": "REDIS_URL",
    "valkey.processor_function": "PROCESSOR_FUNCTION_NAME",
    "conversation_processor_function": "CONVERSATION_PROCESSOR_FUNCTION_NAME",
}


def to_variables(settings: tuple[Any, ...]) -> dict[str, str]:
    """Return the variables that contain the settings. A field's value may be one of CDK's tokens."""
    own: dict[str, str] = {}
    fields = _to_json(settings, "", own)
    return own | {SETTINGS: json.dumps(fields, ensure_ascii=False, separators=(",", ":"))}


def _to_json(value: Any, path: str, own: dict[str, str]) -> Any:
    """Return the value in a form that can be written as JSON. Leave out settings that have variables of their own, and
    put these into `own`."""
    if not hasattr(value, "_fields"):
        return value
    found = {}
    for name, each in value._asdict().items():
        if each is None or each == value._field_defaults.get(name):
            continue
        field = f"{path}.{name}".lstrip(".")
        if field in OWN_VARIABLES:
            own[OWN_VARIABLES[field]] = each
        else:
            found[name] = _to_json(each, field, own)
    return found


def read_settings(kind: type[S], variables: Mapping[str, str] | None = None) -> S:
    """Return the settings from `variables`, or from the environment. Raise InvalidSettings if a field is missing,
    unknown or of another type. The error names the field, but never its value."""
    given = os.environ if variables is None else variables
    try:
        fields = json.loads(given.get(SETTINGS, ""))
    except ValueError:
        raise InvalidSettings(f"{SETTINGS} is missing or not JSON.") from None
    settings: S = _decode(kind, fields, "", given)
    return settings


def _decode(kind: Any, value: Any, path: str, variables: Mapping[str, str]) -> Any:
    kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    if not hasattr(kind, "_fields"):
        kind = get_origin(kind) or kind
        value = tuple(value) if kind is tuple and type(value) is list else value
        if type(value) is not kind:
            raise InvalidSettings(f"{_name(path)} must have the type {kind.__name__}.")
        return value
    if type(value) is not dict:
        raise InvalidSettings(f"{_name(path)} must be a JSON object.")
    if unknown := value.keys() - set(kind._fields):
        raise InvalidSettings(f"{_name(f'{path}.{min(unknown)}'.lstrip('.'))} is unknown.")
    found = dict(kind._field_defaults)
    for name, of in kind.__annotations__.items():
        field = f"{path}.{name}".lstrip(".")
        given = variables.get(OWN_VARIABLES[field]) if field in OWN_VARIABLES else value.get(name)
        if given is not None:
            found[name] = _decode(of, given, field, variables)
        elif NoneType in get_args(of):
            found[name] = None
        elif name not in found:
            raise InvalidSettings(f"{_name(field)} is missing.")
    return kind(**found)


def _name(path: str) -> str:
    """Return the name of a setting as error texts show it."""
    return OWN_VARIABLES.get(path) or f"{SETTINGS}.{path}".rstrip(".")
