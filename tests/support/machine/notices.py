"""Deliver notices of dead runs: true and false ones, late, twice, out of order and forged.

A notice names a claim by its deadline. So each token here begins with its claim's deadline, and some leases begin with
a start id.
"""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from message_buffer.lanes.outcomes import Claimed, ClaimEnded, ProcessorEnded
from message_buffer.limits import MAX_PAUSE_AFTER_DEATH_MS
from tests.support.machine.base import CONVERSATIONS, SETTINGS, pick, seldom, skews
from tests.support.machine.courses import Courses

# The first two are runs of the same start, whose event was delivered twice.
STARTED = ("s1.a", "s1.b", "s2.a")


class Notices(Courses):
    @initialize()
    def begin(self) -> None:
        super().begin()
        self.claims: list[tuple[str, int]] = []

    def call(self, skew: int, twice: bool, method: str, *args: Any, **kwargs: Any) -> Any:
        answer = super().call(skew, twice, method, *args, **kwargs)
        if isinstance(answer, Claimed):
            self.claims += [(due.conversation, answer.deadline_ms) for due in answer.conversations]
        return answer

    def _take(self, name: str, token: str, now: int, skew: int, twice: bool, *, crash: bool) -> None:
        """Take with a token that begins with the deadline of the latest claim, or sometimes of the claim before it."""
        deadlines = [deadline for claimed, deadline in self.claims if claimed == name]
        at = min(1 + (self.tokens % 4 == 0), len(deadlines))
        super()._take(name, f"{deadlines[-at]}.{token}" if deadlines else token, now, skew, twice, crash=crash)

    @rule(run=st.sampled_from(STARTED), skew=skews)
    def started_processor_works(self, run: str, skew: int) -> None:
        self.works(run, 100, 0, skew, False, False)

    @rule(dead_id=st.sampled_from(("s1", "s2", "s", "p1", "", "reserved")), skew=skews, twice=seldom)
    def processor_reported_dead(self, dead_id: str, skew: int, twice: bool) -> None:
        """Report any run, dead or alive. Forged ids end nothing. `reserved` is replaced by the reserved start's id."""
        now, before = self.now(skew), self._reservation()
        if dead_id == "reserved":
            dead_id = before[0]
        outcome = self.call(skew, twice, "end_processor", 0, dead_id)
        assert isinstance(outcome, ProcessorEnded)
        had_lease = self.lease is not None and self.lease[0].startswith(f"{dead_id}.") and self.lease[1] > now
        had_start = bool(dead_id) and before[0] == dead_id
        assert outcome.ended == (had_lease or had_start)
        if had_lease:
            assert self.lease is not None
            self.lease = (self.lease[0], now - 60_000)
        if not (had_lease or had_start):
            assert self._reservation() == before or outcome.start_id, "the notice removed another run's reservation"
        assert 0 <= outcome.wait_ms <= 1.5 * SETTINGS.start_ms
        # A living processor checks claims often, so it need not be woken for a claim that a take has made end earlier.
        alive = self.lease is not None and self.lease[1] > now
        watched = ("PENDING",) if alive else ("PENDING", "INFLIGHT")
        times = [model.scheduled_at for model in self.model.values() if model.state in watched]
        if times:
            self.must_be_picked_up(min(times), now)

    def _reservation(self) -> tuple[str, str]:
        key = self.engine.keys().get("{b0}:processor")
        fields = key.pairs if key else {}
        return fields.get(b"starting_by", b"").decode(), fields.get(b"starting_until", b"").decode()

    @precondition(lambda self: self.claims)
    @rule(
        which=pick, another=st.sampled_from((None, None, *CONVERSATIONS)), off_ms=st.sampled_from((0, 0, 0, 1, -1)),
        is_true=st.booleans(), skew=skews, twice=seldom,
    )  # fmt: skip
    def conversation_processor_reported_dead(
        self, which: int, another: str | None, off_ms: int, is_true: bool, skew: int, twice: bool
    ) -> None:
        """Report the run of one of the last three claims. Unless `is_true`, that run continues."""
        name, deadline = self.claims[-1 - which % min(len(self.claims), 3)]
        self._end_claim(another or name, deadline + off_ms, is_true, skew, twice)

    def _end_claim(self, name: str, deadline: int, is_true: bool, skew: int, twice: bool) -> None:
        now, model = self.now(skew), self.model[name]
        batch = model.frozen
        is_ours = batch is not None and (batch.token or "").startswith(f"{deadline}.")
        in_flight = model.state == "INFLIGHT"
        has_token = batch is not None and in_flight and model.scheduled_at == batch.token_until
        outcome = self.call(skew, twice, "end_claim", name, deadline_ms=deadline)
        assert isinstance(outcome, ClaimEnded)
        if is_true:
            self.runs = [run for run in self.runs if not (run.conversation == name and is_ours and has_token)]
        if not in_flight or not (is_ours if has_token else model.scheduled_at == deadline):
            assert outcome == ClaimEnded(None), "the notice ended the claim of another run"
            return
        assert outcome.due_at_ms is not None
        assert now <= outcome.due_at_ms <= now + MAX_PAUSE_AFTER_DEATH_MS
        if has_token:
            assert batch is not None
            batch.token_until = now - 60_000
        model.back_to_pending(outcome.due_at_ms)
        self.must_be_picked_up(model.scheduled_at, now)
