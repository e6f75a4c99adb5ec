"""Conversation processors: invoked at least once, some twice; each step may be their last."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from message_buffer.lanes.holds import Hold
from message_buffer.lanes.outcomes import BatchBusy, BatchCompleted, BatchRetried, BatchTaken, Renewed, RunStale
from tests.support.machine.base import SETTINGS, Base, Run, pick, seldom, skews


class ConversationProcessors(Base):
    @precondition(lambda self: self.invocations)
    @rule(which=pick, again=seldom, crash=seldom, skew=skews, twice=seldom)
    def take(self, which: int, again: bool, crash: bool, skew: int, twice: bool) -> None:
        name, now = self.invocations[which % len(self.invocations)], self.now(skew)
        if not again:
            self.invocations.remove(name)
        self.tokens += 1
        self._take(name, f"token-{self.tokens}", now, skew, twice, crash=crash)

    def _take(self, name: str, token: str, now: int, skew: int, twice: bool, *, crash: bool) -> None:
        model = self.model[name]
        outcome = self.call(skew, twice, "take_batch", name, token)
        if model.state != "INFLIGHT":
            assert outcome == RunStale()
            return
        if model.frozen and model.frozen.token_until > now:
            assert outcome == BatchBusy(model.frozen.token_until)
            model.take(model.frozen.token_until)
            return
        assert isinstance(outcome, BatchTaken)
        if model.frozen is None:
            assert (self.life(name), outcome.batch_id) not in {(life, batch_id) for life, batch_id, _ in self.emitted}
            model.freeze(outcome.batch_id, SETTINGS.max_batch, now)
        assert model.frozen is not None
        batch = model.frozen
        batch.take(token, now, SETTINGS.token_ms)
        model.take(batch.token_until)
        assert outcome.until_ms == batch.token_until
        assert outcome.batch_id == batch.batch_id
        assert outcome.attempt == batch.attempt
        assert outcome.previous_at_ms == batch.previous_at
        assert outcome.replied_at_ms == batch.replied_at
        assert outcome.payloads == [text for _, text in batch.messages]
        marked_until, cause = model.holds.get("handoff", (0, ""))
        assert outcome.handoff == (Hold("handoff", marked_until, cause) if marked_until > now else None)
        if not crash:
            self.runs.append(Run(name, self.life(name), token, outcome.batch_id, outcome.payloads))

    @precondition(lambda self: any(not run.done for run in self.runs))
    @rule(which=pick, crash=seldom)
    def emit(self, which: int, crash: bool) -> None:
        """Emit a batch to the bus, or after many attempts to the dead-letter queue: the engine cannot tell which."""
        unfinished = [run for run in self.runs if not run.done]
        run = unfinished[which % len(unfinished)]
        self._emit(run)
        if crash:
            self.runs.remove(run)

    def _emit(self, run: Run) -> None:
        if not run.done:
            self.emitted.append((run.life, run.batch_id, run.messages))
            run.done = True

    @precondition(lambda self: self.runs)
    @rule(which=pick, skew=skews, twice=seldom)
    def renew_token(self, which: int, skew: int, twice: bool) -> None:
        run, now = self.runs[which % len(self.runs)], self.now(skew)
        model = self.model[run.conversation]
        batch = model.frozen
        outcome = self.call(skew, twice, "renew_token", run.conversation, run.token)
        if batch is None or batch.token != run.token or not batch.token_until or model.state != "INFLIGHT":
            assert outcome == RunStale()
            return
        model.take(now + batch.token_ms)
        assert outcome == Renewed(batch.token_until)

    @precondition(lambda self: any(run.done for run in self.runs))
    @rule(which=pick, skew=skews, twice=seldom)
    def complete(self, which: int, skew: int, twice: bool) -> None:
        done = [run for run in self.runs if run.done]
        self._complete(done[which % len(done)], skew, twice)

    def _complete(self, run: Run, skew: int, twice: bool) -> None:
        now = self.now(skew)
        self.runs.remove(run)
        model = self.model[run.conversation]
        outcome = self.call(skew, twice, "complete_batch", run.conversation, run.token)
        if model.frozen is None or model.frozen.token != run.token:
            assert outcome == RunStale()
            return
        model.completed(SETTINGS.max_emitted)
        self.must_not_wait_for_a_slot(now)
        assert isinstance(outcome, BatchCompleted)
        assert outcome.count == len(model.waiting)
        assert outcome.next_due_at_ms == (model.due_at if model.waiting else None)
        if model.waiting:
            self.must_be_picked_up(model.scheduled_at, now)

    @precondition(lambda self: self.runs)
    @rule(which=pick, delay=st.integers(0, 5000), skew=skews, twice=seldom)
    def emitting_fails(self, which: int, delay: int, skew: int, twice: bool) -> None:
        self._fail(self.runs[which % len(self.runs)], delay, skew, twice)

    def _fail(self, run: Run, delay: int, skew: int, twice: bool) -> None:
        now = self.now(skew)
        self.runs.remove(run)
        model = self.model[run.conversation]
        retry_at = now + delay
        outcome = self.call(skew, twice, "retry_batch", run.conversation, run.token, retry_at_ms=retry_at)
        if model.frozen is None or model.frozen.token != run.token:
            assert outcome == RunStale()
            return
        model.frozen.retry()
        model.back_to_pending(retry_at)
        self.must_not_wait_for_a_slot(now)
        assert isinstance(outcome, BatchRetried)
        assert outcome.due_at_ms == model.scheduled_at
        self.must_be_picked_up(model.scheduled_at, now)

    @precondition(lambda self: self.runs)
    @rule(which=pick)
    def conversation_processor_dies(self, which: int) -> None:
        del self.runs[which % len(self.runs)]
