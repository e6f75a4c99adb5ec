"""Formats results for people: times in the reader's time zone, and texts that cannot control a terminal."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

# The spaces between two columns, and those before the lines beneath a name.
GAP, INDENT = 2, 2
NOTHING = "-"
# JSON may contain these characters unescaped. But some of them control a terminal or reverse its text, and many
# programs end a line at others.
CONTROLS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
Tone = Literal["good", "warning", "bad", "plain"]


@dataclass(frozen=True)
class TextTable:
    """Rows with the same fields."""

    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]


@dataclass(frozen=True)
class Pairs:
    """The fields of one thing, which are shown in a line each."""

    fields: Mapping[str, Any]


class TextLine(NamedTuple):
    text: str
    tone: Tone = "plain"
    hang: int = INDENT
    """The indent of all lines but the first, if a terminal wraps the text."""


@dataclass(frozen=True)
class Lines:
    """Lines that each have a tone, which a terminal shows as a colour."""

    lines: Sequence[TextLine]


Block = str | TextTable | Pairs | Lines


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> TextTable:
    """Return the rows as a table of these columns, or of all fields of the rows."""
    return TextTable(rows, columns or list(dict.fromkeys(name for row in rows for name in row)))


def listed(rows: Sequence[Mapping[str, Any]], nothing: str, columns: Sequence[str] = ()) -> Block:
    """Return the rows as a table, or the text if there are none."""
    return table(rows, columns) if rows else nothing


def blocks_of(result: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a result's single values together, then each list and each object beneath its name."""
    single = {name: value for name, value in result.items() if not _is_block(value)}
    if single:
        yield Pairs(single)
    for name, value in result.items():
        if not _is_block(value):
            continue
        yield name
        if isinstance(value, list):
            yield table(value)
        elif all(isinstance(each, dict) for each in value.values()):
            yield table([{"name": key, **each} for key, each in value.items()])
        else:
            yield from blocks_of(value)


def _is_block(value: Any) -> bool:
    """Return whether a value is an object, or a list of objects."""
    return bool(value) and (isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict)))


def is_time(name: str) -> bool:
    return name in ("at", "until") or name.endswith(("At", "Until"))


def cell(name: str, value: Any) -> str:
    if value is None or value in ([], {}):
        return NOTHING
    if is_time(name) and isinstance(value, int):
        return moment(value)
    if isinstance(value, bool | list | dict):
        value = json.dumps(value, ensure_ascii=False)
    # Show this time in seconds. Other names that end in `Ms` are rules, which are shown as the operator wrote them.
    if name == "overdueMs":
        return f"{value / 1_000:.1f} s"
    return printable(str(value))


def printable(text: str, *, kept: str = "") -> str:
    """Replace with spaces the characters that could break the line or control the terminal, except `kept`."""
    return "".join(each if each.isprintable() or each in kept else " " for each in text)


def as_json(value: Any, *, indent: int | None = 2) -> str:
    """Return JSON with control characters escaped, because customers' text may contain them."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=indent, ensure_ascii=False))


def counted(number: int, thing: str) -> str:
    """Return `1 batch` or `2 batches`."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith('ch') else 's'}"


def moment(at_ms: int) -> str:
    return f"{_local_time(at_ms):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def clock_time(at_ms: int) -> str:
    """Return a time for a sentence, with the day if that is not today."""
    at = _local_time(at_ms)
    return f"{at:%H:%M:%S}" if at.date() == datetime.now(at.tzinfo).date() else f"{at:%a %d %b %H:%M:%S}"


def second_of(time: str) -> str:
    """Return an event's time in the reader's time zone. AWS writes `time` in UTC, in whole seconds."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"


def _local_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone()
