"""The breaker stops calls for a while after a failure, and is open until a success."""

from message_buffer.lanes.circuit_breaker import MAX_BREAKER_PAUSE_MS, MIN_BREAKER_PAUSE_MS, CircuitBreaker
from tests.support.engine import ManualClock


def test_each_probe_that_fails_doubles_the_pause_up_to_a_bound() -> None:
    clock, pauses = ManualClock(), []
    breaker = CircuitBreaker(clock=clock)
    for _ in range(6):
        breaker.failed()
        began_ms = clock()
        while breaker.should_skip:
            clock.advance(100)
        pauses.append(clock() - began_ms)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 8_000, MAX_BREAKER_PAUSE_MS]


def test_it_is_open_from_a_failure_until_a_success() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock=clock)
    opened = [breaker.is_open]
    breaker.failed()
    clock.advance(MAX_BREAKER_PAUSE_MS)
    opened.append(breaker.is_open)
    breaker.succeeded()
    assert [*opened, breaker.is_open] == [False, True, False]


def test_a_success_forgets_all_failures() -> None:
    breaker = CircuitBreaker(clock=ManualClock())
    for _ in range(3):
        breaker.failed()
    breaker.succeeded()
    assert not breaker.should_skip
    assert breaker.failed()
    breaker._clock = lambda: breaker._failed_at_ms + MIN_BREAKER_PAUSE_MS
    assert not breaker.should_skip


def test_only_the_first_failure_after_a_success_is_news() -> None:
    breaker = CircuitBreaker(clock=ManualClock())
    assert [breaker.failed() for _ in range(3)] == [True, False, False]


def test_a_clock_that_is_set_back_does_not_keep_it_open() -> None:
    clock = ManualClock()
    breaker = CircuitBreaker(clock=clock)
    breaker.failed()
    clock.advance(-60_000)
    assert not breaker.should_skip
