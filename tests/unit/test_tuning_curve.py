"""The estimate of cut batches, beside simulated tenants whose share of cut batches is known."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from message_buffer.tuning.curve import (
    BINS_MS,
    MIN_BATCHES,
    WITHIN_MS,
    Counts,
    curve,
    field,
    going_on,
    recommend,
)
from tests.support.gaps import counts_of, gap_ms, truly_cut

BIN = st.integers(0, len(BINS_MS) - 1)
LENGTHS = st.lists(st.sampled_from(BINS_MS), min_size=1, max_size=60)


def watched(ended: Sequence[float], censored: Sequence[float], *, turns: int = 0) -> Counts:
    """Return the counts of these gaps, and of so many batches that were all resolved."""
    return Counter([field("g", ms) for ms in ended] + [field("c", ms) for ms in censored]) | Counter(
        {"batches": turns, "resolved": turns}
    )


def kaplan_meier(ended: list[float], censored: list[float], silence_ms: float) -> float:
    """Return the share by the textbook's product over the times of the events, each gap on its own."""
    lasts = 1.0
    for at_ms in ended:
        if silence_ms < at_ms <= WITHIN_MS:
            lasts *= 1 - 1 / sum(ms >= at_ms for ms in (*ended, *censored))
    return 1 - lasts


@pytest.mark.parametrize("reply_ms", [2_500, 4_000, 8_000])
def test_the_bins_lose_little_of_the_textbooks_estimate(reply_ms: int) -> None:
    rng = random.Random(reply_ms)
    ended, censored = list[float](), list[float]()
    for _ in range(2_000):
        gap, answered_ms = gap_ms(rng), 1_000 + rng.expovariate(1 / reply_ms)
        (ended if gap < answered_ms else censored).append(min(gap, answered_ms))
    for silence_ms, rate in curve(watched(ended, censored)).items():
        assert rate.share == pytest.approx(kaplan_meier(ended, censored, silence_ms), abs=0.015)


@given(LENGTHS)
def test_without_answers_the_curve_is_the_share_that_one_can_count(lengths: list[int]) -> None:
    lengths = [*lengths, BINS_MS[-1]]  # somebody stays silent
    for silence_ms, rate in curve(watched(lengths, [])).items():
        longer = [ms for ms in lengths if ms > silence_ms]
        assert rate.share == pytest.approx(sum(ms <= WITHIN_MS for ms in longer) / len(longer))


@pytest.mark.parametrize("turns", [300, 1_500])
@pytest.mark.parametrize(("silence_ms", "reply_ms"), [(1_000, 3_000), (1_150, 2_000), (2_400, 6_000)])
def test_the_interval_contains_the_truth_nine_times_in_ten(turns: int, silence_ms: int, reply_ms: int) -> None:
    rng, runs = random.Random(f"{turns} {silence_ms}"), 120
    contained: Counter[int] = Counter()
    for _ in range(runs):
        counts = counts_of(rng, turns=turns, silence_ms=silence_ms, reply_ms=reply_ms)
        rates = curve(counts) | {0: going_on(counts)}
        for ms, rate in rates.items():
            contained[ms] += rate.low <= truly_cut(ms or silence_ms) + 1e-9 and truly_cut(ms or silence_ms) <= rate.high
    assert sum(contained.values()) >= 0.9 * runs * len(contained)
    assert min(contained.values()) >= 0.85 * runs  # each edge, with the noise of so few runs


def test_answers_hide_who_would_have_gone_on_and_the_estimate_does_not_mind() -> None:
    rng = random.Random(31)
    for reply_ms in (2_000, 3_000, 5_000):
        counts = counts_of(rng, turns=20_000, silence_ms=1_000, reply_ms=reply_ms)
        truth, estimate = truly_cut(1_000), going_on(counts)
        assert estimate.share == pytest.approx(truth, abs=0.03)
        # Of a batch that went unanswered for less than 8 s, a naive count says that its author did not go on.
        followed = sum(counts.get(f"g{k:02d}", 0) for k, ms in enumerate(BINS_MS) if 1_000 < ms <= WITHIN_MS)
        naive = followed / counts["batches"]
        assert naive < truth - 0.05


