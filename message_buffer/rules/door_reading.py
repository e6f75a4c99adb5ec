"""Reads messages, edits, deletions and reactions from the body of a webhook, with a door's mapping.

If a value decides to which conversation or message an item belongs, it must be valid. Any other value is left out if it
is invalid, and reported, so that the message is not lost.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from message_buffer.errors import InvalidId, InvalidInput
from message_buffer.json_object import Json
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK, MAX_MESSAGE_ID_BYTES, MAX_TIME_MS
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, encode_conversation
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, encode, profile_of
from message_buffer.messages.wire_form import camel_case, mend_id
from message_buffer.rules.door_expressions import Interpreter
from message_buffer.rules.doors import Door, Values

_T = TypeVar("_T")

PLATFORM = "custom"
# No size or id has more digits, and Python refuses to print or parse a number with thousands of digits.
MAX_DIGITS_OF_A_SIZE = 18
MAX_ID_NUMBER = 10**30
MAX_CHARACTERS_OF_A_NUMBER = 32
MAX_DEGREES = 360
# If a media type begins with one of these words, the word is also the attachment's type. Other files are documents.
_TYPES_OF_MEDIA = ("image", "audio", "video")


class Unfit(InvalidInput):
    """Raised if a body does not fit the mapping. The error's text names the mapping's field."""


class Sent(NamedTuple):
    """A new message."""

    conversation: ConversationId
    message: Message
    group: bool
    """True if several authors write in this conversation."""


class Read(NamedTuple):
    what: Sent | Change | str
    """The message or change, or the kind under which an ignored item is counted."""
    left_out: list[str]
    """The invalid values that were left out, each as a sentence with the mapping's field."""


def items_of(door: Door, body: Any, *, received_at_ms: int) -> "list[DoorItem]":
    """Return the items of a body. Raise Unfit if `items` gives something else than a list, or too long a list."""
    interpreter = Interpreter()
    if door.mapping.items is None:
        return [DoorItem(door, body, body, "", interpreter, received_at_ms)]
    # A body without a list has no items: products also send other notifications to this address.
    items = interpreter.visit(door.mapping.items, {"body": body, "item": body})
    items = [] if items is None else items
    if not isinstance(items, list) or len(items) > MAX_ITEMS_IN_A_WEBHOOK:
        raise Unfit(f"items must be a list of at most {MAX_ITEMS_IN_A_WEBHOOK} items.")
    return [
        DoorItem(door, body, item, f"item {place}: ", interpreter, received_at_ms) for place, item in enumerate(items)
    ]


def require_room(message: Message) -> None:
    """Raise InvalidInput if the message is too large to be stored."""
    encode(message)


