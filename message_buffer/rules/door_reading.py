"""Reads messages, edits, deletions and reactions from the body of a webhook, with a door's mapping.

If a value decides to which conversation or message an item belongs, it must be valid. Any other value is left out if it
is invalid, and reported, so that the message is not lost.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from message_buffer.errors import InvalidId, InvalidInput
from message_buffer.json_object import Json
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK, MAX_MESSAGE_ID_BYTES, MAX_TIME_MS
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, encode_conversation
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, encode, profile_of
from message_buffer.messages.wire_form import camel_case, mend_id
from message_buffer.rules.door_expressions import Interpreter
from message_buffer.rules.doors import Door

_T = TypeVar("_T")

PLATFORM = "custom"
# No size or id has more digits, and Python refuses to print or parse a number with thousands of digits.
MAX_SIZE = 10**18
MAX_ID_NUMBER = 10**30
MAX_CHARACTERS_OF_A_NUMBER = 32
MAX_DEGREES = 360
# If a media type begins with one of these words, the word is also the attachment's type. Other files are documents.
_TYPES_OF_MEDIA = ("image", "audio", "video")


class Unfit(InvalidInput):
    """Raised if a body does not fit the mapping. The error's text begins with the mapping's field."""


class Sent(NamedTuple):
    """A new message."""

    conversation: ConversationId
    message: Message
    group: bool
    """True if several authors write in this conversation."""


def items_of(door: Door, body: Any, *, received_at_ms: int) -> "list[DoorItem]":
    """Return the items of a body. Raise Unfit if `items` gives something else than a list, or too long a list."""
    interpreter, expression = Interpreter(), door.mapping.items
    found = interpreter.visit(expression, {"body": body, "item": body}) if expression else [body]
    # A body without a list has no items: products also send other notifications to this address.
    items = found if interpreter.is_true(found) else []
    if not isinstance(items, list) or len(items) > MAX_ITEMS_IN_A_WEBHOOK:
        raise Unfit(f"items must be a list of at most {MAX_ITEMS_IN_A_WEBHOOK} items.")
    where = "item {}: " if expression else ""
    return [
        DoorItem(door, interpreter, {"body": body, "item": item}, where.format(number), received_at_ms)
        for number, item in enumerate(items)
    ]


def require_room(message: Message) -> None:
    """Raise InvalidInput if the message is too large to be stored."""
    encode(message)


@dataclass
class DoorItem:
    door: Door
    interpreter: Interpreter
    given: Json
    """The values that an expression sees."""
    where: str
    """The item's number, if the body has a list of items, and the kind of change."""
    received_at_ms: int
    left_out: list[str] = field(default_factory=list)
    """The invalid values that were left out, each as a sentence with the mapping's field."""

    def __post_init__(self) -> None:
        self._fields = self.door.mapping.__dict__

    def read(self) -> Sent | Change | str:
        """Return a message, a change, or the kind under which the item is ignored. Raise InvalidInput."""
        if self._holds(self._fields["ignore"]):
            return "filtered"
        changes = ((kind, self._fields[kind]) for kind in ("deleted", "edited", "reaction"))
        kind, own = next(((kind, own) for kind, own in changes if own and self._holds(own.when)), ("", None))
        if own:
            self._fields = self._fields | {name: value for name, value in own if value is not None}
            self.where += f"{kind}."
        elif self._fields["when"] and not self._holds(self._fields["when"]):
            return "unknown"
        conversation, group = self._conversation(), self._holds(self._fields["group"])
        # In a group, the author must be valid, because it may decide to which conversation the item belongs.
        author = self._value("author", _id, must_fit=group)
        at_ms = self._value("time", partial(_ms, time_format=self._fields["time_format"]))
        changed_at_ms = at_ms or self.received_at_ms
        match kind:
            case "deleted":
                return Deleted(conversation, self._required("id", _message_id), author, changed_at_ms, group)
            case "reaction":
                # Require the emoji to fit, because a reaction without one says that the author removed the reaction.
                emoji = self._value("emoji", _text, must_fit=True)
                return Reacted(conversation, self._required("id", _message_id), author, emoji, changed_at_ms)
            case "edited":
                return Edited(conversation, self._message(author, {"editedAt": changed_at_ms}), changed_at_ms, group)
        return Sent(conversation, self._message(author, {"sentAt": at_ms}), group)

    def _conversation(self) -> ConversationId:
        account, name = self._value("account", _id, must_fit=True), self.door.name
        # Put the door's name into the account, because a sender who knows this door's secret must not write into
        # another door's accounts.
        account = name if account is None else f"{name}:{account}"
        conversation = ConversationId(DEFAULT_TENANT, PLATFORM, account, self._required("conversation", _id))
        try:
            encode_conversation(str(conversation))
        except InvalidId as error:
            raise Unfit(f"{self.where}conversation: {error}.") from error
        return conversation

    def _message(self, author: str | None, times: Mapping[str, int | None]) -> Message:
        attachments, text = self._attachments(), self._value("text", _words) or ""
        fields = {
            "id": self._required("id", _message_id),
            "text": text,
            "type": self._type(text, attachments),
            "author": author,
            "replyTo": self._value("reply_to", _message_id),
            "attachments": attachments,
            "receivedAt": self.received_at_ms,
            "platform": PLATFORM,
            "profile": profile_of(name=self._value("author_name", _text)) or None,
            **times,
        }
        return Message.model_validate({name: value for name, value in fields.items() if value is not None})

    def _type(self, text: str, attachments: list[Json]) -> str:
        kind = self._our_name(self._value("type", _text))
        if kind in (None, "text") and attachments:
            return str(attachments[0]["type"])
        # If the mapping finds no content in the message, keep the message all the same.
        return "unsupported" if kind in (None, "text") and not text else kind or "text"

    def _our_name(self, kind: str | None) -> str | None:
        """Return our name for the product's type. A type that the mapping does not list keeps its name."""
        return self.door.mapping.types.get(kind, kind) if kind else None

    def _attachments(self) -> list[Json]:
        """Return the attachments. Raise Unfit if there are too many."""
        attachments: list[Json] = []
        for number, expression in enumerate(self._fields["attachments"]):
            where = f"attachments.{number}"
            found = self.interpreter.visit(expression, self.given)
            parts = found if isinstance(found, list) else [found] if self.interpreter.is_true(found) else []
            if len(attachments) + len(parts) > MAX_ATTACHMENTS:
                raise Unfit(f"{self.where}{where}: a message has at most {MAX_ATTACHMENTS} attachments.")
            read = (self._read(part, partial(self._attachment, where=where), where) for part in parts)
            attachments += (attachment for attachment in read if attachment)
        return attachments

    def _attachment(self, part: Any, where: str) -> Json:
        if not isinstance(part, dict) or not part.keys() <= _OF_AN_ATTACHMENT.keys():
            raise Unfit(f"must give objects of {', '.join(_OF_AN_ATTACHMENT)}.")
        found = {name: self._read(part[name], _OF_AN_ATTACHMENT[name], f"{where}.{name}") for name in part}
        media = str(found.get("mimeType")).partition("/")[0]
        kind = self._our_name(found.get("type")) or (media if media in _TYPES_OF_MEDIA else "document")
        return {name: value for name, value in found.items() if value is not None} | {"type": kind}

    def _holds(self, expression: Json | None) -> bool:
        return expression is not None and self.interpreter.is_true(self.interpreter.visit(expression, self.given))

    def _required(self, name: str, read: Callable[[Any], _T]) -> _T:
        found = self._value(name, read, must_fit=True)
        if found is None:
            raise Unfit(f"{self.where}{name} is missing.")
        return found

    def _value(self, name: str, read: Callable[[Any], _T], *, must_fit: bool = False) -> _T | None:
        """Return the field's value, or None if it has none."""
        expression = self._fields[name]
        found = self.interpreter.visit(expression, self.given) if expression else None
        return self._read(found, read, name, must_fit=must_fit)

    def _read(self, value: Any, read: Callable[[Any], _T], name: str, *, must_fit: bool = False) -> _T | None:
        """Return what `read` makes of a value. Null, false and an empty text are no value.

        If the value is invalid, raise Unfit if it must fit. Otherwise note it as left out, and return None.
        """
        try:
            return None if value is None or value is False or value == "" else read(value)
        except Unfit as unfit:
            problem = f"{self.where}{camel_case(name)} {unfit}"
            if must_fit:
                raise Unfit(problem) from unfit
            self.left_out.append(problem)
            return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Unfit("must be a text.")
    return value


