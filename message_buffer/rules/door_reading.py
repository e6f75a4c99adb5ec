"""Reads messages, edits, deletions and reactions from the body of a webhook, with a door's mapping.

If a value decides to which conversation or message an item belongs, it must be valid. Any other value is left out if it
is invalid, and reported, so that the message is not lost.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from message_buffer.errors import InvalidId, InvalidInput
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK, MAX_MESSAGE_ID_BYTES, MAX_TIME_MS
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, encode_conversation
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, encode, profile_of
from message_buffer.messages.wire_form import mend_id
from message_buffer.rules.doors import MISSING, AttachmentFields, Door, Kind, Place, Pointer, Value, part_of

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
    """Raised if a body does not fit the mapping. The error's text names the place in the body by its JSON Pointer."""


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
    """The invalid values that were left out, each as a sentence with the pointer to the value."""


class DoorItem(NamedTuple):
    door: Door
    body: Any
    item: Any
    where: str
    """The pointer to the item; empty if the body is the item."""
    received_at_ms: int

    def read(self) -> Read:
        """Return the item as a message, a change, or the kind under which it is ignored. Raise Unfit."""
        door = self.door
        if any(condition.holds(self.body, self.item) for condition in door.ignore):
            return Read("filtered", [])
        kind = next((kind for kind in door.kinds if kind.has(self.body, self.item)), None)
        if kind is None:
            return Read("unknown", [])
        reading = _ItemReading(self, kind)
        return Read(reading.read(), reading.left_out)


def items_of(door: Door, body: Any, *, received_at_ms: int) -> list[DoorItem]:
    """Return the items of a body. Raise Unfit if the pointer to the list leads to something else, or if the list is too
    long."""
    if door.list is None:
        return [DoorItem(door, body, body, "", received_at_ms)]
    found = door.list.find(body, body)
    # A body without a list has no items: products also send other notifications to this address.
    items = [] if found is MISSING else found
    where = door.list.text.removeprefix("#")
    if not isinstance(items, list) or len(items) > MAX_ITEMS_IN_A_WEBHOOK:
        raise Unfit(f"{where or 'The body'} must be a list of at most {MAX_ITEMS_IN_A_WEBHOOK} items.")
    return [DoorItem(door, body, item, f"{where}/{place}", received_at_ms) for place, item in enumerate(items)]


def require_room(message: Message) -> None:
    """Raise InvalidInput if the message is too large to be stored."""
    encode(message)


class _FoundValue(NamedTuple):
    value: Any
    where: str
    """The pointer to the value, from the root of the body."""
    place: Place


