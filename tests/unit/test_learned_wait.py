"""The learned wait: its bounds, its look-up, its training from counts, and the benchmark's comparison."""

import math
import random
from pathlib import Path

import pytest

from bufferctl.learning import EFFECTS, Count, Counts, counts_of, learn, learn_from, nothing, waits_of
from bufferctl.turns import Fragment, Run, read_table, replay, turns_of
from message_buffer.limits import HOUR_MS
from message_buffer.rules.due_time import Facts, due_after_message
from message_buffer.rules.learned import (
    EDGES_S,
    LATER,
    NUMBERS,
    PLACES,
    SECOND,
    SPANS,
    Model,
    Seen,
    best_wait_ms,
    hazards,
    packed_waits,
    place_of,
    seen,
)
from message_buffer.rules.rules_and_defaults import Rules
from tools.bench.turns import Tally, at_mean, cut_share, mean_wait_ms, tallies

MESSAGES = [Seen(length, end, quarter) for length in (0, 3, 7) for end in range(7) for quarter in range(4)]
CELLS = [(place, message) for place in range(PLACES) for message in MESSAGES]


def random_model(seed: int) -> Model:
    draw = random.Random(seed)
    numbers = [draw.gauss(-3, 1) for _ in range(SPANS)] + [draw.gauss(0, 0.5) for _ in range(EFFECTS)]
    return (*numbers, math.log(draw.uniform(0.001, 0.1)))


def expected_counts(model: Model, watched_spans: int = SPANS) -> Counts:
    """Return what 1,000 messages of each cell would do on average. Half of them are watched for so many spans only."""
    counts = {}
    for cell in CELLS:
        count = nothing()
        for first_unwatched in (SPANS, watched_spans):
            still = 500.0
            for b, chance in enumerate(hazards(model, *cell)[:first_unwatched]):
                count.went_on[b] += still * chance
                still *= 1 - chance
            if first_unwatched < SPANS:
                count.unwatched[first_unwatched] += still
            else:
                count.finished[0] += still
        counts[cell] = count
    return counts


@pytest.mark.parametrize("seed", range(5))
def test_a_message_has_twelve_waits_between_one_and_fifteen_seconds(seed: int) -> None:
    for message in MESSAGES:
        waits = waits_of(random_model(seed), message)
        assert len(waits) == 12
        assert all(1_000 <= wait_ms <= 15_000 for wait_ms in waits)


def test_a_model_has_at_most_forty_numbers() -> None:
    assert NUMBERS <= 40
    assert len(learn_from(expected_counts(random_model(1)), 3_000)) == NUMBERS


@pytest.mark.parametrize("seed", range(5))
def test_the_waits_of_a_message_are_packed_and_one_of_them_is_picked_by_position_and_gap(seed: int) -> None:
    model = random_model(seed)
    for message in MESSAGES:
        waits, timing = waits_of(model, message), Rules().timing._replace(learned=packed_waits(model, message))
        for count, gap_ms in ((1, None), (1, 30_000), (2, 3_001), (5, 15_001)):
            facts = Facts(0, 0, count, gap_ms)
            assert due_after_message(facts, timing, 0).wait_ms == waits[place_of(count, gap_ms)]


@pytest.mark.parametrize("seed", range(5))
def test_a_higher_price_never_lengthens_a_wait(seed: int) -> None:
    model = random_model(seed)
    for place, message in CELLS:
        hazard = hazards(model, place, message)
        waits = [best_wait_ms(hazard, price / 1_000, EDGES_S) for price in range(0, 200, 5)]
        assert waits == sorted(waits, reverse=True)


def test_a_wait_goes_on_past_seconds_in_which_few_go_on_if_many_do_later() -> None:
    hazard = [0.0, 0.0, 0.0, 0.5] + [0.0] * (SPANS - 4)
    assert best_wait_ms(hazard, 0.1, EDGES_S) == 4_000
    assert best_wait_ms(hazard, 0.3, EDGES_S) == 0, "four seconds cost more than half a turn"


