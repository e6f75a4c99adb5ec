"""The formula of the due time, case by case and over random histories."""

import pytest

from message_buffer.rules.due_time import (
    Arrival,
    Due,
    Facts,
    Rhythm,
    arrival_of,
    due_after_hold,
    due_after_message,
    due_after_typing,
    rhythm_after,
)
from message_buffer.rules.layers import Rules
from message_buffer.rules.timing import Timing

FIXED = Rules(silence_ms=1000, typing_inference_ms=0, max_wait_ms=5000).timing
TYPING = Rules(silence_ms=1000, typing_inference_ms=3000).timing
ADAPTIVE = Rules(adaptive=True, adaptive_floor_ms=300, adaptive_ceiling_ms=4000).timing
PRESSED = TYPING._replace(pressed_ms=200)


@pytest.mark.parametrize(
    ("facts", "timing", "due"),
    [
        pytest.param(Facts(0, 0, 1), FIXED, Due(1000, "silence"), id="silence"),
        pytest.param(Facts(0, 999, 2, 999), FIXED, Due(1999, "silence"), id="each message resets it"),
        pytest.param(Facts(0, 4000, 2, 100), FIXED, Due(5000, "max_wait"), id="max wait bounds it"),
        pytest.param(Facts(0, 0, 1, 5), TYPING, Due(1000, "silence"), id="one message is not typing"),
        pytest.param(Facts(0, 999, 2, 999), TYPING, Due(3999, "silence"), id="a short gap is typing"),
        pytest.param(Facts(0, 3000, 2, 3000), TYPING, Due(4000, "silence"), id="a gap as long as the inference is not"),
        pytest.param(Facts(0, 999, 2, None), TYPING, Due(1999, "silence"), id="an unknown gap is not typing"),
        pytest.param(Facts(0, 0, 1), FIXED._replace(min_messages=2), Due(5000, "max_wait"), id="fewer than min"),
        pytest.param(Facts(0, 9, 2, 9), FIXED._replace(max_messages=2), Due(9, "max_messages"), id="max messages"),
        pytest.param(Facts(0, 9, 2, 9, has_max_bytes=True), FIXED, Due(9, "max_bytes"), id="max bytes"),
        pytest.param(
            Facts(0, 9, 2, 9, has_max_bytes=True), FIXED._replace(max_messages=2, flush_reason="priority"),
            Due(9, "priority"), id="the reason given goes before the bounds",
        ),
        pytest.param(Facts(0, 9, 2, 9, held_until_ms=1009), FIXED, Due(1009, "silence"), id="a hold that ends first"),
        pytest.param(Facts(0, 9, 2, 9, held_until_ms=1010), FIXED, Due(1010, "hold"), id="a hold that ends later"),
        pytest.param(
            Facts(0, 9, 2, 9, held_until_ms=10), FIXED._replace(flush_reason="priority"), Due(10, "hold"),
            id="a hold goes before a VIP",
        ),
        pytest.param(
            Facts(0, 6000, 2, 9, due=Due(7000, "silence")), FIXED._replace(max_messages=2), Due(5000, "max_wait"),
            id="a longest wait that has passed is not made later",
        ),
        pytest.param(Facts(0, 9, 2, 9, due=Due(9, "flush")), FIXED, Due(9, "flush"), id="what is due stays due"),
        pytest.param(Facts(0, 9, 2, 9, due=Due(10, "flush")), FIXED, Due(1009, "silence"), id="what is not due moves"),
        pytest.param(
            Facts(0, 9, 2, 9, Rhythm(100, 50)), ADAPTIVE, Due(309, "silence"), id="the rhythm replaces the silence"
        ),
        pytest.param(Facts(0, 9, 2, 9, Rhythm(1, 0)), ADAPTIVE, Due(309, "silence"), id="the floor of the rhythm"),
        pytest.param(Facts(0, 9, 2, 9, Rhythm(4000, 1)), ADAPTIVE, Due(4009, "silence"), id="and its ceiling"),
        pytest.param(Facts(0, 9, 2, 9, Rhythm(400.1, 0)), ADAPTIVE, Due(410, "silence"), id="rounded up"),
        pytest.param(Facts(0, 9, 2, 9), ADAPTIVE, Due(3009, "silence"), id="without a rhythm, the ordinary wait"),
    ],
)  # fmt: skip
def test_a_message_makes_its_buffer_due_as_the_formula_says(facts: Facts, timing: Timing, due: Due) -> None:
    assert due_after_message(facts, timing, facts.last_at_ms) == due


