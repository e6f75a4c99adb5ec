"""Reads messages, edits, deletions and reactions from the body of a webhook, with a door's mapping.

If a value decides to which conversation or message an item belongs, it must be valid. Any other value is left out if it
is invalid, and reported, so that the message is not lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from message_buffer.errors import InvalidId, InvalidInput
from message_buffer.json_object import Json
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK, MAX_TIME_MS
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId, encode_conversation
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, MessageId, Text, encode, profile_of
from message_buffer.messages.wire_form import camel_case, mend_id
from message_buffer.rules.door_expressions import Interpreter
from message_buffer.rules.doors import Door

PLATFORM = "custom"
MAX_SIZE = 10**18
MAX_DEGREES = 360
# If a media type begins with one of these words, the word is also the attachment's type. Other files are documents.
_TYPES_OF_MEDIA = ("image", "audio", "video")


def _id_as_text(value: Any) -> Any:
    """Return an id as a text, because some products write ids as numbers."""
    return mend_id(str(value)) if type(value) in (str, int) else value


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1_000)


_Id = Annotated[str, BeforeValidator(_id_as_text)]
_OurId = Annotated[MessageId, BeforeValidator(_id_as_text)]
# Some products send a message of digits as a number.
_WORDS = TypeAdapter(Text, config=ConfigDict(coerce_numbers_to_str=True))
# Pydantic reads seconds and milliseconds since 1970, and ISO 8601.
_Time = Annotated[AwareDatetime, AfterValidator(_ms), Field(ge=0, le=MAX_TIME_MS)]
_Degrees = Annotated[float, Field(ge=-MAX_DEGREES, le=MAX_DEGREES)]
# What an expression must give for a field, or for a field of an attachment.
_TYPES: Mapping[str, TypeAdapter[Any]] = {
    "account": TypeAdapter(_Id), "conversation": TypeAdapter(_Id), "id": TypeAdapter(_OurId),
    "author": TypeAdapter(_Id), "author_name": TypeAdapter(Text), "text": _WORDS,
    "type": TypeAdapter(Text), "time": TypeAdapter(_Time), "reply_to": TypeAdapter(_OurId), "emoji": TypeAdapter(Text),
}  # fmt: skip
_OF_AN_ATTACHMENT: Mapping[str, TypeAdapter[Any]] = {
    "type": TypeAdapter(Text), "url": TypeAdapter(_Id), "id": TypeAdapter(_Id), "mimeType": TypeAdapter(_Id),
    "name": TypeAdapter(_Id), "sizeBytes": TypeAdapter(Annotated[int, Field(ge=0, le=MAX_SIZE)]),
    "latitude": TypeAdapter(_Degrees), "longitude": TypeAdapter(_Degrees),
}  # fmt: skip


class Sent(NamedTuple):
    """A new message."""

    conversation: ConversationId
    message: Message
    group: bool
    """True if several authors write in this conversation."""


def items_of(door: Door, body: Any, *, received_at_ms: int) -> "list[DoorItem]":
    """Return the items of a body. Raise InvalidInput if `items` gives no list, or too long a list."""
    interpreter, expression = Interpreter(), door.mapping.items
    found = interpreter.visit(expression, {"body": body, "item": body}) if expression else [body]
    # A body without a list has no items: products also send other notifications to this address.
    items = found if interpreter.is_true(found) else []
    if not isinstance(items, list) or len(items) > MAX_ITEMS_IN_A_WEBHOOK:
        raise InvalidInput(f"items must be a list of at most {MAX_ITEMS_IN_A_WEBHOOK} items.")
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
        """Return a message, a change, or why the item is ignored. Raise InvalidInput if it is invalid."""
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
        author = self._value("author", must_fit=group)
        at_ms = self._value("time")
        changed_at_ms = at_ms or self.received_at_ms
        match kind:
            case "deleted":
                return Deleted(conversation, self._required("id"), author, changed_at_ms, group)
            case "reaction":
                # Require the emoji to fit, because a reaction without one says that the author removed the reaction.
                emoji = self._value("emoji", must_fit=True)
                return Reacted(conversation, self._required("id"), author, emoji, changed_at_ms)
            case "edited":
                return Edited(conversation, self._message(author, {"editedAt": changed_at_ms}), changed_at_ms, group)
        return Sent(conversation, self._message(author, {"sentAt": at_ms}), group)

    def _conversation(self) -> ConversationId:
        account, name = self._value("account", must_fit=True), self.door.name
        # Put the door's name into the account, because a sender who knows this door's secret must not write into
        # another door's accounts.
        account = name if account is None else f"{name}:{account}"
        conversation = ConversationId(DEFAULT_TENANT, PLATFORM, account, self._required("conversation"))
        try:
            encode_conversation(str(conversation))
        except InvalidId as error:
            raise InvalidInput(f"{self.where}conversation: {error}.") from error
        return conversation

    def _message(self, author: str | None, times: Mapping[str, int | None]) -> Message:
        attachments, text = self._attachments(), self._value("text") or ""
        fields = {
            "id": self._required("id"),
            "text": text,
            "type": self._type(text, attachments),
            "author": author,
            "replyTo": self._value("reply_to"),
            "attachments": attachments,
            "receivedAt": self.received_at_ms,
            "platform": PLATFORM,
            "profile": profile_of(name=self._value("author_name")) or None,
            **times,
        }
        return Message.model_validate({name: value for name, value in fields.items() if value is not None})

    def _type(self, text: str, attachments: list[Json]) -> str:
        kind = self._our_name(self._value("type"))
        if kind in (None, "text") and attachments:
            return str(attachments[0]["type"])
        # If the mapping finds no content in the message, keep the message all the same.
        return "unsupported" if kind in (None, "text") and not text else kind or "text"

    def _our_name(self, kind: str | None) -> str | None:
        """Return our name for the product's type. A type that the mapping does not list keeps its name."""
        return self.door.mapping.types.get(kind, kind) if kind else None

    def _attachments(self) -> list[Json]:
        """Return the attachments. Raise InvalidInput if there are too many."""
        attachments: list[Json] = []
        for number, expression in enumerate(self._fields["attachments"]):
            where = f"attachments.{number}"
            found = self.interpreter.visit(expression, self.given)
            parts = found if isinstance(found, list) else [found] if self.interpreter.is_true(found) else []
            if len(attachments) + len(parts) > MAX_ATTACHMENTS:
                raise InvalidInput(f"{self.where}{where}: a message has at most {MAX_ATTACHMENTS} attachments.")
            attachments += (self._attachment(part, where) for part in parts if self._is_attachment(part, where))
        return attachments

    def _is_attachment(self, part: Any, where: str) -> bool:
        if isinstance(part, dict) and part.keys() <= _OF_AN_ATTACHMENT.keys():
            return True
        if part:
            self.left_out.append(f"{self.where}{where}: must give objects of {', '.join(_OF_AN_ATTACHMENT)}.")
        return False

    def _attachment(self, part: Json, where: str) -> Json:
        found = {name: self._read(part[name], _OF_AN_ATTACHMENT[name], f"{where}.{name}") for name in part}
        media = str(found.get("mimeType")).partition("/")[0]
        kind = self._our_name(found.get("type")) or (media if media in _TYPES_OF_MEDIA else "document")
        return {name: value for name, value in found.items() if value is not None} | {"type": kind}

    def _holds(self, expression: Json | None) -> bool:
        return expression is not None and self.interpreter.is_true(self.interpreter.visit(expression, self.given))

    def _required(self, name: str) -> Any:
        found = self._value(name, must_fit=True)
        if found is None:
            raise InvalidInput(f"{self.where}{name} is missing.")
        return found

    def _value(self, name: str, *, must_fit: bool = False) -> Any:
        """Return the field's value, or None if it has none."""
        expression = self._fields[name]
        found = self.interpreter.visit(expression, self.given) if expression else None
        return self._read(found, _TYPES[name], name, must_fit=must_fit)

    def _read(self, value: Any, legal: TypeAdapter[Any], name: str, *, must_fit: bool = False) -> Any:
        """Return the value in the field's type, or None for null, false and an empty text.

        If it is invalid, raise InvalidInput if `must_fit`; otherwise add it to `left_out`, and return None.
        """
        try:
            return None if value is None or value is False or value == "" else legal.validate_python(value)
        except ValidationError as error:
            problem = f"{self.where}{camel_case(name)}: {error.errors()[0]['msg']}."
            if must_fit:
                raise InvalidInput(problem) from error
            self.left_out.append(problem)
            return None
