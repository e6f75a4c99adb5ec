"""The formula of the due time, case by case and over random histories."""

import pytest

from message_buffer.rules.due_time import (
    Arrival,
    Due,
    Facts,
    arrival_of,
    due_after_hold,
    due_after_message,
    due_after_typing,
)
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.rules.timing import Timing

FIXED = Rules(silence_ms=1000, typing_inference_ms=0, max_wait_ms=5000).timing
TYPING = Rules(silence_ms=1000, typing_inference_ms=3000).timing
WAITS = "".join(f"{1_000 + place:05}" for place in range(12))
LEARNED = TYPING._replace(learned=WAITS)
PRESSED = TYPING._replace(pressed_ms=200)


@pytest.mark.case(8)
@pytest.mark.parametrize(
    ("facts", "timing", "due"),
    [
        pytest.param(Facts(0, 0, 1), FIXED, Due(1000, "silence", "silenceMs", 1000), id="silence"),
        pytest.param(
            Facts(0, 999, 2, 999), FIXED, Due(1999, "silence", "silenceMs", 1000), id="each message resets it"
        ),
        pytest.param(Facts(0, 4000, 2, 100), FIXED, Due(5000, "max_wait", "maxWaitMs", 1000), id="max wait bounds it"),
        pytest.param(
            Facts(0, 0, 1, 5), TYPING, Due(1000, "silence", "silenceMs", 1000), id="one message is not typing"
        ),
        pytest.param(
            Facts(0, 999, 2, 999), TYPING, Due(3999, "silence", "typingInferenceMs", 3000), id="a short gap is typing"
        ),
        pytest.param(
            Facts(0, 3000, 2, 3000),
            TYPING,
            Due(4000, "silence", "silenceMs", 1000),
            id="a gap as long as the inference is not",
        ),
        pytest.param(
            Facts(0, 999, 2, None), TYPING, Due(1999, "silence", "silenceMs", 1000), id="an unknown gap is not typing"
        ),
        pytest.param(
            Facts(0, 0, 1),
            FIXED._replace(min_messages=2),
            Due(5000, "max_wait", "minMessages", 5000),
            id="fewer than min",
        ),
        pytest.param(
            Facts(0, 9, 2, 9),
            FIXED._replace(max_messages=2),
            Due(9, "max_messages", "maxMessages", 0),
            id="max messages",
        ),
        pytest.param(Facts(0, 9, 2, 9, has_max_bytes=True), FIXED, Due(9, "max_bytes", "maxBytes", 0), id="max bytes"),
        pytest.param(
            Facts(0, 9, 2, 9, has_max_bytes=True),
            FIXED._replace(max_messages=2, flush_reason="priority"),
            Due(9, "priority", "silenceMs", 0),
            id="the reason given goes before the bounds",
        ),
        pytest.param(
            Facts(0, 9, 2, 9, held_until_ms=1009),
            FIXED,
            Due(1009, "silence", "silenceMs", 1000),
            id="a hold that ends first",
        ),
        pytest.param(
            Facts(0, 9, 2, 9, held_until_ms=1010), FIXED, Due(1010, "hold", "hold", 1001), id="a hold that ends later"
        ),
        pytest.param(
            Facts(0, 9, 2, 9, held_until_ms=10),
            FIXED._replace(flush_reason="priority"),
            Due(10, "hold", "hold", 1),
            id="a hold goes before a VIP",
        ),
        pytest.param(
            Facts(0, 6000, 2, 9, due=Due(7000, "silence", "silenceMs", 7000)),
            FIXED._replace(max_messages=2),
            Due(5000, "max_wait", "maxWaitMs", -1000),
            id="a longest wait that has passed is not made later",
        ),
        pytest.param(
            Facts(0, 9, 2, 9, due=Due(9, "flush", "flush", 9)),
            FIXED,
            Due(9, "flush", "flush", 9),
            id="what is due stays due",
        ),
        pytest.param(
            Facts(0, 9, 2, 9, due=Due(10, "flush", "flush", 10)),
            FIXED,
            Due(1009, "silence", "silenceMs", 1000),
            id="what is not due moves",
        ),
        pytest.param(
            Facts(0, 0, 1), LEARNED, Due(1000, "silence", "learned", 1000), id="a first message's learned wait"
        ),
        pytest.param(
            Facts(0, 9, 1, 9), LEARNED, Due(1010, "silence", "learned", 1001), id="a batch has just left before it"
        ),
        pytest.param(
            Facts(0, 9, 2, 9), LEARNED, Due(1011, "silence", "learned", 1002), id="it replaces the typing inference"
        ),
        pytest.param(
            Facts(0, 4000, 3, 3001),
            LEARNED._replace(max_wait_ms=5_000),
            Due(5000, "max_wait", "maxWaitMs", 1000),
            id="max wait bounds a learned wait",
        ),
    ],
)
def test_a_message_makes_its_buffer_due_as_the_formula_says(facts: Facts, timing: Timing, due: Due) -> None:
    assert due_after_message(facts, timing, facts.last_at_ms) == due


