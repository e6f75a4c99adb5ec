"""Operators and control words: flush, cancel, hold, resume, new rules, and the list of conversations."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from message_buffer.lanes.holds import NO_END_MS, Holder
from message_buffer.lanes.outcomes import (
    BufferCancelled,
    BufferEmpty,
    BufferRetimed,
    BufferUnmoved,
    ConversationForgotten,
    HoldEnded,
    OnHold,
)
from message_buffer.lanes.valkey.store import FIRST_PAGE
from message_buffer.limits import MAX_CALL_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.machine.base import RULES, conversations, seldom, skews
from tests.support.machine.writer import Writers
from tests.support.model import ConversationModel

HOLDS: tuple[tuple[Holder, str], ...] = (("people", "answer"), ("people", "operator"), ("consumers", "crm"))
MARK: tuple[Holder, str] = ("handoff", "answer")


class Operators(Writers):
    @rule(name=conversations, skew=skews, twice=seldom)
    def flush(self, name: str, skew: int, twice: bool) -> None:
        outcome, now, model = self.call(skew, twice, "flush_buffer", name), self.now(skew), self.model[name]
        assert (outcome == BufferEmpty()) == model.is_idle
        model.flush(now)
        if model.state == "PENDING":
            self.must_be_picked_up(model.scheduled_at, now)

    @rule(name=conversations, skew=skews, twice=seldom, sure=seldom)
    def cancel(self, name: str, skew: int, twice: bool, sure: bool) -> None:
        if not sure:  # rarer than the rest, or nothing would ever grow
            return
        model, now = self.model[name], self.now(skew)
        buffered, frozen = len(model.waiting), len(model.frozen.messages) if model.frozen else 0
        self._drop(name)
        leaving = model.frozen is not None and model.frozen.token_until > now
        outcome = self.call(skew, twice, "cancel_buffer", name)
        model.cancel()
        assert outcome == BufferCancelled(model.generation, buffered, frozen, leaving)

    @precondition(lambda self: any(m.frozen for m in self.model.values()))
    @rule(skew=skews, sure=seldom)
    def cancel_what_is_frozen(self, skew: int, sure: bool) -> None:
        for name, model in self.model.items():
            if model.frozen:
                self.cancel(name, skew, False, sure)

    def _drop(self, name: str) -> None:
        """Note that nothing that waits may come out, and that the frozen batch may."""
        model, life = self.model[name], self.life(name)
        self.withdrawn |= {(life, message_id) for message_id, _ in model.waiting}
        if model.frozen:
            self.cancelled_batches.add((life, model.frozen.batch_id))
            self.cancelled_ids[life] |= {message_id for message_id, _ in model.frozen.messages}

    @rule(name=conversations, skew=skews, twice=seldom, sure=seldom)
    def forget(self, name: str, skew: int, twice: bool, sure: bool) -> None:
        if not sure:
            return
        model, now = self.model[name], self.now(skew)
        waiting, frozen = len(model.waiting), model.frozen
        self._drop(name)
        leaving_until = frozen.token_until + MAX_CALL_MS if frozen and frozen.token_until > now else None
        outcome = self.call(skew, twice, "forget_conversation", name)
        last_at = model.last_arrival(now)
        assert outcome == ConversationForgotten(last_at, waiting, len(frozen.messages) if frozen else 0, leaving_until)
        for key, found in self.engine.keys().items():
            assert not key.endswith(f":{name}"), f"{key} is left"
            assert name.encode() not in found.value, f"{key} names the conversation"
        self.model[name] = ConversationModel()
        self.forgets[name] += 1
        # Late repeats of these calls find a new conversation, in which they have an effect.
        again = {"buffer_message", "cancel_buffer"}
        self.calls = [each for each in self.calls if each[2] not in again or each[3][0] != name]

    @precondition(lambda self: any(m.frozen for m in self.model.values()))
    @rule(skew=skews, sure=seldom)
    def forget_what_is_frozen(self, skew: int, sure: bool) -> None:
        for name, model in self.model.items():
            if model.frozen:
                self.forget(name, skew, False, sure)

    @rule(
        name=conversations, hold_ms=st.sampled_from((500, 20_000, 200_000, None)), of=st.sampled_from((*HOLDS, MARK)),
        skew=skews, twice=seldom,
    )  # fmt: skip
    def hold(self, name: str, hold_ms: int | None, of: tuple[Holder, str], skew: int, twice: bool) -> None:
        (holder, cause), model = of, self.model[name]
        if holder != "handoff" and hold_ms is None:
            return  # only a mark may be without a limit
        outcome = self.call(skew, twice, "hold_buffer", name, holder=holder, cause=cause, hold_ms=hold_ms)
        model.hold(holder, cause, NO_END_MS if hold_ms is None else self.now(skew) + hold_ms)
        assert isinstance(outcome, OnHold)
        assert outcome.held_until_ms == (model.marked_until if holder == "handoff" else model.held_until)
        # A mark moves no due time, so it asks for no processor either.
        if holder != "handoff" and model.state == "PENDING" and model.waiting and not model.frozen:
            self.must_be_picked_up(model.scheduled_at, self.now(skew))

    @rule(name=conversations, of=st.sampled_from((*HOLDS, MARK, (None, None))), skew=skews, twice=seldom)
    def resume(self, name: str, of: tuple[Holder | None, str | None], skew: int, twice: bool) -> None:
        (holder, cause), now, model = of, self.now(skew), self.model[name]
        outcome = self.call(skew, twice, "resume_buffer", name, holder=holder, cause=cause)
        was_held, was_marked = model.held_until > now, model.marked_until > now
        model.resume(now, holder, cause)
        if model.held_until > now:
            assert isinstance(outcome, OnHold)
            assert outcome.held_until_ms == model.held_until
        else:
            assert isinstance(outcome, HoldEnded) == (was_held or (was_marked and not model.marked_until))
        if model.state == "PENDING" and model.frozen is None:
            self.must_be_picked_up(model.scheduled_at, now)

    @rule(name=conversations, skew=skews, twice=seldom)
    def reply(self, name: str, skew: int, twice: bool) -> None:
        at = self.now(skew)
        assert self.call(skew, twice, "note_reply", name, at_ms=at) == self.model[name].note_reply(at)

    @rule(name=conversations, rules=st.sampled_from(RULES), skew=skews, twice=seldom)
    def rules_change(self, name: str, rules: Rules, skew: int, twice: bool) -> None:
        model, now = self.model[name], self.now(skew)
        was_due = model.due_at if model.waiting else None
        outcome = self.call(skew, twice, "retime_buffer", name, timing=rules.timing)
        model.retime(rules.timing, now)
        if was_due is None:
            assert outcome == BufferEmpty()
        elif was_due < now:
            assert outcome == BufferUnmoved(was_due)
        else:
            assert isinstance(outcome, BufferRetimed)
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

    @precondition(lambda self: any(m.frozen and m.state == "PENDING" and not m.waiting for m in self.model.values()))
    @rule()
    def listing_of_a_retry(self) -> None:
        self.listing()

    @rule()
    def listing(self) -> None:
        listed: list[str] = []
        cursor: str | None = FIRST_PAGE
        while cursor:
            page = self.store.list_conversations(0, cursor=cursor)
            listed += page.conversations
            cursor = page.next_cursor
        assert sorted(listed) == sorted(n for n, m in self.model.items() if not m.is_idle), "or twice: nothing moved"

    @rule(name=conversations)
    def rules_bound_a_long_talk(self, name: str) -> None:
        self.burst(name, RULES[2], 1, 0, False)
        self.engine.clock.advance(1_400)
        self.burst(name, RULES[2], 1, 0, False)
        self.rules_change(name, RULES[1], 0, False)
