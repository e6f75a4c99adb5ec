"""A batch whose conversation this run owns, and the writes that only the owner may make."""

from collections.abc import Sequence
from dataclasses import dataclass

from lambdas.responder import history
from lambdas.responder.batch import Batch
from lambdas.responder.conversations_table import (
    PLANNED,
    ConversationRecord,
    ConversationsTable,
    FinishedBatch,
    Outbox,
    ReplyCount,
)
from lambdas.responder.deliveries import Delivery
from lambdas.responder.errors import CallBusy
from lambdas.responder.gate import ParkedBatch
from lambdas.responder.history import ASSISTANT, USER, Turn
from message_buffer.json_object import Json

# Enough time for the last write of a batch, or for the release of its conversation after a failure.
MIN_TIME_TO_FINISH_MS = 5_000
# The maximum size of the customer's text, and of the parts of the reply that were sent before the gate closed.
MAX_PARKED_TEXT_BYTES = 12_288


@dataclass
class OwnedBatch:
    table: ConversationsTable
    batch: Batch
    delivery: Delivery
    owner: str
    began_at_ms: int
    record: ConversationRecord
    outbox: Outbox | None
    settings: Json
    max_question_tokens: int

    @property
    def conversation(self) -> str:
        return str(self.batch.conversation)

    @property
    def also_answers(self) -> list[ParkedBatch]:
        """Return the parked batches that this batch's reply also answers. Once the reply is planned, they are fixed.

        They are the newest of the same lane with lower generations that fit into this batch's question. Older ones are
        answered separately.
        """
        lane, generation = self.batch.lane, self.batch.generation
        earlier = [each for each in self.record.parked if each.lane == lane and each.generation < generation]
        earlier.sort(key=lambda each: each.generation)
        if self.outbox:
            return [each for each in earlier if each.batch_id in self.outbox.also_answers]
        left = self.max_question_tokens - history.estimate_tokens(self.batch.text)
        tokens = [history.estimate_tokens(each.text) + history.estimate_tokens(each.sent_text) for each in earlier]
        return earlier[history.first_that_fits(tokens, left) :]

    @property
    def sent_text(self) -> str:
        """Return the text of the parts that were sent, or may have been sent, by this run or an earlier one."""
        parts = self.outbox.parts if self.outbox else ()
        return "\n".join(part.text for part in parts if part.state != PLANNED)

    def question(self, now_ms: int) -> list[Turn]:
        """Return the turns to answer: each parked batch with the parts of its reply that were sent, then this batch."""
        turns: list[Turn] = []
        for each in self.also_answers:
            turns.append(Turn(USER, each.text, now_ms, each.batch_id))
            if each.sent_text:
                turns.append(Turn(ASSISTANT, each.sent_text, now_ms, each.batch_id))
        return [*turns, Turn(USER, self.batch.text, now_ms, self.batch.batch_id)]

    def require_time(self, needed_ms: int) -> None:
        """Raise an error unless the delivery is still hidden and this run has the time for one more step."""
        self.delivery.require_hidden()
        if self.delivery.time_left_ms() < needed_ms + MIN_TIME_TO_FINISH_MS:
            raise CallBusy("too little time is left")

    # -- writes ------------------------------------------------------------------------------------

    def plan(self, outbox: Outbox, *, now_ms: int) -> None:
        since_ms, replies = self.record.reply_count.at(now_ms)
        count = ReplyCount(since_ms, replies + 1)
        self.table.plan(self.conversation, self.owner, self.batch.batch_id, outbox, reply_count=count, now_ms=now_ms)
        self.outbox = outbox

    def mark(self, part: int, *, before: str, after: str) -> None:
        assert self.outbox is not None
        self.table.mark(self.conversation, self.owner, self.batch.batch_id, part=part, before=before, after=after)
        parts = [each._replace(state=after) if n == part else each for n, each in enumerate(self.outbox.parts)]
        self.outbox = self.outbox._replace(parts=parts)

    def park(self) -> None:
        """Park the batch. Its planned parts are sent later if no newer batch has been answered by then."""
        text, sent_text = (history.shorten(each, MAX_PARKED_TEXT_BYTES) for each in (self.batch.text, self.sent_text))
        parked = ParkedBatch(self.batch.batch_id, self.batch.generation, self.batch.lane, text, sent_text)
        self.table.park(self.conversation, self.owner, [*self.record.parked, parked])

    def release(self, *, reason: str) -> None:
        self.table.release(self.conversation, self.owner, status=self.record.status or "waiting", reason=reason)

    def finish(
        self,
        turns: Sequence[Turn],
        *,
        outcome: str,
        now_ms: int,
        reason: str = "",
        also_answered: Sequence[ParkedBatch] = (),
    ) -> None:
        """Store the batch's outcome and its turns."""
        batch, record = self.batch, self.record
        trimmed = history.trim([*record.turns, *(turn._replace(text=history.shorten(turn.text)) for turn in turns)])
        over = [batch.batch_id, *(each.batch_id for each in also_answered)]
        highest = max(record.answered.get(batch.lane, 0), batch.generation)
        finished = FinishedBatch(
            batch_ids=over,
            outcome=outcome,
            reason=reason,
            record=record._replace(
                turns=trimmed.recent,
                parked=[each for each in record.parked if each.batch_id not in over],
                answered={**record.answered, batch.lane: highest},
            ),
            leaving_turns=trimmed.older,
            input_tokens=self.outbox.input_tokens if self.outbox else 0,
            output_tokens=self.outbox.output_tokens if self.outbox else 0,
            processing_ms=now_ms - self.began_at_ms,
            now_ms=now_ms,
        )
        self.table.finish(self.conversation, self.owner, finished)
