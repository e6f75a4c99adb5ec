"""Tries a door's mapping on the body of a webhook. This needs no stage: ingest's own code reads the body here."""

import json
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bufferctl.errors import Failed, Misused
from bufferctl.formatting import as_json
from message_buffer.clock import system_clock
from message_buffer.errors import InvalidInput
from message_buffer.rules.door_reading import DoorItem, items_of, require_room
from message_buffer.rules.doors import is_door_name, read_door, require_size

DEFAULT_NAME = "door"


def try_mapping(given: Namespace) -> None:
    """Show the message that ingest would make of each item of a body. Raise Failed if ingest would refuse the body."""
    name = given.name or (given.mapping.stem if is_door_name(given.mapping.stem) else DEFAULT_NAME)
    if not is_door_name(name):
        raise Misused("A door's name has at most 31 lower-case letters, digits and single hyphens.")
    mapping, body = _json_of(given.mapping), _json_of(given.body)
    try:
        door = read_door(name, mapping)
        require_size(mapping)
    except InvalidInput as error:
        raise Failed(f"The mapping is wrong:\n{error}") from error
    try:
        read = [
            _shown(item, leave_out=door.unreadable == "ignore")
            for item in items_of(door, body, received_at_ms=system_clock())
        ]
    except InvalidInput as error:
        raise Failed(f"This body would be refused: {error}") from error
    print(as_json(read))


def _shown(item: DoorItem, *, leave_out: bool) -> Mapping[str, Any]:
    try:
        read, left_out = item.read()
        if isinstance(read, str):
            return {"ignored": read}
        fields = read._asdict()
        conversation = str(fields.pop("conversation"))
        if message := fields.pop("message", None):
            # Refuse a message that is too large, as ingest does.
            require_room(message)
            fields["message"] = message.model_dump(by_alias=True, exclude_unset=True)
    except InvalidInput as error:
        if leave_out:
            return {"ignored": "unreadable", "because": str(error)}
        raise
    shown = {"is": type(read).__name__.lower(), "conversation": conversation} | fields
    return shown | ({"leftOut": left_out} if left_out else {})


def _json_of(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise Misused(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise Misused(f"{path} is not JSON in UTF-8: {error}.") from error
