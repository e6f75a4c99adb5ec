"""Random interleavings of everybody who touches the engine, judged after every step against a model.

Actors: ingesters, two processors, conversation processors (invoked at least once, some twice, some never), a
watchdog, operators.
Any of them may stop between two steps for good, be slow for minutes, have a clock a minute off, or make a call twice
because an answer was lost.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from message_buffer.lanes.outcomes import (
    Absent,
    Acquired,
    Buffered,
    Busy,
    Cancelled,
    Claimed,
    Completed,
    Deleted,
    Duplicate,
    Edited,
    Empty,
    Excluded,
    Extended,
    Frozen,
    LeaseTaken,
    Lost,
    OnHold,
    Released,
    Renewed,
    Resumed,
    Retimed,
    Retried,
    Returned,
    Stale,
    Taken,
    Unmoved,
    Waiting,
    WorkIsNear,
)
from message_buffer.lanes.valkey.keys import shard_of
from message_buffer.lanes.valkey.store import FIRST_PAGE
from message_buffer.rules.layers import Rules
from message_buffer.rules.timing import Timing
from tests.support.engine import SETTINGS as STAGE_SETTINGS
from tests.support.engine import Engine, Key, payload
from tests.support.model import ConversationModel

SETTINGS = STAGE_SETTINGS._replace(
    lease_ms=15_000,
    start_ms=10_000,
    horizon_ms=90_000,
    claim_ms=30_000,
    token_ms=60_000,
    max_batch=4,
    max_emitted=2,
)
CONVERSATIONS = ("ann", "bob {b0} }{", "çé\n\x00")
PROCESSORS = ("p1", "p2")
RULES = (
    Rules(),
    Rules(silence_ms=200, typing_inference_ms=400, max_wait_ms=1500, max_messages=3),
    Rules(silence_ms=2000, min_messages=2, max_wait_ms=60_000),
    Rules(adaptive=True, max_wait_ms=20_000, max_messages=6),
    Rules(priority="vip"),
)

# The calls that may be repeated at any later time and change nothing.
LATE_REPEATS = {"buffer_message", "cancel_buffer", "complete_batch", "delete_message"}

conversations = st.sampled_from(CONVERSATIONS)
processors = st.sampled_from(PROCESSORS)
skews = st.sampled_from((0, 0, 0, 0, 0, 0, 0, 3, -3, 60_000, -60_000))
seldom = st.sampled_from((False, False, False, True))
pick = st.integers(0, 1_000_000)


@dataclass
class Executor:
    conversation: str
    token: str
    batch_id: str
    messages: list[bytes]
    done: bool = False  # emitted or dead-lettered: may complete


class EngineMachine(RuleBasedStateMachine):
    """Give a subclass an `open_engine`."""

    def open_engine(self) -> Engine:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.engine = self.open_engine()
        self.store = self.engine.store
        self.model = {name: ConversationModel() for name in CONVERSATIONS}
        self.lease: tuple[str, int] | None = None
        self.invocations: list[str] = []
        self.conversation_processors: list[Executor] = []
        self.emitted: list[tuple[str, str, list[bytes]]] = []  # conversation, batch id, payloads
        self.accepted: dict[str, list[str]] = defaultdict(list)
        self.withdrawn: set[tuple[str, str]] = set()  # cancelled or deleted while waiting: must never come out
        self.cancelled_batches: set[str] = set()  # frozen then: may come out, at any time, or not
        self.cancelled_ids: dict[str, set[str]] = defaultdict(set)
        self.sent = 0
        self.tokens = 0
        self.calls: list[tuple[int, str, str, tuple[Any, ...], dict[str, Any]]] = []

    # -- how a step is made ------------------------------------------------------------------------------------

    def now(self, skew: int) -> int:
        return self.engine.clock.now_ms + skew

    def call(self, skew: int, twice: bool, method: str, *args: Any, **kwargs: Any) -> Any:
        """One call by somebody whose clock is `skew` off. If its answer is lost, the same call is made again."""
        clock, true_now = self.engine.clock, self.engine.clock.now_ms
        clock.now_ms += skew
        self.tokens += 1
        call_id = f"call-{self.tokens}"
        self.store._new_call_id = lambda: call_id
        try:
            answer = getattr(self.store, method)(*args, **kwargs)
            if not (isinstance(answer, Absent) and not answer.known):  # it may well be there when asked again
                self.calls.append((clock.now_ms, call_id, method, args, kwargs))
            if twice:
                before = self.engine.settle()
                again = getattr(self.store, method)(*args, **kwargs)
                after = self.engine.settle()
                assert before == after, f"repeating {method} changed something"
                if method == "claim_due" and isinstance(answer, Claimed):
                    assert again == answer, "the repeated claim forgot what it had claimed"
                if getattr(answer, "start_processor", False):
                    assert again.start_processor, f"the repeated {method} forgot the start it had reserved"
            return answer
        finally:
            clock.now_ms = true_now

    @precondition(lambda self: any(method in LATE_REPEATS for _, _, method, _, _ in self.calls))
    @rule(which=pick)
    def repeated_late(self, which: int) -> None:
        """An answer was lost, and much has happened when the call is made again. It must not undo any of that."""
        calls = [call for call in self.calls if call[2] in LATE_REPEATS]
        at, call_id, method, args, kwargs = calls[-1 - which % min(len(calls), 20)]
        clock, true_now, before = self.engine.clock, self.engine.clock.now_ms, self.contents()
        clock.now_ms = at
        self.store._new_call_id = lambda: call_id
        getattr(self.store, method)(*args, **kwargs)
        clock.now_ms = true_now
        assert self.contents() == before, f"a late {method} undid something"

    def contents(self) -> dict[str, Any]:
        """All there is but the processor's affairs: a late call may start or wake one."""
        kept = {name: key for name, key in self.engine.keys().items() if name not in {"{b0}:processor", "{b0}:wake"}}
        buffers = kept.pop("{b0}:open", None)
        contents: dict[str, Any] = {name: sorted(key.value) for name, key in kept.items()}
        contents["buffers"] = {name: line for name, line in buffers.pairs.items() if name} if buffers else {}
        return contents

    def must_be_picked_up(self, at: int, now: int) -> None:
        """Whoever schedules answers for it: a living processor will look in time, or a start is reserved."""
        hashes = {name: key.pairs for name, key in self.engine.keys().items() if key.kind == "hash"}
        processor, alive = hashes.get("{b0}:processor", {}), hashes.get("{b0}:open", {}).get(b"", b"0")
        if int(alive[:13]) >= now:
            wake_at = int(alive[13:])
            assert wake_at == 0 or wake_at <= at, "the processor sleeps past the due time"
        elif at <= now + SETTINGS.horizon_ms:
            assert int(processor.get(b"starting_until", 0)) > now, "work is scheduled, nobody comes for it"

    # -- ingesters ---------------------------------------------------------------------------------------------

    @rule(name=conversations, rules=st.sampled_from(RULES), count=st.integers(1, 6), skew=skews, twice=seldom)
    def burst(self, name: str, rules: Rules, count: int, skew: int, twice: bool) -> None:
        for _ in range(count):
            self.sent += 1
            self._deliver(name, f"m{self.sent}", rules.timing, skew, twice)

    @precondition(lambda self: self.sent)
    @rule(name=conversations, which=pick, skew=skews)
    def redelivery(self, name: str, which: int, skew: int) -> None:
        self._deliver(name, f"m{which % self.sent + 1}", Rules().timing, skew, twice=False)

    def _deliver(self, name: str, message_id: str, timing: Timing, skew: int, twice: bool) -> None:
        model, now = self.model[name], self.now(skew)
        known = message_id in model.seen
        outcome = self.call(skew, twice, "buffer_message", name, message_id, payload=payload(message_id), timing=timing)
        if known:
            assert isinstance(outcome, Duplicate)
        else:
            assert isinstance(outcome, Buffered)
            model.buffer(message_id, payload(message_id), timing, now)
            self.accepted[name].append(message_id)
            assert outcome.due_at_ms == model.due_at
            assert model.first_at is not None
            # I4; what was due already stays due.
            assert outcome.due_at_ms <= max(model.first_at + timing.max_wait_ms, model.held_until, now)
            if model.frozen is None and model.state == "PENDING":
                self.must_be_picked_up(model.scheduled_at, now)
        assert outcome.count == len(model.waiting)

    # -- processors --------------------------------------------------------------------------------------------

    def _owns(self, processor: str, now: int) -> bool:
        return self.lease is not None and self.lease[0] == processor and self.lease[1] > now

    @rule(processor=processors, skew=skews, twice=seldom)
    def acquire(self, processor: str, skew: int, twice: bool) -> None:
        outcome, now = self.call(skew, twice, "acquire_lease", 0, processor), self.now(skew)
        if self.lease and self.lease[0] != processor and self.lease[1] > now:
            assert outcome == LeaseTaken(self.lease[1])
        else:
            assert outcome == Acquired(now + SETTINGS.lease_ms)
            self.lease = (processor, now + SETTINGS.lease_ms)

    @rule(processor=processors, skew=skews, twice=seldom)
    def renew(self, processor: str, skew: int, twice: bool) -> None:
        outcome, now = self.call(skew, twice, "renew_lease", 0, processor), self.now(skew)
        if self._owns(processor, now):
            assert outcome == Renewed(now + SETTINGS.lease_ms)
            self.lease = (processor, now + SETTINGS.lease_ms)
        else:
            assert outcome == Lost()

    @rule(
        processor=processors, limit=st.sampled_from((1, 100, 100)), early_ms=st.sampled_from((0, 0, 1, 700)),
        skew=skews, twice=seldom, crash=seldom,
    )  # fmt: skip
    def works(self, processor: str, limit: int, early_ms: int, skew: int, twice: bool, crash: bool) -> None:
        """What processors do most of the time: be the one, wait until something is due (or not quite), claim it."""
        times = [m.scheduled_at for m in self.model.values() if m.state == "PENDING"]
        if times:
            latest = min(max(times) - early_ms, self.now(60_000))
            self.engine.clock.now_ms = max(self.engine.clock.now_ms, latest)
        self.acquire(processor, skew, twice)
        self.claim(processor, limit, skew, twice, crash)

    @rule(processor=processors, limit=st.sampled_from((1, 100, 100)), skew=skews, twice=seldom, crash=seldom)
    def claim(self, processor: str, limit: int, skew: int, twice: bool, crash: bool) -> None:
        now = self.now(skew)
        due = {n for n, m in self.model.items() if m.state == "PENDING" and m.scheduled_at <= now}
        outcome = self.call(skew, twice, "claim_due", 0, processor, limit=limit)
        if not self._owns(processor, now):
            assert outcome == Lost()
            return
        assert isinstance(outcome, Claimed)
        claimed = [due.conversation for due in outcome.conversations]
        assert len(claimed) == len(set(claimed)) <= limit
        assert set(claimed) == due if limit > len(CONVERSATIONS) else set(claimed) <= due
        for name in claimed:
            self.model[name].claim(now + SETTINGS.claim_ms)
        left = [m.scheduled_at for m in self.model.values() if m.state == "PENDING"]
        assert outcome.next_due_at_ms is not None if left else outcome.next_due_at_ms is None
        assert outcome.next_due_at_ms is None or outcome.next_due_at_ms <= min(left)
        if not crash:
            self.invocations += claimed

    @precondition(lambda self: self.invocations)
    @rule(
        which=pick, processor=processors, delay=st.integers(0, 500), fate=st.sampled_from(("lost", "late", "arrived")),
        skew=skews, twice=seldom,
    )  # fmt: skip
    def invocation_fails(self, which: int, processor: str, delay: int, fate: str, skew: int, twice: bool) -> None:
        """The invocation seems to have failed. If only its answer was lost, a conversation processor has come or
        comes later.
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
            assert outcome == Lost()
        elif model.state != "INFLIGHT":
            assert outcome == Stale()
        elif model.frozen and model.frozen.token_until > now:
            assert isinstance(outcome, Busy)
        else:
            assert outcome == Returned(now + delay)
            model.back_to_pending(now + delay)
            self.must_be_picked_up(now + delay, now)

    @rule(processor=processors, handover=st.booleans(), skew=skews, twice=seldom)
    def leave(self, processor: str, handover: bool, skew: int, twice: bool) -> None:
        now = self.now(skew)
        scores = [float(score) for score in self._zset("{b0}:pending").values()]
        near = bool(scores) and min(scores) <= now + SETTINGS.horizon_ms
        twice = twice and handover  # an idle leave that is repeated finds the lease gone
        outcome = self.call(skew, twice, "hand_over" if handover else "leave_if_idle", 0, processor)
        if self.lease is None or self.lease[0] != processor:
            assert outcome == Lost()
        elif near and not handover:
            assert isinstance(outcome, WorkIsNear)
        else:
            assert isinstance(outcome, Released)
            assert outcome.start_processor == near
            self.lease = None

    # -- conversation processors
    # ---------------------------------------------------------------------------------------------

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
            assert outcome == Stale()
            return
        if model.frozen and model.frozen.token_until > now:
            assert outcome == Busy(model.frozen.token_until)
            return
        assert isinstance(outcome, Taken)
        if model.frozen is None:
            assert outcome.batch_id not in {batch_id for _, batch_id, _ in self.emitted}
            model.freeze(outcome.batch_id, SETTINGS.max_batch, now)
        assert model.frozen is not None
        batch = model.frozen
        batch.attempt += 1
        batch.token, batch.token_until = token, now + SETTINGS.token_ms
        model.scheduled_at = batch.token_until
        assert outcome.batch_id == batch.batch_id
        assert outcome.attempt == batch.attempt
        assert outcome.payloads == [text for _, text in batch.messages]
        assert outcome.left_out == batch.left_out
        if not crash:
            self.conversation_processors.append(Executor(name, token, outcome.batch_id, outcome.payloads))

    @precondition(
        lambda self: any(not conversation_processor.done for conversation_processor in self.conversation_processors)
    )
    @rule(which=pick, crash=seldom)
    def emit(self, which: int, crash: bool) -> None:
        """Onto the bus, or after many attempts into the dead-letter queue: for the engine it is the same."""
        open_ones = [
            conversation_processor
            for conversation_processor in self.conversation_processors
            if not conversation_processor.done
        ]
        conversation_processor = open_ones[which % len(open_ones)]
        self._emit(conversation_processor)
        if crash:
            self.conversation_processors.remove(conversation_processor)

    def _emit(self, conversation_processor: Executor) -> None:
        if not conversation_processor.done:
            self.emitted.append(
                (conversation_processor.conversation, conversation_processor.batch_id, conversation_processor.messages)
            )
            conversation_processor.done = True

    @precondition(lambda self: self.conversation_processors)
    @rule(which=pick, left_out=st.frozensets(st.integers(0, 9), max_size=3), skew=skews, twice=seldom)
    def exclude(self, which: int, left_out: frozenset[int], skew: int, twice: bool) -> None:
        conversation_processor = self.conversation_processors[which % len(self.conversation_processors)]
        batch = self.model[conversation_processor.conversation].frozen
        outcome = self.call(
            skew,
            twice,
            "exclude_messages",
            conversation_processor.conversation,
            conversation_processor.token,
            left_out=left_out,
        )
        if batch is None or batch.token != conversation_processor.token:
            assert outcome == Stale()
            return
        if batch.left_out is None:
            batch.left_out = left_out
        assert outcome == Excluded()

    @precondition(
        lambda self: any(conversation_processor.done for conversation_processor in self.conversation_processors)
    )
    @rule(which=pick, skew=skews, twice=seldom)
    def complete(self, which: int, skew: int, twice: bool) -> None:
        done = [
            conversation_processor
            for conversation_processor in self.conversation_processors
            if conversation_processor.done
        ]
        self._complete(done[which % len(done)], skew, twice)

    def _complete(self, conversation_processor: Executor, skew: int, twice: bool) -> None:
        now = self.now(skew)
        self.conversation_processors.remove(conversation_processor)
        model = self.model[conversation_processor.conversation]
        outcome = self.call(
            skew, twice, "complete_batch", conversation_processor.conversation, conversation_processor.token
        )
        if model.frozen is None or model.frozen.token != conversation_processor.token:
            assert outcome == Stale()
            return
        model.completed(SETTINGS.max_emitted)
        assert isinstance(outcome, Completed)
        assert outcome.count == len(model.waiting)
        assert outcome.next_due_at_ms == (model.due_at if model.waiting else None)
        if model.waiting:
            self.must_be_picked_up(model.scheduled_at, now)

    @precondition(lambda self: self.conversation_processors)
    @rule(which=pick, delay=st.integers(0, 5000), skew=skews, twice=seldom)
    def emitting_fails(self, which: int, delay: int, skew: int, twice: bool) -> None:
        self._fail(self.conversation_processors[which % len(self.conversation_processors)], delay, skew, twice)

    def _fail(self, conversation_processor: Executor, delay: int, skew: int, twice: bool) -> None:
        now = self.now(skew)
        self.conversation_processors.remove(conversation_processor)
        model = self.model[conversation_processor.conversation]
        retry_at = now + delay
        outcome = self.call(
            skew,
            twice,
            "retry_batch",
            conversation_processor.conversation,
            conversation_processor.token,
            retry_at_ms=retry_at,
        )
        if model.frozen is None or model.frozen.token != conversation_processor.token:
            assert outcome == Stale()
            return
        model.frozen.token_until = 0
        model.back_to_pending(retry_at)
        assert isinstance(outcome, Retried)
        assert outcome.due_at_ms == model.scheduled_at
        self.must_be_picked_up(model.scheduled_at, now)

    @rule(which=pick, processor=processors, then=st.sampled_from(("dies", "completes", "fails")))
    def conversation_processor_stalls(self, which: int, processor: str, then: str) -> None:
        """Slow, not dead: its batch is given to another, and then it goes on."""
        self._take_all(processor)
        if not self.conversation_processors:
            return
        conversation_processor = self.conversation_processors[which % len(self.conversation_processors)]
        self.engine.clock.advance(SETTINGS.token_ms + 1)
        self.watchdog(0, False)
        self._take_all(processor)
        if then == "completes":
            self._emit(conversation_processor)
            self._complete(conversation_processor, 0, False)
        elif then == "fails":
            self._fail(conversation_processor, 100, 0, False)
        else:
            self.conversation_processors.remove(conversation_processor)

    def _take_all(self, processor: str, skew: int = 0) -> None:
        self.works(processor, 100, 0, skew, False, False)
        while self.invocations:
            self.take(0, False, False, skew, False)

    @rule(
        processor=processors, failures=st.integers(0, 2), delay=st.integers(0, 5000),
        slow_ms=st.sampled_from((0, 20_000)), skew=skews,
    )  # fmt: skip
    def batches_go_out(self, processor: str, failures: int, delay: int, slow_ms: int, skew: int) -> None:
        """The ordinary course: what is due is claimed, taken and, after some failures, emitted and completed.

        When that is slow, authors go on writing and the processor dies meanwhile.
        """
        for attempt in range(failures + 1):
            self._take_all(processor, skew)
            if slow_ms:
                for name in sorted(
                    {conversation_processor.conversation for conversation_processor in self.conversation_processors}
                ):
                    self.burst(name, RULES[0], 1, skew, False)
                self.engine.clock.advance(slow_ms)
            for conversation_processor in list(self.conversation_processors):
                if attempt < failures:
                    self._fail(conversation_processor, delay, skew, False)
                else:
                    self._emit(conversation_processor)
                    self._complete(conversation_processor, skew, False)

    @precondition(lambda self: self.conversation_processors)
    @rule(which=pick)
    def conversation_processor_dies(self, which: int) -> None:
        del self.conversation_processors[which % len(self.conversation_processors)]

    # -- the watchdog ------------------------------------------------------------------------------------------

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
        if pending:
            self.must_be_picked_up(min(pending), now)

    # -- operators, control words, typing ----------------------------------------------------------------------

    @rule(name=conversations, skew=skews, twice=seldom)
    def flush(self, name: str, skew: int, twice: bool) -> None:
        outcome, now, model = self.call(skew, twice, "flush_buffer", name), self.now(skew), self.model[name]
        assert (outcome == Empty()) == model.is_idle
        model.flush(now)
        if model.state == "PENDING":
            self.must_be_picked_up(model.scheduled_at, now)

    @rule(name=conversations, skew=skews, twice=seldom, sure=seldom)
    def cancel(self, name: str, skew: int, twice: bool, sure: bool) -> None:
        if not sure:  # rarer than the rest, or nothing would ever grow
            return
        model, now = self.model[name], self.now(skew)
        buffered, frozen = len(model.waiting), len(model.frozen.messages) if model.frozen else 0
        self.withdrawn |= {(name, message_id) for message_id, _ in model.waiting}
        if model.frozen:
            self.cancelled_batches.add(model.frozen.batch_id)
            self.cancelled_ids[name] |= {message_id for message_id, _ in model.frozen.messages}
        leaving = model.frozen is not None and model.frozen.token_until > now
        outcome = self.call(skew, twice, "cancel_buffer", name)
        model.cancel()
        assert outcome == Cancelled(model.generation, buffered, frozen, leaving)

    @precondition(lambda self: any(m.frozen for m in self.model.values()))
    @rule(skew=skews, sure=seldom)
    def cancel_what_is_frozen(self, skew: int, sure: bool) -> None:
        for name, model in self.model.items():
            if model.frozen:
                self.cancel(name, skew, False, sure)

    @rule(name=conversations, hold_ms=st.sampled_from((500, 20_000, 200_000)), skew=skews, twice=seldom)
    def hold(self, name: str, hold_ms: int, skew: int, twice: bool) -> None:
        outcome, model = self.call(skew, twice, "hold_buffer", name, hold_ms=hold_ms), self.model[name]
        model.hold(self.now(skew) + hold_ms)
        assert isinstance(outcome, OnHold)
        assert outcome.held_until_ms == model.held_until
        if model.state == "PENDING" and model.waiting and not model.frozen:
            self.must_be_picked_up(model.scheduled_at, self.now(skew))

    @rule(name=conversations, skew=skews, twice=seldom)
    def resume(self, name: str, skew: int, twice: bool) -> None:
        outcome, now, model = self.call(skew, twice, "resume_buffer", name), self.now(skew), self.model[name]
        assert isinstance(outcome, Resumed) == (model.held_until > now)
        model.resume(now)
        if model.state == "PENDING" and model.frozen is None:
            self.must_be_picked_up(model.scheduled_at, now)

    @rule(name=conversations, extend_ms=st.integers(1, 5000), skew=skews, twice=seldom)
    def typing(self, name: str, extend_ms: int, skew: int, twice: bool) -> None:
        model, before = self.model[name], self.model[name].due_at
        outcome = self.call(skew, twice, "extend_wait", name, extend_ms=extend_ms, max_wait_ms=30_000)
        model.extend(extend_ms, 30_000, self.now(skew))
        if not model.waiting:
            assert outcome == Empty()
        else:
            assert outcome.due_at_ms == model.due_at
            assert isinstance(outcome, Extended) == (model.due_at != before)

    @rule(name=conversations, rules=st.sampled_from(RULES), skew=skews, twice=seldom)
    def rules_change(self, name: str, rules: Rules, skew: int, twice: bool) -> None:
        model, now = self.model[name], self.now(skew)
        was_due = model.due_at if model.waiting else None
        outcome = self.call(skew, twice, "retime_buffer", name, timing=rules.timing)
        model.retime(rules.timing, now)
        if was_due is None:
            assert outcome == Empty()
        elif was_due < now:
            assert outcome == Unmoved(was_due)
        else:
            assert isinstance(outcome, Retimed)
            assert (outcome.due_at_ms, outcome.count) == (model.due_at, len(model.waiting))
            assert model.first_at is not None
            assert outcome.due_at_ms <= max(model.first_at + rules.max_wait_ms, model.held_until, now)  # I4
            if model.frozen is None and model.state == "PENDING":
                self.must_be_picked_up(model.scheduled_at, now)

    @precondition(lambda self: any(m.frozen and m.state == "PENDING" for m in self.model.values()))
    @rule(rules=st.sampled_from(RULES), skew=skews)
    def rules_change_behind_a_retry(self, rules: Rules, skew: int) -> None:
        for name, model in self.model.items():
            if model.frozen and model.state == "PENDING":
                self.burst(name, RULES[2], 1, skew, False)
                self.rules_change(name, rules, skew, False)
        self.listing()

    @precondition(lambda self: any(m.waiting and not m.frozen and m.state == "INFLIGHT" for m in self.model.values()))
    @rule(rules=st.sampled_from(RULES))
    def rules_change_by_a_lagging_clock_while_it_is_claimed(self, rules: Rules) -> None:
        for name, model in self.model.items():
            if model.waiting and not model.frozen and model.state == "INFLIGHT":
                self.rules_change(name, rules, -60_000, False)

    @rule(name=conversations)
    def rules_bound_a_long_talk(self, name: str) -> None:
        self.burst(name, RULES[2], 1, 0, False)
        self.engine.clock.advance(1_400)
        self.burst(name, RULES[2], 1, 0, False)
        self.rules_change(name, RULES[1], 0, False)

    @rule(name=conversations, processor=processors, deletes=st.booleans())
    def a_message_changes_long_after_its_batch(self, name: str, processor: str, deletes: bool) -> None:
        begin = len(self.accepted[name])
        for _ in range(SETTINGS.max_emitted + 1):
            self.burst(name, RULES[4], 1, 0, False)
            self.batches_go_out(processor, 0, 0, 0, 0)
        if len(self.accepted[name]) > begin:
            self.edit_or_delete(name, begin, "its own", deletes, False)

    @precondition(lambda self: self.sent)
    @rule(
        name=conversations, which=pick, among=st.sampled_from(("here", "here", "its own", "anybody's")),
        deletes=st.booleans(), twice=seldom,
    )  # fmt: skip
    def edit_or_delete(self, name: str, which: int, among: str, deletes: bool, twice: bool) -> None:
        model = self.model[name]
        here = [*model.waiting, *(model.frozen.messages if model.frozen else [])]
        if among == "here" and here:
            message_id, _ = here[which % len(here)]
        elif among != "anybody's" and self.accepted[name]:
            message_id = self.accepted[name][which % len(self.accepted[name])]
        else:
            message_id = f"m{which % self.sent + 1}"
        waiting = message_id in dict(model.waiting)
        frozen = model.frozen is not None and message_id in dict(model.frozen.messages)
        text = payload(message_id, "edited")
        found = self.store.find_message(name, message_id)
        if deletes:
            outcome = self.call(0, twice, "delete_message", name, message_id)
        else:
            outcome = self.call(0, twice, "edit_message", name, message_id, payload=text)
        if not waiting:
            assert found == outcome
            if frozen:
                assert model.frozen is not None
                assert outcome == Frozen(model.frozen.batch_id)
            else:
                assert outcome == Absent(message_id in model.seen, model.came_out_in(message_id, SETTINGS.max_emitted))
            return
        assert found == Waiting([waiting_id for waiting_id, _ in model.waiting].index(message_id))
        if deletes:
            model.delete(message_id)
            self.withdrawn.add((name, message_id))
            assert outcome == Deleted(len(model.waiting))
        else:
            assert isinstance(outcome, Edited)
            model.edit(message_id, text)

    @precondition(lambda self: any(m.frozen and m.state == "PENDING" and not m.waiting for m in self.model.values()))
    @rule()
    def listing_of_a_retry(self) -> None:
        self.listing()

    @rule()
    def listing(self) -> None:
        listed: dict[str, tuple[str, int]] = {}
        cursor: str | None = FIRST_PAGE
        while cursor:
            page = self.store.list_conversations(0, cursor=cursor)
            for found in page.conversations:
                assert found.conversation not in listed, "twice, though nothing moved"
                listed[found.conversation] = (found.state, found.scheduled_at_ms)
            cursor = page.next_cursor
        assert listed == {n: (m.state, m.scheduled_at) for n, m in self.model.items() if not m.is_idle}

    # -- time --------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from((1, 50, 199, 200, 500, 999, 1000, 3000, 10_000, 31_000)))
    def time_passes(self, ms: int) -> None:
        self.engine.clock.advance(ms)

    @rule(ms=st.sampled_from((60_000, -60_000)), sure=seldom)
    def clock_jumps(self, ms: int, sure: bool) -> None:
        if sure:
            self.engine.clock.advance(ms)

    # -- what must hold after every step -----------------------------------------------------------------------

    def _zset(self, name: str) -> dict[bytes, bytes]:
        key = self.engine.keys().get(name)
        return key.pairs if key else {}

    @invariant()
    def everything_holds(self) -> None:
        keys = self.engine.keys()
        pending = keys["{b0}:pending"].pairs if "{b0}:pending" in keys else {}
        inflight = keys["{b0}:inflight"].pairs if "{b0}:inflight" in keys else {}
        buffers = keys["{b0}:open"].pairs if "{b0}:open" in keys else {}
        assert len(keys["{b0}:wake"].value if "{b0}:wake" in keys else []) <= 1
        held = keys["{b0}:held"].pairs if "{b0}:held" in keys else {}
        assert held == {n.encode(): b"%d" % m.held_until for n, m in self.model.items() if m.held_until}
        for name, key in keys.items():
            assert name.count(":") > 1 or key.ttl_ms == -1, f"{name}, which belongs to the whole shard, expires"
        for name, model in self.model.items():
            assert shard_of(name, 1) == 0
            self._check_schedule(name, model, pending, inflight, buffers.get(name.encode()))
            self._check_content(name, model, keys, buffers.get(name.encode()))

    @staticmethod
    def _check_schedule(
        name: str, model: ConversationModel, pending: dict[bytes, bytes], inflight: dict[bytes, bytes],
        buffer: bytes | None,
    ) -> None:  # fmt: skip
        member = name.encode()
        # I1, and its converse: nothing is scheduled that is not there.
        where = {"PENDING": (True, False), "INFLIGHT": (False, True), "IDLE": (False, False)}[model.state]
        assert (member in pending, member in inflight) == where
        assert (model.state == "IDLE") == model.is_idle
        if model.state == "PENDING":
            moved_to = int(buffer[26:39]) if buffer and model.frozen is None else 0
            assert max(int(pending[member]), moved_to) == model.scheduled_at
        elif model.state == "INFLIGHT":
            assert int(inflight[member]) == model.scheduled_at  # I2 rests on this deadline

    @staticmethod
    def _check_content(name: str, model: ConversationModel, keys: dict[str, Key], buffer: bytes | None) -> None:
        def key(kind: str) -> Key | None:
            return keys.get(f"{{b0}}:{kind}:{name}")

        msgs, batch, taken, conv, seen = key("msgs"), key("batch"), key("taken"), key("conv"), key("seen")
        emitted = key("emitted")
        assert (msgs.value if msgs else []) == [text for _, text in model.waiting]
        # I3: content and identity of a frozen batch are those first taken.
        assert (batch.value if batch else []) == [text for _, text in (model.frozen.messages if model.frozen else [])]
        assert (taken is None) == (model.frozen is None)
        if taken and model.frozen:
            assert taken.pairs[b"batch_id"].decode() == model.frozen.batch_id
            excluded = taken.pairs.get(b"left_out")
            assert (None if excluded is None else set(map(int, excluded.split()))) == model.frozen.left_out
        # Nothing that belongs to a waiting message may expire; what is idle does.
        for found in (msgs, batch, taken):
            assert found is None or found.ttl_ms == -1
        assert seen is None or (seen.ttl_ms > 0) == model.is_idle
        assert emitted is None or emitted.ttl_ms > 0
        remembered = {batch_id.decode(): int(at) for batch_id, at in emitted.pairs.items()} if emitted else {}
        assert remembered == model.emitted
        if conv and (model.is_idle or model.frozen):
            # Of an author with nothing but an open buffer, conv may go: the buffer has its own copy of the generation.
            assert (conv.ttl_ms > 0) == model.is_idle
        assert (buffer is not None) == bool(model.waiting)
        if buffer:
            assert int(buffer[40:50]) + len(model.waiting) == model.generation
            assert [int(buffer[:13]), int(buffer[13:26]), int(buffer[26:39])] == [
                model.first_at, model.last_at, model.due_at,
            ]  # fmt: skip
            assert (buffer[39:40] == b"f") == (model.frozen is not None)
            if model.held_until and not model.frozen:
                assert buffer[39:40] == b"h", "nobody would look for the hold"
        elif conv:
            assert int(conv.pairs.get(b"generation", 0)) == model.generation

    # -- how it ends -------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Everybody has died. A watchdog, a fresh processor and healthy conversation processors bring out all that
        is left.
        """
        self.invocations, self.conversation_processors = [], []
        self.engine.clock.advance(10_000_000)
        self.watchdog(0, False)
        for round_ in range(100):
            if all(model.is_idle for model in self.model.values()):
                return
            processor = f"drain-{round_}"
            self.engine.clock.advance(SETTINGS.lease_ms + 60_001)
            self.acquire(processor, 0, False)
            self.claim(processor, 100, 0, False, False)
            while self.invocations:
                self.take(0, False, False, 0, False)
            while self.conversation_processors:
                if not self.conversation_processors[0].done:
                    self.emit(0, False)
                self.complete(0, 0, False)
            self.watchdog(0, False)
            self.everything_holds()
        raise AssertionError("something stays in the buffer for ever")

    def check_history(self) -> None:
        contents: dict[str, list[bytes]] = {}
        came_out: dict[str, list[str]] = defaultdict(list)
        for name, batch_id, payloads in self.emitted:
            assert contents.setdefault(batch_id, payloads) == payloads, "one batch id, two contents"
            if batch_id not in came_out[name]:
                came_out[name].append(batch_id)
        for name, accepted in self.accepted.items():
            ids = {line: message_id for message_id in accepted for line in [payload(message_id).split(b"\n")[0]]}
            batches_of: dict[str, list[str]] = defaultdict(list)
            order: list[str] = []
            for batch_id in came_out[name]:
                for text in contents[batch_id]:
                    message_id = ids[text.split(b"\n")[0]]
                    batches_of[message_id].append(batch_id)
                    if batch_id not in self.cancelled_batches:
                        order.append(message_id)
            for message_id in accepted:
                count = len(batches_of[message_id])
                assert count <= 1, f"{message_id} came out under {count} batch ids"
                if (name, message_id) in self.withdrawn:
                    assert count == 0, f"{message_id} was withdrawn and came out"
            expected = [m for m in accepted if m in set(order)]
            assert order == expected, "out of order"
            missing = set(accepted) - set(order) - {m for n, m in self.withdrawn if n == name}
            assert missing <= self.cancelled_ids[name], f"lost: {missing - self.cancelled_ids[name]}"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.drain()
        self.check_history()
