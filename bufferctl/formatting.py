"""Formats results for people: aligned tables, and times in the reader's time zone."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import TextWrapper
from typing import Any, Literal, NamedTuple

# The spaces between two columns, and those before the fields beneath a name.
GAP, INDENT = 2, 2
NOTHING = "-"
# JSON may contain these characters unescaped. But some of them control a terminal or reverse its text, and many
# programs end a line at others.
CONTROLS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
Tone = Literal["good", "warning", "bad", "plain"]


@dataclass(frozen=True)
class TextTable:
    """Rows with the same fields. `str` returns an aligned table."""

    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    notes: Sequence[str] = ()
    """Lines beneath the table."""

    def cells(self) -> list[list[str]]:
        return [[cell(column, row.get(column)) for column in self.columns] for row in self.rows]

    def __str__(self) -> str:
        lines = [list(self.columns), *self.cells()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        aligned = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*aligned, *self.notes])


@dataclass(frozen=True)
class Pairs:
    """The fields of one thing. `str` returns a line for each field."""

    fields: Mapping[str, Any]

    def __str__(self) -> str:
        width = max(map(len, self.fields), default=0)
        return "\n".join(f"{name.ljust(width)}  {cell(name, value)}" for name, value in self.fields.items())


class TextLine(NamedTuple):
    text: str
    tone: Tone = "plain"
    rest: str = ""
    """The second part of the line. A narrow terminal shows it on the next line."""
    hang: int = INDENT
    """The indent of all lines but the first, if a terminal wraps the text."""


@dataclass(frozen=True)
class Lines:
    """Lines that each have a tone, which a terminal shows as a colour."""

    lines: Sequence[TextLine]

    def __str__(self) -> str:
        return "\n".join(f"{line.text}  {line.rest}".rstrip() for line in self.lines)


Block = str | TextTable | Pairs | Lines


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, notes: Sequence[str] = ()) -> TextTable:
    """Return the rows as an aligned table. Fields named `at`, `…At` or `…Until` are shown as times."""
    return TextTable(tuple(rows), columns, notes)


def is_time(name: str) -> bool:
    return name == "at" or name.endswith(("At", "Until"))


def cell(name: str, value: Any) -> str:
    if value is None:
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


def wrapped(text: str, *, width: int, hang: int = 0) -> str:
    """Return the text in lines of this width, broken between words."""
    wrapper = TextWrapper(
        width,
        subsequent_indent=" " * hang,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    return "\n".join(wrapper.fill(line) for line in text.split("\n"))


def counted(number: int, thing: str) -> str:
    """Return `1 batch` or `2 batches`."""
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith('ch') else 's'}"


def moment(at_ms: int) -> str:
    return f"{_local_time(at_ms):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def without_today(text: str) -> str:
    """Return a time as `moment` formats it, but without the date if the date is today."""
    return text.removeprefix(f"{datetime.now().astimezone():%Y-%m-%d} ")


def minute(at_ms: int) -> str:
    return f"{_local_time(at_ms):%Y-%m-%d %H:%M}"


def second_of(time: str) -> str:
    """Return an event's time in the reader's time zone. AWS writes `time` in UTC, in whole seconds."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}"


def _local_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone()
