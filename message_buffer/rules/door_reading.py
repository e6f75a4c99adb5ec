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
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, profile_of
from message_buffer.messages.wire_form import camel_case, mend_id
from message_buffer.rules.door_expressions import Interpreter
from message_buffer.rules.doors import Door, Values

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
    if expression is None:
        return [DoorItem(door, interpreter, {"body": body, "item": body}, "", received_at_ms)]
    # A body without a list has no items: products also send other notifications to this address.
    items = interpreter.visit(expression, {"body": body, "item": body})
    items = [] if items is None else items
    if not isinstance(items, list) or len(items) > MAX_ITEMS_IN_A_WEBHOOK:
        raise Unfit(f"items must be a list of at most {MAX_ITEMS_IN_A_WEBHOOK} items.")
    return [
        DoorItem(door, interpreter, {"body": body, "item": item}, f"item {number}: ", received_at_ms)
        for number, item in enumerate(items)
    ]


@dataclass
class DoorItem:
    door: Door
    interpreter: Interpreter
    given: Json
    """The values that an expression sees."""
    where: str
    """The item's number, if the body has a list of items."""
    received_at_ms: int
    left_out: list[str] = field(default_factory=list)
    """The invalid values that were left out, each as a sentence with the mapping's field."""
    _kind: Values | None = None
    """The part of the mapping for this kind of item; None for a message."""

    def read(self) -> Sent | Change | str:
        """Return a message, a change, or the kind under which the item is ignored. Raise InvalidInput."""
        mapping = self.door.mapping
        if self._holds("ignore"):
            return "filtered"
        for change in (mapping.deleted, mapping.edited, mapping.reaction):
            if change and self._is_true(change.when):
                self._kind = change
                return self._change()
        if mapping.when and not self._holds("when"):
            return "unknown"
        group = self._holds("group")
        conversation, author = self._conversation(), self._author(group)
        return Sent(conversation, self._message(author, {"sentAt": self._time()}), group)

    def _change(self) -> Change:
        group = self._holds("group")
        conversation, author, at_ms = self._conversation(), self._author(group), self._time() or self.received_at_ms
        if self._kind is self.door.mapping.edited:
            return Edited(conversation, self._message(author, {"editedAt": at_ms}), at_ms, group)
        if self._kind is self.door.mapping.deleted:
            return Deleted(conversation, self._required("id", _message_id), author, at_ms, group)
        # Require the emoji to be valid, because a reaction without one says that the author removed the reaction.
        return Reacted(conversation, self._required("id", _message_id), author, self._value("emoji", _text), at_ms)

    def _author(self, group: bool) -> str | None:  # noqa: FBT001 - a fact about the conversation
        # In a group, the author must be valid, because it may decide to which conversation the item belongs.
        return self._value("author", _id) if group else self._optional("author", _id)

    def _conversation(self) -> ConversationId:
        account, name = self._value("account", _id), self.door.name
        # Put the door's name into the account, because a sender who knows this door's secret must not write into
        # another door's accounts.
        account = name if account is None else f"{name}:{account}"
        conversation = ConversationId(DEFAULT_TENANT, PLATFORM, account, self._required("conversation", _id))
        try:
            encode_conversation(str(conversation))
        except InvalidId as error:
            raise Unfit(f"{self._named('conversation')}: {error}.") from error
        return conversation

    def _time(self) -> int | None:
        return self._optional("time", partial(_ms, time_format=self._setting("time_format")))

    def _message(self, author: str | None, times: Mapping[str, int | None]) -> Message:
        attachments, text = self._attachments(), self._optional("text", _words) or ""
        fields = {
            "id": self._required("id", _message_id),
            "text": text,
            "type": self._type(text, attachments),
            "author": author,
            "replyTo": self._optional("reply_to", _message_id),
            "attachments": attachments,
            "receivedAt": self.received_at_ms,
            "platform": PLATFORM,
            "profile": profile_of(name=self._optional("author_name", _text)) or None,
            **times,
        }
        return Message.model_validate({name: value for name, value in fields.items() if value is not None})

    def _type(self, text: str, attachments: list[Json]) -> str:
        kind = self._our_name(self._optional("type", _text))
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
        for number, expression in enumerate(self.door.mapping.attachments):
            where = f"{self.where}attachments.{number}"
            found = self.interpreter.visit(expression, self.given)
            parts = found if isinstance(found, list) else [] if found is None else [found]
            if len(attachments) + len(parts) > MAX_ATTACHMENTS:
                raise Unfit(f"{where}: a message has at most {MAX_ATTACHMENTS} attachments.")
            for part in parts:
                if isinstance(part, dict) and part.keys() <= _OF_AN_ATTACHMENT.keys():
                    attachments.append(self._attachment(part, where))
                else:
                    self.left_out.append(f"{where} must give objects of {', '.join(_OF_AN_ATTACHMENT)}.")
        return attachments

    def _attachment(self, part: Json, where: str) -> Json:
        found = {
            name: self._unless_unfit(partial(_read, value, _OF_AN_ATTACHMENT[name], f"{where}.{name}"))
            for name, value in part.items()
        }
        media = str(found.get("mimeType")).partition("/")[0]
        kind = self._our_name(found.get("type")) or (media if media in _TYPES_OF_MEDIA else "document")
        return {name: value for name, value in found.items() if value is not None} | {"type": kind}

    # -- one field ---------------------------------------------------------------------------------

    def _required(self, name: str, read: Callable[[Any], _T]) -> _T:
        found = self._value(name, read)
        if found is None:
            raise Unfit(f"{self._named(name)} is missing.")
        return found

    def _optional(self, name: str, read: Callable[[Any], _T]) -> _T | None:
        return self._unless_unfit(lambda: self._value(name, read))

    def _unless_unfit(self, read: Callable[[], _T | None]) -> _T | None:
        """Return a value. If it is invalid, note it as left out and return None."""
        try:
            return read()
        except Unfit as unfit:
            self.left_out.append(str(unfit))
            return None

    def _value(self, name: str, read: Callable[[Any], _T]) -> _T | None:
        """Return the field's value, or None if it has none. Raise Unfit."""
        expression = self._setting(name)
        return _read(self.interpreter.visit(expression, self.given), read, self._named(name)) if expression else None

    def _holds(self, name: str) -> bool:
        expression = getattr(self.door.mapping, name)
        return expression is not None and self._is_true(expression)

    def _is_true(self, expression: Json) -> bool:
        return self.interpreter.is_true(self.interpreter.visit(expression, self.given))

    def _setting(self, name: str) -> Any:
        """Return what the mapping says in this field for this kind of item."""
        own = getattr(self._kind, name, None)
        return getattr(self.door.mapping, name) if own is None else own

    def _named(self, name: str) -> str:
        kind = "" if getattr(self._kind, name, None) is None else f"{type(self._kind).__name__.lower()}."
        return f"{self.where}{kind}{camel_case(name)}"


