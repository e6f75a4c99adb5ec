"""Doors are mappings that turn the webhooks of any product into messages. docs/doors.md describes a mapping.

Operators store a mapping in the rules' table, under the scope `door:<name>`. A mapping has no secrets.
`door_reading.py` uses it to read bodies. A wrong mapping raises `InvalidRules`, with a line for each problem and its
place in the mapping.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from message_buffer.errors import InvalidInput, InvalidRules
from message_buffer.json_object import Json
from message_buffer.rules.rules_and_defaults import nearest_name

MAX_DOOR_BYTES = 16 * 1024
# A function applies each condition and each pointer once to each item. With these bounds it can read even the largest
# webhook in a fraction of a second. Products nest their messages only a few levels deep.
MAX_LEVELS_OF_A_POINTER = 16
MAX_POINTER_CHARACTERS = 256
MAX_ALTERNATIVES_IN_A_DOOR = 16
MAX_CONDITIONS_IN_A_DOOR = 16
MAX_VALUES_IN_A_CONDITION = 32
MAX_ATTACHMENTS_IN_A_DOOR = 16
MAX_WORDS_IN_A_DOOR = 64
MAX_WORD_CHARACTERS_IN_A_DOOR = 128
_NAME = re.compile(r"[a-z0-9](?:-?[a-z0-9]){0,30}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,64}")
_POINTER = re.compile(r"#?(?:/(?:[^~/]|~0|~1)*)*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")
# A prefix is compared with a header, which has only visible characters and spaces.
_PREFIX = re.compile(r"[ -~]{0,32}")

Word = str | int | float | bool

MISSING = object()


class Pointer(NamedTuple):
    """A JSON Pointer (RFC 6901). If it begins with `#`, it starts at the whole body, otherwise at the item."""

    text: str
    tokens: tuple[str, ...]
    of_body: bool

    def find(self, body: Any, item: Any) -> Any:
        """Return the value, or MISSING if there is none. A null counts as missing."""
        found = body if self.of_body else item
        for token in self.tokens:
            if isinstance(found, dict):
                found = found.get(token)
            elif isinstance(found, list) and _INDEX.fullmatch(token) and int(token) < len(found):
                found = found[int(token)]
            else:
                return MISSING
        return MISSING if found is None else found


def part_of(text: str, separator: str, part: int) -> str:
    """Divide the text and return the part with this number, or the whole text if that part is missing or empty.

    The whole text is needed because some products write the same id sometimes with a prefix and sometimes without.
    """
    parts = text.split(separator, part + 1)
    return (parts[part] if part < len(parts) else "") or text


class Condition(NamedTuple):
    at: Pointer
    values: tuple[Word, ...] = ()
    """If this is not empty, the value must be one of these. If it is empty, `exists` says whether there must be a
    value."""
    exists: bool = True
    split: str = ""
    """If this is not empty, divide a text at this separator, and compare only the part with the number `part`."""
    part: int = 0

    def holds(self, body: Any, item: Any) -> bool:
        found = self.at.find(body, item)
        if not self.values:
            return (found is not MISSING) is self.exists
        if self.split and isinstance(found, str):
            found = part_of(found, self.split, self.part)
        return any(_is_same(found, value) for value in self.values)


class Place(NamedTuple):
    """A pointer to a value. The place has no value if one of the conditions in `when` does not hold."""

    at: Pointer
    split: str = ""
    """If this is not empty, divide a text at this separator, and use only the part with the number `part`."""
    part: int = 0
    when: tuple[Condition, ...] = ()
    """All of these conditions must hold."""

    def find(self, body: Any, item: Any) -> Any:
        """Return the value, or MISSING if there is none, if it is an empty text, or if a condition does not hold."""
        found = self.at.find(body, item)
        if found is MISSING or found == "" or not all(each.holds(body, item) for each in self.when):
            return MISSING
        return found


class Value(NamedTuple):
    """The places where a field's value may be. The first place that has a value counts."""

    places: tuple[Place, ...]

    @property
    def pointer(self) -> Pointer:
        """Return the pointer that names the value in error messages: the first one."""
        return self.places[0].at


