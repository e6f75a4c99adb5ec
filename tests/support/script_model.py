"""The due time after the operations that only the scripts compute, by the formula that both lanes share."""

from message_buffer.rules.due_time import Due, Facts, due_after_hold, due_after_message
from message_buffer.rules.timing import Timing


def due_after_retime(facts: Facts, timing: Timing, now_ms: int) -> Due:
    """Return when the buffer is due by changed rules: as after a typed message, but not before now.

    The Valkey lane does not store the last gap, so `facts` has the buffer's mean gap instead (`mean_gap_of`).
    """
    if facts.due is not None and facts.due.due_at_ms <= now_ms:
        return facts.due
    not_held, typed = facts._replace(held_until_ms=0), timing._replace(pressed_ms=None)
    due = due_after_message(not_held, typed, now_ms)
    if due.due_at_ms < now_ms:
        due = due_after_message(not_held, typed, due.due_at_ms).moved_to(now_ms)
    return due_after_hold(due, facts.held_until_ms, facts.last_at_ms) if facts.held_until_ms > now_ms else due


def due_after_resume(due: Due, *, held_until_ms: int, stays_until_ms: int = 0, last_at_ms: int, now_ms: int) -> Due:
    """Return when the buffer is due after a hold was ended. Another hold may still stand.

    What was on hold until `held_until_ms` is due now, or at the end of the other hold, unless it is due earlier.
    """
    if now_ms < stays_until_ms:
        moves = stays_until_ms < min(held_until_ms, due.due_at_ms)
        return Due(stays_until_ms, "hold", "hold", stays_until_ms - last_at_ms) if moves else due
    ends_now = held_until_ms > now_ms and due.due_at_ms > now_ms
    return Due(now_ms, "resume", "resume", now_ms - last_at_ms) if ends_now else due


def due_after_flush(due: Due, *, last_at_ms: int, now_ms: int) -> Due:
    """Return when the buffer is due after an operator asked for the batch now."""
    return Due(now_ms, "flush", "flush", now_ms - last_at_ms) if due.due_at_ms > now_ms else due


def mean_gap_of(facts: Facts) -> float | None:
    """Return the buffer's mean gap, or None if it has one message. It is never below 0, even if clocks differ."""
    if facts.message_count < 2:
        return None
    return max(0.0, (facts.last_at_ms - facts.first_at_ms) / (facts.message_count - 1))
