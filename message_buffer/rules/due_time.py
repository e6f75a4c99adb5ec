"""The one formula of the due time: when a batch is due, and why.

The functions are pure. They take the facts of an open buffer, the rules of its newest message and the time now, and
return a due time with its reason and its rule. lua/include/due_time.lua contains the same formula, because the scripts
must compute due times inside Valkey; `test_due_time_formula.py` runs both on the same histories and requires equal
milliseconds, reasons and rules.
"""

from typing import NamedTuple

from message_buffer.limits import MINUTE_MS
from message_buffer.rules.learned import DIGITS, place_of
from message_buffer.rules.timing import RuleName, Timing


class Due(NamedTuple):
    """A due time, and why the batch is due then."""

    due_at_ms: int
    reason: str
    """The event's `flushReason`."""
    rule: RuleName
    """The rule or event that set the due time."""
    wait_ms: int
    """`due_at_ms` minus the last arrival before `due_at_ms` was computed. Negative if a host's clock lags."""

    def moved_to(self, due_at_ms: int) -> "Due":
        return self._replace(due_at_ms=due_at_ms, wait_ms=self.wait_ms + due_at_ms - self.due_at_ms)


class Arrival(NamedTuple):
    """The time that counts as a message's arrival, and the gap since the arrival before it. For a first message, the
    gap is None."""

    at_ms: int
    gap_ms: int | None


class Facts(NamedTuple):
    """The facts of an open buffer, including its newest message."""

    first_at_ms: int
    last_at_ms: int
    message_count: int
    gap_ms: float | None = None
    """The gap before the newest message. None if it is not known, which is normal for the first message."""
    held_until_ms: int = 0
    """The end of the conversation's hold; a time in the past has no effect."""
    has_max_bytes: bool = False
    """True if the newest message is large (more than 4 KiB), and all large messages together are as large as a batch
    may be."""
    due: Due | None = None
    """The due time before the newest message. None if that message opened the buffer."""


def arrival_of(now_ms: int, last_at_ms: int | None) -> Arrival:
    """Return the arrival of a message that a host received at `now_ms`, after the last arrival in its conversation.

    If the host's clock lags by up to a minute, the message counts as arrived at the last arrival. If it lags by more,
    the clock of the last arrival was wrong, so the message counts as arrived at `now_ms`.
    """
    if last_at_ms is None:
        return Arrival(now_ms, None)
    lag_ms = last_at_ms - now_ms
    return Arrival(last_at_ms if 0 < lag_ms <= MINUTE_MS else now_ms, max(-lag_ms, 0))


def due_after_message(facts: Facts, timing: Timing, now_ms: int) -> Due:
    """Return the due time of the buffer after its newest message. `now_ms` is the time at which a host received that
    message, even if the lane computes the due time later."""
    if facts.due is not None and facts.due.due_at_ms <= now_ms:
        return facts.due
    return _bounded(facts, timing, _silence_is_over(facts, timing), now_ms)


def due_after_typing(
    due: Due, *, first_at_ms: int, last_at_ms: int, extend_ms: int, max_wait_ms: int, now_ms: int
) -> Due:
    """Return the due time after a typing event. It is never earlier than before. The event never moves it beyond
    `max_wait_ms` after the first message."""
    latest_at_ms = first_at_ms + max_wait_ms
    extended_ms = min(now_ms + extend_ms, latest_at_ms)
    if due.due_at_ms <= now_ms or extended_ms <= due.due_at_ms:
        return due
    if extended_ms == latest_at_ms:
        return Due(extended_ms, "max_wait", "maxWaitMs", extended_ms - last_at_ms)
    return Due(extended_ms, "silence", "typing", extended_ms - last_at_ms)


def due_after_hold(due: Due, held_until_ms: int, last_at_ms: int) -> Due:
    """Return the due time, or the end of the hold if that is later. Nothing but a hold moves a due time that has
    passed."""
    return due if due.due_at_ms >= held_until_ms else Due(held_until_ms, "hold", "hold", held_until_ms - last_at_ms)


def _silence_is_over(facts: Facts, timing: Timing) -> Due:
    """Return the end of the wait after the newest message. A button press does not shorten the wait of earlier
    messages."""
    # Treat a press like a typed message if the buffer had fewer than `min_messages` messages before it, because those
    # have no wait of their own yet.
    if timing.pressed_ms is None or (facts.message_count > 1 and facts.message_count <= timing.min_messages):
        wait_ms, rule = _wait(facts, timing)
        return Due(facts.last_at_ms + wait_ms, "silence", rule, wait_ms)
    pressed = Due(facts.last_at_ms + timing.pressed_ms, "silence", "pressedSilenceMs", timing.pressed_ms)
    return facts.due if facts.due is not None and facts.due.due_at_ms > pressed.due_at_ms else pressed


def _wait(facts: Facts, timing: Timing) -> tuple[int, RuleName]:
    """Return how long a batch waits after a typed message, and the rule that decides this wait."""
    if timing.learned:
        at = DIGITS * place_of(facts.message_count, facts.gap_ms)
        return int(timing.learned[at : at + DIGITS]), "learned"
    if facts.message_count > 1 and facts.gap_ms is not None and facts.gap_ms < timing.typing_ms:
        return timing.typing_ms, "typingInferenceMs"
    return timing.silence_ms, timing.silence_rule


def _bounded(facts: Facts, timing: Timing, due: Due, now_ms: int) -> Due:
    """Apply all bounds to the due time."""

    def at(due_at_ms: int, reason: str, rule: RuleName) -> Due:
        return Due(due_at_ms, reason, rule, due_at_ms - facts.last_at_ms)

    latest_at_ms = facts.first_at_ms + timing.max_wait_ms
    if facts.message_count < timing.min_messages:
        due = at(latest_at_ms, "max_wait", "minMessages")
    elif due.due_at_ms >= latest_at_ms:
        due = at(latest_at_ms, "max_wait", "windowMs" if timing.silence_rule == "windowMs" else "maxWaitMs")
    # Unless the buffer is overdue, each of these conditions makes it due now. If several hold, the last one gives the
    # reason.
    if due.due_at_ms >= now_ms:
        if facts.message_count >= timing.max_messages:
            due = at(now_ms, "max_messages", "maxMessages")
        if facts.has_max_bytes:
            due = at(now_ms, "max_bytes", "maxBytes")
        if timing.flush_reason:
            due = at(now_ms, timing.flush_reason, timing.silence_rule)
    return due_after_hold(due, facts.held_until_ms, facts.last_at_ms) if facts.held_until_ms > now_ms else due
