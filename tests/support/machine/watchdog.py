"""The watchdog: it puts back what has expired, and reports what is overdue."""

from hypothesis.stateful import rule

from tests.support.machine.base import Base, seldom, skews


class Watchdog(Base):
    @rule(skew=skews, twice=seldom)
    def watchdog(self, skew: int, twice: bool) -> None:
        now = self.now(skew)
        expired = {n for n, m in self.model.items() if m.state == "INFLIGHT" and m.scheduled_at <= now}
        for model in self.model.values():
            model.forget_hold(now - 60_000)
        outcome = self.call(skew, twice, "recover_expired", 0)
        assert set(outcome.conversations) == expired
        for name in expired:
            self.model[name].back_to_pending(now)
        pending = [m.scheduled_at for m in self.model.values() if m.state == "PENDING"]
        assert outcome.pending == len(pending)
        assert outcome.inflight == sum(m.state == "INFLIGHT" for m in self.model.values())
        assert outcome.oldest_due_at_ms == (min(pending) if pending else None)
        # A processor must check the conversations in flight, too.
        if scheduled := [m.scheduled_at for m in self.model.values() if m.state != "IDLE"]:
            self.must_be_picked_up(min(scheduled), now)
