"""What the numbers of the functions promise each other, and those of their neighbours."""

from lambdas import limits
from message_buffer.limits import MAX_MESSAGE_BYTES, MAX_TIME_MS


def test_every_time_that_is_read_from_a_platforms_seconds_is_one_that_a_message_may_have() -> None:
    latest_ms = (10**limits.MAX_DIGITS_OF_A_TIME_IN_SECONDS - 1) * 1_000
    assert latest_ms <= MAX_TIME_MS
    assert latest_ms * 10 > MAX_TIME_MS, "one digit more would name times that no message may have"


def test_the_largest_webhook_can_carry_the_largest_message() -> None:
    assert limits.MAX_WEBHOOK_BYTES > MAX_MESSAGE_BYTES


def test_a_lock_outlives_one_heartbeat_that_fails() -> None:
    assert 2 * limits.HEARTBEAT_SECONDS * 1_000 < limits.WINDOW_LOCK_MS