def _words(value: Any) -> str:
    """Return the author's text. Some products send a message of digits as a number."""
    return json.dumps(value) if type(value) in (int, float) and abs(value) < MAX_ID_NUMBER else _text(value)


def _id(value: Any) -> str:
    """Return an id as a text, because some products write ids as numbers."""
    if type(value) is int and abs(value) < MAX_ID_NUMBER:
        return str(value)
    if not isinstance(value, str):
        raise Unfit("must be a text or a whole number.")
    return mend_id(value)


def _message_id(value: Any) -> str:
    found = _id(value)
    if len(found.encode()) > MAX_MESSAGE_ID_BYTES:
        raise Unfit(f"has more than {MAX_MESSAGE_ID_BYTES} bytes.")
    return found


def _number(value: Any, low: float, high: float, legal: str) -> float:
    """Return a number, which may be written as a text."""
    is_number = type(value) in (int, float) or (isinstance(value, str) and len(value) <= MAX_CHARACTERS_OF_A_NUMBER)
    try:
        number = float(value) if is_number else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:  # NaN is not between any numbers
        raise Unfit(f"must be {legal}.")
    return number


def _size(value: Any) -> int:
    return int(_number(value, 0, MAX_SIZE, "a number of bytes"))


_degrees = partial(_number, low=-MAX_DEGREES, high=MAX_DEGREES, legal="a number of degrees")
_OF_AN_ATTACHMENT: Mapping[str, Callable[[Any], Any]] = {
    "type": _text, "url": _id, "id": _id, "mimeType": _id, "name": _id, "sizeBytes": _size,
    "latitude": _degrees, "longitude": _degrees,
}  # fmt: skip


def _ms(value: Any, time_format: str) -> int:
    if time_format != "iso":
        unit_ms = 1 if time_format == "milliseconds" else 1_000
        return round(_number(value, 0, MAX_TIME_MS // unit_ms, f"{time_format} since 1970") * unit_ms)
    try:
        time = datetime.fromisoformat(value)
        seconds = time.timestamp() if time.tzinfo else math.nan
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    legal = "a time in ISO 8601 with its zone, such as 2026-01-31T12:00:00Z"
    return round(_number(seconds, 0, MAX_TIME_MS // 1_000, legal) * 1_000)