@pytest.mark.parametrize(
    ("facts", "timing", "due"),
    [
        pytest.param(Facts(0, 0, 1), PRESSED, Due(200, "silence"), id="alone"),
        pytest.param(Facts(0, 0, 1), PRESSED._replace(pressed_ms=0), Due(0, "silence"), id="alone, without any wait"),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(3400, "silence")), PRESSED, Due(3400, "silence"),
            id="what waits already keeps its time",
        ),
        pytest.param(
            Facts(0, 900, 2, 900, due=Due(1000, "silence")), PRESSED, Due(1100, "silence"),
            id="after what waits already, by the wait of a press, not by typing",
        ),
        pytest.param(Facts(0, 0, 1, 5, Rhythm(900, 9)), PRESSED._replace(adaptive=ADAPTIVE.adaptive),
                     Due(200, "silence"), id="the rhythm does not concern it"),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(40_000, "silence")), PRESSED, Due(30_000, "max_wait"),
            id="never after the longest wait",
        ),
        pytest.param(Facts(0, 0, 1), PRESSED._replace(min_messages=2), Due(30_000, "max_wait"), id="below the minimum"),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(30_000, "max_wait")), PRESSED._replace(min_messages=2),
            Due(3500, "silence"), id="a press that reaches the minimum waits as a typed message does",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(3400, "silence")), PRESSED._replace(max_messages=2),
            Due(500, "max_messages"), id="the count goes before",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(9000, "hold"), held_until_ms=9000), PRESSED, Due(9000, "hold"),
            id="a hold goes before",
        ),
    ],
)  # fmt: skip
def test_a_press_waits_for_itself_and_never_cuts_off_what_waits_already(facts: Facts, timing: Timing, due: Due) -> None:
    assert due_after_message(facts, timing, facts.last_at_ms) == due


@pytest.mark.parametrize(
    ("now_ms", "last_at_ms", "arrival"),
    [
        (100, None, Arrival(100, None)),
        (100, 40, Arrival(100, 60)),
        (100, 100, Arrival(100, 0)),
        (100, 60_100, Arrival(60_100, 0)),
        (100, 60_101, Arrival(100, 0)),
    ],
)
def test_time_does_not_run_back_unless_the_last_arrival_was_wrong(
    now_ms: int, last_at_ms: int | None, arrival: Arrival
) -> None:
    assert arrival_of(now_ms, last_at_ms) == arrival


def test_the_rhythm_is_smoothed_as_rfc_6298_says() -> None:
    first = rhythm_after(None, 400, ADAPTIVE)
    assert first == Rhythm(400, 200)
    second = rhythm_after(first, 800, ADAPTIVE)
    assert second == Rhythm(450, 250)
    assert rhythm_after(second, 101, ADAPTIVE) == Rhythm(406.4, 274.8)


def test_the_rhythm_does_not_learn_from_long_gaps_presses_and_other_rules() -> None:
    known = Rhythm(400, 200)
    assert rhythm_after(known, 4001, ADAPTIVE) == known
    assert rhythm_after(known, None, ADAPTIVE) == known
    assert rhythm_after(known, 100, TYPING) == known
    assert rhythm_after(known, 100, ADAPTIVE._replace(pressed_ms=0)) == known
    assert rhythm_after(known, 4000, ADAPTIVE) != known


def test_typing_prolongs_a_wait_up_to_the_longest() -> None:
    due = Due(1000, "silence")
    assert due_after_typing(due, first_at_ms=0, extend_ms=500, max_wait_ms=5000, now_ms=501) == Due(1001, "silence")
    assert due_after_typing(due, first_at_ms=0, extend_ms=500, max_wait_ms=1200, now_ms=900) == Due(1200, "max_wait")
    assert due_after_typing(due, first_at_ms=0, extend_ms=500, max_wait_ms=5000, now_ms=500) is due
    assert due_after_typing(due, first_at_ms=0, extend_ms=500, max_wait_ms=5000, now_ms=1000) is due


def test_a_hold_moves_what_is_due_before_it_ends() -> None:
    due = Due(1000, "silence")
    assert due_after_hold(due, 9000) == Due(9000, "hold")
    assert due_after_hold(due, 1000) is due
