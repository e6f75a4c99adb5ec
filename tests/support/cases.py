"""The numbered cases and promises of tests/CASES.md, as markers that select tests."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "CASES.md"


def markers() -> dict[str, str]:
    """Return each marker of the page with its meaning: `case_01` to `case_36`, `p1` to `p10`."""
    rows: list[tuple[str, str]] = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return dict(rows)


def numbered(marks: Iterator[pytest.Mark]) -> list[str]:
    """Return the page's markers for `@pytest.mark.case(16)` and `@pytest.mark.promise("P6")`."""
    names = []
    for mark in marks:
        if mark.name == "case":
            names += [f"case_{number:02}" for number in mark.args]
        elif mark.name == "promise":
            names += [name.lower() for name in mark.args]
    return names
