"""The rehearsal counts its tests by subject, and ends with an error unless all of them passed."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import rehearsal
from tests.support.rehearsal import ROOT, SUBJECTS, Outcome, subject_of

CDK_NAG, LIMITS = next(iter(SUBJECTS)), "limits of CloudFormation, IAM and Lambda"


@pytest.mark.parametrize(
    ("counts", "ci", "code"),
    [
        ({"passed": 2}, "", 0),
        ({"passed": 2, "FAILED": 1}, "", 1),
        ({"passed": 2, "SKIPPED": 1}, "", 0),
        ({"passed": 2, "SKIPPED": 1}, "true", 1),
    ],
)
def test_the_exit_status_tells_whether_everything_was_rehearsed(
    counts: Any, ci: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("sys.argv", ["rehearsal"])
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_, **__: {CDK_NAG: Outcome(Counter(counts))})
    assert rehearsal.main() == code


def _tests(path: Path) -> list[str]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    functions = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef))
    return [f"{module}.{function.name}" for function in functions if function.name.startswith("test_")]


def test_every_subject_still_has_tests_and_every_test_a_subject() -> None:
    paths = [path for name in rehearsal.TEMPLATES for path in sorted((ROOT / name).glob("test_*.py"))]
    tests = [test for path in [*paths, *(ROOT / name for name in rehearsal.STAGE)] for test in _tests(path)]
    assert {subject_of(test) for test in tests} == SUBJECTS.keys()
    unused = [
        each for beginnings in SUBJECTS.values() for each in beginnings if not any(t.startswith(each) for t in tests)
    ]
    assert unused == []
    with pytest.raises(LookupError):
        subject_of("tests.unit.test_limits.test_one")
