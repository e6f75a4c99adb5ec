"""Turns the fields of a message's wire form into the fields that it has in an event.

`docs/schema/messages.batch.ready.json` describes them.
"""

from datetime import datetime, timedelta

from message_buffer.errors import MalformedMessage
from message_buffer.json_object import Json
from message_buffer.messages.wire_form import sent_at_ms

# The fields that every message has in an event, and their values if the wire form leaves them out.
_ALWAYS: Json = {"id": None, "text": "", "type": "text", "timestamp": None, "attachments": []}
_REQUIRED = {"id": str, "text": str, "receivedAt": int, "platform": str}
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - the `Z` is added to the text


def message_fields(wire: Json) -> Json:
    """Return the message as events contain it, without fields that have no value. Raise MalformedMessage."""
    message = _ALWAYS | {name: value for name, value in wire.items() if value is not None}
    for name, kind in _REQUIRED.items():
        if type(message.get(name)) is not kind:
            raise MalformedMessage(f"the message's {name} is missing or has the wrong type")
    message.pop("agent", None)  # the event has its own field `agent`
    message["timestamp"] = _iso(sent_at_ms(message))
    return message


def _iso(at_ms: int) -> str:
    """Return the time in ISO 8601, in UTC, with milliseconds."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds") + "Z"