class _ItemReading:
    def __init__(self, item: DoorItem, kind: Kind) -> None:
        self._given = item
        self._kind = kind
        self._values = kind.fields.values
        self.left_out: list[str] = []
        self._group = bool(item.door.group) and all(each.holds(item.body, item.item) for each in item.door.group)

    def read(self) -> Sent | Change:
        conversation = self._conversation()
        # In a group, the author must be valid, because it may decide to which conversation the item belongs.
        author = self._id("author") if self._group else self._optional(self._id, "author")
        at_ms = self._time()
        match self._kind.name:
            case "deleted":
                return Deleted(conversation, self._message_id(), author, at_ms or self._received_at_ms, self._group)
            case "reaction":
                # Require the emoji, because a reaction without one says that the author removed the reaction.
                return Reacted(
                    conversation, self._message_id(), author, self._text("emoji"), at_ms or self._received_at_ms
                )
            case "edited":
                edited = self._message(author, {"editedAt": at_ms or self._received_at_ms})
                return Edited(conversation, edited, at_ms or self._received_at_ms, self._group)
        return Sent(conversation, self._message(author, {"sentAt": at_ms}), self._group)

    @property
    def _received_at_ms(self) -> int:
        return self._given.received_at_ms

    def _conversation(self) -> ConversationId:
        account = self._id("account")
        name = self._given.door.name
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
            raise Unfit(f"{self._named(self._values['conversation'].pointer)}: {error}.") from error
        return conversation

    def _message(self, author: str | None, times: Mapping[str, int | None]) -> Message:
        attachments: list[dict[str, Any]] = []
        for fields_of_one in self._kind.fields.attachments:
            attachments += self._attachments(fields_of_one, room=MAX_ATTACHMENTS - len(attachments))
        text, name = self._optional(self._words, "text") or "", self._optional(self._text, "authorName")
        fields = {
            "id": self._message_id(),
            "text": text,
            "type": self._type(text, attachments),
            "author": author,
            "replyTo": self._optional(self._reply_to, "replyTo"),
            "attachments": attachments,
            "receivedAt": self._received_at_ms,
            "platform": PLATFORM,
            "profile": profile_of(name=name) or None,
            **times,
        }
        return self._valid({name: value for name, value in fields.items() if value is not None})

    def _message_id(self) -> str:
        # Bring the id into the same form as the ids of stored messages, which validation does. Validate the id alone,
        # because a deletion or a reaction has no other part of its message.
        return self._valid({"id": self._required("id"), "receivedAt": self._received_at_ms, "platform": PLATFORM}).id

    def _valid(self, fields: Mapping[str, Any]) -> Message:
        try:
            return Message.model_validate(fields)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)[0]
            field = str(wrong["loc"][0]) if wrong["loc"] else ""
            value = self._values.get(field)
            where = self._named(value.pointer) if value else field or self._given.where
            raise Unfit(f"{where} is not valid: {wrong['msg']}.") from error

    def _type(self, text: str, attachments: list[dict[str, Any]]) -> str:
        kind = self._our_name(self._optional(self._text, "type"))
        if kind in (None, "text") and attachments:
            return str(attachments[0]["type"])
        # If the mapping finds no content in the message, keep the message all the same.
        return "unsupported" if kind in (None, "text") and not text else kind or "text"

    def _our_name(self, kind: str | None) -> str | None:
        """Return our name for the product's type. A type that the mapping does not list keeps its name."""
        return (self._given.door.types.get(kind) or kind) if kind else None

    def _attachments(self, fields: AttachmentFields, *, room: int) -> list[dict[str, Any]]:
        """Return the attachments at one place. Raise Unfit if there are more than `room`."""
        found = fields.at.find(self._given.body, self._given.item)
        if found is MISSING:
            return []
        where = self._named(fields.at)
        if not isinstance(found, list):
            return [self._attachment(fields, found, where)]
        if len(found) > room:
            raise Unfit(f"{where}: a message has at most {MAX_ATTACHMENTS} attachments.")
        return [self._attachment(fields, each, f"{where}/{place}") for place, each in enumerate(found)]

    def _attachment(self, fields: AttachmentFields, given: Any, where: str) -> dict[str, Any]:
        attachment: dict[str, Any] = {}
        for name, value in fields.values.items():
            read = partial(self._part_of_attachment, name, self._find(value, given, where))
            if (part := self._unless_unfit(read)) is not None:
                attachment[name] = part
        media = str(attachment.get("mimeType", "")).partition("/")[0]
        kind = fields.type
        if isinstance(kind, Value):
            named = self._find(kind, given, where)
            kind = self._our_name(self._unless_unfit(partial(_text, named)) if named else None)
        return {"type": kind or (media if media in _TYPES_OF_MEDIA else "document"), **attachment}

    def _part_of_attachment(self, name: str, found: _FoundValue | None) -> Any:
        read: Callable[[_FoundValue], Any] = _OF_AN_ATTACHMENT.get(name, _id)
        return None if found is None else read(found)

    # -- one value ---------------------------------------------------------------------------------

    def _required(self, field: str) -> str:
        found = self._id(field)
        if found is None:
            raise Unfit(f"{self._named(self._values[field].pointer)} is missing.")
        return found

    def _optional(self, read: Callable[[str], _T | None], field: str) -> _T | None:
        """Return the result of `read` for the field. If the value is invalid, note it as left out and return None."""
        return self._unless_unfit(lambda: read(field))

    def _unless_unfit(self, read: Callable[[], _T | None]) -> _T | None:
        try:
            return read()
        except Unfit as unfit:
            self.left_out.append(str(unfit))
            return None

    def _id(self, field: str) -> str | None:
        """Return an id as a text, because some products write ids as numbers."""
        found = self._find_field(field)
        return None if found is None else _id(found)

    def _reply_to(self, field: str) -> str | None:
        found = self._find_field(field)
        if found is None:
            return None
        replied = _id(found)
        if len(replied.encode()) > MAX_MESSAGE_ID_BYTES:
            raise Unfit(f"{found.where} has more than {MAX_MESSAGE_ID_BYTES} bytes.")
        return replied

    def _text(self, field: str) -> str | None:
        found = self._find_field(field)
        return None if found is None else _text(found)

    def _words(self, field: str) -> str | None:
        """Return the author's text. Some products send a message of digits as a number."""
        found = self._find_field(field)
        return None if found is None else _text(found._replace(value=_number_as_text(found.value)))

    def _time(self) -> int | None:
        found = self._find_field("time")
        read = _TIMES[self._kind.fields.time_format]
        return self._unless_unfit(lambda: None if found is None else read(found))

    def _find_field(self, field: str) -> _FoundValue | None:
        value = self._values.get(field)
        return self._find(value) if value else None

    def _find(self, value: Value, item: Any = MISSING, where: str | None = None) -> _FoundValue | None:
        """Return the value of the first place that has one."""
        item = self._given.item if item is MISSING else item
        for place in value.places:
            found = place.find(self._given.body, item)
            if found is not MISSING:
                return _FoundValue(found, self._named(place.at, where), place)
        return None

    def _named(self, pointer: Pointer, where: str | None = None) -> str:
        """Return the pointer to the same value, but from the root of the body."""
        if pointer.of_body:
            return pointer.text.removeprefix("#") or "The body"
        return f"{self._given.where if where is None else where}{pointer.text}" or "The body"