class Proof(NamedTuple):
    """How a sender proves that it knows the door's secret."""

    type: Literal["hmac", "token", "basic"]
    header: str
    """The header's name, in lower case."""
    algorithm: str = ""
    encoding: Literal["hex", "base64"] = "hex"
    prefix: str = ""
    time_header: str = ""
    """The header with the time, in lower case. If it is not empty, the signature covers this header's time, a full stop
    and the body."""


class AttachmentFields(NamedTuple):
    at: Pointer
    """The pointer to an attachment, or to a list of attachments."""
    type: "str | Value | None"
    """The type. A Value leads to the product's name for the type in the attachment. If this is None, the media type
    decides."""
    values: Mapping[str, Value]
    """Field of the attachment -> the places of the field's value."""


class Fields(NamedTuple):
    """The places of an item's values and attachments."""

    values: Mapping[str, Value]
    attachments: tuple[AttachmentFields, ...]
    time_format: Literal["seconds", "milliseconds", "iso"]


class Kind(NamedTuple):
    """How to recognise and read the items of one kind."""

    name: Literal["deleted", "edited", "reaction", "message"]
    when: tuple[Condition, ...]
    fields: Fields

    def has(self, body: Any, item: Any) -> bool:
        return all(condition.holds(body, item) for condition in self.when)


class Door(NamedTuple):
    name: str
    proof: Proof
    kinds: tuple[Kind, ...]
    """An item belongs to the first kind whose conditions all hold. The kind `message` comes last."""
    ignore: tuple[Condition, ...] = ()
    """An item is ignored if one of these conditions holds."""
    group: tuple[Condition, ...] = ()
    """If this is not empty and all conditions hold, several authors write in the conversation."""
    list: Pointer | None = None
    """The list of the items. If it is None, the body is the item."""
    types: Mapping[str, str] = {}
    """The product's name for a message's type -> our name. Other names stay as they are."""
    unreadable: Literal["refuse", "ignore"] = "refuse"
    """If an item cannot be read, refuse the whole body, or ignore only this item."""
    comes_again: bool = True
    """True if the product sends a webhook again after a 429 or a 503."""


def is_door_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def require_size(mapping: Mapping[str, Any]) -> None:
    """Raise InvalidInput if the mapping is larger than the table of rules may store."""
    if len(json.dumps(mapping).encode()) > MAX_DOOR_BYTES:
        raise InvalidInput(f"A door's mapping has at most {MAX_DOOR_BYTES} bytes.")


def read_door(name: str, given: Any) -> Door:
    """Return the door that a mapping describes. Raise InvalidRules."""
    problems: list[str] = []
    door = _door(name, _MappingPart(given, "", problems))
    if problems:
        raise InvalidRules("\n".join(problems))
    return door


# -- the fields of a mapping -----------------------------------------------------------------------

# For each kind of item, the fields of a mapping that say where a value is. Such a field under `edited`, `deleted` or
# `reaction` replaces the field for messages.
_OF_EVERY_KIND = ("account", "conversation", "id", "author", "time")
_OF_CONTENT = ("text", "type", "authorName", "replyTo")
_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "message": (*_OF_EVERY_KIND, *_OF_CONTENT),
    "edited": (*_OF_EVERY_KIND, *_OF_CONTENT),
    "deleted": _OF_EVERY_KIND,
    "reaction": (*_OF_EVERY_KIND, "emoji"),
}
_OF_A_DOOR = (
    "proof", "list", "ignore", "when", *_OF_KIND["message"], "attachments", "group", "timeFormat", "types",
    "edited", "deleted", "reaction", "unreadable", "comesAgain",
)  # fmt: skip
_OF_A_PROOF = {
    "hmac": ("type", "header", "algorithm", "encoding", "prefix", "timeHeader"),
    "token": ("type", "header", "prefix"),
    "basic": ("type",),
}
_OF_AN_ATTACHMENT = ("url", "id", "mimeType", "name", "sizeBytes", "latitude", "longitude")
_ALGORITHMS = ("sha256", "sha512", "sha1")
_TIME_FORMATS = ("seconds", "milliseconds", "iso")


