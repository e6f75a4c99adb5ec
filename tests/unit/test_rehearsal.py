"""The rehearsal counts its tests by subject, and ends with an error unless all of them passed."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import rehearsal
from tests.support.rehearsal import ROOT, SUBJECTS, Outcome, lines, read, subject_of

CDK_NAG, LIMITS = next(iter(SUBJECTS)), "limits of CloudFormation, IAM and Lambda"
REPORT = """<testsuites><testsuite>
<testcase classname="tests.infra.test_nag_and_lint" name="test_no_rule_is_broken[dev]" time="1.25"/>
<testcase classname="tests.infra.test_nag_and_lint" name="test_no_rule_is_broken[prod]" time="2.25">
  <failure message="AssertionError: one&#10;assert two">lines</failure></testcase>
<testcase classname="tests.infra.test_nag_and_lint" name="test_every_template_stays[dev]" time="0.5">
  <properties><property name="resources of a stack" value="76"/><property name="resources of a stack" value="57"/>
  </properties></testcase>
<testcase classname="tests.infra.test_nag_and_lint" name="test_every_template_stays[prod]" time="0.5">
  <properties><property name="resources of a stack" value="93"/></properties></testcase>
<testcase classname="tests.infra.test_nag_and_lint" name="test_cdk_uploads" time="0">
  <skipped message="no network">lines</skipped></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_by_subject() -> None:
    found = read(REPORT)
    assert found.keys() == {CDK_NAG, LIMITS}
    assert found[CDK_NAG].counts == {"passed": 1, "FAILED": 1}
    assert found[CDK_NAG].seconds == 3.5
    assert found[LIMITS].counts == {"passed": 2, "SKIPPED": 1}
    assert found[LIMITS].used == {"resources of a stack": 93}


def test_the_table_names_what_failed_or_was_skipped_and_how_much_of_each_limit_is_used() -> None:
    text = "\n".join(lines(read(REPORT)))
    assert "assert two" not in text, "a problem takes one line"
    assert "1 FAILED, 1 passed" in text
    assert "93 of 500 resources of a stack" in text
    assert "  FAILED tests.infra.test_nag_and_lint.test_no_rule_is_broken[prod]: AssertionError: one" in text
    assert "  SKIPPED tests.infra.test_nag_and_lint.test_cdk_uploads: no network" in text


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
