"""Counts for the learned wait: what happened after messages that look alike to a model.

A message's *cell* is its place, length, end and quarter (`rules/learned.py`), such as `2305`. The name of a counter is
a cell and an outcome, such as `2305w3` if the author went on in the span 3, or `2305r3` if a reply came first. The span
`a` is the silence beyond all others. An outcome weighs `WHOLE`, but the gaps after which the author of a batch went on
weigh that together, because one of them is enough to cut a turn.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from message_buffer.json_object import Json
from message_buffer.limits import SECOND_MS
from message_buffer.rules.learned import EDGES_S, MAX_GAP_MS, place_of, seen

WHOLE = 1_000


class Gap(NamedTuple):
    """The silence before a message."""

    ms: int
    watched_ms: float = inf
    """When a reply came, after which the author reacts to that."""

    @property
    def goes_on(self) -> bool:
        return self.ms < self.watched_ms and self.ms <= MAX_GAP_MS

    @property
    def outcome(self) -> str:
        span = bisect_left(EDGES_S, min(self.ms, self.watched_ms) / SECOND_MS, 1) - 1
        return f"{'w' if self.goes_on else 'r'}{span:x}"


def count_cells(messages: Sequence[Json], gaps: Sequence[Gap | None], cell: str) -> tuple[Counter[str], str]:
    """Return the counts of a batch, and the cell of its last message. `cell` is that of the message before the batch,
    and `gaps` has for each message the gap before it. Each may be unknown before the first message."""
    counts = Counter[str]()
    weight = WHOLE // max(sum(gap is not None and gap.goes_on for gap in gaps), 1)
    for position, (message, gap) in enumerate(zip(messages, gaps, strict=True), 1):
        if cell and gap:
            counts[cell + gap.outcome] += weight if gap.goes_on else WHOLE
        length, end, quarter = seen(message["text"], message["receivedAt"])
        cell = f"{place_of(position, gap and gap.ms):x}{length}{end}{quarter}"
    return counts, cell
