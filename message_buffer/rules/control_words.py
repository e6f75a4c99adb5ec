"""Words that are an order to the buffer and no message: stop, and send at once.

They are compared as a whole, in a form that forgives case, accents, white space around them and punctuation behind
them: "Stop!" is `stop`, "nonstop" and "please stop" are not. A leading `/` counts: `/stop` is another word.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from message_buffer.limits import MAX_CONTROL_TEXT_CHARACTERS

Language = Literal["de", "en", "es", "fr", "it", "pt"]

# Whole messages that are hardly ever an answer to a question.
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
    """In their compared form; a word that is in both stops."""

    stop: frozenset[str] = frozenset()
    flush: frozenset[str] = frozenset()

    def control_word_in(self, text: str) -> Literal["stop", "flush"] | None:
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
    """Empty if nothing but white space and punctuation is left."""
    # Case first: Turkish capitals decompose into an accent when they are folded.
    decomposed = unicodedata.normalize("NFKD", text.replace("’", "'").casefold())
    # Directions and joiners cannot be seen; other scripts' vowel signs are letters, and stay.
    visible = "".join(sign for sign in decomposed if not _is_accent(sign) and unicodedata.category(sign) != "Cf")
    words = " ".join(unicodedata.normalize("NFKC", visible).casefold().split())
    while words and (words[-1].isspace() or unicodedata.category(words[-1]).startswith("P")):
        words = words[:-1]
    return words.lstrip("¡¿ ")


def _is_accent(sign: str) -> bool:
    return "\u0300" <= sign <= "\u036f"
