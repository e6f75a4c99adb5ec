"""A message of a conversation, in the same form for every platform; `wire_form.py` describes its bytes."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import to_json

from message_buffer.errors import MalformedMessage, MessageTooLarge
from message_buffer.limits import MAX_MESSAGE_ID_BYTES, MAX_TIME_MS
from message_buffer.messages.wire_form import WIRE_VERSION, camel_case, decode_fields, id_line, mend_id

# The largest message in its wire form, with its attachments. An event on the bus has room for several messages of this
# size.
MAX_MESSAGE_BYTES = 64 * 1024
# The largest webhook has room for a million attachments, more than fit into a function's memory. Albums of the known
# products have up to 30.
MAX_ATTACHMENTS = 100
# The fields of a profile are cut to this length, because each message of a webhook may contain a copy of the same
# profile. The platforms' longest names have a few dozen characters.
MAX_PROFILE_CHARACTERS = 256


def _mend_text(value: Any) -> Any:
    """Replace lone surrogates with U+FFFD. JSON can contain them, but UTF-8 cannot."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def _mend_unknown(value: Any) -> Any:
    """Replace lone surrogates in every text of the value."""
    try:
        if isinstance(value, dict):
            return {_mend_text(key): _mend_unknown(item) for key, item in value.items()}
        return [_mend_unknown(item) for item in value] if isinstance(value, list) else _mend_text(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _legal_id(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    mended = mend_id(value)
    if not 1 <= len(mended.encode()) <= MAX_MESSAGE_ID_BYTES:
        raise ValueError(f"an id has 1 to {MAX_MESSAGE_ID_BYTES} bytes of UTF-8")
    return mended


Text = Annotated[str, BeforeValidator(_mend_text)]
MessageId = Annotated[str, BeforeValidator(_legal_id)]
_TimeMs = Annotated[int, Field(strict=True, ge=0, le=MAX_TIME_MS)]


class _Open(BaseModel):
    """A model that keeps unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        alias_generator=camel_case,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        # Errors must not quote what people write, because errors are logged.
        hide_input_in_errors=True,
        # Build a model's validator on its first use, so that a cold start pays only for the models that it uses.
        defer_build=True,
    )

    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(_mend_unknown)]]

    def _wire(self) -> dict[str, Any]:
        # Leave out fields that are empty and equal to their defaults. A time of 0 differs from its default, so keep it.
        known = {
            field.alias or name: value
            for name, field in type(self).model_fields.items()
            if (value := self.__dict__[name]) or value != field.default
        }
        return known | (self.__pydantic_extra__ or {})


class Attachment(_Open):
    """A file that came with the message. The platform stores the file."""

    type: Text
    url: Text | None = None
    id: Text | None = None
    mime_type: Text | None = None
    name: Text | None = None
    size_bytes: Annotated[int, Field(strict=True, ge=0)] | None = None
    pending: Annotated[bool, Field(strict=True)] = False
    """True if a part of the attachment, such as a transcript, will follow in an edit of the message."""


class Message(_Open):
    id: MessageId
    # The wire form has this time at its beginning, so that a lane can compare it without parsing JSON.
    edited_at: _TimeMs | None = None
    text: Text = ""
    type: Annotated[Text, Field(min_length=1)] = "text"
    author: Text | None = None
    # Fail fast, because the validation of further attachments takes far more memory than the body.
    attachments: Annotated[list[Attachment], Field(fail_fast=True, max_length=MAX_ATTACHMENTS)] = []
    reply_to: MessageId | None = None
    group_id: Text | None = None
    """The id of the album that the message is a part of."""
    sent_at: _TimeMs | None = None
    received_at: _TimeMs
    platform: Annotated[Text, Field(min_length=1)]
    agent: Text | None = None
    """The agent that served the conversation when the message arrived."""
    queue: Text | None = None
    """The queue that the rules named when the message arrived. None in a stage without queues."""
    idle_after_ms: list[int] | None = None
    """The steps of the rule of this name when the message arrived. None if there are none."""
    traceparent: Text | None = None
    """The trace of the webhook that contained the message, as W3C's header names it."""

    @model_validator(mode="after")
    def _keep_the_version_free(self) -> Self:
        if self.__pydantic_extra__ and "v" in self.__pydantic_extra__:
            raise ValueError("the field name v belongs to the wire form")
        return self


def profile_of(
    *,
    name: str | None = None,
    user_name: str | None = None,
    user_id: str | None = None,
    language: str | None = None,
    country: str | None = None,
) -> dict[str, str]:
    """Return the field `profile` of a message. Cut values that are too long, and leave out empty ones.

    The model of messages does not declare this field, so that senders of generic webhooks may put any value into it.
    """
    given = {"name": name, "userName": user_name, "userId": user_id, "language": language, "country": country}
    return {field: value[:MAX_PROFILE_CHARACTERS] for field, value in given.items() if value}


def encode(message: Message, *, max_bytes: int = MAX_MESSAGE_BYTES) -> bytes:
    """Return the message's wire form. Raise MalformedMessage or MessageTooLarge."""
    body = {"v": WIRE_VERSION} | message._wire()
    del body["id"]
    if message.attachments:
        body["attachments"] = [attachment._wire() for attachment in message.attachments]
    try:
        # `to_json` is several times faster than json.dumps. JSON has no NaN, so NaN becomes null, as in JavaScript.
        wire = id_line(message.id) + to_json(body, inf_nan_mode="null")
    except ValueError as error:
        raise MalformedMessage("the message holds something that JSON cannot express") from error
    if len(wire) > max_bytes:
        raise MessageTooLarge(f"the message takes {len(wire)} bytes on the wire, the limit is {max_bytes}")
    return wire


def decode(wire: bytes) -> Message:
    """Return the message that a wire form contains. Raise MalformedMessage.

    Version 2 or later is accepted if it has the same shape.
    """
    fields = decode_fields(wire)
    try:
        return Message.model_validate(fields)
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, detail["loc"])) for detail in error.errors(include_input=False))
        raise MalformedMessage(f"the message has fields that are wrong: {wrong or 'unknown'}") from error
