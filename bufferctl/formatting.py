"""Formats results for people: aligned tables, and times in their own time zone."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

NOTHING = "-"


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return the rows as an aligned table. Values of `at`, and of names that end in `At` or `Until`, become times."""
    lines = [list(columns), *([_cell(column, row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def pairs(fields: Mapping[str, Any]) -> str:
    width = max(map(len, fields))
    return "\n".join(f"{name.ljust(width)}  {_cell(name, value)}" for name, value in fields.items())


def _cell(name: str, value: Any) -> str:
    if value is None:
        return NOTHING
    if (name == "at" or name.endswith(("At", "Until"))) and isinstance(value, int):
        return moment(value)
    if isinstance(value, bool | list | dict):
        value = json.dumps(value, ensure_ascii=False)
    # Names of rules end in `Ms`, too, but a rule is shown as the operator set it.
    if name == "overdueMs":
        return f"{value / 1_000:.1f} s"
    # People's words must neither break the line nor send control characters to the terminal.
    return "".join(character if character.isprintable() else " " for character in str(value))


def moment(at_ms: int) -> str:
    return f"{_local_time(at_ms):%Y-%m-%d %H:%M:%S.%f}"[:-3]


def minute(at_ms: int) -> str:
    return f"{_local_time(at_ms):%Y-%m-%d %H:%M}"


def _local_time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone()