def _text(found: _FoundValue) -> str:
    if not isinstance(found.value, str):
        raise Unfit(f"{found.where} must be a text.")
    if not found.place.split:
        return found.value
    return part_of(found.value, found.place.split, found.place.part)


def _number_as_text(value: Any) -> Any:
    """Return the text of a number. Return any other value as it is."""
    is_number = type(value) is float or (type(value) is int and abs(value) < MAX_ID_NUMBER)
    return json.dumps(value) if is_number else value


def _id(found: _FoundValue) -> str:
    if type(found.value) is int and abs(found.value) < MAX_ID_NUMBER:
        return str(found.value)
    if not isinstance(found.value, str):
        raise Unfit(f"{found.where} must be a text or a whole number.")
    return mend_id(_text(found))


def _size(found: _FoundValue) -> int:
    """Return a number of bytes. Some products send the number as a text of digits."""
    given = found.value
    digits = given if isinstance(given, str) else str(given) if type(given) is int and given < MAX_ID_NUMBER else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS_OF_A_SIZE):
        raise Unfit(f"{found.where} must be a whole number of bytes.")
    return int(digits)


def _degrees(found: _FoundValue) -> float:
    number = _number(found.value)
    if number is None or not -MAX_DEGREES <= number <= MAX_DEGREES:
        raise Unfit(f"{found.where} must be a number of degrees.")
    return number


_OF_AN_ATTACHMENT: Mapping[str, Callable[[_FoundValue], Any]] = {
    "sizeBytes": _size,
    "latitude": _degrees,
    "longitude": _degrees,
}


def _number(given: Any) -> float | None:
    """Return the given number, which may be written as a text. Return None if the value is no number."""
    if isinstance(given, str) and len(given) <= MAX_CHARACTERS_OF_A_NUMBER:
        try:
            return float(given)
        except ValueError:
            return None
    return float(given) if type(given) is float or (type(given) is int and abs(given) < MAX_ID_NUMBER) else None


def _ms_of_number(unit_ms: int, legal: str) -> Callable[[_FoundValue], int]:
    def read(found: _FoundValue) -> int:
        number = _number(found.value)
        # This also refuses NaN, which is not between any numbers.
        if number is None or not 0 <= number <= MAX_TIME_MS // unit_ms:
            raise Unfit(f"{found.where} must be {legal} since 1970.")
        return round(number * unit_ms)

    return read


def _ms_of_iso(found: _FoundValue) -> int:
    try:
        time = datetime.fromisoformat(found.value) if isinstance(found.value, str) else None
        ms = round(time.timestamp() * 1_000) if time is not None and time.tzinfo is not None else -1
    except (ValueError, OverflowError):
        ms = -1
    if not 0 <= ms <= MAX_TIME_MS:
        raise Unfit(f"{found.where} must be a time in ISO 8601 with its zone, such as 2026-01-31T12:00:00Z.")
    return ms


_TIMES: Mapping[str, Callable[[_FoundValue], int]] = {
    "seconds": _ms_of_number(1_000, "seconds"),
    "milliseconds": _ms_of_number(1, "milliseconds"),
    "iso": _ms_of_iso,
}
