"""The glossary's tables, and that retired words do not come back where they were removed."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text("utf-8")
TEXTS = {".py", ".lua", ".md", ".json", ".yml", ".toml", ".template", ".mjs", ".in"}
# Made by tools, and in no clone.
BUILT = {".venv", ".venvs", ".local", ".build", ".git", "node_modules", "cdk.out"}
# Files and folders that have retired words, and for what reason; the rest of the repository has none.
NOT_CLEAN = {
    "docs/adr": "a decision record is not edited when a word changes",
    "docs/glossary.md": "it lists them",
    "tests/unit/test_glossary.py": "it looks for them",
}
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


def places_with_retired_words() -> dict[str, list[str]]:
    """Return the retired words of each file, its own name and the parts of names in its text included."""
    found = {}
    for path in sorted(ROOT.rglob("*")):
        place = path.relative_to(ROOT)
        if BUILT & set(place.parts) or path.suffix not in TEXTS or not path.is_file():
            continue
        if uses := uses_of_retired_words(f"{place} {path.read_text('utf-8')}".replace("_", " ")):
            found[str(place)] = uses
    return found


def is_in(place: str, folder: str) -> bool:
    return place == folder or place.startswith(f"{folder}/")


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


def test_no_retired_word_stands_where_none_is_expected() -> None:
    found = places_with_retired_words()
    assert {place: uses for place, uses in found.items() if not any(is_in(place, each) for each in NOT_CLEAN)} == {}
    clean = [each for each in NOT_CLEAN if not any(is_in(place, each) for place in found)]
    assert clean == [], "they have no retired word any more: take them off the list"


def test_a_retired_word_is_found() -> None:
    assert uses_of_retired_words("The Executor buried it, but nobody is an executorship.") == ["executor", "buried"]