def test_only_authors_who_have_finished_pay_for_waiting() -> None:
    nearly_all_go_on = [0.1] * (SPANS - 1) + [0.99]
    few_go_on = [0.1] * (SPANS - 1) + [0.0]
    long_ms, short_ms = (best_wait_ms(each, 0.1) for each in (nearly_all_go_on, few_go_on))
    assert long_ms > short_ms


@pytest.mark.parametrize(
    ("count", "gap_ms", "place"),
    [
        (1, None, 0), (1, 30_001, 0), (1, 30_000, 1), (1, 0, 1),
        (2, 0, 2), (2, 3_000, 2), (2, 3_001, 3), (2, 15_001, 6),
        (3, 3_000, 7), (9, 10_000, 9), (1_000, 900_000, 11),
    ],
)  # fmt: skip
def test_a_place_is_looked_up_by_position_and_gap(count: int, gap_ms: int | None, place: int) -> None:
    assert place_of(count, gap_ms) == place


def test_a_text_is_reduced_to_its_length_and_its_end() -> None:
    ends = {
        "yes": 0,
        "Yes. ": 1,
        "Yes?": 2,
        "Yes!": 3,
        "well...": 4,
        "first,": 4,
        "so)": 5,
        "ok 👍🏽": 6,
        "❤️": 6,
        "1️⃣": 6,
        "ठीक है": 0,
        "ได้ค่ะที่": 0,
        "cafe\u0301": 0,
        "": 0,
    }
    assert {text: seen(text, 0).end for text in ends} == ends
    assert [seen("x" * length, 13 * HOUR_MS) for length in (5, 6, 321)] == [Seen(0, 0, 2), Seen(1, 0, 2), Seen(7, 0, 2)]


@pytest.mark.parametrize("watched_spans", [SPANS, 4])
def test_training_finds_the_hazards_that_made_the_counts_even_if_half_were_not_watched(watched_spans: int) -> None:
    truth = random_model(7)
    found = learn_from(expected_counts(truth, watched_spans), 3_000)
    for cell in CELLS:
        assert hazards(found, *cell) == pytest.approx(hazards(truth, *cell), rel=0.05)


def test_messages_that_were_not_watched_do_not_count_as_finished() -> None:
    watched = expected_counts(random_model(7), 4)
    as_finished = {
        cell: Count(each.went_on, [0.0] * SPANS, [each.finished[0] + sum(each.unwatched)])
        for cell, each in watched.items()
    }
    cell = CELLS[0]
    right, wrong = (hazards(learn_from(each, 3_000), *cell) for each in (watched, as_finished))
    assert all(high > 1.3 * low for high, low in zip(right[4:], wrong[4:], strict=True))


def test_the_price_is_chosen_for_the_mean_wait_of_authors_who_have_finished() -> None:
    counts = expected_counts(random_model(3))
    for mean_ms in (2_000, 4_000):
        model = learn_from(counts, mean_ms)
        waited = sum(waits_of(model, cell[1])[cell[0]] * each.finished[0] for cell, each in counts.items())
        mean_found_ms = waited / sum(each.finished[0] for each in counts.values())
        assert 0.9 * mean_ms < mean_found_ms <= mean_ms


def a_run(*gaps_s: float, fold: int = 0, message: Seen = MESSAGES[0]) -> Run:
    gaps_ms = [gap_s * 1_000 for gap_s in gaps_s]
    return Run(fold, list(map(Fragment, [message] * (len(gaps_s) + 1), [None, *gaps_ms], [*gaps_ms, None])), None)


def test_a_gap_above_thirty_seconds_ends_a_turn_and_a_gap_above_the_wait_ends_a_batch() -> None:
    run = a_run(2, 5, 40, 1)
    replayed = replay(run, lambda _: [4_000] * PLACES)
    assert [place for place, _ in replayed] == [0, SECOND, 1, 0, SECOND]
    assert list(turns_of(run, [4_000] * 5)) == [([-2_000, 1_000], 4_000), ([-3_000], 4_000)]


