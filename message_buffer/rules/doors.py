"""Doors are mappings that turn the webhooks of any product into messages. docs/doors.md describes a mapping.

Operators store a mapping in the rules' table, under the scope `door:<name>`. A mapping has no secrets.
`door_reading.py` uses it to read bodies. A wrong mapping raises `InvalidRules`, with a line for each problem and its
place in the mapping.
"""

import json
import re
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeAlias

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from message_buffer.errors import InvalidRules
from message_buffer.json_object import Json
from message_buffer.rules.door_expressions import LEGAL_EXPRESSION, compile_expression
from message_buffer.rules.rules_and_defaults import CheckedModel

MAX_DOOR_BYTES = 16 * 1024
_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9]){0,30}")

Expression: TypeAlias = Annotated[Json, PlainValidator(compile_expression), Field(description=LEGAL_EXPRESSION)]
_Header = Annotated[
    str, Field(pattern="^[A-Za-z0-9-]{1,64}$", description="the name of a header"), AfterValidator(str.lower)
]
_Word = Annotated[str, Field(min_length=1)]
# Type of a proof -> the fields that it needs.
_NEEDED = {"hmac": ("header", "algorithm"), "token": ("header",), "basic": ()}


class Proof(CheckedModel):
    """How a sender proves that it knows the door's secret."""

    type: Literal["hmac", "token", "basic"] = Field(description="hmac, token or basic")
    header: _Header = "authorization"
    """The header's name, in lower case."""
    algorithm: Literal["sha256", "sha512", "sha1"] = Field(default="sha256", description="sha256, sha512 or sha1")
    encoding: Literal["hex", "base64"] = Field(default="hex", description="hex or base64")
    # A prefix is compared with a header, which has only visible characters and spaces.
    prefix: str = Field(default="", pattern="^[ -~]{0,32}$", description="the text before the proof, such as sha256=")
    time_header: _Header = ""
    """The header with the time, in lower case. If it is not empty, the signature covers this header's time, a full stop
    and the body."""

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if missing := [name for name in _NEEDED[self.type] if name not in self.model_fields_set]:
            raise InvalidRules("\n".join(f"{name}: is missing" for name in missing))
        return self


class Values(CheckedModel):
    """The expressions for the values of an item."""

    account: Expression | None = None
    conversation: Expression | None = None
    id: Expression | None = None
    author: Expression | None = None
    author_name: Expression | None = None
    text: Expression | None = None
    type: Expression | None = None
    time: Expression | None = None
    reply_to: Expression | None = None


class Change(Values):
    """The condition for an edit or a deletion, and its own expressions for some values."""

    when: Expression


class Reaction(Change):
    emoji: Expression


class Mapping(Values):
    proof: Proof = Field(description='an object, such as {"type": "basic"}')
    conversation: Expression
    id: Expression
    items: Expression | None = None
    """Gives the list of the items. If it is None, the body is the item."""
    ignore: Expression | None = None
    when: Expression | None = None
    group: Expression | None = None
    """True if several authors write in the conversation."""
    types: dict[str, _Word] = Field(default={}, description='an object of names, such as {"chat": "text"}')
    """The product's name for a message's or an attachment's type -> our name. Other names stay as they are."""
    attachments: list[Expression] = Field(default=[], description="a list of JMESPath expressions")
    deleted: Change | None = Field(default=None, description="an object with when")
    edited: Change | None = Field(default=None, description="an object with when")
    reaction: Reaction | None = Field(default=None, description="an object with when and emoji")
    unreadable: Literal["refuse", "ignore"] = Field(default="refuse", description="refuse or ignore")
    """If an item cannot be read, refuse the whole body, or ignore only this item."""
    comes_again: bool = Field(default=True, description="true or false")
    """True if the product sends a webhook again after a 429 or a 503."""


class Door(NamedTuple):
    name: str
    mapping: Mapping


def is_door_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def read_door(name: str, given: Any) -> Door:
    """Return the door that a mapping describes. Raise InvalidRules."""
    if not is_door_name(name):
        raise InvalidRules("A door's name has at most 31 lower-case letters, digits and single hyphens.")
    try:
        if len(json.dumps(given).encode()) > MAX_DOOR_BYTES:
            raise InvalidRules(f"A door's mapping has at most {MAX_DOOR_BYTES} bytes.")
        return Door(name, Mapping.model_validate(given))
    except RecursionError as error:
        raise InvalidRules("A door's mapping is nested too deeply.") from error
