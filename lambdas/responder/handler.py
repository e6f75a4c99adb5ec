"""Lambda entry of the responder: deliveries of its queue, or `{"operation": …}` of an operator (`desk.py`).

A delivery is hidden for a short time again and again while it is worked on: one whose function was killed comes
back soon, whatever the queue's own time-out.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from lambdas.responder.assistants.base import Assistant
from lambdas.responder.assistants.bedrock import Bedrock
from lambdas.responder.assistants.echo import Echo
from lambdas.responder.assistants.openai import OpenAi
from lambdas.responder.buffer import MessageBuffer
from lambdas.responder.channels.base import Channel, required
from lambdas.responder.channels.fake import Fake
from lambdas.responder.channels.messenger import Messenger
from lambdas.responder.channels.telegram import Telegram
from lambdas.responder.channels.twilio import Twilio
from lambdas.responder.channels.whatsapp import WhatsApp
from lambdas.responder.credentials import CredentialStore
from lambdas.responder.desk import Desk
from lambdas.responder.http import Http
from lambdas.responder.service import Delivery, Later, Outlets, Responder
from lambdas.shared import config
from lambdas.shared.conversation import ConversationId
from lambdas.shared.errors import SendFailed
from lambdas.shared.heartbeat import Heartbeat
from lambdas.shared.senders.conversations_table import ConversationsTable
from lambdas.shared.senders.deliveries import Deliveries
from lambdas.shared.senders.event_bus import EventBus
from lambdas.shared.senders.functions import Functions
from lambdas.shared.senders.models import Models
from lambdas.shared.senders.object_store import ObjectStore
from lambdas.shared.senders.secrets import Secrets
from lambdas.shared.telemetry import Telemetry

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
    desk: Desk
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
    outlets = Outlets(
        bus=bus,
        objects=ObjectStore(settings.oversize_bucket),
        buffer=buffer,
        bury=lambda body, reason: deliveries.bury(body, reason=reason),
        assistant=partial(_assistant, settings.options, credentials),
        channel=partial(_channel, settings.options, credentials, Fake(bus)),
    )
    responder = Responder(table=table, outlets=outlets, options=settings.options, telemetry=telemetry)
    desk = Desk(table=table, buffer=buffer, telemetry=telemetry)
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
