"""The rehearsal counts its tests by module, and ends with an error unless all of them passed."""

import xml.etree.ElementTree as ET

import pytest

from tests.support import rehearsal
from tests.support.rehearsal import ROOT, STAGE

REPORT = """
<testsuite>
  <testcase classname="tests.infra.test_stacks" name="test_one" time="2.4">
    <properties><property name="resources in a stack" value="321"/></properties>
  </testcase>
  <testcase classname="tests.infra.test_stacks" name="test_two" time="1.2">
    <{tag} message="no reason&#10;at all"/>
  </testcase>
</testsuite>
"""


@pytest.mark.parametrize(
    ("tag", "ci", "code"),
    [("system-out", "", 0), ("failure", "", 1), ("error", "", 1), ("skipped", "", 0), ("skipped", "true", 1)],
)
def test_the_exit_status_tells_whether_everything_was_rehearsed(
    tag: str, ci: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = list(ET.fromstring(REPORT.format(tag=tag)).iter("testcase"))  # noqa: S314 - it is above
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("sys.argv", ["rehearsal", "--only", "templates"])
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_, **__: cases)
    assert rehearsal.main() == code
    said = capsys.readouterr().out
    assert "The meaning of the synthesized templates" in said
    assert "4 s" in said
    assert ("test_two: no reason\n" in said) == (tag != "system-out")


def test_the_tests_that_it_names_are_there() -> None:
    assert all((ROOT / name).is_file() for name in STAGE)
