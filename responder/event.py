"""A delivery of the queue: the event `messages.batch.ready` as EventBridge wraps it, checked and completed."""

import json
from typing import Any, NamedTuple, Protocol

from message_buffer.errors import InvalidId
from message_buffer.messages.conversation_id import ConversationId, parse_conversation_id
from responder.errors import MalformedEvent

LANES = ("debounce", "window")

DETAIL_TYPE = "messages.batch.ready"
EVENT_VERSION = 1
BATCHES = "batches/"
# Many times what models take, and what the function's memory still holds.
MOST_BYTES = 8_388_608


class Objects(Protocol):
    bucket: str

    def get(self, key: str) -> bytes: ...


class Batch(NamedTuple):
    batch_id: str
    conversation: ConversationId
    generation: int
    lane: str
    """Each counts generations for itself."""
    text: str
    """What the assistant is told: the texts, and of what has none its kind."""
    last_message_id: str


def read_batch(body: str, objects: Objects) -> Batch:
    """Raises MalformedEvent; SendFailed if what the event refers to cannot be fetched."""
    try:
        event = json.loads(body)
        detail = event["detail"]
        if event["detail-type"] != DETAIL_TYPE or detail["version"] != EVENT_VERSION:
            raise MalformedEvent("another type or version of event")
        messages = detail["messages"] or _fetched(detail["messagesRef"], objects)
        return Batch(
            batch_id=_require_type(str, detail["batchId"]),
            conversation=parse_conversation_id(_require_type(str, detail["conversationId"])),
            generation=_require_type(int, detail["generation"]),
            lane=_lane(detail.get("lane", "debounce")),
            text="\n".join(_told(message) for message in messages),
            last_message_id=_require_type(str, messages[-1]["id"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, RecursionError, InvalidId) as error:
        if isinstance(error, MalformedEvent):
            raise
        # Only its kind: its words may quote what somebody wrote.
        raise MalformedEvent(f"not an event of the message buffer: {type(error).__name__}") from error


def _told(message: Any) -> str:
    text, kind = _require_type(str, message["text"]), _require_type(str, message["type"])
    # Models refuse a blank text, and with it every question that is asked after it.
    return text if any(sign.isprintable() and not sign.isspace() for sign in text) else f"[{kind}]"


def _fetched(reference: Any, objects: Objects) -> Any:
    if reference["bucket"] != objects.bucket or not _require_type(str, reference["key"]).startswith(BATCHES):
        raise MalformedEvent("the event refers to a place that holds no batches")
    if _require_type(int, reference["bytes"]) > MOST_BYTES:
        raise MalformedEvent(f"the batch has more than {MOST_BYTES} bytes: no assistant could be told of it")
    return json.loads(objects.get(reference["key"]))["messages"]


def _lane(value: Any) -> str:
    """Archives may hold events of a version before lanes, which have none."""
    if value not in LANES:
        raise MalformedEvent("there is no such lane")
    return str(value)


def _require_type(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise MalformedEvent(f"a field is no {kind.__name__}")
    return value