@pytest.mark.parametrize(
    ("facts", "timing", "due"),
    [
        pytest.param(Facts(0, 0, 1), PRESSED, Due(200, "silence", "pressedSilenceMs", 200), id="alone"),
        pytest.param(
            Facts(0, 0, 1),
            PRESSED._replace(pressed_ms=0),
            Due(0, "silence", "pressedSilenceMs", 0),
            id="alone, without any wait",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(3400, "silence", "silenceMs", 3400)),
            PRESSED,
            Due(3400, "silence", "silenceMs", 3400),
            id="what waits already keeps its time",
        ),
        pytest.param(
            Facts(0, 900, 2, 900, due=Due(1000, "silence", "silenceMs", 1000)),
            PRESSED,
            Due(1100, "silence", "pressedSilenceMs", 200),
            id="after what waits already, by the wait of a press, not by typing",
        ),
        pytest.param(
            Facts(0, 0, 1, 5),
            PRESSED._replace(learned=WAITS),
            Due(200, "silence", "pressedSilenceMs", 200),
            id="a learned wait does not concern it",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(40_000, "silence", "silenceMs", 40_000)),
            PRESSED,
            Due(30_000, "max_wait", "maxWaitMs", 29_500),
            id="never after the longest wait",
        ),
        pytest.param(
            Facts(0, 0, 1),
            PRESSED._replace(min_messages=2),
            Due(30_000, "max_wait", "minMessages", 30_000),
            id="below the minimum",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(30_000, "max_wait", "maxWaitMs", 30_000)),
            PRESSED._replace(min_messages=2),
            Due(3500, "silence", "typingInferenceMs", 3000),
            id="a press that reaches the minimum waits as a typed message does",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(3400, "silence", "silenceMs", 3400)),
            PRESSED._replace(max_messages=2),
            Due(500, "max_messages", "maxMessages", 0),
            id="the count goes before",
        ),
        pytest.param(
            Facts(0, 500, 2, 500, due=Due(9000, "hold", "hold", 9000), held_until_ms=9000),
            PRESSED,
            Due(9000, "hold", "hold", 9000),
            id="a hold goes before",
        ),
    ],
)
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


def test_typing_prolongs_a_wait_up_to_the_longest() -> None:
    due = Due(1000, "silence", "silenceMs", 900)

    def typed(at_ms: int, *, max_wait_ms: int = 5000) -> Due:
        times = {"first_at_ms": 0, "last_at_ms": 100, "now_ms": at_ms}
        return due_after_typing(due, extend_ms=500, max_wait_ms=max_wait_ms, **times)

    assert typed(501) == Due(1001, "silence", "typing", 901)
    assert typed(900, max_wait_ms=1200) == Due(1200, "max_wait", "maxWaitMs", 1100)
    assert typed(500) is due
    assert typed(1000) is due


def test_a_hold_moves_what_is_due_before_it_ends() -> None:
    due = Due(1000, "silence", "silenceMs", 900)
    assert due_after_hold(due, 9000, 100) == Due(9000, "hold", "hold", 8900)
    assert due_after_hold(due, 1000, 100) is due


def test_a_fixed_window_is_named() -> None:
    window = Rules(wait="window", window_ms=2000).timing
    assert due_after_message(Facts(0, 1500, 2, 1500), window, 1500) == Due(2000, "max_wait", "windowMs", 500)
    cut = Rules(wait="window", window_ms=2000, max_wait_ms=1800, typing_inference_ms=0).timing
    assert due_after_message(Facts(0, 0, 1), cut, 0) == Due(1800, "max_wait", "maxWaitMs", 1800)
