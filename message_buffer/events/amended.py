"""The event about a change that can no longer be made in a buffer: a reaction, or an edit or a deletion of a message
that no longer waits.

`docs/schema/messages.amended.json` is its schema.
"""

from typing import Any

from message_buffer.events.message_fields import message_fields
from message_buffer.json_object import Json, to_json
from message_buffer.lanes.outcomes import LaneName
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.message import Message, encode
from message_buffer.messages.wire_form import decode_fields

DETAIL_TYPE = "messages.amended"
EVENT_VERSION = 1


def amended_event(change: Change, *, batch_id: str | None, lane: LaneName, agent: str | None = None) -> str:
    """Return the event's detail. `lane` is the lane that looked for the message's batch. `batch_id` is None if it found
    none."""
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(change.conversation),
        "tenant": change.conversation.tenant,
        **({} if agent is None else {"agent": agent}),
        "batchId": batch_id,
        "lane": lane,
        "at": change.at_ms,
        "metadata": {"platform": change.conversation.platform},
        **_fields_of(change),
    }
    return to_json(event).decode()


def _fields_of(change: Change) -> dict[str, Any]:
    match change:
        case Edited(_, message):
            return _fields("edited", message.id, message.author) | {"message": _as_on_the_bus(message)}
        case Deleted(_, message_id, author):
            return _fields("deleted", message_id, author)
        case Reacted(_, message_id, author, emoji, _):
            return _fields("reaction", message_id, author) | {"emoji": emoji}


def _fields(kind: str, message_id: str, author: str | None) -> dict[str, Any]:
    return {"change": kind, "messageId": message_id, "author": author, "message": None, "emoji": None}


def _as_on_the_bus(message: Message) -> Json:
    return message_fields(decode_fields(encode(message)))