class DoorItem:
    def __init__(  # noqa: PLR0917 - all that a reading needs
        self, door: Door, body: Any, item: Any, where: str, interpreter: Interpreter, received_at_ms: int
    ) -> None:
        self._door = door
        self._mapping = door.mapping
        self._where = where
        """The item's number, if the body has a list of items."""
        self._interpreter = interpreter
        self._scope = {"body": body, "item": item}
        self._received_at_ms = received_at_ms
        self._kind_name = ""
        self._kind: Values | None = None
        """The part of the mapping that describes this kind of item; None for messages."""
        self._left_out: list[str] = []

    def read(self) -> Read:
        """Return the item as a message, a change, or the kind under which it is ignored. Raise Unfit."""
        if self._mapping.ignore and self._is_true(self._mapping.ignore):
            return Read("filtered", [])
        for kind in ("deleted", "edited", "reaction"):
            change = getattr(self._mapping, kind)
            if change and self._is_true(change.when):
                self._kind_name, self._kind = kind, change
                break
        else:
            if self._mapping.when and not self._is_true(self._mapping.when):
                return Read("unknown", [])
        return Read(self._read(), self._left_out)

    def _read(self) -> Sent | Change:
        conversation = self._conversation()
        group = self._mapping.group is not None and self._is_true(self._mapping.group)
        # In a group, the author must be valid, because it may decide to which conversation the item belongs.
        author = self._valid("author", _id) if group else self._optional("author", _id)
        time_format = self._setting("time_format")
        at_ms = self._optional("time", _TIMES[time_format]) if time_format else None
        changed_at_ms = at_ms or self._received_at_ms
        match self._kind_name:
            case "deleted":
                return Deleted(conversation, self._message_id(), author, changed_at_ms, group)
            case "reaction":
                # Require the emoji, because a reaction without one says that the author removed the reaction.
                return Reacted(conversation, self._message_id(), author, self._valid("emoji", _text), changed_at_ms)
            case "edited":
                return Edited(conversation, self._message(author, {"editedAt": changed_at_ms}), changed_at_ms, group)
        return Sent(conversation, self._message(author, {"sentAt": at_ms}), group)

    def _conversation(self) -> ConversationId:
        account, name = self._valid("account", _id), self._door.name
        conversation = ConversationId(
            tenant=DEFAULT_TENANT,
            platform=PLATFORM,
            # Put the door's name into the account, because a sender who knows this door's secret must not write into
            # another door's accounts.
            account=name if account is None else f"{name}:{account}",
            user=self._required("conversation"),
        )
        try:
            encode_conversation(str(conversation))
        except InvalidId as error:
            raise Unfit(f"{self._name_of('conversation')}: {error}.") from error
        return conversation

    def _message(self, author: str | None, times: Mapping[str, int | None]) -> Message:
        attachments = self._attachments()
        text, name = self._optional("text", _words) or "", self._optional("author_name", _text)
        fields = {
            "id": self._message_id(),
            "text": text,
            "type": self._type(text, attachments),
            "author": author,
            "replyTo": self._optional("reply_to", _reply_to),
            "attachments": attachments,
            "receivedAt": self._received_at_ms,
            "platform": PLATFORM,
            "profile": profile_of(name=name) or None,
            **times,
        }
        return self._valid_message({name: value for name, value in fields.items() if value is not None})

    def _message_id(self) -> str:
        # Bring the id into the same form as the ids of stored messages, which validation does. Validate the id alone,
        # because a deletion or a reaction has no other part of its message.
        fields = {"id": self._required("id"), "receivedAt": self._received_at_ms, "platform": PLATFORM}
        return self._valid_message(fields).id

    def _valid_message(self, fields: Json) -> Message:
        try:
            return Message.model_validate(fields)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)[0]
            field = str(wrong["loc"][0]) if wrong["loc"] else "message"
            raise Unfit(f"{self._name_of(field)} is not valid: {wrong['msg']}.") from error

    def _type(self, text: str, attachments: list[Json]) -> str:
        kind = self._our_name(self._optional("type", _text))
        if kind in (None, "text") and attachments:
            return str(attachments[0]["type"])
        # If the mapping finds no content in the message, keep the message all the same.
        return "unsupported" if kind in (None, "text") and not text else kind or "text"

    def _our_name(self, kind: str | None) -> str | None:
        """Return our name for the product's type. A type that the mapping does not list keeps its name."""
        return (self._mapping.types.get(kind) or kind) if kind else None

    def _attachments(self) -> list[Json]:
        """Return the attachments. Raise Unfit if there are too many."""
        attachments: list[Json] = []
        for number, expression in enumerate(self._mapping.attachments):
            name = f"{self._where}attachments.{number}"
            found = self._interpreter.visit(expression, self._scope)
            given = found if isinstance(found, list) else [] if found is None else [found]
            if len(attachments) + len(given) > MAX_ATTACHMENTS:
                raise Unfit(f"{name}: a message has at most {MAX_ATTACHMENTS} attachments.")
            for each in given:
                if isinstance(each, dict) and each.keys() <= _OF_AN_ATTACHMENT.keys():
                    attachments.append(self._attachment(each, name))
                else:
                    self._left_out.append(f"{name} must give objects of {', '.join(_OF_AN_ATTACHMENT)}.")
        return attachments

    def _attachment(self, given: Json, name: str) -> Json:
        read = {}
        for field, value in given.items():
            try:
                if value not in (None, ""):
                    read[field] = _OF_AN_ATTACHMENT[field](value)
            except Unfit as unfit:
                self._left_out.append(f"{name}.{field} {unfit}")
        media = str(read.get("mimeType")).partition("/")[0]
        kind = self._our_name(read.get("type")) or (media if media in _TYPES_OF_MEDIA else "document")
        return read | {"type": kind}

    # -- one value ---------------------------------------------------------------------------------

    def _is_true(self, expression: Json) -> bool:
        return self._interpreter.is_true(self._interpreter.visit(expression, self._scope))

    def _required(self, field: str) -> str:
        found = self._valid(field, _id)
        if found is None:
            raise Unfit(f"{self._name_of(field)} is missing.")
        return found

    def _optional(self, field: str, read: Callable[[Any], _T]) -> _T | None:
        """Return the field's value. If it is invalid, note it as left out and return None."""
        try:
            return self._valid(field, read)
        except Unfit as unfit:
            self._left_out.append(str(unfit))
            return None

    def _valid(self, field: str, read: Callable[[Any], _T]) -> _T | None:
        """Return the field's value, or None if it has none. Raise Unfit."""
        expression = self._setting(field)
        value = self._interpreter.visit(expression, self._scope) if expression else None
        try:
            return None if value in (None, "") else read(value)
        except Unfit as unfit:
            raise Unfit(f"{self._name_of(field)} {unfit}") from unfit

    def _setting(self, field: str) -> Any:
        """Return what the mapping says in this field for this kind of item."""
        own = getattr(self._kind, field, None)
        return getattr(self._mapping, field, None) if own is None else own

    def _name_of(self, field: str) -> str:
        kind = "" if getattr(self._kind, field, None) is None else f"{self._kind_name}."
        return f"{self._where}{kind}{camel_case(field)}"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit("must be a text.")
    return value


