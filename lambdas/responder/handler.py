"""Lambda entry of the responder: deliveries of its queue, or an operator's `{"operation": …}`.

While the responder works on a delivery, a heartbeat extends the delivery's invisibility by a short period each time. So
if the function is killed, the queue delivers the batch again soon, however long the queue's own visibility time-out is.
"""

from functools import cache, partial
from typing import Any, NamedTuple

from lambdas.responder.assistants import Assistant, Bedrock, Echo, OpenAi
from lambdas.responder.channels import CHANNELS, Channel, FakeChannel, require_credential
from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.credentials import CredentialStore
from lambdas.responder.deliveries import Deliveries, Delivery
from lambdas.responder.forgetting import OperatorCommands, ResponderForgetting
from lambdas.responder.gate import BufferClient
from lambdas.responder.http_client import Http
from lambdas.responder.service import Collaborators, Responder
from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.aws.secrets import Secrets
from message_buffer.errors import SendFailed
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.heartbeat import Heartbeat
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import ResponderOptions, ResponderSettings, read_settings
from message_buffer.telemetry import Telemetry

# The heartbeat hides a delivery for one more period, this many times within each period. So the delivery stays hidden
# even if one call of the heartbeat is slow.
MIN_HEARTBEATS_WHILE_HIDDEN = 3


class _Components(NamedTuple):
    """The objects that each instance of the function makes once and keeps."""

    responder: Responder
    commands: OperatorCommands
    deliveries: Deliveries
    telemetry: Telemetry
    hidden_seconds: int


@cache
def _components() -> _Components:
    settings = read_settings(ResponderSettings)
    telemetry = Telemetry(settings.log)
    options = settings.options
    table = ConversationsTable(
        settings.conversations_table, outbox_days=options.outbox_days, turn_days=options.turn_days
    )
    deliveries = Deliveries(settings.queue_url, settings.dead_letter_queue_url)
    bus = EventBus(settings.event_bus)
    credentials = CredentialStore(Secrets(), settings.secret_id)
    forgetting = ResponderForgetting(
        table=table, dead_letters=DeadLetterQueue(settings.dead_letter_queue_url), lock_ms=options.lock_ms
    )
    collaborators = Collaborators(
        table=table,
        bus=bus,
        objects=ObjectStore(settings.oversize_bucket),
        buffer=BufferClient(Functions(), settings.gate_function, by="responder"),
        deliveries=deliveries,
        forgetting=forgetting,
        assistant=partial(_assistant, options, credentials),
        channel=partial(_channel, options, credentials, FakeChannel(bus)),
    )
    responder = Responder(collaborators, options, telemetry)
    commands = OperatorCommands(table=table, forgetting=forgetting, telemetry=telemetry)
    return _Components(responder, commands, deliveries, telemetry, options.hidden_seconds)


@cache
def _http() -> Http:
    return Http()


def _assistant(options: ResponderOptions, credentials: CredentialStore) -> Assistant:
    match options.assistant:
        case "bedrock":
            return Bedrock()
        case "openai":
            api_key = require_credential(credentials.of("openai"), "apiKey")
            return OpenAi(_http(), url=options.assistant_url, api_key=api_key)
    return Echo()


def _channel(
    options: ResponderOptions, credentials: CredentialStore, fake: Channel, to: ConversationId
) -> Channel | None:
    # Replies to doors go to the bus, too, because we do not know where the products behind the doors accept replies.
    if options.channel == "fake" or to.platform in ("generic", "custom"):
        return fake
    make = CHANNELS.get(to.platform)
    return make(_http(), credentials.of(to.platform, to.account)) if make else None


def handler(event: Json, context: Any) -> Json:
    components = _components()
    try:
        if "operation" in event:
            time_left_ms = context.get_remaining_time_in_millis
            return components.commands.run(event, request_id=context.aws_request_id, time_left_ms=time_left_ms)
        failed = [each["messageId"] for each in event["Records"] if not _is_finished(each, components, context)]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
    finally:
        components.telemetry.flush()


def _is_finished(record: Json, components: _Components, context: Any) -> bool:
    """Work on one delivery. Return False if the queue has to deliver it again."""
    hide = partial(components.deliveries.hide, record["receiptHandle"])
    keep_hidden = partial(hide, seconds=components.hidden_seconds)
    every_seconds = components.hidden_seconds / MIN_HEARTBEATS_WHILE_HIDDEN
    try:
        keep_hidden()
        with Heartbeat(keep_hidden, every_seconds=every_seconds) as heartbeat:
            receives = int(record["attributes"]["ApproximateReceiveCount"])
            delivery = Delivery(record["body"], receives, context.get_remaining_time_in_millis, heartbeat.check)
            retry_seconds = components.responder.respond(delivery)
        heartbeat.check()
        if retry_seconds is not None:
            hide(seconds=retry_seconds)
        return retry_seconds is None
    except SendFailed:
        # If the queue delivers the batch again although it was answered, the outbox shows what was sent.
        return False
