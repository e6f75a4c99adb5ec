"""Selects the turns of a conversation that the record keeps, and the turns that the assistant receives."""

from collections.abc import Sequence
from typing import NamedTuple

from message_buffer.json_object import Json, to_json

# DynamoDB limits an item to 400 KB. Besides these turns, the record contains settings.
MAX_RECORDED_TURNS_BYTES = 98_304
# DynamoDB limits a transaction to 100 writes, and the last one of a turn may move all turns out of the record.
MAX_RECORDED_TURNS = 60
MAX_TURN_BYTES = 32_768
# The record keeps the newest ids of a turn's messages. An id of WhatsApp has about 60 bytes.
MAX_IDS_BYTES = 4_096
# A token of English has about four bytes, so the estimated number of tokens is usually higher than the true one.
MIN_BYTES_IN_A_TOKEN = 3
CUT_MARK = " […]"
CONTROLS = {code: None for code in range(32) if chr(code) not in "\n\t"}

USER, ASSISTANT = "user", "assistant"


class Turn(NamedTuple):
    role: str
    text: str
    at_ms: int
    """When the batch's last message arrived, or the reply's last part was sent."""
    batch_id: str
    message_ids: Sequence[str] = ()
    """The platform's ids of the messages, or of the reply's parts."""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    processing_ms: int = 0

    def fields(self) -> Json:
        """Return the fields that have a value."""
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}


def shorten(text: str, max_bytes: int = MAX_TURN_BYTES) -> str:
    """Return the text as the record keeps it: at most `max_bytes` long, without control characters."""
    # In JSON a control character takes six bytes. Half of a surrogate pair, which an AI may return, cannot be encoded.
    encoded = text.translate(CONTROLS).encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return encoded.decode()
    return encoded[: max_bytes - len(CUT_MARK.encode())].decode("utf-8", "ignore") + CUT_MARK


def trim(turns: Sequence[Turn]) -> tuple[list[Turn], list[Turn]]:
    """Return the turns that stay in the record, and those that are moved out of it: the older half, in one go."""
    sizes = [len(to_json(turn.fields())) for turn in turns]
    if sum(sizes) <= MAX_RECORDED_TURNS_BYTES and len(turns) <= MAX_RECORDED_TURNS:
        return list(turns), []
    first = max(first_that_fits(sizes, MAX_RECORDED_TURNS_BYTES // 2), len(turns) - MAX_RECORDED_TURNS // 2)
    return list(turns[first:]), list(turns[:first])


def fit_into_budget(earlier: Sequence[Turn], question: Sequence[Turn], *, max_tokens: int) -> list[Turn]:
    """Return the whole question, preceded by as many of the newest earlier turns as the tokens allow."""
    left = max_tokens - sum(estimate_tokens(turn.text) for turn in question)
    return [*earlier[first_that_fits([estimate_tokens(turn.text) for turn in earlier], left) :], *question]


def of_episode(turns: Sequence[Turn], from_ms: int) -> list[Turn]:
    """Return the turns of those batches whose last message arrived after `from_ms`."""
    earlier = {turn.batch_id for turn in turns if turn.role == USER and turn.at_ms <= from_ms}
    return [turn for turn in turns if turn.batch_id not in earlier]


def newest_ids(ids: Sequence[str]) -> Sequence[str]:
    """Return as many of the newest ids as the record keeps of a turn."""
    return ids[first_that_fits([len(each.encode("utf-8", "replace")) for each in ids], MAX_IDS_BYTES) :]


def first_that_fits(sizes: Sequence[int], left: int) -> int:
    """Return the first index from which on all sizes together are at most `left`."""
    first = len(sizes)
    while first and (left := left - sizes[first - 1]) >= 0:
        first -= 1
    return first


def estimate_tokens(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // MIN_BYTES_IN_A_TOKEN + 1


def alternate(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns as models require them: the first is the user's, and no two neighbours have the same role."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and joined[-1].role == turn.role:
            joined[-1] = turn._replace(text=f"{joined[-1].text}\n{turn.text}")
        elif joined or turn.role == USER:
            joined.append(turn)
    return joined
