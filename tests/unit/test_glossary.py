"""The glossary's tables, and that retired words do not come back where they were removed."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text("utf-8")
# Files and folders without retired words; to be extended as words are replaced.
CLEAN = [
    "docs/consumer.md",
    "docs/sending.md",
    "docs/schema/generic.webhook.json",
    "examples",
    "SECURITY.md",
    ".github",
]
EVERY_USE, THIS_SENSE = "every use", "this sense"


def rows(text: str) -> list[list[str]]:
    """Return the cells of each row of the first table in a text, without its head."""
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert found
    _, _, *lines = found.group().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def section(title: str) -> str:
    return GLOSSARY.split(f"\n## {title}\n")[1].split("\n## ")[0]


def retired(applies_to: str) -> list[str]:
    return [
        word.strip()
        for words, _, where in rows(section("Retired words"))
        if where == applies_to
        for word in words.split(",")
    ]


def uses_of_retired_words(text: str) -> list[str]:
    return [word for word in retired(EVERY_USE) if re.search(rf"\b{word}\b", text, re.IGNORECASE)]


def files_in(place: str) -> list[Path]:
    path = ROOT / place
    return (
        [path]
        if path.is_file()
        else [each for each in sorted(path.rglob("*")) if each.suffix in {".py", ".md", ".json", ".yml"}]
    )


def test_each_term_stands_once_in_order_and_is_one_sentence() -> None:
    terms = rows(GLOSSARY)
    names = [term for term, _ in terms]
    assert names == sorted(set(names), key=str.lower)
    assert [term for term, meaning in terms if not re.fullmatch(r"[A-Z][^.]*\.", re.sub(r"`[^`]*`", "", meaning))] == []


def test_no_term_is_a_retired_word_and_each_says_where_it_applies() -> None:
    terms = {term.lower() for term, _ in rows(GLOSSARY)}
    assert terms.isdisjoint(retired(EVERY_USE))
    assert {where for _, _, where in rows(section("Retired words"))} == {EVERY_USE, THIS_SENSE}


def test_no_meaning_uses_a_retired_word() -> None:
    assert [(term, uses) for term, meaning in rows(GLOSSARY) if (uses := uses_of_retired_words(meaning))] == []


@pytest.mark.parametrize("place", CLEAN)
def test_no_retired_word_comes_back_where_they_were_removed(place: str) -> None:
    files = files_in(place)
    assert files, f"{place} is not there any more"
    assert [(path.name, uses) for path in files if (uses := uses_of_retired_words(path.read_text("utf-8")))] == []


def test_a_retired_word_is_found() -> None:
    assert uses_of_retired_words("The Executor buried it, but nobody is an executorship.") == ["executor", "buried"]
