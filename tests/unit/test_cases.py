"""Each case and promise of tests/CASES.md has a test that carries its marker."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.cases import markers, numbered

ROOT = Path(__file__).parents[2]


# Not when the module is imported, because each worker imports it.
@cache
def definitions() -> tuple[ast.FunctionDef, ...]:
    return tuple(
        node
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def marks_of(test: ast.FunctionDef) -> Iterator[pytest.Mark]:
    for decorator in test.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in {
            "pytest.mark.case",
            "pytest.mark.promise",
        }:
            args = tuple(ast.literal_eval(arg) for arg in decorator.args)
            yield pytest.Mark(ast.unparse(decorator.func).rpartition(".")[2], args, {}, _ispytest=True)


def test_every_case_and_promise_has_a_test() -> None:
    tests = defaultdict(list)
    for test in definitions():
        for name in numbered(marks_of(test)):
            tests[name].append(test.name)
    assert sorted(tests) == sorted(markers())
