"""Whom a batch is put to. An assistant is asked once at a time; what may be asked again raises Busy or Unconfirmed."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from responder.history import Turn


class Prompt(NamedTuple):
    instructions: str
    turns: Sequence[Turn]
    """The user begins, nobody speaks twice in a row, and the last one is to be answered."""
    model: str
    max_reply_tokens: int
    seconds: float


class Reply(NamedTuple):
    text: str
    input_tokens: int = 0
    output_tokens: int = 0


class Assistant(Protocol):
    def answer(self, prompt: Prompt) -> Reply: ...