class _MappingPart:
    """An object of the mapping. Its methods return a field, or record what is wrong with it."""

    def __init__(self, given: Any, where: str, problems: list[str]) -> None:
        self._where = where
        self._problems = problems
        self.given: Json = given if isinstance(given, dict) else {}
        if not isinstance(given, dict):
            self.refuse("", "use an object")

    def refuse(self, field: str, problem: str) -> None:
        where = ".".join(part for part in (self._where, field) if part) or "mapping"
        self._problems.append(f"{where}: {problem}")

    def allow(self, fields: tuple[str, ...]) -> None:
        for name in self.given:
            if name not in fields:
                shown = name[:MAX_WORD_CHARACTERS_IN_A_DOOR]
                nearest = nearest_name(shown, {field.lower(): field for field in fields})
                hint = f"did you mean {nearest}?" if nearest else f"use one of {', '.join(fields)}"
                self.refuse(shown, f"unknown field; {hint}")

    def part(self, field: str) -> "_MappingPart":
        return _MappingPart(self.given.get(field), self._named(field), self._problems)

    def parts(self, field: str, most: int) -> "list[_MappingPart]":
        """Return the objects of a list, or no objects if the list is missing."""
        given = self.given.get(field, [])
        if not isinstance(given, list) or len(given) > most:
            self.refuse(field, f"use a list of at most {most} objects")
            return []
        return [_MappingPart(each, self._named(f"{field}.{place}"), self._problems) for place, each in enumerate(given)]

    def choice(self, field: str, choices: tuple[str, ...], default: str | None = None) -> Any:
        given = self.given.get(field, default)
        if not isinstance(given, str) or given not in choices:
            self.refuse(field, f"{'is missing; ' if given is None else ''}use {_or(choices)}")
            return choices[0]
        return given

    def flag(self, field: str, *, default: bool) -> bool:
        given = self.given.get(field, default)
        if not isinstance(given, bool):
            self.refuse(field, "use true or false")
        return given is True

    def text(self, field: str, form: re.Pattern[str], legal: str, default: str | None = None) -> str:
        given = self.given.get(field, default)
        if not isinstance(given, str) or not form.fullmatch(given):
            self.refuse(field, f"{'is missing; ' if given is None else ''}use {legal}")
            return ""
        return given

    def pointer(self, field: str) -> Pointer:
        return self.pointer_in(self.given.get(field), field)

    def pointer_in(self, given: Any, field: str) -> Pointer:
        if isinstance(given, str) and len(given) <= MAX_POINTER_CHARACTERS and _POINTER.fullmatch(given):
            tokens = tuple(token.replace("~1", "/").replace("~0", "~") for token in given.split("/")[1:])
            if len(tokens) <= MAX_LEVELS_OF_A_POINTER:
                return Pointer(given, tokens, given.startswith("#"))
        shown = "" if given is None else f"{str(given)[:MAX_WORD_CHARACTERS_IN_A_DOOR]!r} is not one; "
        self.refuse(
            field,
            f"{shown}use a JSON Pointer such as /payload/id, or #/payload/id from the whole body, with at most"
            f" {MAX_LEVELS_OF_A_POINTER} levels and {MAX_POINTER_CHARACTERS} characters",
        )
        return Pointer("", (), of_body=False)

    def value(self, field: str) -> Value:
        """Return the places of a value. The mapping has one place, or a list of places."""
        given = self.given[field]
        if not isinstance(given, list):
            return Value(self._places(given, field))
        if not 1 <= len(given) <= MAX_ALTERNATIVES_IN_A_DOOR:
            self.refuse(field, f"use 1 to {MAX_ALTERNATIVES_IN_A_DOOR} pointers")
            return Value((Place(Pointer("", (), of_body=False)),))
        return Value(
            tuple(place for number, each in enumerate(given) for place in self._places(each, f"{field}.{number}"))
        )

    def _places(self, given: Any, field: str) -> tuple[Place, ...]:
        """Return the places that a pointer, or an object with `at`, describes."""
        if not isinstance(given, dict):
            return (Place(self.pointer_in(given, field)),)
        part = _MappingPart(given, self._named(field), self._problems)
        part.allow(("at", "split", "part", "when"))
        if not {"split", "part", "when"} & given.keys():
            part.refuse("", "use split and part, or when")
        split, number = part.division() if {"split", "part"} & given.keys() else ("", 0)
        when = _conditions(part, "when")
        return tuple(Place(at, split, number, when) for at in part._pointers(given.get("at"), "at"))

    def division(self) -> tuple[str, int]:
        """Return the separator at which a text is divided, and the number of the part to use."""
        split, place = self.given.get("split"), self.given.get("part")
        if not isinstance(split, str) or not 1 <= len(split) <= MAX_WORD_CHARACTERS_IN_A_DOOR:
            self.refuse("split", "use the text that separates the parts")
        if type(place) is not int or not 0 <= place <= MAX_LEVELS_OF_A_POINTER:
            self.refuse("part", f"use the number of the part, from 0 to {MAX_LEVELS_OF_A_POINTER}")
        return str(split), place if type(place) is int else 0

    def words(self, field: str) -> dict[str, str]:
        given = self.given.get(field, {})
        if not isinstance(given, dict) or len(given) > MAX_WORDS_IN_A_DOOR or not all(map(_is_name, given.values())):
            self.refuse(field, f'use an object of at most {MAX_WORDS_IN_A_DOOR} names, such as {{"chat": "text"}}')
            return {}
        return dict(given)

    def _pointers(self, given: Any, field: str) -> tuple[Pointer, ...]:
        if not isinstance(given, list):
            return (self.pointer_in(given, field),)
        if not 1 <= len(given) <= MAX_ALTERNATIVES_IN_A_DOOR:
            self.refuse(field, f"use 1 to {MAX_ALTERNATIVES_IN_A_DOOR} pointers")
            return ()
        return tuple(self.pointer_in(each, f"{field}.{place}") for place, each in enumerate(given))

    def _named(self, field: str) -> str:
        return f"{self._where}.{field}" if self._where else field


