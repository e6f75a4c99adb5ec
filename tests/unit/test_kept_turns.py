"""The turns for the learned wait are the same, whether they are kept batch by batch or all at once."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bufferctl.learning import counts_of
from bufferctl.turns import Fragment, Run, run_of
from lambdas.admin.tuning import MAX_SCOPES
from message_buffer.json_object import Json
from message_buffer.rules.learned import EDGES_S, MAX_GAP_MS, SOON, seen
from message_buffer.tuning.counts import MAX_TURNS
from message_buffer.tuning.tuning_table import MAX_TURNS_READ
from message_buffer.tuning.turns import MAX_TURN_CHARACTERS, UNKNOWN, Gap, ended_turns

TEXTS = ("yes", "Do you have it in blue?", "so,")
At = tuple[int, str]


class Emitters:
    """The batches of one conversation, as emitters of many instances see them."""

    def __init__(self) -> None:
        self.turns: list[str] = []
        self.open = ""
        self.last_at_ms: int | None = None

    def emit(self, *messages: At, replied_at_ms: float = float("inf")) -> None:
        before = None
        if self.last_at_ms is not None:
            before = Gap(messages[0][0] - self.last_at_ms, replied_at_ms - self.last_at_ms)
        gaps = [before, *(Gap(later - earlier) for (earlier, _), (later, _) in pairwise(messages))]
        ended, self.open = ended_turns(sent(*messages), gaps, self.open)
        self.turns += ended
        self.last_at_ms = messages[-1][0]


def sent(*messages: At) -> list[Json]:
    return [{"text": text, "receivedAt": at_ms} for at_ms, text in messages]


@given(st.lists(st.tuples(st.integers(0, 40_000), st.sampled_from(TEXTS), st.booleans()), min_size=1, max_size=20))
def test_the_turns_are_those_of_the_history_however_the_rules_divide_the_messages(
    given: list[tuple[int, str, bool]],
) -> None:
    messages = [(0, "yes")]
    for gap_ms, text, _ in given:
        messages.append((messages[-1][0] + gap_ms, text))
    divided, whole, batch = Emitters(), Emitters(), [messages[0]]
    for message, (_, _, is_emitted) in zip(messages[1:], given, strict=True):
        if is_emitted:
            divided.emit(*batch)
            batch = []
        batch.append(message)
    divided.emit(*batch)
    whole.emit(*messages)
    assert (divided.turns, divided.open) == (whole.turns, whole.open)
    kept = [*whole.turns, f"{whole.open} /"]
    found = [fragment.message for turn in kept for fragment in run_of(f"7 {turn}").fragments]
    assert found == [seen(text, at_ms) for at_ms, text in messages]


def test_the_next_batch_shows_what_ended_a_turn() -> None:
    emitters = Emitters()
    emitters.emit((1, "yes"), (2_001, "so,"))
    emitters.emit((9_001, "yes"))
    assert emitters.turns == [], "the author went on after 7 s"
    emitters.emit((20_001, "yes"), replied_at_ms=12_001)
    assert emitters.turns == [":000 20:040 70:000 /30"], "a reply came after 3 s"
    emitters.emit((60_001, "yes"))
    assert emitters.turns[1:] == ["110:000 /"], "written soon after the reply, and then silent for more than 30 s"
    assert emitters.open == ":000"


def test_a_turn_of_which_a_part_is_not_known_is_not_kept() -> None:
    message = sent((5_000, "yes"))
    assert ended_turns(message, [Gap(2_000)], "") == ([], UNKNOWN), "the batch before was not counted"
    assert ended_turns(message, [Gap(2_000)], UNKNOWN) == ([], UNKNOWN)
    assert ended_turns(message, [Gap(50_000)], UNKNOWN) == ([], ":000")
    assert ended_turns(message, [None], ":000") == ([], UNKNOWN), "the later part of a split batch"
    assert ended_turns(message * 2, [None, None], "") == ([], UNKNOWN), "an edited message"
    long = ":000" + " 10:000" * (MAX_TURN_CHARACTERS // 7)
    assert ended_turns(message, [Gap(2_000)], long) == ([], UNKNOWN)


def test_the_longest_turns_fit_into_an_item_of_dynamodb_and_into_a_response_of_lambda() -> None:
    """A customer writes 29.9 s after each message. Then a reply comes."""
    message, longest = sent((5_000, "x" * 400)), 0
    for number in range(100):
        _, turn = ended_turns(message * (number + 1), [Gap(200_000), *[Gap(29_950)] * number], "")
        ended, _ = ended_turns(message, [Gap(29_990, 29_980)], turn)
        longest = max([longest, *(len(f"49 {each}") for each in ended)])
    assert longest > MAX_TURN_CHARACTERS
    an_item = MAX_TURNS * (longest + 1) + 200
    of_scopes = MAX_SCOPES * 1_300  # three names of 100 characters, and 75 counters
    a_response = of_scopes + (MAX_TURNS_READ + MAX_TURNS) * (longest + len('"", '))
    assert (an_item < 400 * 1_024, a_response < 6 * 1_024 * 1_024) == (True, True)


@pytest.mark.parametrize("gap_ms", [1, 999, 1_000, 1_001, 2_950, 3_000, 29_999, MAX_GAP_MS])
def test_a_kept_gap_is_longer_than_the_same_waits_as_the_true_one(gap_ms: int) -> None:
    emitters = Emitters()
    emitters.emit((1, "yes"), (1 + gap_ms, "yes"), (100_000, "yes"))
    kept_ms = run_of(f"3 {emitters.turns[0]}").fragments[1].gap_before_ms
    assert kept_ms is not None
    for edge in EDGES_S:
        assert (kept_ms > edge * 1_000) == (gap_ms > edge * 1_000)


def test_a_kept_turn_is_trained_as_that_of_a_table() -> None:
    def of_table(gaps: Sequence[float], replied_ms: float | None) -> Run:
        message = seen("yes", 0)
        fragments = [*map(Fragment, [message] * (len(gaps) + 1), [None, *gaps], [*gaps, None])]
        return Run(7, fragments, replied_ms=replied_ms)

    assert run_of("7 :000 20:000 45:000 /") == of_table([2_000, 4_500], None)
    answered = run_of("7 :000 /45")
    assert answered == of_table([], 4_500)
    ((_, count),) = counts_of([answered]).items()
    assert (count.finished, count.unwatched[4], sum(count.unwatched)) == ([0], 1, 1)
    ((place, _),) = counts_of([run_of("7 110:000 /")])
    assert place == SOON
