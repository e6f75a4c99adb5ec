"""What was said, and how much of it an assistant is told and a record keeps."""

import json
from collections.abc import Sequence
from typing import NamedTuple

# As JSON. An item has at most 400 KB, and the record has more in it than turns.
MOST_RECENT_BYTES = 98_304
# As many as one transaction can roll over, with room for what else it writes.
MOST_RECENT_TURNS = 60
MOST_TURN_BYTES = 32_768
# A turn is cut in the history only: the assistant is told all of a batch.
CUT = " […]"
# On the careful side: a token of English has about four bytes, one of other scripts fewer.
BYTES_PER_TOKEN = 3

CONTROLS = {code: None for code in range(32) if chr(code) not in "\n\t"}

USER, ASSISTANT = "user", "assistant"


class Turn(NamedTuple):
    role: str
    text: str
    at_ms: int
    batch_id: str


class Kept(NamedTuple):
    recent: list[Turn]
    rolled: list[Turn]
    """The older ones, which leave the record."""


def shortened(text: str, most_bytes: int = MOST_TURN_BYTES) -> str:
    # JSON makes six bytes of a control; half a surrogate pair, which an AI may answer with, has none at all.
    encoded = text.translate(CONTROLS).encode("utf-8", "replace")
    if len(encoded) <= most_bytes:
        return encoded.decode()
    return encoded[: most_bytes - len(CUT.encode())].decode("utf-8", "ignore") + CUT


def kept(turns: Sequence[Turn]) -> Kept:
    """Down to half as soon as it is too much, so that not every turn rolls one over."""
    sizes = [len(json.dumps(turn, ensure_ascii=False).encode("utf-8", "replace")) for turn in turns]
    if sum(sizes) <= MOST_RECENT_BYTES and len(turns) <= MOST_RECENT_TURNS:
        return Kept(list(turns), [])
    first = 0
    while first < len(turns) and (
        sum(sizes[first:]) > MOST_RECENT_BYTES // 2 or len(turns) - first > MOST_RECENT_TURNS // 2
    ):
        first += 1
    return Kept(list(turns[first:]), list(turns[:first]))


def within_budget(before: Sequence[Turn], asked: Sequence[Turn], *, most_tokens: int) -> list[Turn]:
    """The newest of what was before, as far as they fit; and all that has to be answered."""
    left = most_tokens - sum(tokens_of(turn.text) for turn in asked)
    first = len(before)
    while first and (left := left - tokens_of(before[first - 1].text)) >= 0:
        first -= 1
    return [*before[first:], *asked]


def tokens_of(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + 1


def alternating(turns: Sequence[Turn]) -> list[Turn]:
    """As models want them: the user begins, and nobody speaks twice in a row."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and joined[-1].role == turn.role:
            joined[-1] = turn._replace(text=f"{joined[-1].text}\n{turn.text}")
        elif joined or turn.role == USER:
            joined.append(turn)
    return joined
