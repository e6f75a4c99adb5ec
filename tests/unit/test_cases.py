"""Each case and promise of tests/CASES.md has a test that carries its marker."""

import ast
import re
import subprocess
import sys
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


def test_the_page_numbers_36_cases_and_10_promises() -> None:
    assert list(markers()) == [f"case_{n:02}" for n in range(1, 37)] + [f"p{n}" for n in range(1, 11)]


def test_a_number_stands_in_a_marker_not_in_a_name() -> None:
    assert [test.name for test in definitions() if re.match(r"test_(case_?\d|p\d+_)", test.name)] == []


@pytest.mark.parametrize("chosen", [["-m", "case_16 and case_06 and p7"], ["-k", "case_16"]])
def test_a_marked_test_is_selected_by_each_of_its_numbers(chosen: list[str]) -> None:
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    command = [*collect, "tests/integration/test_crash_recovery.py", *chosen]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name.partition("[")[0] for name in re.findall(r"::(\S+)", run.stdout)}
    assert names == {"test_after_a_crash_in_any_state_a_watchdog_pass_and_a_new_processor_heal"}
