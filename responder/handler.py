"""Lambda entry of the responder: deliveries of its queue, or `{"operation": …}` of an operator (`desk.py`).

A delivery is hidden for a short time again and again while it is worked on: one whose function was killed comes
back soon, whatever the queue's own time-out.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.aws.secrets import Secrets
from message_buffer.errors import SendFailed
from message_buffer.events.event_bus import EventBus
from message_buffer.heartbeat import Heartbeat
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.telemetry import Telemetry
from responder import environment as config
from responder.assistants.base import Assistant
from responder.assistants.bedrock import Bedrock
from responder.assistants.echo import Echo
from responder.assistants.openai import OpenAi
from responder.bedrock_client import Models
from responder.buffer import MessageBuffer
from responder.channels.base import Channel, required
from responder.channels.fake import Fake
from responder.channels.messenger import Messenger
from responder.channels.telegram import Telegram
from responder.channels.twilio import Twilio
from responder.channels.whatsapp import WhatsApp
from responder.conversations_table import ConversationsTable
from responder.credentials import CredentialStore
from responder.deliveries import Deliveries
from responder.desk import OperatorCommands
from responder.http import Http
from responder.service import Delivery, Later, ReplyDestinations, Responder

Json = dict[str, Any]

# While a delivery is hidden once: one beat may fail.
BEATS = 3

CHANNELS: dict[str, Callable[[Http, Any], Channel]] = {
    "whatsapp": WhatsApp,
    "messenger": Messenger,
    "telegram": Telegram,
    "twilio": Twilio,
}


class _Parts(NamedTuple):
    """What is kept from one call to the next."""

    responder: Responder
    desk: OperatorCommands
    deliveries: Deliveries
    telemetry: Telemetry
    hidden_seconds: int


@cache
def _parts() -> _Parts:
    settings, telemetry = config.read_responder(), Telemetry()
    table = ConversationsTable(settings.conversations_table)
    deliveries = Deliveries(settings.queue_url, settings.dead_letter_queue_url)
    buffer = MessageBuffer(Functions(), settings.admin_function, by="responder")
    bus = EventBus(settings.event_bus)
    credentials = CredentialStore(Secrets(), settings.secret_id)
    destinations = ReplyDestinations(
        bus=bus,
        objects=ObjectStore(settings.oversize_bucket),
        buffer=buffer,
        dead_letter=lambda body, reason: deliveries.dead_letter(body, reason=reason),
        assistant=partial(_assistant, settings.options, credentials),
        channel=partial(_channel, settings.options, credentials, Fake(bus)),
    )
    responder = Responder(table=table, destinations=destinations, options=settings.options, telemetry=telemetry)
    desk = OperatorCommands(table=table, buffer=buffer, telemetry=telemetry)
    return _Parts(responder, desk, deliveries, telemetry, settings.options.hidden_seconds)


@cache
def _http() -> Http:
    return Http()


def _assistant(options: config.ResponderOptions, credentials: CredentialStore) -> Assistant:
    match options.assistant:
        case "bedrock":
            return Bedrock(Models())
        case "openai":
            api_key = required(credentials.of("openai"), "apiKey")
            return OpenAi(_http(), url=options.assistant_url, api_key=api_key)
    return Echo()


def _channel(
    options: config.ResponderOptions, credentials: CredentialStore, fake: Channel, to: ConversationId
) -> Channel | None:
    if options.channel == "fake" or to.platform == "generic":
        return fake
    make = CHANNELS.get(to.platform)
    return make(_http(), credentials.of(to.platform, to.account)) if make else None


def handler(event: Json, context: Any) -> Json:
    parts = _parts()
    try:
        if "operation" in event:
            return parts.desk.answer(event)
        failed = [each["messageId"] for each in event["Records"] if not _is_done(each, parts, context)]
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
    finally:
        parts.telemetry.flush()


def _is_done(record: Json, parts: _Parts, context: Any) -> bool:
    hide = partial(parts.deliveries.hide, record["receiptHandle"])
    keep = partial(hide, seconds=parts.hidden_seconds)
    try:
        keep()
        with Heartbeat(keep, every_seconds=parts.hidden_seconds / BEATS) as heartbeat:
            receives = int(record["attributes"]["ApproximateReceiveCount"])
            delivery = Delivery(record["body"], receives, context.get_remaining_time_in_millis, heartbeat.check)
            later = parts.responder.respond(delivery)
        heartbeat.check()
        if isinstance(later, Later):
            hide(seconds=later.seconds)
        return later is None
    except SendFailed as error:
        # Answered or not: it comes back, and whoever takes it then sees how far it has come.
        parts.telemetry.warn("delivery could not be hidden", reason=str(error))
        return False
