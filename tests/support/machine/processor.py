"""Two processors that want the same shard: lease, claims, invocations that fail, leaving and handing over."""

from collections.abc import Iterable
from math import ceil

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from message_buffer.lanes.outcomes import (
    BatchBusy,
    ClaimReturned,
    ConversationsClaimed,
    LeaseAcquired,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    Renewed,
    RunStale,
    WorkIsNear,
)
from tests.support.machine.base import SETTINGS, pick, processors, seldom, skews
from tests.support.machine.conversation_processor import ConversationProcessors


class Processors(ConversationProcessors):
    def _owns(self, processor: str, now: int) -> bool:
        return self.lease is not None and self.lease[0] == processor and self.lease[1] > now

    @rule(processor=processors, skew=skews, twice=seldom)
    def acquire(self, processor: str, skew: int, twice: bool) -> None:
        outcome, now = self.call(skew, twice, "acquire_lease", 0, processor), self.now(skew)
        another = self.lease is not None and self.lease[0] != processor
        if another and self.lease[1] > now:  # type: ignore[index]
            assert outcome == LeaseTaken(self.lease[1])  # type: ignore[index]
            return
        # The other processor died, because it did not leave. The script puts back its claims that are not taken.
        untaken = [m for m in self.model.values() if another and m.state == "INFLIGHT" and not m.is_taken]
        assert outcome == LeaseAcquired(now + SETTINGS.lease_ms, len(untaken))
        for model in untaken:
            model.back_to_pending(now)
        self.lease = (processor, now + SETTINGS.lease_ms)

    @rule(processor=processors, skew=skews, twice=seldom)
    def renew(self, processor: str, skew: int, twice: bool) -> None:
        outcome, now = self.call(skew, twice, "renew_lease", 0, processor), self.now(skew)
        if self._owns(processor, now):
            assert outcome == Renewed(now + SETTINGS.lease_ms)
            self.lease = (processor, now + SETTINGS.lease_ms)
        else:
            assert outcome == LeaseLost()

    @rule(
        processor=processors, limit=st.sampled_from((1, 100, 100)), early_ms=st.sampled_from((0, 0, 1, 700)),
        skew=skews, twice=seldom, crash=seldom,
    )  # fmt: skip
    def works(self, processor: str, limit: int, early_ms: int, skew: int, twice: bool, crash: bool) -> None:
        """Do what processors do most of the time: get the lease, wait until something is (almost) due, claim it."""
        times = [m.scheduled_at for m in self.model.values() if m.state == "PENDING"]
        if times:
            latest = min(max(times) - early_ms, self.now(60_000))
            self.engine.clock.now_ms = max(self.engine.clock.now_ms, latest)
        self.acquire(processor, skew, twice)
        self.claim(processor, limit, skew, twice, crash)

    @rule(processor=processors, limit=st.sampled_from((1, 100, 100)), skew=skews, twice=seldom, crash=seldom)
    def claim(self, processor: str, limit: int, skew: int, twice: bool, crash: bool) -> None:
        now = self.now(skew)
        early = {n for n, m in self.model.items() if m.state == "PENDING" and self._score(n) <= now < m.scheduled_at}
        twice = twice and not early  # a call that only corrects early scores is not remembered, so its repeat may claim
        outcome = self.call(skew, twice, "claim_due", 0, processor, limit=limit)
        if not self._owns(processor, now):
            assert outcome == LeaseLost()
            return
        assert isinstance(outcome, ConversationsClaimed)
        flying = sorted((m.score, n.encode(), m) for n, m in self.model.items() if m.state == "INFLIGHT")
        expired = [model for score, _, model in flying if score <= now][:limit]
        assert outcome.expired == len(expired)
        for model in expired:
            model.back_to_pending(now)
        due = {n for n, m in self.model.items() if m.state == "PENDING" and m.scheduled_at <= now}
        in_flight = sum(m.state == "INFLIGHT" for m in self.model.values())
        room = max(min(limit, SETTINGS.slots - in_flight), 0)
        claimed = [due.conversation for due in outcome.conversations]
        assert len(claimed) == len(set(claimed)) <= room
        assert set(claimed) <= due
        if not early and all(model.scheduled_at <= now for model in expired):
            assert len(claimed) == min(len(due), room)
        for name in claimed:
            self.model[name].claim(now + SETTINGS.claim_ms)
        left = [m.scheduled_at for m in self.model.values() if m.state != "IDLE"]
        assert outcome.next_due_at_ms is not None if left else outcome.next_due_at_ms is None
        assert outcome.next_due_at_ms is None or outcome.next_due_at_ms <= min(left)
        more_is_due = any(float(score) <= now for score in self._scores("pending"))
        all_put_back = len(expired) == sum(score <= now for score, _, _ in flying)
        is_full = in_flight + len(claimed) >= SETTINGS.slots
        assert outcome.waits_for_slot == (more_is_due and is_full and all_put_back)
        if not crash:
            self.invocations += claimed

    def _score(self, name: str) -> int:
        pending = self.engine.keys().get("{b0}:pending")
        return int(pending.pairs.get(name.encode(), b"0")) if pending else 0

    @precondition(lambda self: self.invocations)
    @rule(
        which=pick, processor=processors, delay=st.integers(0, 500), fate=st.sampled_from(("lost", "late", "arrived")),
        skew=skews, twice=seldom,
    )  # fmt: skip
    def invocation_fails(self, which: int, processor: str, delay: int, fate: str, skew: int, twice: bool) -> None:
        """Return a claim whose invocation seems to have failed.

        If only the invocation's answer was lost, a conversation processor has come, or comes later.
        """
        name, now = self.invocations[which % len(self.invocations)], self.now(skew)
        self.acquire(processor, skew, False)
        if fate != "late":
            self.invocations.remove(name)
        if fate == "arrived":
            self.tokens += 1
            self._take(name, f"token-{self.tokens}", now, skew, False, crash=False)
        model = self.model[name]
        outcome = self.call(skew, twice, "return_claim", name, processor, due_at_ms=now + delay)
        if not self._owns(processor, now):
            assert outcome == LeaseLost()
        elif model.state != "INFLIGHT":
            assert outcome == RunStale()
        elif model.frozen and model.frozen.token_until > now:
            assert isinstance(outcome, BatchBusy)
        else:
            assert outcome == ClaimReturned(now + delay)
            model.back_to_pending(now + delay)
            self.must_be_picked_up(now + delay, now)

    @rule(processor=processors, handover=st.booleans(), skew=skews, twice=seldom)
    def leave(self, processor: str, handover: bool, skew: int, twice: bool) -> None:
        now = self.now(skew)
        scores = [ceil(float(score)) for key in ("pending", "inflight") for score in self._scores(key)]
        near = bool(scores) and min(scores) <= now + SETTINGS.horizon_ms
        twice = twice and handover  # an idle leave that is repeated finds the lease gone
        outcome = self.call(skew, twice, "release_lease", 0, processor, reason="handover" if handover else "idle")
        if self.lease is None or self.lease[0] != processor:
            assert outcome == LeaseLost()
        elif near and not handover:
            assert isinstance(outcome, WorkIsNear)
        else:
            assert isinstance(outcome, LeaseReleased)
            assert (outcome.start_id is not None) == near
            self.lease = None

    def _scores(self, kind: str) -> Iterable[bytes]:
        key = self.engine.keys().get("{b0}:" + kind)
        return key.pairs.values() if key else ()
