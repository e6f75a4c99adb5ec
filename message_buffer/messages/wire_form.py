"""The bytes in which a message waits in a buffer, for whoever needs no more of it than its fields.

Wire form, version 1:

    "wamid.1"                        the id, as a JSON string: JSON escapes line ends, so the first ends it
    {"v":1,"text":"Hey","type":…}    everything else, as compact JSON

The first line lets a script find a message by comparing bytes, without parsing JSON. What is empty is left
out, and what this version does not know is kept: old and new code read each other's messages in a deploy.
"""

import json
from typing import Any

from message_buffer.errors import MalformedMessage

Json = dict[str, Any]
"""A JSON object."""

WIRE_VERSION = 1

# Never to change: a message that older code buffered is found by these very bytes.
_id_to_json = json.JSONEncoder(ensure_ascii=False).encode


def mend_id(value: str) -> str:
    """In an id half a surrogate pair becomes an escape: two ids made one would let a message pass for a duplicate."""
    return value.encode("utf-8", "backslashreplace").decode()


def id_line(message_id: str) -> bytes:
    """How the wire form of the message with this id begins, and of no other."""
    return _id_to_json(mend_id(message_id)).encode() + b"\n"


def id_of(wire: bytes) -> str | None:
    """None: it cannot be read."""
    try:
        message_id = json.loads(wire.partition(b"\n")[0])
        message_id.encode()
    except (ValueError, RecursionError, AttributeError):
        return None
    return str(message_id)


def decode_fields(wire: bytes) -> Json:
    """The fields of a message by their wire names, `id` among them; what they hold is not looked at."""
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