def _read(value: Any, read: Callable[[Any], _T], name: str) -> _T | None:
    """Return what `read` makes of a value. Null and an empty text are no value. Raise Unfit."""
    try:
        return None if value in (None, "") else read(value)
    except Unfit as unfit:
        raise Unfit(f"{name} {unfit}") from unfit


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


def _number(value: Any) -> float:
    """Return a number, which may be written as a text, or NaN, which is not between any numbers."""
    if type(value) not in (int, float) and not (isinstance(value, str) and len(value) <= MAX_CHARACTERS_OF_A_NUMBER):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _size(value: Any) -> int:
    number = _number(value)
    if not (0 <= number < MAX_SIZE and number.is_integer()):
        raise Unfit("must be a whole number of bytes.")
    return int(number)


def _degrees(value: Any) -> float:
    number = _number(value)
    if not -MAX_DEGREES <= number <= MAX_DEGREES:
        raise Unfit("must be a number of degrees.")
    return number


_OF_AN_ATTACHMENT: Mapping[str, Callable[[Any], Any]] = {
    "type": _text, "url": _id, "id": _id, "mimeType": _id, "name": _id, "sizeBytes": _size,
    "latitude": _degrees, "longitude": _degrees,
}  # fmt: skip


def _ms(value: Any, time_format: str) -> int:
    try:
        time = datetime.fromisoformat(value) if time_format == "iso" and isinstance(value, str) else None
        seconds = time.timestamp() if time and time.tzinfo else math.nan
    except (ValueError, OverflowError):
        seconds = math.nan
    ms = seconds * 1_000 if time_format == "iso" else _number(value) * (1 if time_format == "milliseconds" else 1_000)
    if not 0 <= ms <= MAX_TIME_MS:
        legal = "a time in ISO 8601 with its zone" if time_format == "iso" else f"{time_format} since 1970"
        raise Unfit(f"must be {legal}.")
    return round(ms)
