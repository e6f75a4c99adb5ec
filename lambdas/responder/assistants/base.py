"""The interface of all assistants. An assistant makes one attempt; the responder may try again later."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from lambdas.responder.history import Turn


class Prompt(NamedTuple):
    instructions: str
    turns: Sequence[Turn]
    """The first turn is the user's, roles alternate, and the last turn is the question."""
    model: str
    max_reply_tokens: int
    seconds: float


class Reply(NamedTuple):
    text: str
    input_tokens: int = 0
    output_tokens: int = 0


class Assistant(Protocol):
    def answer(self, prompt: Prompt) -> Reply:
        """Ask the assistant and return its reply, whose text is never empty.

        Raise CallRefused, CallBusy or CallUnconfirmed.
        """
