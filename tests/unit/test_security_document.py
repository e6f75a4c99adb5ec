"""Each row of the threat model in docs/security.md is complete, and the tests that it names exist."""

import re

import pytest

from tests.unit.test_references import missing_tests, names_of_tests, table_of

THREATS = table_of("docs/security.md", "Who could do what")


@pytest.mark.parametrize("row", THREATS, ids=lambda row: row[0])
def test_a_threat_says_who_what_and_which_tests_show_what_stops_it(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row)
    *_, tests = row
    assert re.findall(r"`(test_\w+)`", tests)
    assert missing_tests(tests, names_of_tests()) == []


def test_a_test_that_does_not_exist_would_be_found() -> None:
    assert missing_tests("`test_nobody_wrote_this_one`", names_of_tests()) == ["test_nobody_wrote_this_one"]
