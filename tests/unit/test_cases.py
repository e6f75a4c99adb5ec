"""Each case and promise of tests/CASES.md has a test that carries its marker."""

import ast
import re
from pathlib import Path

import pytest

from tests.support.cases import markers, numbered

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"^@pytest\.mark\.(case|promise)\((.+)\)$", re.MULTILINE)


def test_every_case_and_promise_has_a_test() -> None:
    marks = (
        pytest.Mark(kind, ast.literal_eval(f"({numbers},)"), {}, _ispytest=True)
        for path in TESTS.rglob("test_*.py")
        for kind, numbers in MARK.findall(path.read_text("utf-8"))
    )
    assert set(numbered(marks)) == set(markers())
