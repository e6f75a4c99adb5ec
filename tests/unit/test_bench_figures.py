"""When a benchmark may print a figure, and how it judges a target."""

import pytest

from tools.bench.measure import figure, ratio
from tools.bench.report import Target

STEADY = figure([10.0, 10.2, 9.9, 10.1, 10.0])
NOISY = figure([6.0, 8.0, 10.0, 12.0, 14.0])


def test_a_figure_shows_its_median_only_if_the_rounds_agree() -> None:
    assert STEADY.shown() == "10.0"
    assert NOISY.shown() == "noisy, 7.0–13.0"


@pytest.mark.parametrize(
    ("at_most", "verdict"),
    [(11.0, "pass"), (9.0, "miss")],
)
def test_a_steady_figure_keeps_its_promise_or_misses_it(at_most: float, verdict: str) -> None:
    assert Target("", at_most, STEADY).verdict == verdict


@pytest.mark.parametrize(
    ("at_most", "verdict"),
    [(20.0, "pass"), (10.0, "noisy"), (5.0, "miss")],
)
def test_a_noisy_figure_passes_or_misses_only_when_all_of_it_does(at_most: float, verdict: str) -> None:
    assert Target("", at_most, NOISY).verdict == verdict


def test_a_ratio_is_taken_round_by_round_so_that_a_disturbance_of_both_goes_out() -> None:
    found = ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (found.low, found.median, found.high) == (0.5, 0.5, 0.5)
