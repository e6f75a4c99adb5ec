"""The counts for the learned wait: what an emitter counts batch by batch is what the whole history shows."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bufferctl.learning import cells_of, counts_of
from bufferctl.turns import Fragment, Run, replay, turns_of
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.rules.learned import MAX_GAP_MS, PLACES, seen
from message_buffer.tuning.curve import field
from message_buffer.tuning.turn_counts import WHOLE, count_batch

WAITS = "".join(f"{wait_s:02}000" for wait_s in (6, 3, 2, 4, 8, 11, 6, 3, 1, 4, 2, 8))
NAMED = f"abc{WAITS}"
RULES_MS, REPLY_MS = 5_000, 1_000
TEXTS = ("yes", "Do you have it in blue?", "so,")


def taken(messages: Sequence[Json], *, previous_at_ms: int | None, tail: str, replied_at_ms: int | None) -> BatchTaken:
    last_at_ms = messages[-1]["receivedAt"]
    return BatchTaken(
        "b", 1, 1, messages[0]["receivedAt"], last_at_ms, last_at_ms + RULES_MS, "silence", "silenceMs", RULES_MS, [],
        previous_at_ms=previous_at_ms, replied_at_ms=replied_at_ms, tail=tail,
    )  # fmt: skip


class Emitters:
    """The batches of one conversation, as emitters of many instances count them."""

    def __init__(self) -> None:
        self.cells: Counter[str] = Counter()
        self.turns: Counter[str] = Counter()
        self.tail = ""
        self.last_at_ms: int | None = None

    def emit(self, *messages: tuple[int, str], replied_at_ms: int | None = None, waits: str = NAMED) -> None:
        sent = [{"text": text, "receivedAt": at_ms} for at_ms, text in messages]
        batch = taken(sent, previous_at_ms=self.last_at_ms, tail=self.tail, replied_at_ms=replied_at_ms)
        gap_ms = None if self.last_at_ms is None else messages[0][0] - self.last_at_ms
        watched_ms = replied_at_ms - self.last_at_ms if replied_at_ms and self.last_at_ms else MAX_GAP_MS + 1
        cells, turns, self.tail = count_batch(batch, sent, [waits] * len(sent), (gap_ms, watched_ms, REPLY_MS))
        self.cells.update(cells)
        self.turns.update(turns)
        self.last_at_ms = messages[-1][0]

    @property
    def outcomes(self) -> dict[str, int]:
        return {name: number for name, number in self.cells.items() if number}


def whole(gaps_ms: Sequence[int], texts: Sequence[str], *, start_ms: int = 0) -> list[tuple[int, str]]:
    at_ms, found = start_ms, []
    for gap_ms, text in zip((0, *gaps_ms), texts, strict=True):
        at_ms += gap_ms
        found.append((at_ms, text))
    return found


@given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from(TEXTS)), max_size=20), st.booleans())
def test_turns_are_those_of_the_history_however_the_rules_divide_it(given: list[tuple[int, str]], often: bool) -> None:
    gaps = [gap_ms // (1 + 4 * often) for gap_ms, _ in given]
    messages = whole(gaps, ["yes", *(text for _, text in given)])
    emitters, batch = Emitters(), [messages[0]]
    for before, after in pairwise(messages):
        if after[0] - before[0] > RULES_MS:
            emitters.emit(*batch)
            batch = []
        batch.append(after)
    emitters.emit(*batch)
    emitters.emit((messages[-1][0] + MAX_GAP_MS + 1, "the last turn ends"))

    features = [seen(text, at_ms) for at_ms, text in messages]
    run = Run(0, [*map(Fragment, features, [None, *gaps], [*gaps, None])], None)
    waits = [int(WAITS[at : at + 5]) for at in range(0, 5 * PLACES, 5)]
    expected: Counter[str] = Counter()
    for excess_ms, wait_ms in turns_of(run, (wait_ms for _, wait_ms in replay(run, lambda _: waits))):
        expected.update({"abcturns": 1, "abcms": int(wait_ms), "abccut": int(any(each > 0 for each in excess_ms))})
    assert {name: emitters.turns[name] for name in expected} == expected
    of_several = [inner for inner, _ in turns_of(run, [0.0] * len(messages)) if inner]
    longest = Counter(field("abcm", max(*inner, 1)) for inner in of_several)
    assert {name: number for name, number in emitters.turns.items() if name[4:].isdigit()} == longest
    assert emitters.turns["abcrules_cut"] == sum(max(inner) > RULES_MS for inner in of_several)


def test_outcomes_replace_what_was_counted_until_they_showed() -> None:
    emitters = Emitters()
    emitters.emit((0, "yes"), (2_000, "so,"))
    inner, last = "0000b", "2040"
    assert emitters.outcomes == {inner: WHOLE, f"{last}p": WHOLE}, "a reply is assumed 6 s after the last message"
    emitters.emit((9_000, "yes"))
    assert emitters.outcomes[f"{last}f"] == WHOLE, "the author went on after 7 s"
    assert f"{last}p" not in emitters.outcomes
    emitters.emit((20_000, "yes"), replied_at_ms=12_000)
    assert emitters.outcomes["1000n"] == WHOLE, "a reply came after 3 s"
    emitters.emit((60_000, "yes"))
    assert emitters.outcomes["1000k"] == WHOLE, "silent for more than 30 s"


def test_the_gaps_of_a_batch_at_which_its_author_went_on_weigh_one_together() -> None:
    emitters = Emitters()
    emitters.emit((0, "yes"), (2_000, "yes"), (3_000, "yes"), (8_000, "yes"))
    went_on = [number for name, number in emitters.outcomes.items() if name[-1] in "abcdefghij"]
    assert sum(went_on) == pytest.approx(WHOLE, abs=3)


def test_a_turn_whose_beginning_or_model_is_not_known_is_not_counted() -> None:
    end = (100_000, "yes")
    for forget, waits in (
        (True, NAMED),
        (False, f"abd{WAITS}"),
        (False, ""),
        (False, "abc"),
        (False, "abc" + "x" * 60),
    ):
        emitters = Emitters()
        emitters.emit((0, "yes"))
        if forget:
            emitters.tail = ""
        emitters.emit((8_000, "yes"), waits=waits)
        emitters.emit(end)
        assert not emitters.turns
        emitters.emit((200_000, "yes"))
        assert emitters.turns["abcturns"] == 1, "the next turn is"


def test_later_parts_of_a_divided_batch_count_no_gap_to_it() -> None:
    emitters = Emitters()
    emitters.emit((0, "yes"))
    before = Counter(emitters.cells)
    sent = [{"text": "yes", "receivedAt": 0}]
    batch = taken(sent, previous_at_ms=0, tail=emitters.tail, replied_at_ms=None)
    cells, turns, tail = count_batch(batch, sent, [NAMED], (None, MAX_GAP_MS + 1, REPLY_MS))
    assert not turns
    assert cells == before
    assert len(tail.split()) == 2, "no turn goes on"


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
        assert found[cell].finished == pytest.approx(count.finished, abs=1)