def _door(name: str, part: _MappingPart) -> Door:
    part.allow(_OF_A_DOOR)
    for field in ("conversation", "id"):
        if field not in part.given:
            part.refuse(field, "is missing; use a JSON Pointer such as /payload/id")
    if "time" in part.given and "timeFormat" not in part.given:
        part.refuse("timeFormat", f"is missing; use {_or(_TIME_FORMATS)}")
    fields = Fields(
        _values(part, "message"),
        tuple(map(_attachment, part.parts("attachments", MAX_ATTACHMENTS_IN_A_DOOR))),
        part.choice("timeFormat", _TIME_FORMATS, "seconds"),
    )
    changes = tuple(
        _change(kind, part.part(kind), fields) for kind in ("deleted", "edited", "reaction") if kind in part.given
    )
    return Door(
        name=name,
        proof=_proof(part.part("proof")),
        kinds=(*changes, Kind("message", _conditions(part, "when"), fields)),
        ignore=_conditions(part, "ignore"),
        group=_conditions(part, "group"),
        list=part.pointer("list") if "list" in part.given else None,
        types=part.words("types"),
        unreadable=part.choice("unreadable", ("refuse", "ignore"), "refuse"),
        comes_again=part.flag("comesAgain", default=True),
    )


def _change(kind: Any, part: _MappingPart, of_message: Fields) -> Kind:
    part.allow(("when", "timeFormat", *_OF_KIND[kind]))
    when = _conditions(part, "when")
    if not when:
        part.refuse("when", "is missing; use a list of conditions, otherwise it would apply to every item")
    if kind == "reaction" and "emoji" not in part.given:
        part.refuse("emoji", "is missing; use a JSON Pointer such as /payload/reaction/text")
    inherited = {name: value for name, value in of_message.values.items() if name in _OF_KIND[kind]}
    time_format = part.choice("timeFormat", _TIME_FORMATS, of_message.time_format)
    return Kind(kind, when, Fields(inherited | _values(part, kind), of_message.attachments, time_format))


