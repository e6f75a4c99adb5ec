"""Counts for the learned wait: when authors went on, and which turns a model's waits would have cut.

What an author writes without a gap above `MAX_GAP_MS`, and without a reply, is a turn. Only the next batch shows how
the last gap of a batch ended. So each batch leaves a text for it, which the lane keeps: the cell of its last message,
the outcome that is counted for it until then, and its turn.

The counter of a cell is a message's place, length, end, quarter and outcome, such as `2305c`: a … j if the author went
on, by the span, k if he was silent beyond the last one, l … u if a reply came. An outcome weighs `WHOLE`, but the gaps
of a batch after which its author went on weigh that together, because one of them is enough to cut a turn.

The counters of turns begin with the name of the model. `m00 …` counts turns of several messages by their longest gap.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import SECOND_MS
from message_buffer.rules.learned import EDGES_S, MAX_GAP_MS, packed_wait, place_of, seen
from message_buffer.tuning.curve import Counts, field

WHOLE = 1_000
WENT_ON, SILENT, REPLIED = "abcdefghij", "k", "lmnopqrstu"
OUTCOMES = WENT_ON + SILENT + REPLIED
NAME_CHARACTERS, WAITS_CHARACTERS = 3, 60


class Turn(NamedTuple):
    model: str
    rules_ms: int
    """The wait of the turn's last batch, by the rules."""
    wait_ms: int = -1
    """The model's wait after the turn's last message."""
    position: int = 0
    """The place of the last message in the batch that the model would make."""
    longest_ms: int = 0
    is_cut: int = 0
    batches: int = 1

    def going_on(self, gap_ms: int | None, waits: str) -> "Turn":
        """Return the turn with one more message, after this gap."""
        position = self.position + 1 if (gap_ms or 0) <= self.wait_ms else 1
        is_cut, wait_ms = int(self.is_cut or 0 < self.position >= position), packed_wait(waits, position, gap_ms)
        longest_ms = max(self.longest_ms, gap_ms or 1) if self.position else 0
        return self._replace(wait_ms=wait_ms, position=position, is_cut=is_cut, longest_ms=longest_ms)

    @property
    def counts(self) -> Counts:
        counts = {"turns": 1, "ms": self.wait_ms, "cut": self.is_cut, "rules_ms": self.rules_ms}
        counts |= {"rules_cut": int(self.batches > 1), **({field("m", self.longest_ms): 1} if self.longest_ms else {})}
        return {f"{self.model}{name}": number for name, number in counts.items()}


def count_batch(
    taken: BatchTaken, messages: Sequence[Json], waits: Sequence[str], before: tuple[int | None, int, int]
) -> tuple[Counter[str], Counter[str], str]:
    """Return (the counters of cells, those of turns, the text for the next batch).

    `waits` has for each message the name of the model and its packed waits, and `before` what
    `gap_before` returns, with the time after which a reply to this batch is assumed until the next one shows it.
    """
    gap_ms, watched_ms, reply_ms = before
    cells, turns, rules_ms = Counter[str](), Counter[str](), max(taken.applied_wait_ms, 0)
    arrivals = [message["receivedAt"] for message in messages]
    gaps = [gap_ms, *(later_ms - earlier_ms for earlier_ms, later_ms in pairwise(arrivals))]
    goes_on = gap_ms is not None and gap_ms <= MAX_GAP_MS and gap_ms < watched_ms
    weight = WHOLE // max(len(gaps) - 1 + goes_on, 1)
    turn, cell = None, ""
    last_at_ms, counted, *of_turn = taken.tail.split() or ("", "")
    if gap_ms is not None and last_at_ms == str(taken.previous_at_ms):
        turn = Turn(of_turn[0], *map(int, of_turn[1:])) if len(of_turn) == len(Turn._fields) else None
        cells[counted] -= WHOLE
        cells[counted[:-1] + _outcome(gap_ms, watched_ms)] += weight if goes_on else WHOLE
    # Without the batches before, it is not known how a turn began.
    is_known = taken.previous_at_ms is None or gap_ms is not None
    for number, (message, gap, given) in enumerate(zip(messages, gaps, waits, strict=True), 1):
        if number > 1:
            cells[cell + _outcome(gap)] += weight
        features = seen(message["text"], message["receivedAt"])
        cell = f"{place_of(number, gap):x}{features.length}{features.end}{features.quarter}"
        model, packed = given[:NAME_CHARACTERS], given[NAME_CHARACTERS:]
        if goes_on if number == 1 else gap is not None and gap <= MAX_GAP_MS:
            turn = turn and turn._replace(rules_ms=rules_ms, batches=turn.batches + (number == 1))
        else:
            turns.update(turn.counts if turn else {})
            turn = Turn(model, rules_ms) if is_known or number > 1 else None
        is_comparable = len(packed) == WAITS_CHARACTERS and packed.isdecimal() and turn and turn.model == model
        turn = turn.going_on(gap, packed) if turn and is_comparable else None
    counted = cell + _outcome(None, rules_ms + reply_ms)
    cells[counted] += WHOLE
    return cells, turns, " ".join(map(str, (taken.last_at_ms, counted, *(turn or ()))))


def _outcome(gap_ms: float | None, watched_ms: float = inf) -> str:
    """Return the letter of what happened after a message, which was watched for this time."""
    if gap_ms is not None and gap_ms < watched_ms:
        return (WENT_ON + SILENT)[_span(gap_ms)]
    return (REPLIED + SILENT)[_span(watched_ms)]


def _span(ms: float) -> int:
    return bisect_left(EDGES_S, ms / SECOND_MS, 1) - 1
