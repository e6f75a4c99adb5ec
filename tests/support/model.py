"""A small model of one conversation, written independently of the scripts: they must lead to the same state.

Only the due time is not its own: it is the formula of `message_buffer.rules.due_time`. The caller gives all times. The
model knows nothing of keys or control words. It says which messages wait, which are frozen, when the conversation is
due and who may act on it.
"""

import math
from dataclasses import dataclass, field

from message_buffer.events.emission import longest_pause_ms
from message_buffer.rules.due_time import (
    Due,
    Facts,
    arrival_of,
    due_after_hold,
    due_after_message,
    due_after_typing,
)
from message_buffer.rules.timing import Timing
from tests.support.script_model import due_after_flush, due_after_resume, due_after_retime, mean_gap_of

MINUTE_US = 60_000_000


class QuotaModel:
    """Keeps the time until which each account and tenant has used up its quota. A quota is one minute of time."""

    def __init__(self) -> None:
        self.spent_until_us: dict[str, int] = {}

    def refuses(self, wanted: list[tuple[str, int]], now_ms: int) -> str | None:
        """Charge all that a message costs and return None, or return the name of the quota that refuses it."""
        now_us, spent = now_ms * 1_000, self.spent_until_us
        for nth, (name, cost_us) in enumerate(wanted):
            until_us = spent.get(name, 0) + cost_us
            if not now_us <= until_us <= now_us + 2 * (MINUTE_US + cost_us):
                until_us = now_us + cost_us
            elif until_us > now_us + max(MINUTE_US, cost_us):
                for given_back, back_us in wanted[:nth]:
                    spent[given_back] -= back_us
                return name
            spent[name] = until_us
        return None


@dataclass
class FrozenBatch:
    batch_id: str
    messages: list[tuple[str, bytes]]
    last_at: int
    previous_at: int | None = None
    replied_at: int | None = None
    attempt: int = 0
    token: str | None = None
    token_ms: int = 0
    token_until: int = 0

    def take(self, token: str, now: int, token_ms: int) -> None:
        self.attempt += 1
        self.token, self.token_ms = token, token_ms + longest_pause_ms(self.attempt - 1)
        self.token_until = now + self.token_ms

    def retry(self) -> None:
        self.token_until = 0


