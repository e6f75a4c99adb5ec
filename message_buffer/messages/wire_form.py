"""The bytes in which a message is stored, and functions that read its fields without the cost of pydantic.

Wire form, version 1:

    "wamid.1"                        the id, as a JSON string, which cannot contain a line end
    {"v":1,"text":"Hey","type":…}    everything else, as compact JSON; `editedAt` comes before `text`

The first line lets a script find a message by comparing bytes, without parsing JSON. Empty fields are left out, and
unknown fields are kept. From the first release on, each release must also read what the last release wrote.
"""

import json
import re

from message_buffer.errors import MalformedMessage
from message_buffer.json_object import Json
from message_buffer.limits import MAX_TIME_MS

WIRE_VERSION = 1

# This must never change after a release, because scripts find buffered messages by exactly these bytes.
_id_to_json = json.JSONEncoder(ensure_ascii=False).encode

# lua/edit_message.lua has the same pattern.
_EDITED_AT = re.compile(rb'\n\{"v":\d+,"editedAt":(\d{1,15})')


def camel_case(name: str) -> str:
    """Return the name on the wire for a Python name. pydantic's own function would compile regular expressions in a
    cold start."""
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


def mend_id(value: str) -> str:
    """Escape lone surrogates. If they were replaced, two different ids could become the same."""
    return value.encode("utf-8", "backslashreplace").decode()


def id_line(message_id: str) -> bytes:
    """Return the first line of a message's wire form. No message with another id begins with the same line."""
    return _id_to_json(mend_id(message_id)).encode() + b"\n"


def edited_at_ms(wire: bytes) -> int:
    """Return when the message was edited, or 0 if it was not, or if its platform does not say when."""
    found = _EDITED_AT.search(wire)
    return int(found[1]) if found else 0


def decode_fields(wire: bytes) -> Json:
    """Return a message's fields by their wire names, with `id`. Their values are not checked.

    Raise MalformedMessage.
    """
    head, line_end, tail = wire.partition(b"\n")
    if not line_end:
        raise MalformedMessage("no line end after the id")
    try:
        message_id, body = json.loads(head.decode()), json.loads(tail.decode())
    except (ValueError, RecursionError) as error:
        raise MalformedMessage("not JSON in UTF-8") from error
    if not isinstance(body, dict):
        raise MalformedMessage("the body is not a JSON object")
    version = body.pop("v", None)
    if type(version) is not int or version < WIRE_VERSION:
        raise MalformedMessage("no version in the body")
    return body | {"id": message_id}


def sent_at_ms(fields: Json) -> int:
    """Return when the message was sent. If the platform does not say that, return when it was received.

    Raise MalformedMessage if the value is not a time.
    """
    at_ms = fields.get("sentAt", fields.get("receivedAt"))
    if type(at_ms) is not int or not 0 <= at_ms <= MAX_TIME_MS:
        raise MalformedMessage("the message's time is not in milliseconds since 1970")
    return at_ms