def _words(value: Any) -> str:
    """Return the author's text. Some products send a message of digits as a number."""
    is_number = type(value) is float or (type(value) is int and abs(value) < MAX_ID_NUMBER)
    return json.dumps(value) if is_number else _text(value)


def _id(value: Any) -> str:
    """Return an id as a text, because some products write ids as numbers."""
    if type(value) is int and abs(value) < MAX_ID_NUMBER:
        return str(value)
    if not isinstance(value, str):
        raise Unfit("must be a text or a whole number.")
    return mend_id(value)


def _reply_to(value: Any) -> str:
    replied = _id(value)
    if len(replied.encode()) > MAX_MESSAGE_ID_BYTES:
        raise Unfit(f"has more than {MAX_MESSAGE_ID_BYTES} bytes.")
    return replied


def _size(value: Any) -> int:
    """Return a number of bytes. Some products send the number as a text of digits."""
    digits = value if isinstance(value, str) else str(value) if type(value) is int and value < MAX_ID_NUMBER else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS_OF_A_SIZE):
        raise Unfit("must be a whole number of bytes.")
    return int(digits)


def _degrees(value: Any) -> float:
    number = _number(value)
    if number is None or not -MAX_DEGREES <= number <= MAX_DEGREES:
        raise Unfit("must be a number of degrees.")
    return number


_OF_AN_ATTACHMENT: Mapping[str, Callable[[Any], Any]] = {
    "type": _text, "url": _id, "id": _id, "mimeType": _id, "name": _id, "sizeBytes": _size,
    "latitude": _degrees, "longitude": _degrees,
}  # fmt: skip


def _number(given: Any) -> float | None:
    """Return the given number, which may be written as a text. Return None if the value is no number."""
    if isinstance(given, str) and len(given) <= MAX_CHARACTERS_OF_A_NUMBER:
        try:
            return float(given)
        except ValueError:
            return None
    return float(given) if type(given) is float or (type(given) is int and abs(given) < MAX_ID_NUMBER) else None


def _ms_of_number(unit_ms: int, legal: str) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        number = _number(value)
        # This also refuses NaN, which is not between any numbers.
        if number is None or not 0 <= number <= MAX_TIME_MS // unit_ms:
            raise Unfit(f"must be {legal} since 1970.")
        return round(number * unit_ms)

    return read


def _ms_of_iso(value: Any) -> int:
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
        ms = round(time.timestamp() * 1_000) if time is not None and time.tzinfo is not None else -1
    except (ValueError, OverflowError):
        ms = -1
    if not 0 <= ms <= MAX_TIME_MS:
        raise Unfit("must be a time in ISO 8601 with its zone, such as 2026-01-31T12:00:00Z.")
    return ms


_TIMES: Mapping[str, Callable[[Any], int]] = {
    "seconds": _ms_of_number(1_000, "seconds"),
    "milliseconds": _ms_of_number(1, "milliseconds"),
    "iso": _ms_of_iso,
}