def _values(part: _MappingPart, kind: str) -> dict[str, Value]:
    return {field: part.value(field) for field in _OF_KIND[kind] if field in part.given}


def _attachment(part: _MappingPart) -> AttachmentFields:
    part.allow(("at", "type", *_OF_AN_ATTACHMENT))
    return AttachmentFields(
        part.pointer("at"),
        _type_of_attachment(part),
        {field: part.value(field) for field in _OF_AN_ATTACHMENT if field in part.given},
    )


def _type_of_attachment(part: _MappingPart) -> str | Value | None:
    given = part.given.get("type")
    if isinstance(given, list | dict) or (isinstance(given, str) and given.startswith(("/", "#"))):
        return part.value("type")
    if given is not None and not _is_name(given):
        part.refuse("type", "use a name such as image, or a JSON Pointer, or leave it out and give mimeType")
        return None
    return given


def _conditions(part: _MappingPart, field: str) -> tuple[Condition, ...]:
    return tuple(map(_condition, part.parts(field, MAX_CONDITIONS_IN_A_DOOR)))


def _condition(part: _MappingPart) -> Condition:
    part.allow(("at", "split", "part", "equals", "oneOf", "exists"))
    at = part.pointer("at")
    tests = [name for name in ("equals", "oneOf", "exists") if name in part.given]
    if len(tests) != 1:
        part.refuse("", "use one of equals, oneOf and exists")
        return Condition(at)
    split, place = part.division() if {"split", "part"} & part.given.keys() else ("", 0)
    if tests == ["exists"]:
        if split:
            part.refuse("split", "a part of a text is compared; use equals or oneOf")
        return Condition(at, exists=part.flag("exists", default=True))
    values = part.given["oneOf"] if tests == ["oneOf"] else [part.given["equals"]]
    most = MAX_VALUES_IN_A_CONDITION
    if not isinstance(values, list) or not 1 <= len(values) <= most or not all(map(_is_word, values)):
        legal = f"a list of 1 to {most} of them" if tests == ["oneOf"] else "one of them"
        part.refuse(tests[0], f"texts, numbers, true and false can be compared; use {legal}")
        return Condition(at)
    return Condition(at, tuple(values), split=split, part=place)


def _proof(part: _MappingPart) -> Proof:
    kind = part.choice("type", tuple(_OF_A_PROOF))
    part.allow(_OF_A_PROOF[kind])
    if kind == "basic":
        return Proof(kind, "authorization")
    header = part.text("header", _HEADER, "the name of a header").lower()
    prefix = part.text("prefix", _PREFIX, "the text before the proof, such as 'sha256='", default="")
    if kind == "token":
        return Proof(kind, header, prefix=prefix)
    algorithm = part.choice("algorithm", _ALGORITHMS)
    encoding = part.choice("encoding", ("hex", "base64"), "hex")
    time_header = part.text("timeHeader", _HEADER, "the name of a header").lower() if "timeHeader" in part.given else ""
    return Proof(kind, header, algorithm, encoding, prefix, time_header)


def _is_word(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_WORD_CHARACTERS_IN_A_DOOR
    return isinstance(value, int | float)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _is_word(value) and value != ""


def _is_same(found: Any, value: Word) -> bool:
    """Return whether two values are the same in JSON, where true is not 1."""
    return isinstance(found, bool) is isinstance(value, bool) and found == value


def _or(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