@dataclass
class ConversationModel:
    waiting: list[tuple[str, bytes]] = field(default_factory=list)
    frozen: FrozenBatch | None = None
    state: str = "IDLE"
    scheduled_at: int = 0  # when pending is claimed, or the deadline in flight
    is_taken: bool = False  # in flight with a token, not only claimed
    not_before: int = 0  # no later message makes it due before this time, set by the watchdog or a retry
    due: Due | None = None
    first_at: int | None = None
    last_at: int | None = None
    ended_at: int | None = None  # last arrival of the last buffer that was taken, cancelled or emptied
    replied_at: int | None = None  # when a reply was sent: the first one since `ended_at`, or an earlier one
    holds: dict[str, tuple[int, str]] = field(default_factory=dict)  # holder, or `handoff` -> end and cause
    generation: int = 0
    seen: dict[str, int] = field(default_factory=dict)  # when each message was received, by its host's clock
    emitted: dict[str, int] = field(default_factory=dict)  # the last batches, and the last arrival in each

    @property
    def is_idle(self) -> bool:
        return not self.waiting and self.frozen is None

    @property
    def held_until(self) -> int:
        return max((until for holder, (until, _) in self.holds.items() if holder != "handoff"), default=0)

    @property
    def marked_until(self) -> int:
        return self.holds.get("handoff", (0, ""))[0]

    @property
    def due_at(self) -> int | None:
        return None if self.due is None else self.due.due_at_ms

    def buffer(self, message_id: str, payload: bytes, timing: Timing, now: int) -> None:
        self.seen[message_id] = now
        self.generation += 1
        self.last_at, gap = arrival_of(now, self.last_at)
        old_due = self.due if self.waiting else None
        if not self.waiting:
            self.first_at = self.last_at
        self.waiting.append((message_id, payload))
        self.due = due_after_message(self._facts(gap)._replace(due=old_due), timing, now)
        if (old_due is None or old_due.due_at_ms > now) and self.frozen is None and self.state != "INFLIGHT":
            if old_due is None or self.due.due_at_ms < old_due.due_at_ms:
                self.back_to_pending(self.due.due_at_ms)
            self.scheduled_at = max(self.not_before, self.due.due_at_ms)

    def retime(self, timing: Timing, now: int) -> None:
        if not self.waiting:
            return
        old_due = self.due
        assert old_due is not None
        facts = self._facts(None)
        self.due = due_after_retime(facts._replace(gap_ms=mean_gap_of(facts)), timing, now)
        if old_due.due_at_ms > now and self.frozen is None and self.state == "PENDING":
            if self.due.due_at_ms < old_due.due_at_ms:
                self.back_to_pending(self.due.due_at_ms)
            self.scheduled_at = max(self.not_before, self.due.due_at_ms)

    def _facts(self, gap: float | None) -> Facts:
        assert self.first_at is not None
        assert self.last_at is not None
        return Facts(
            first_at_ms=self.first_at,
            last_at_ms=self.last_at,
            message_count=len(self.waiting),
            gap_ms=gap,
            held_until_ms=self.held_until,
            due=self.due,
        )

    def claim(self, deadline: int) -> None:
        self.state, self.scheduled_at, self.is_taken = "INFLIGHT", deadline, False

    def take(self, until: int) -> None:
        """Let the frozen batch's token last until this time."""
        assert self.frozen is not None
        self.frozen.token_until = self.scheduled_at = until
        self.is_taken = True

    @property
    def score(self) -> float:
        """Return the conversation's score in `inflight`. A fraction means that the batch is taken."""
        return self.scheduled_at - 0.5 if self.is_taken else self.scheduled_at

    def back_to_pending(self, at: int) -> None:
        self.state, self.scheduled_at, self.not_before = "PENDING", at, at
        if self.frozen is None and self.due_at is not None:
            self.scheduled_at = max(at, self.due_at)

    def freeze(self, batch_id: str, limit: int, now: int) -> FrozenBatch:
        assert self.last_at is not None
        known = self.ended_at, self.replied_at
        self.frozen = FrozenBatch(batch_id, self.waiting[:limit], self.last_at, *known)
        self.ended_at = self.last_at
        self.waiting = self.waiting[limit:]
        if self.waiting:
            self.generation += 1
            self.due = Due(now, "max_messages", "split", now - self.last_at)
        return self.frozen

    def completed(self, remembered: int) -> None:
        assert self.frozen is not None
        self.emitted[self.frozen.batch_id] = self.frozen.last_at
        newest = sorted(self.emitted, key=self._when_emitted)[-remembered:]
        self.emitted = {batch_id: self.emitted[batch_id] for batch_id in newest}
        self.frozen = None
        if self.waiting:
            assert self.due_at is not None
            self.back_to_pending(self.due_at)
        else:
            self.state = "IDLE"

    def _when_emitted(self, batch_id: str) -> tuple[int, str]:
        return self.emitted[batch_id], batch_id

    def came_out_in(self, message_id: str, remembered: int) -> str | None:
        batches = sorted(self.emitted, key=self._when_emitted)
        later = [batch_id for batch_id in batches if self.emitted[batch_id] >= self.seen.get(message_id, math.inf)]
        # If the memory is full, an older batch that was forgotten may be the right one.
        return None if not later or len(later) == remembered else later[0]

    @property
    def _known_last_at(self) -> int:
        assert self.last_at is not None
        return self.last_at

    def flush(self, now: int) -> None:
        if self.waiting:
            assert self.due is not None
            self.due = due_after_flush(self.due, last_at_ms=self._known_last_at, now_ms=now)
        if self.state == "PENDING" and self.scheduled_at > now:
            self.back_to_pending(now)

    def cancel(self) -> None:
        self.generation += 1
        if self.waiting:
            self.ended_at = self.last_at
        self.waiting, self.frozen, self.state = [], None, "IDLE"

    def last_arrival(self, now: int) -> int | None:
        """Return when the newest message arrived, or None if none is known.

        An arrival more than a minute ahead comes from a wrong clock, so an older arrival counts instead.
        """
        known = (self.last_at, self.ended_at, self.frozen.last_at if self.frozen else None)
        return max((each for each in known if each is not None and each < now + 60_000), default=None)

    def hold(self, holder: str, cause: str, until: int) -> None:
        if until > self.holds.get(holder, (0, ""))[0]:
            self.holds[holder] = until, cause
        if holder == "handoff":
            return
        until = self.held_until
        if self.waiting and self.due is not None and self.due.due_at_ms < until:
            self.due = due_after_hold(self.due, until, self._known_last_at)
            if self.frozen is None:
                self.back_to_pending(until)

    def forget_hold(self, before: int) -> None:
        if self.held_until <= before:
            self.holds = {each: of for each, of in self.holds.items() if each == "handoff"}
        if self.marked_until <= before:
            self.holds.pop("handoff", None)

    def resume(self, now: int, holder: str | None = None, cause: str | None = None) -> None:
        held_until = self.held_until
        for each, (_, its_cause) in list(self.holds.items()):
            if holder in (None, each) and cause in (None, its_cause):
                del self.holds[each]
        if not self.waiting:
            return
        old_due = self.due
        assert old_due is not None
        self.due = due_after_resume(
            old_due,
            held_until_ms=held_until,
            stays_until_ms=self.held_until,
            last_at_ms=self._known_last_at,
            now_ms=now,
        )
        if self.due != old_due and self.frozen is None and self.state == "PENDING":
            self.back_to_pending(self.due.due_at_ms)

    def extend(self, extend_ms: int, max_wait_ms: int, now: int) -> None:
        if not self.waiting:
            return
        old_due = self.due
        assert old_due is not None
        assert self.first_at is not None
        self.due = due_after_typing(
            old_due,
            first_at_ms=self.first_at,
            last_at_ms=self._known_last_at,
            extend_ms=extend_ms,
            max_wait_ms=max_wait_ms,
            now_ms=now,
        )
        if self.due != old_due and self.frozen is None and self.state == "PENDING":
            self.scheduled_at = max(self.not_before, self.due.due_at_ms)

    def note_reply(self, at: int) -> bool:
        if self.ended_at is not None and (self.replied_at or 0) <= self.ended_at < at:
            self.replied_at = at
        return self.ended_at is not None

    def edit(self, message_id: str, payload: bytes) -> None:
        self.waiting = [(known, payload if known == message_id else old) for known, old in self.waiting]

    def delete(self, message_id: str) -> None:
        had = bool(self.waiting)
        self.waiting = [(known, old) for known, old in self.waiting if known != message_id]
        if had and not self.waiting:
            self.ended_at = self.last_at
        if had and self.is_idle:
            self.state = "IDLE"
