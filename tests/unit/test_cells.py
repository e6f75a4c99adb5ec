"""The counts for the learned wait: what an emitter counts batch by batch is what the whole history shows."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bufferctl.learning import cells_of, counts_of
from bufferctl.turns import Fragment, Run
from message_buffer.rules.learned import MAX_GAP_MS, SOON, seen
from message_buffer.tuning.cells import WHOLE, Gap, count_cells

TEXTS = ("yes", "Do you have it in blue?", "so,")
At = tuple[int, str]


class Emitters:
    """The batches of one conversation, as emitters of many instances count them."""

    def __init__(self) -> None:
        self.cells: Counter[str] = Counter()
        self.tail = ""
        self.last_at_ms: int | None = None

    def emit(self, *messages: At, replied_at_ms: float = float("inf")) -> None:
        before = None if self.last_at_ms is None else Gap(messages[0][0] - self.last_at_ms)
        if before and self.last_at_ms:
            before = before._replace(watched_ms=replied_at_ms - self.last_at_ms)
        sent = [{"text": text, "receivedAt": at_ms} for at_ms, text in messages]
        gaps = [before, *(Gap(later - earlier) for (earlier, _), (later, _) in pairwise(messages))]
        cells, self.tail = count_cells(sent, gaps, self.tail)
        self.cells.update(cells)
        self.last_at_ms = messages[-1][0]


def whole(gaps_ms: Sequence[int], texts: Sequence[str], *, start_ms: int = 0) -> list[At]:
    at_ms, found = start_ms, []
    for gap_ms, text in zip((0, *gaps_ms), texts, strict=True):
        at_ms += gap_ms
        found.append((at_ms, text))
    return found


@given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from(TEXTS), st.booleans()), min_size=1, max_size=20))
def test_each_gap_is_counted_once_however_the_rules_divide_the_messages(given: list[tuple[int, str, bool]]) -> None:
    messages = whole([gap_ms for gap_ms, _, _ in given], ["yes", *(text for _, text, _ in given)])
    emitters, batch = Emitters(), [messages[0]]
    for message, (_, _, is_emitted) in zip(messages[1:], given, strict=True):
        if is_emitted:
            emitters.emit(*batch)
            batch = []
        batch.append(message)
    emitters.emit(*batch)
    # Without their places, which depend on the batches, and without weights.
    expected = Counter[str]()
    for (earlier, text), (later, _) in pairwise(messages):
        length, end, quarter = seen(text, earlier)
        expected[f"{length}{end}{quarter}{Gap(later - earlier).outcome}"] += 1
    assert {name[1:] for name in emitters.cells} == expected.keys()
    silent = sum(number for name, number in expected.items() if name.endswith("ra"))
    assert sum(number for name, number in emitters.cells.items() if name.endswith("ra")) == silent * WHOLE


def test_the_next_batch_shows_what_happened_after_the_last_message() -> None:
    emitters = Emitters()
    emitters.emit((1, "yes"), (2_001, "so,"))
    assert emitters.cells == {"0000w1": WHOLE}
    emitters.emit((9_001, "yes"))
    assert emitters.cells["2040w5"] == WHOLE, "the author went on after 7 s"
    emitters.emit((20_001, "yes"), replied_at_ms=12_001)
    assert emitters.cells[f"{SOON}000r2"] == WHOLE, "a reply came after 3 s"
    emitters.emit((60_001, "yes"))
    assert emitters.cells[f"{SOON}000ra"] == WHOLE, "silent for more than 30 s"
    assert sum(emitters.cells.values()) == 4 * WHOLE


def test_the_gaps_at_which_the_author_of_a_batch_went_on_weigh_one_together() -> None:
    emitters = Emitters()
    emitters.emit((1, "yes"), (2_001, "yes"), (3_001, "yes"), (8_001, "yes"), (90_000, "yes"))
    went_on = [number for name, number in emitters.cells.items() if name[-2] == "w"]
    assert sum(went_on) == pytest.approx(WHOLE, abs=3)
    assert sum(number for name, number in emitters.cells.items() if name.endswith("ra")) == WHOLE


def test_the_last_message_of_a_batch_that_was_not_counted_is_not_counted_either() -> None:
    sent = [{"text": "yes", "receivedAt": 5_000}]
    assert count_cells(sent, [Gap(2_000)], "") == ({}, f"{SOON}000")
    assert count_cells(sent, [None], "2040") == ({}, "0000"), "the gap is not known"


def test_what_emitters_counted_trains_as_the_counts_of_the_table() -> None:
    draw, runs, emitters = random.Random(3), [], Emitters()
    at_ms = 0
    for _ in range(300):
        at_ms += 3_600_000
        gaps = [draw.choice((1_000, 4_000, 12_000)) for _ in range(draw.randint(0, 3))]
        messages = whole(gaps, ["yes"] * (len(gaps) + 1), start_ms=at_ms)
        emitters.emit(*messages)
        features = [seen(text, when_ms) for when_ms, text in messages]
        runs.append(Run(0, [*map(Fragment, features, [None, *gaps], [*gaps, None])], None))
    emitters.emit((at_ms + 7_200_000, "no"))
    found, expected = cells_of(emitters.cells), counts_of(runs)
    for cell, count in expected.items():
        assert found[cell].went_on == pytest.approx(count.went_on, abs=0.01 * sum(count.went_on) + 0.01)
        assert found[cell].finished == pytest.approx(count.finished, abs=0.1)


def test_those_who_did_not_go_on_stand_for_those_who_never_came_back() -> None:
    emitters = Emitters()
    emitters.emit((1, "yes"), (2_001, "yes"))
    emitters.emit((5_001, "yes"), replied_at_ms=4_001)
    emitters.emit((5_001 + 2 * MAX_GAP_MS, "yes"))
    once, twice = cells_of(emitters.cells), cells_of(emitters.cells, unresolved=1)
    for cell, count in once.items():
        assert twice[cell].went_on == count.went_on
        assert twice[cell].finished == [2 * each for each in count.finished]
        assert twice[cell].unwatched == [2 * each for each in count.unwatched]
