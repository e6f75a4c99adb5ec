"""A small model of one conversation, written independently of the scripts: they must lead to the same state.

The caller gives all times. The model knows nothing of keys or control words. It says which messages wait, which are
frozen, when the conversation is due and who may act on it.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

from message_buffer.rules.timing import Timing

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
    attempt: int = 0
    token: str | None = None
    token_until: int = 0
    left_out: frozenset[int] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    died_at: int | None = None

    def take(self, token: str, until: int) -> None:
        if self.token is not None and self.token_until:
            self.counts["deaths"] += 1
            self.died_at = self.token_until
        self.attempt += 1
        self.token, self.token_until = token, until

    def retry(self, counted: str | None) -> None:
        if counted and self.token_until:
            self.counts[counted] += 1
        self.token_until, self.died_at = 0, None


@dataclass
class ConversationModel:
    waiting: list[tuple[str, bytes]] = field(default_factory=list)
    frozen: FrozenBatch | None = None
    state: str = "IDLE"
    scheduled_at: int = 0  # when pending is claimed, or the deadline in flight
    is_taken: bool = False  # in flight with a token, not only claimed
    not_before: int = 0  # no later message makes it due before this time, set by the watchdog or a retry
    due_at: int | None = None
    first_at: int | None = None
    last_at: int | None = None
    ended_at: int | None = None  # last arrival of the last buffer that was taken, cancelled or emptied
    held_until: int = 0
    is_vip: bool = False
    is_found_late: bool = False  # a message by other rules made a VIP due earlier, but not its entry in `vip`
    generation: int = 0
    gap_mean: float | None = None
    gap_dev: float = 0.0
    forgotten: set[str] = field(default_factory=set)  # ids that are known as hashes
    seen: dict[str, int] = field(default_factory=dict)  # when each message was received, by its host's clock
    emitted: dict[str, int] = field(default_factory=dict)  # the last batches, and the last arrival in each

    @property
    def is_idle(self) -> bool:
        return not self.waiting and self.frozen is None

    def buffer(self, message_id: str, payload: bytes, timing: Timing, now: int) -> None:
        self.seen[message_id] = now
        self.is_vip = self.is_vip or timing.priority == "vip"
        self.generation += 1
        ahead = 0 if self.last_at is None else self.last_at - now
        arrived = now + ahead if 0 < ahead <= 60_000 else now
        gap = None if self.last_at is None else max(now - self.last_at, 0)
        self.last_at = arrived
        rhythm = self._learn(gap, timing)
        old_due = self.due_at if self.waiting else None
        if not self.waiting:
            self.first_at = arrived
        self.waiting.append((message_id, payload))
        if old_due is None or old_due > now:
            self.due_at = self._due(arrived, self._wait(gap, rhythm, timing), timing, now)
            if old_due is not None and self.due_at < old_due:
                self.is_found_late = self.is_vip and timing.priority == ""
            if self.frozen is None and self.state != "INFLIGHT":
                if old_due is None or self.due_at < old_due:
                    self.back_to_pending(self.due_at)
                self.scheduled_at = max(self.not_before, self.due_at)

    def retime(self, timing: Timing, now: int) -> None:
        if not self.waiting:
            return
        self.is_vip, self.is_found_late = timing.priority == "vip", False
        old_due = self.due_at
        assert old_due is not None
        assert self.first_at is not None
        assert self.last_at is not None
        if old_due > now:
            between = len(self.waiting) - 1
            gap = (self.last_at - self.first_at) / between if between else None
            wait = self._wait(gap, (self.gap_mean, self.gap_dev), timing)
            self.due_at = max(now, self._due(self.last_at, wait, timing, now))
            if self.frozen is None and self.state == "PENDING":
                if self.due_at < old_due:
                    self.back_to_pending(self.due_at)
                self.scheduled_at = max(self.not_before, self.due_at)

    def _learn(self, gap: int | None, timing: Timing) -> tuple[float | None, float]:
        """Store the rhythm, and return it before rounding."""
        if not timing.adaptive or gap is None or gap > float(timing.adaptive.split()[2]):
            return self.gap_mean, self.gap_dev
        if self.gap_mean is None:
            mean, dev = float(gap), gap / 2
        else:
            mean = 0.875 * self.gap_mean + 0.125 * gap
            dev = 0.75 * self.gap_dev + 0.25 * abs(self.gap_mean - gap)
        self.gap_mean, self.gap_dev = float(f"{mean:.1f}"), float(f"{dev:.1f}")
        return mean, dev

    def _wait(self, gap: float | None, rhythm: tuple[float | None, float], timing: Timing) -> int:
        mean, dev = rhythm
        if timing.adaptive and mean is not None:
            k, floor, ceiling = map(float, timing.adaptive.split())
            return int(max(floor, min(ceiling, math.ceil(mean + k * dev))))
        if len(self.waiting) > 1 and gap is not None and gap < timing.typing_ms:
            return max(timing.silence_ms, timing.typing_ms)
        return timing.silence_ms

    def _due(self, arrived: int, wait: int, timing: Timing, now: int) -> int:
        assert self.first_at is not None
        count = len(self.waiting)
        latest = self.first_at + timing.max_wait_ms
        due = latest if count < timing.min_messages else min(arrived + wait, latest)
        if count >= timing.max_messages or timing.flush_reason:
            due = min(due, now)
        return max(due, self.held_until) if self.held_until > now else due

    def claim(self, deadline: int) -> None:
        self.state, self.scheduled_at, self.is_taken, self.is_found_late = "INFLIGHT", deadline, False, False

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
        self.ended_at = self.last_at
        self.frozen = FrozenBatch(batch_id, self.waiting[:limit], self.last_at)
        self.waiting = self.waiting[limit:]
        if self.waiting:
            self.generation += 1
            self.due_at = now
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
            self.state, self.is_vip = "IDLE", False

    def _when_emitted(self, batch_id: str) -> tuple[int, str]:
        return self.emitted[batch_id], batch_id

    def came_out_in(self, message_id: str, remembered: int) -> str | None:
        batches = sorted(self.emitted, key=self._when_emitted)
        later = [batch_id for batch_id in batches if self.emitted[batch_id] >= self.seen.get(message_id, math.inf)]
        # If the memory is full, an older batch that was forgotten may be the right one.
        return None if not later or len(later) == remembered else later[0]

    def flush(self, now: int) -> None:
        if self.waiting:
            assert self.due_at is not None
            self.due_at = min(self.due_at, now)
        if self.state == "PENDING" and self.scheduled_at > now:
            self.back_to_pending(now)

    def cancel(self) -> None:
        self.generation += 1
        if self.waiting:
            self.ended_at = self.last_at
        self.waiting, self.frozen, self.state, self.is_vip = [], None, "IDLE", False

    def forget(self, now: int) -> int:
        """Erase everything but the ids. Return the time by which all erased messages had arrived.

        An arrival more than a minute ahead comes from a wrong clock, so an older arrival counts instead.
        """
        latest = (self.last_at, self.ended_at, self.frozen.last_at if self.frozen else None)
        at = max(now, *(each for each in latest if each is not None and each < now + 60_000), now)
        self.cancel()
        self.forgotten |= self.seen.keys()
        self.seen, self.emitted, self.held_until, self.gap_mean = {}, {}, 0, None
        self.last_at = self.ended_at = at + 1
        self.first_at, self.due_at = None, None
        return at

    def hold(self, until: int) -> None:
        until = self.held_until = max(until, self.held_until)
        if self.waiting and self.due_at is not None and self.due_at < until:
            self.due_at = until
            if self.frozen is None:
                self.back_to_pending(until)

    def forget_hold(self, before: int) -> None:
        if self.held_until <= before:
            self.held_until = 0

    def resume(self, now: int) -> None:
        ran_out, self.held_until = self.held_until <= now, 0
        if ran_out:
            return
        if self.waiting and self.due_at is not None and self.due_at > now:
            self.due_at = now
            if self.frozen is None and self.state == "PENDING":
                self.back_to_pending(now)

    def extend(self, extend_ms: int, max_wait_ms: int, now: int) -> None:
        if not self.waiting:
            return
        assert self.due_at is not None
        assert self.first_at is not None
        due = min(now + extend_ms, self.first_at + max_wait_ms)
        if self.due_at > now and due > self.due_at:
            self.due_at = due
            if self.frozen is None and self.state == "PENDING":
                self.scheduled_at = max(self.not_before, due)

    def edit(self, message_id: str, payload: bytes) -> None:
        self.waiting = [(known, payload if known == message_id else old) for known, old in self.waiting]

    def delete(self, message_id: str) -> None:
        had = bool(self.waiting)
        self.waiting = [(known, old) for known, old in self.waiting if known != message_id]
        if had and not self.waiting:
            self.ended_at = self.last_at
        if had and self.is_idle:
            self.state, self.is_vip = "IDLE", False
