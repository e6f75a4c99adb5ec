"""A turn whose conversation this run owns, and the writes that only the owner may make."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lambdas.responder import history
from lambdas.responder.batch import Batch
from lambdas.responder.conversations_table import ConversationRecord, ConversationsTable, End, Plan, ReplyCount
from lambdas.responder.errors import CallBusy
from message_buffer.consumer import turns
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

# Enough time for the last write of a turn.
MIN_TIME_TO_FINISH_MS = 5_000


@dataclass
class OwnedTurn:
    table: ConversationsTable
    delivered: turns.Turn
    batches: Mapping[str, Batch]
    """The batch of each entry, by the entry's id."""
    conversation: ConversationId
    owner: str
    began_at_ms: int
    time_left_ms: Callable[[], int]
    record: ConversationRecord
    settings: Json
    plan: Plan | None

    @property
    def waiting(self) -> list[Batch]:
        """Return the batches that are not finished, oldest first."""
        waiting = {batch.batch_id: batch for batch in (self.batches[entry.id] for entry in self.delivered.entries)}
        return list(waiting.values())

    @property
    def newest(self) -> Batch:
        """Return the newest batch that waits."""
        return self.waiting[-1]

    def leave_out(self, batch_ids: Iterable[str]) -> None:
        """Delete the entries of these batches from the queue."""
        left_out = set(batch_ids)
        self.delivered.finish(
            [entry for entry in self.delivered.entries if self.batches[entry.id].batch_id in left_out]
        )

    def require_time(self, needed_ms: int) -> None:
        """Raise an error unless the entries are still hidden and this run has the time for one more step."""
        self.delivered.require_hidden()
        if self.time_left_ms() < needed_ms + MIN_TIME_TO_FINISH_MS:
            raise CallBusy("too little time is left")

    # -- writes ------------------------------------------------------------------------------------

    def store(self, plan: Plan, *, replies: int = 0, now_ms: int) -> None:
        """Store the plan with as much of the question as the record keeps, and count `replies`."""
        question = [turn._replace(text=history.shorten(turn.text)) for turn in plan.question]
        plan = plan._replace(question=question)
        began_at_ms, replies_before = self.record.reply_count.at(now_ms)
        reply_count = ReplyCount(began_at_ms, replies_before + replies)
        self.table.plan(str(self.conversation), self.owner, plan, reply_count=reply_count, now_ms=now_ms)
        self.plan, self.record = plan, self.record._replace(reply_count=reply_count)

    def mark(self, number: int, state: str, **fields: Any) -> None:
        """Change the state of a part of the plan, and other fields of it."""
        assert self.plan is not None
        parts = list(self.plan.parts)
        parts[number] = parts[number]._replace(state=state, **fields)
        self.table.mark(str(self.conversation), self.owner, number=number, part=parts[number])
        self.plan = self.plan._replace(parts=parts)

    def end_episode(self, at_ms: int, *, now_ms: int) -> None:
        """Leave out of later prompts the batches whose last message arrived at or before `at_ms`."""
        self.table.end_episode(str(self.conversation), at_ms=at_ms, now_ms=now_ms)
        self.record = self.record._replace(episode_from_ms=max(at_ms, self.record.episode_from_ms))

    def finish(self, outcome: str, *, now_ms: int, reason: str = "") -> None:
        """Store the turn of the plan, mark its batches, and delete their entries."""
        assert self.plan is not None
        batch_ids = self.plan.batch_ids
        self._end(self.plan, End(outcome, reason, batch_ids, now_ms - self.began_at_ms, now_ms))
        self.leave_out(batch_ids)

    def fail(self, reason: str, *, now_ms: int) -> None:
        """Drop the plan without marks, so that its batches may be answered later. Keep what was sent in the history."""
        plan = self.plan or Plan(())
        kept = plan if plan.sent else plan._replace(question=(), parts=())
        self._end(kept, End("processing_error", reason, (), now_ms - self.began_at_ms, now_ms))

    def _end(self, plan: Plan, end: End) -> None:
        self.record = self.table.finish(str(self.conversation), self.owner, plan, record=self.record, end=end)
        self.plan = None
