"""When a benchmark may print a figure, and how it judges a target."""

import pytest

from tools.bench.measure import figure, ratio
from tools.bench.report import Target

STEADY = figure([10.0, 10.2, 9.9, 10.1, 10.0])
NOISY = figure([6.0, 8.0, 10.0, 12.0, 14.0])


def test_rounds_that_agree_are_named_by_their_median() -> None:
    assert not STEADY.too_noisy
    assert str(STEADY).startswith("10.00 ")
    assert STEADY.as_json()["median"] == 10.0


def test_rounds_that_do_not_agree_are_not_named_on_the_terminal_nor_in_the_file() -> None:
    assert NOISY.too_noisy
    assert str(NOISY) == "too noisy [7.00-13.00]"
    assert "median" not in NOISY.as_json()
    assert NOISY.as_json()["too_noisy"]


@pytest.mark.parametrize(
    ("at_most", "verdict"),
    [(11.0, "PASS"), (9.0, "MISS")],
)
def test_a_steady_figure_keeps_its_promise_or_misses_it(at_most: float, verdict: str) -> None:
    assert Target("", at_most, STEADY).verdict == verdict


@pytest.mark.parametrize(
    ("at_most", "verdict"),
    [(20.0, "PASS"), (10.0, "NOISY"), (5.0, "MISS")],
)
def test_a_noisy_figure_passes_or_misses_only_when_all_of_it_does(at_most: float, verdict: str) -> None:
    assert Target("", at_most, NOISY).verdict == verdict


def test_a_ratio_is_taken_round_by_round_so_that_a_disturbance_of_both_goes_out() -> None:
    found = ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0])
    assert (found.low, found.median, found.high) == (0.5, 0.5, 0.5)
