"""Authors: they write, type, edit and delete, and their platform delivers again."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from message_buffer.lanes.outcomes import (
    BufferEmpty,
    BufferExtended,
    MessageAbsent,
    MessageBuffered,
    MessageDeleted,
    MessageDuplicate,
    MessageEdited,
    MessageFrozen,
    MessageRefused,
    MessageWaiting,
)
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.rules.timing import Timing
from tests.support.engine import payload
from tests.support.machine.base import RULES, SETTINGS, Base, conversations, pick, seldom, skews
from tests.support.model import ConversationModel

# Small enough that a burst exceeds it, or that two conversations do.
QUOTA = Quota(messages_per_minute=4, conversations_per_minute=2)
CHARGE = Charge((("p/a", QUOTA), ("t", Quota(6, 6))), is_exact=True)
COSTS_US = {"account_messages": 15_000_000, "account_conversations": 30_000_000,
            "tenant_messages": 10_000_000, "tenant_conversations": 10_000_000}  # fmt: skip


class Writers(Base):
    @rule(name=conversations, rules=st.sampled_from(RULES), count=st.integers(1, 6), skew=skews, twice=seldom)
    def burst(self, name: str, rules: Rules, count: int, skew: int, twice: bool) -> None:
        for _ in range(count):
            self.sent += 1
            self._deliver(name, f"m{self.sent}", rules.timing, skew, twice)

    @rule(name=conversations, rules=st.sampled_from(RULES), skew=skews, twice=seldom)
    def press(self, name: str, rules: Rules, skew: int, twice: bool) -> None:
        self.sent += 1
        self._deliver(name, f"m{self.sent}", rules.timing_of(is_pressed=True), skew, twice)

    @rule(name=conversations, count=st.integers(1, 6), skew=skews, twice=seldom)
    def burst_at_a_quota(self, name: str, count: int, skew: int, twice: bool) -> None:
        for _ in range(count):
            self.sent += 1
            self._deliver(name, f"m{self.sent}", Rules().timing, skew, twice, charge=CHARGE)

    @precondition(lambda self: self.sent)
    @rule(name=conversations, which=pick, skew=skews)
    def redelivery(self, name: str, which: int, skew: int) -> None:
        self._deliver(name, f"m{which % self.sent + 1}", Rules().timing, skew, twice=False)

    def _deliver(
        self, name: str, message_id: str, timing: Timing, skew: int, twice: bool, *, charge: Charge | None = None
    ) -> None:
        model, now = self.model[name], self.now(skew)
        known = message_id in model.seen
        refused = None if known else self._refusal(model, now, charge)
        outcome = self.call(
            skew, twice, "buffer_message", name, message_id, payload=payload(message_id), timing=timing, charge=charge
        )
        if known:
            assert isinstance(outcome, MessageDuplicate)
        elif refused:
            assert isinstance(outcome, MessageRefused)
            assert outcome.reason == refused
            return
        else:
            assert isinstance(outcome, MessageBuffered)
            model.buffer(message_id, payload(message_id), timing, now)
            self.accepted[self.life(name)].append(message_id)
            assert outcome.due_at_ms == model.due_at
            assert model.first_at is not None
            # I4; what was due already stays due.
            assert outcome.due_at_ms <= max(model.first_at + timing.max_wait_ms, model.held_until, now)
            if model.frozen is None and model.state == "PENDING":
                self.must_be_picked_up(model.scheduled_at, now)
        assert outcome.count == len(model.waiting)

    def _refusal(self, model: ConversationModel, now: int, charge: Charge | None) -> str | None:
        if len(model.waiting) >= SETTINGS.max_waiting:
            return "waiting"
        opens = not model.waiting
        wanted = [each for each in COSTS_US.items() if opens or each[0].endswith("messages")]
        return self.quota.refuses(wanted, now) if charge else None

    @rule(name=conversations, extend_ms=st.integers(1, 5000), skew=skews, twice=seldom)
    def typing(self, name: str, extend_ms: int, skew: int, twice: bool) -> None:
        model, before = self.model[name], self.model[name].due_at
        outcome = self.call(skew, twice, "extend_wait", name, extend_ms=extend_ms, max_wait_ms=30_000)
        model.extend(extend_ms, 30_000, self.now(skew))
        if not model.waiting:
            assert outcome == BufferEmpty()
        else:
            assert outcome.due_at_ms == model.due_at
            assert isinstance(outcome, BufferExtended) == (model.due_at != before)

    @precondition(lambda self: self.sent)
    @rule(
        name=conversations, which=pick, among=st.sampled_from(("here", "here", "its own", "anybody's")),
        deletes=st.booleans(), twice=seldom,
    )  # fmt: skip
    def edit_or_delete(self, name: str, which: int, among: str, deletes: bool, twice: bool) -> None:
        message_id = self._chosen(name, which, among)
        found = self.store.find_message(name, message_id)
        if deletes:
            outcome = self.call(0, twice, "delete_message", name, message_id)
        else:
            outcome = self.call(0, twice, "edit_message", name, message_id, payload=payload(message_id, "edited"))
        if found != MessageWaiting():
            assert found == outcome
        self._changed(name, message_id, deletes, outcome)

    def _chosen(self, name: str, which: int, among: str) -> str:
        model = self.model[name]
        here = [*model.waiting, *(model.frozen.messages if model.frozen else [])]
        if among == "here" and here:
            return here[which % len(here)][0]
        if among != "anybody's" and (accepted := self.accepted[self.life(name)]):
            return accepted[which % len(accepted)]
        return f"m{which % self.sent + 1}"

    def _changed(self, name: str, message_id: str, deletes: bool, outcome: Any) -> None:
        """Check that the change fits the model, and make the same change in the model."""
        model = self.model[name]
        if message_id in dict(model.waiting):
            if deletes:
                assert isinstance(outcome, MessageDeleted)
                model.delete(message_id)
                self.withdrawn.add((self.life(name), message_id))
            else:
                assert isinstance(outcome, MessageEdited)
                model.edit(message_id, payload(message_id, "edited"))
        elif model.frozen is not None and message_id in dict(model.frozen.messages):
            assert outcome == MessageFrozen(model.frozen.batch_id)
        else:
            assert outcome == MessageAbsent(
                message_id in model.seen, model.came_out_in(message_id, SETTINGS.max_emitted)
            )
