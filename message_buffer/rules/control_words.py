"""Recognises control words: messages that drop the buffer, or make it due at once, and are not buffered themselves.

A message is a control word only as a whole. Case, accents, white space around it and punctuation after it do not
matter: "Stop!" is `stop`, but "nonstop" and "please stop" are not. A leading `/` matters: `/stop` is a word of its own.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

MAX_CONTROL_WORD_CHARACTERS = 40
# A longer text cannot be a control word, not even with punctuation around it, so it is not compared.
MAX_CONTROL_TEXT_CHARACTERS = 4 * MAX_CONTROL_WORD_CHARACTERS
Language = Literal["de", "en", "es", "fr", "it", "pt"]

# A message with nothing but one of these words is rarely an answer to a question.
STOP: Mapping[Language, tuple[str, ...]] = {
    "de": ("stopp", "stop", "halt", "abbrechen", "vergiss es", "/stopp", "/stop"),
    "en": ("stop", "cancel", "abort", "never mind", "nevermind", "forget it", "/stop", "/cancel"),
    "es": ("para", "detente", "alto", "cancelar", "cancela", "olvídalo", "/para", "/stop"),
    "fr": ("stop", "arrête", "arrêtez", "annuler", "annule", "laisse tomber", "/arrêter", "/stop"),
    "it": ("stop", "fermati", "basta", "annulla", "lascia stare", "/ferma", "/stop"),
    "pt": ("pare", "parar", "cancelar", "cancela", "esquece", "deixa pra lá", "/parar", "/stop"),
}
FLUSH: Mapping[Language, tuple[str, ...]] = {
    "de": ("senden", "abschicken", "das ist alles", "das war's", "/senden"),
    "en": ("send", "send now", "that's all", "that is all", "/send"),
    "es": ("enviar", "eso es todo", "/enviar"),
    "fr": ("envoyer", "c'est tout", "/envoyer"),
    "it": ("invia", "è tutto", "/invia"),
    "pt": ("enviar", "é tudo", "é só isso", "/enviar"),
}
LANGUAGES: tuple[Language, ...] = tuple(STOP)


class ControlWords(NamedTuple):
    """The control words, in the form that `compared_form` returns. A word in both sets counts as a stop word."""

    stop: frozenset[str] = frozenset()
    flush: frozenset[str] = frozenset()

    def control_word_in(self, text: str) -> Literal["stop", "flush"] | None:
        """Return the kind of control word that the text is, or None if it is none."""
        if not (self.stop or self.flush) or len(text) > MAX_CONTROL_TEXT_CHARACTERS:
            return None
        word = compared_form(text)
        if word in self.stop:
            return "stop"
        return "flush" if word in self.flush else None


def control_words(*, stop: Iterable[str], flush: Iterable[str], languages: Iterable[Language]) -> ControlWords:
    languages = tuple(languages)
    return ControlWords(
        frozenset(map(compared_form, (*stop, *(word for language in languages for word in STOP[language])))),
        frozenset(map(compared_form, (*flush, *(word for language in languages for word in FLUSH[language])))),
    )


def compared_form(text: str) -> str:
    """Return the form in which texts and control words are compared. It is empty if the text has only white space and
    punctuation."""
    # Fold the case first, because the Turkish capital İ then becomes an i and an accent.
    decomposed = unicodedata.normalize("NFKD", text.replace("’", "'").casefold())
    # Remove accents, and direction marks and joiners, which are invisible. Keep the vowel signs of other scripts.
    visible = "".join(sign for sign in decomposed if not _is_accent(sign) and unicodedata.category(sign) != "Cf")
    words = " ".join(unicodedata.normalize("NFKC", visible).casefold().split())
    while words and (words[-1].isspace() or unicodedata.category(words[-1]).startswith("P")):
        words = words[:-1]
    return words.lstrip("¡¿ ")


def _is_accent(sign: str) -> bool:
    return "\u0300" <= sign <= "\u036f"
