"""The decision records have the form of docs/adr/README.md, whose index gives their titles and states."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/adr"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
INDEX = re.findall(
    r"^\| \[(\d{4})\]\((\S+)\) \| (.+) \| (.+) \|$", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE
)
# Older records that weigh alternatives in the decision; a record is not edited afterwards.
WITHOUT_ALTERNATIVES = {"0021", "0024"}
STATUS = re.compile(r"accepted|superseded (?:in part )?by (\d{4})")


def test_the_index_lists_every_record_once_in_order() -> None:
    assert [file for _, file, _, _ in INDEX] == [path.name for path in RECORDS]
    numbers = [number for number, _, _, _ in INDEX]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_a_record_has_the_form_and_the_index_says_the_same_of_it(record: Path) -> None:
    text = record.read_text("utf-8")
    head = re.match(r"# (\d{4}): (.+)\n\nStatus: (.+)\nDate: \d{4}-\d\d-\d\d\n", text)
    assert head, "title, status and date, in this order"
    number, title, status = head.groups()
    # The part after a semicolon says how the record relates to an older one that still holds.
    assert (number, record.name, title, status.partition(";")[0]) in INDEX
    sections = re.findall(r"^## (.+)", text, re.MULTILINE)
    assert [each for each in sections if each != "Alternatives"] == ["Context", "Decision", "Consequences"]
    assert ("Alternatives" in sections) != (number in WITHOUT_ALTERNATIVES)


@pytest.mark.parametrize(("number", "status"), [(number, status) for number, _, _, status in INDEX])
def test_what_supersedes_a_record_is_newer_and_names_it(number: str, status: str) -> None:
    match = STATUS.fullmatch(status)
    assert match, status
    if newer := match[1]:
        assert newer > number
        (path,) = FOLDER.glob(f"{newer}-*.md")
        assert number in path.read_text("utf-8")
