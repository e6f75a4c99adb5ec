"""The Valkey lane, which calls the store, and starts a processor whenever a script has reserved the start."""

from dataclasses import replace
from typing import TypeVar

from message_buffer.lanes import outcomes as o
from message_buffer.lanes.holds import Holder
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.quota import Charge
from message_buffer.rules.timing import Timing

MayStart = (
    o.MessageBuffered | o.MessageDuplicate | o.BufferFlushed | o.OnHold | o.HoldEnded | o.NotOnHold | o.BufferRetimed
    | o.BatchCompleted | o.BatchRetried
)  # fmt: skip

T = TypeVar("T", bound=MayStart | o.BufferUnmoved | o.BufferEmpty | o.RunStale | o.MessageRefused)


class ValkeyLane:
    def __init__(self, store: Store, starter: ProcessorStarter) -> None:
        self.store = store
        self._starter = starter

    def buffer_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing, charge: Charge | None = None
    ) -> o.Buffered:
        outcome = self.store.buffer_message(conversation, message_id, payload=payload, timing=timing, charge=charge)
        return self._started(conversation, outcome)

    def charge(self, conversation: str, charge: Charge, *, messages: int, others: int) -> o.Charged | o.MessageRefused:
        del messages  # buffer_message charges them
        return self.store.charge_changes(conversation, charge, items=others) if others else o.Charged()

    def complete_batch(self, conversation: str, token: str) -> o.BatchCompleted | o.RunStale:
        return self._started(conversation, self.store.complete_batch(conversation, token))

    def retry_batch(self, conversation: str, token: str, *, retry_at_ms: int) -> o.BatchRetried | o.RunStale:
        retried = self.store.retry_batch(conversation, token, retry_at_ms=retry_at_ms)
        return self._started(conversation, retried)

    def flush_buffer(self, conversation: str) -> o.BufferFlushed | o.BufferEmpty:
        return self._started(conversation, self.store.flush_buffer(conversation))

    def cancel_buffer(self, conversation: str, *, cancel_id: str | None = None) -> o.Cancelled:
        return self.store.cancel_buffer(conversation, cancel_id=cancel_id)

    def forget_conversation(self, conversation: str) -> o.ConversationForgotten:
        return self.store.forget_conversation(conversation)

    def hold_buffer(self, conversation: str, *, holder: Holder, cause: str, hold_ms: int) -> o.OnHold:
        held = self.store.hold_buffer(conversation, holder=holder, cause=cause, hold_ms=hold_ms)
        return self._started(conversation, held)

    def resume_buffer(
        self, conversation: str, *, holder: Holder | None = None, cause: str | None = None
    ) -> o.ResumeOutcome:
        return self._started(conversation, self.store.resume_buffer(conversation, holder=holder, cause=cause))

    def retime_buffer(self, conversation: str, *, timing: Timing) -> o.Retimed:
        return self._started(conversation, self.store.retime_buffer(conversation, timing=timing))

    def extend_wait(self, conversation: str, *, extend_ms: int, max_wait_ms: int) -> o.Extended:
        return self.store.extend_wait(conversation, extend_ms=extend_ms, max_wait_ms=max_wait_ms)

    def edit_message(
        self, conversation: str, message_id: str, *, payload: bytes, timing: Timing | None = None
    ) -> o.Edited:
        edited = self.store.edit_message(conversation, message_id, payload=payload)
        # Retime only if this message is the newest. A later message may wait for its own transcript, and a retime would
        # cut that wait short.
        if timing is not None and isinstance(edited, o.MessageEdited) and edited.is_newest:
            self.retime_buffer(conversation, timing=timing)
        return edited

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted:
        return self.store.delete_message(conversation, message_id)

    def find_message(self, conversation: str, message_id: str) -> o.Found:
        return self.store.find_message(conversation, message_id)

    def peek_conversation(self, conversation: str, *, limit: int = 0) -> o.Conversation:
        return self.store.peek_conversation(conversation, limit=limit)

    def generation_and_holds(self, conversation: str) -> o.GenerationAndHolds:
        seen = self.store.peek_conversation(conversation)
        return o.GenerationAndHolds(seen.generation, seen.holds)

    def recover_expired(self, shard: int, *, limit: int) -> o.ShardRecovered:
        """Put a shard's conversations back if their claims have expired. Start the shard's processor if there is
        none."""
        recovered = self.store.recover_expired(shard, limit=limit)
        if recovered.start_id is not None:
            self._starter.start(shard)
        return recovered

    def _started(self, conversation: str, outcome: T) -> T:
        """Start the shard's processor if the outcome has a start id. Return the outcome without that id."""
        if (
            isinstance(outcome, o.BufferUnmoved | o.BufferEmpty | o.RunStale | o.MessageRefused)
            or outcome.start_id is None
        ):
            return outcome
        self._starter.start(self.store.shard_of(conversation))
        return replace(outcome, start_id=None)
