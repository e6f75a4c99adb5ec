"""The page of numbers says what the code says."""

from tools.numbers import OF_AWS, PAGE, page


def test_the_page_of_numbers_is_up_to_date() -> None:
    text = page()
    assert PAGE.read_text("utf-8") == text, "docs/numbers.md is out of date: run `.venv/bin/python -m tools.numbers`"
    for name in OF_AWS.split():
        assert f"| `{name}` |" in text, f"{name} is no number of the code: take it out of OF_AWS"
