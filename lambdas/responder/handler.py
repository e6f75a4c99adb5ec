"""Lambda entry of the responder: entries of the stage's queues, the bus's events about a conversation, or an operator's
`{"operation": …}`."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from lambdas.responder.assistants import Assistant, Bedrock, Echo, OpenAi, YourFunction
from lambdas.responder.batch import COMPLETED, read_conversation_event
from lambdas.responder.channels import CHANNELS, Channel, FakeChannel, require_credential
from lambdas.responder.chat_completions import ChatCompletions
from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.credentials import CredentialStore
from lambdas.responder.errors import CallBusy
from lambdas.responder.forgetting import OperatorCommands
from lambdas.responder.gate import BufferClient
from lambdas.responder.http_client import Http
from lambdas.responder.service import Collaborators, Responder
from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.aws.secrets import Secrets
from message_buffer.consumer import turns
from message_buffer.events.event_bus import EventBus
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import ResponderOptions, ResponderSettings, read_settings
from message_buffer.telemetry import Telemetry


class _Components(NamedTuple):
    """The objects that each instance of the function makes once and keeps."""

    responder: Responder
    commands: OperatorCommands
    telemetry: Telemetry
    queue_urls: list[str]


@cache
def _components() -> _Components:
    settings = read_settings(ResponderSettings)
    telemetry = Telemetry(settings.log)
    options = settings.options
    table = ConversationsTable(
        settings.conversations_table, outbox_days=options.outbox_days, turn_days=options.turn_days
    )
    bus = EventBus(settings.event_bus)
    credentials = CredentialStore(Secrets(), settings.secret_id, prefix=settings.secret_prefix)
    dead_letter_urls = {queue["url"]: queue["dead_letter_url"] for queue in settings.queues.values()}
    collaborators = Collaborators(
        table=table,
        bus=bus,
        objects=ObjectStore(settings.oversize_bucket),
        buffer=BufferClient(Functions(), settings.gate_function, by="responder"),
        dead_letter_urls=dead_letter_urls,
        assistant=partial(_assistant, options, credentials),
        channel=partial(_channel, options, credentials, FakeChannel()),
    )
    responder = Responder(collaborators, options, telemetry)
    commands = OperatorCommands(table, telemetry)
    return _Components(responder, commands, telemetry, list(dead_letter_urls))


@cache
def _http() -> Http:
    return Http()


def _assistant(options: ResponderOptions, credentials: CredentialStore, tenant: str) -> Assistant:
    match options.assistant:
        case "bedrock":
            return Bedrock()
        case "openai" | "chat-completions":
            api_key = require_credential(credentials.of("openai", tenant=tenant), "apiKey")
            service = OpenAi if options.assistant == "openai" else ChatCompletions
            return service(_http(), url=options.assistant_url, api_key=api_key)
        case "echo":
            return Echo()
    return YourFunction(Functions(), options.assistant)


def _channel(
    options: ResponderOptions, credentials: CredentialStore, fake: Channel, to: ConversationId
) -> Channel | None:
    # Replies to doors go to the bus, too, because we do not know where the products behind the doors accept replies.
    if options.channel == "fake" or to.platform in ("generic", "custom"):
        return fake
    make = CHANNELS.get(to.platform)
    return make(_http(), credentials.of(to.platform, to.account, to.tenant)) if make else None


def handler(event: Json, context: Any) -> Json:
    components, time_left_ms = _components(), context.get_remaining_time_in_millis
    try:
        if "operation" in event:
            return components.commands.run(event, request_id=context.aws_request_id, time_left_ms=time_left_ms)
        if "Records" not in event:
            return _change(event, components, time_left_ms)
        answer = partial(components.responder.respond, time_left_ms=time_left_ms)
        return turns.handle(event, answer, queue_urls=components.queue_urls)
    finally:
        components.telemetry.flush()


def _change(event: Json, components: _Components, time_left_ms: Callable[[], int]) -> Json:
    """End a conversation's episode, or erase the conversation. Raise CallBusy if time ran out: Lambda repeats it."""
    kind, conversation, at_ms = read_conversation_event(event)
    if kind == COMPLETED:
        components.commands.end_episode(conversation, at_ms=at_ms)
        return {}
    erased = components.commands.forget(conversation, at_ms=at_ms, time_left=time_left_ms)
    turns_erased, finished = erased["counts"]["turns"], erased["finished"]
    components.telemetry.info("forgotten", conversation=conversation, turns=turns_erased, finished=finished)
    if not finished:
        raise CallBusy("the conversation is not erased yet")
    return {}