def test_the_third_message_of_a_batch_has_the_places_of_later_ones() -> None:
    assert [place for place, _ in replay(a_run(1, 1, 1), lambda _: [4_000] * PLACES)] == [0, SECOND, LATER, LATER]


def test_the_gaps_of_a_turn_weigh_one_together_and_less_if_another_gap_cuts_it_anyway() -> None:
    run = a_run(2, 9)
    assert sum(sum(each.went_on) for each in counts_of([run]).values()) == pytest.approx(1)
    by_place = {place: sum(each.went_on) for (place, _), each in counts_of([run], lambda _: [5_000] * PLACES).items()}
    assert by_place[0] < 0.05, "joining the first gap gains little if the second one is cut"
    assert by_place[SECOND] > 0.9


def test_a_learned_wait_cuts_fewer_turns_than_a_fixed_one_at_the_same_mean_wait() -> None:
    draw = random.Random(1)
    open_end, closed = Seen(0, 0, 0), Seen(5, 1, 0)
    runs = []
    for fold in range(400):
        # A short message without a mark is followed by another one in 80 %, a sentence in 5 %.
        first, chance = draw.choice([(open_end, 0.8), (closed, 0.05)])
        gap_ms = draw.uniform(2_000, 8_000) if draw.random() < chance else None
        fragments = [Fragment(first, None, gap_ms)] + ([Fragment(closed, gap_ms, None)] if gap_ms else [])
        runs.append(Run(fold % 10, fragments, None))
    model = learn(runs, 3_000)
    by_model = tallies(runs, lambda run: [wait for _, wait in replay(run, lambda each: waits_of(model, each))])
    fixed = tallies(runs, lambda run: [mean_wait_ms(by_model)] * len(run.fragments))
    assert mean_wait_ms(by_model) <= 3_000
    assert cut_share(by_model.values()) < 0.5 * cut_share(fixed.values())


def test_waits_are_compared_at_exactly_the_same_mean() -> None:
    runs = [a_run(each % 7 + 1, fold=each % 10) for each in range(100)]

    def play(price: float) -> dict[int, Tally]:
        return tallies(runs, lambda run: [1_000 if price > 0.5 else 5_000] * len(run.fragments))

    found = at_mean(play, 3_000)
    assert mean_wait_ms(found) == pytest.approx(3_000)
    low, high = (cut_share(play(price).values()) for price in (0.1, 1))
    assert cut_share(found.values()) == pytest.approx((low + high) / 2)


def test_a_table_of_turns_is_read_by_its_heads(tmp_path: Path) -> None:
    table = tmp_path / "turns.csv"
    table.write_text(
        "corpus,slice,fold,turn,pos,gap,n_chars,end,a_n,a_gap,hour\n"
        "a,train,4,9,2,,7,1,3,2.3,23\n"
        "a,train,4,9,1,2.5,3,9,3,2.3,23\n"
        "b,train,5,9,1,,400,10,0,,-1\n",
        "utf-8",
    )
    corpora = read_table(table)
    (run,) = corpora["a"]
    assert run.fold == 4
    assert run.fragments == [Fragment(Seen(0, 6, 3), None, 2_500), Fragment(Seen(1, 1, 3), 2_500, None)]
    assert run.author_gap_ms == pytest.approx(9_474, rel=0.01)
    assert corpora["b"][0].fragments == [Fragment(Seen(7, 5, 0), None, None)]
    assert corpora["b"][0].author_gap_ms is None


def test_the_waits_are_edges_of_the_spans() -> None:
    assert {wait_ms // 1_000 for each in MESSAGES for wait_ms in waits_of(random_model(2), each)} <= set(EDGES_S)
