"""A control word is a whole message; casing, accents and punctuation around it change nothing."""

import pytest

from message_buffer.rules.control_words import FLUSH, LANGUAGES, STOP, Language, compared_form, control_words

WORDS = control_words(stop=["Stop", "/stop", "olvídalo", "straße", "never  mind"], flush=["send", "稍后"], languages=[])


@pytest.mark.case(22)
@pytest.mark.parametrize(
    "text",
    [
        "stop", " Stop \n", "stop ?!", "\uff53\uff54\uff4f\uff50", "stóp", "sto\u200bp", "/STOP.", "olvi\u0301dalo!",
        "¡Olvídalo!", "STRASSE", "NEVER\u00a0MIND.",
    ],
)  # fmt: skip
def test_a_stop_word_is_known_however_it_is_written(text: str) -> None:
    assert WORDS.control_word_in(text) == "stop"


@pytest.mark.case(22)
@pytest.mark.parametrize(
    "text",
    [
        "nonstop", "please stop", "stop stop", "s top", "//stop", "/ stop", "", "!", "/", "'stop'", "stop" + " " * 200,
    ],
)  # fmt: skip
def test_what_only_holds_the_word_is_a_message(text: str) -> None:
    assert WORDS.control_word_in(text) is None


def test_a_slash_is_part_of_the_word() -> None:
    assert control_words(stop=["/halt"], flush=[], languages=[]).control_word_in("halt") is None
    assert control_words(stop=["halt"], flush=[], languages=[]).control_word_in("/halt") is None


def test_flush_words_are_known_in_any_script() -> None:
    assert WORDS.control_word_in("Send.") == WORDS.control_word_in("稍后。") == "flush"


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_languages_words_stop_and_flush(language: Language) -> None:
    words = control_words(stop=[], flush=[], languages=[language])
    assert {words.control_word_in(word.upper() + "!") for word in STOP[language]} == {"stop"}
    assert {words.control_word_in(word.upper() + "!") for word in FLUSH[language]} == {"flush"}


def test_no_word_stops_in_one_language_and_flushes_in_another() -> None:
    stop, flush = ({compared_form(word) for words in lists.values() for word in words} for lists in (STOP, FLUSH))
    assert not stop & flush
    assert "" not in stop | flush
