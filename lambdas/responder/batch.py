"""Reads the buffer's events: a batch from an entry of a queue, and the events of the bus about a conversation."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import BoundedSemaphore
from typing import Any, NamedTuple

from lambdas.responder.errors import MalformedEvent
from message_buffer.aws.object_store import ObjectStore
from message_buffer.errors import InvalidId
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id

# A batch of this size is far larger than any model accepts, but two of them still fit into the function's memory. A run
# may have ten, so it reads no more than two at the same time.
MAX_BATCH_BYTES = 8_388_608
_READING_LARGE = BoundedSemaphore(2)
# A question has at most `max_question_tokens`, which are fewer characters.
MAX_TEXT_CHARACTERS = 262_144
DETAIL_TYPE = "messages.batch.ready"
FORGOTTEN, COMPLETED = "messages.conversation.forgotten", "messages.conversation.completed"
EVENT_VERSION = 1
LANES = ("valkey", "dynamodb")
# The folder of the bucket in which the buffer puts batches that are too large for an event.
BATCHES = "batches/"


class Batch(NamedTuple):
    batch_id: str
    conversation: ConversationId
    generation: int
    """Comparable only with generations of the same lane."""
    lane: str
    text: str
    """The question for the assistant: the text of each message, or the type of a message without text."""
    message_ids: list[str]
    last_message_at_ms: int
    address: str | None = None
    """The number or id by which WhatsApp named the last author. None in a group and on other platforms."""
    traceparent: object = None
    """The trace of the batch, as the event names it."""

    @property
    def recipient(self) -> ConversationId:
        """Return the conversation with the number or id under which the author last wrote, as numbers change hands."""
        return self.conversation._replace(user=self.address) if self.address else self.conversation


def read_batch(body: str, objects: ObjectStore) -> Batch:
    """Return the batch in an entry's body. Fetch its messages from S3 if the event refers to them."""
    with _errors_as_malformed(), _READING_LARGE if '"messagesRef"' in body else nullcontext():
        detail = _detail(json.loads(body), DETAIL_TYPE)
        messages = detail["messages"] or _fetch_messages(detail["messagesRef"], objects)
        conversation = parse_conversation_id(_require_type(str, detail["conversationId"]))
        if _require_type(str, detail["lane"]) not in LANES:
            raise MalformedEvent("there is no such lane")
        return Batch(
            batch_id=_require_type(str, detail["batchId"]),
            conversation=conversation,
            generation=_require_type(int, detail["generation"]),
            lane=detail["lane"],
            text="\n".join(_text_for_assistant(message) for message in messages)[:MAX_TEXT_CHARACTERS],
            message_ids=[_require_type(str, message["id"]) for message in messages],
            last_message_at_ms=_require_type(int, detail["metadata"]["lastMessageAt"]),
            address=_whatsapp_address(conversation, messages[-1]),
            traceparent=detail.get("traceparent"),
        )


def read_conversation_event(event: Json) -> tuple[str, str, int]:
    """Return `FORGOTTEN` or `COMPLETED`, the conversation, and the time: the event concerns those batches whose last
    message arrived at or before it."""
    with _errors_as_malformed():
        detail = _detail(event, FORGOTTEN, COMPLETED)
        conversation = parse_conversation_id(_require_type(str, detail["conversationId"]))
        return event["detail-type"], str(conversation), _require_type(int, detail["at"])


@contextmanager
def _errors_as_malformed() -> Iterator[None]:
    try:
        yield
    except MalformedEvent:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RecursionError, InvalidId) as error:
        # The error's text may quote a customer, so the reason contains only its type.
        raise MalformedEvent(f"not an event of the message buffer: {type(error).__name__}") from error


def _detail(event: Any, *detail_types: str) -> Json:
    detail: Json = event["detail"]
    if event["detail-type"] not in detail_types or detail["version"] != EVENT_VERSION:
        raise MalformedEvent("the event has another type or version")
    return detail


def _whatsapp_address(conversation: ConversationId, message: Any) -> str | None:
    author, chat = message.get("author"), message.get("chat")
    # Check the platform too, because an account of a door or of a generic webhook may also begin with `whatsapp:`.
    of_twilio = conversation.platform == "twilio" and conversation.account.startswith("whatsapp:")
    is_whatsapp = conversation.platform == "whatsapp" or of_twilio
    if not is_whatsapp or not isinstance(author, str) or (isinstance(chat, dict) and chat.get("type") == "group"):
        return None
    return author.removeprefix("whatsapp:").removeprefix("+") or None


def _text_for_assistant(message: Any) -> str:
    text, kind = _require_type(str, message["text"]), _require_type(str, message["type"])
    # Models refuse a blank text, and would also refuse every later question with that text in its history.
    return text if any(sign.isprintable() and not sign.isspace() for sign in text) else f"[{kind}]"


def _fetch_messages(reference: Any, objects: ObjectStore) -> Any:
    if reference["bucket"] != objects.bucket or not _require_type(str, reference["key"]).startswith(BATCHES):
        raise MalformedEvent("the event refers to a place where no batches are kept")
    if _require_type(int, reference["bytes"]) > MAX_BATCH_BYTES:
        raise MalformedEvent(f"the batch has more than {MAX_BATCH_BYTES} bytes, which no assistant accepts")
    return json.loads(objects.get(reference["key"]))["messages"]


def _require_type(kind: type, value: Any) -> Any:
    """Return the value, or raise MalformedEvent unless it has exactly this type: True does not count as an int."""
    if type(value) is not kind:
        raise MalformedEvent(f"a field is no {kind.__name__}")
    return value