def test_a_batch_that_nobody_followed_counts_as_watched_until_the_usual_answer() -> None:
    rng = random.Random(7)
    for last in (0.0, 0.5, 0.9):
        counts = counts_of(rng, turns=20_000, silence_ms=1_000, reply_ms=3_000, last=last)
        assert going_on(counts).share == pytest.approx(truly_cut(1_000), abs=0.03)


def test_a_wait_counts_as_the_upper_end_of_its_bin() -> None:
    gaps = [*range(100, 8_000, 100)] * 20 + [BINS_MS[-1]] * 400
    for wait_ms in (2_001, 2_500):
        counts = Counter(watched(gaps, [], turns=400)) | Counter({field("e", wait_ms): 400})
        assert going_on(counts) == pytest.approx(curve(counts)[2_500])


@pytest.mark.parametrize("counts", [{}, {"batches": 900, field("e", 1_000): 900}])
def test_without_any_watched_gap_nothing_is_known(counts: Counts) -> None:
    assert {(rate.low, rate.high) for ms, rate in curve(counts).items() if ms < WITHIN_MS} == {(0.0, 1.0)}
    assert going_on(counts).share == 0
    assert isinstance(recommend(counts, cut_share=0.2), str)


@given(
    st.dictionaries(st.builds("{}{:02d}".format, st.sampled_from("gce"), BIN), st.integers(0, 500), max_size=30),
    st.floats(0, 1), st.floats(0, 1), st.floats(0, 20_000), st.floats(0, 20_000),
)  # fmt: skip
def test_who_accepts_more_waits_less(
    counted: dict[str, int], one: float, other: float, short_ms: float, long_ms: float
) -> None:
    counts = counted | {"batches": MIN_BATCHES, "resolved": MIN_BATCHES, f"c{len(BINS_MS) - 1}": 100}
    least, most = (recommend(counts, cut_share=share) for share in sorted((one, other)))
    assert not isinstance(least, str)
    assert not isinstance(most, str)
    assert least[0] >= most[0]
    assert least[1].share <= min(one, other) + 1e-12
    short, long = (recommend(counts, mean_wait_ms=ms) for ms in sorted((short_ms, long_ms)))
    assert not isinstance(short, str)
    assert not isinstance(long, str)
    assert short[0] <= long[0] <= WITHIN_MS
    assert short[0] <= max(short_ms, long_ms, 200)


def test_the_recommended_silence_is_the_true_one() -> None:
    counts = counts_of(random.Random(1), turns=20_000, silence_ms=1_000, reply_ms=4_000)
    found = recommend(counts, cut_share=0.2)
    assert not isinstance(found, str)
    true_ms = next(ms for ms in range(200, WITHIN_MS, 100) if truly_cut(ms) <= 0.2)
    assert found[0] == pytest.approx(true_ms, abs=400)


def test_too_little_is_said_and_not_guessed() -> None:
    few = counts_of(random.Random(1), turns=MIN_BATCHES - 1, silence_ms=1_000, reply_ms=4_000)
    assert isinstance(found := recommend(few, cut_share=0.2), str)
    assert str(MIN_BATCHES - 1) in found
    # Answers after half a second leave nobody whose silence could be watched for 8 s.
    hasty = counts_of(random.Random(1), turns=2_000, silence_ms=300, reply_ms=200)
    assert isinstance(found := recommend(hasty, cut_share=0.2), str)
    assert "answers come early" in found


def test_a_length_is_counted_in_the_bin_that_ends_at_it() -> None:
    assert [field("g", ms) for ms in (0, 250, 251, 8_000, 8_001, 120_000, math.inf)] == [
        "g00", "g00", "g01", "g13", "g14", "g23", "g23",
    ]  # fmt: skip


def test_if_nobody_ever_came_back_the_batches_were_watched_for_their_waits() -> None:
    # Each of 1,000 customers writes once: a tenth of them in two parts, 2 s apart.
    counts = {"batches": 1_000, "waited_ms": 3_000_000, field("e", 3_000): 1_000, field("g", 2_000): 100}
    assert curve(counts)[1_600].low <= 100 / 1_100 <= curve(counts)[1_600].share + 0.01
    assert curve(counts)[3_000].high == 1, "nobody was watched for longer"
