"""Answers a batch.

One run at a time owns a conversation. The run stores the whole reply before it sends the first part, records each part
before and after it sends it, and stores the turns and the outcome in one transaction at the end. So after a crash the
next run continues where the last one stopped. Only a part that was being sent at that moment is not sent again, but
marked as unconfirmed.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from uuid import uuid4

from lambdas.responder import history
from lambdas.responder.assistants import Assistant, Prompt
from lambdas.responder.batch import Batch, Forgotten, read_batch, read_forgotten
from lambdas.responder.channels import MAX_SEND_SECONDS, Channel, split
from lambdas.responder.conversations_table import (
    PLANNED,
    SENDING,
    SENT,
    UNCONFIRMED,
    ConversationRecord,
    ConversationsTable,
    Outbox,
    OwnedByAnother,
    Part,
)
from lambdas.responder.deliveries import Deliveries, Delivery
from lambdas.responder.errors import CallBusy, CallRefused, CallUnconfirmed
from lambdas.responder.forgetting import ResponderForgetting
from lambdas.responder.gate import ActiveHold, BufferClient, GateCheck, ParkedBatch, ReplyGate
from lambdas.responder.history import ASSISTANT, USER, Turn
from lambdas.responder.owned_batch import OwnedBatch
from message_buffer.aws.object_store import ObjectStore
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import MessageBufferError, SendFailed
from message_buffer.events.event_bus import EventBus
from message_buffer.limits import MAX_CALL_MS
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import ResponderOptions
from message_buffer.telemetry import Telemetry

REPLY_WITHHELD = "messages.reply.withheld"
REPLY_WITHHELD_VERSION = 1
# The outcomes of a batch.
ANSWERED, WITHHELD = "reply_sent", "reply_withheld"
# The reasons to withhold a reply.
ON_HOLD = "on_hold"
INACTIVE_PROJECT = "inactive_project"
CHANNEL_NOT_ALLOWED = "channel_not_allowed"
QUESTION_TOO_LONG = "question_too_long"
TOO_MANY_REPLIES = "too_many_replies"
TOO_MANY_OF_TENANT = "too_many_replies_of_tenant"
# The maximum pause for a batch that only waits because another run owns its conversation.
MAX_RETRY_SECONDS_WHILE_OWNED = 32
# If a run ends after it has recorded `sending`, the part is never sent again. So there must be time to send the part,
# and also to write to the table.
MIN_TIME_TO_SEND_MS = int(MAX_SEND_SECONDS * 1_000) + MAX_CALL_MS


class Collaborators(NamedTuple):
    """Everything that the responder calls."""

    table: ConversationsTable
    bus: EventBus
    objects: ObjectStore
    buffer: BufferClient
    deliveries: Deliveries
    forgetting: ResponderForgetting
    assistant: Callable[[], Assistant]
    channel: Callable[[ConversationId], Channel | None]
    """Returns None if there is no channel for the conversation's platform."""


class Responder:
    def __init__(
        self,
        collaborators: Collaborators,
        options: ResponderOptions,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
        new_owner: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._collaborators = collaborators
        self._table = collaborators.table
        self._options = options
        self._telemetry = telemetry
        self._clock = clock
        self._new_owner = new_owner
        self._gate = ReplyGate(options.gate, collaborators.buffer)

    def respond(self, delivery: Delivery) -> int | None:
        """Answer the delivery's batch. Return None if the delivery is finished, otherwise the seconds to wait.

        A delivery is also finished if it was dead-lettered.
        """
        batch = None
        try:
            if forgotten := read_forgotten(delivery.body):
                return self._forget(forgotten, delivery)
            batch = read_batch(delivery.body, self._collaborators.objects)
            return self._own_and_answer(batch, delivery)
        except MessageBufferError as error:
            return self._after_failure(error, batch, delivery)
        except Exception as error:  # noqa: BLE001 - any bug is retried, and dead-lettered in the end
            self._telemetry.crash("responder failed", error, batch=batch.batch_id if batch else None)
            return self._after_failure(CallBusy(f"unexpected error: {type(error).__name__}"), batch, delivery)

    def _forget(self, forgotten: Forgotten, delivery: Delivery) -> int | None:
        conversation, at_ms = forgotten
        erased = self._collaborators.forgetting.forget(conversation, at_ms=at_ms, time_left=delivery.time_left_ms)
        self._telemetry.info("forgotten", conversation=conversation, turns=erased.turns, finished=erased.finished)
        return None if erased.finished else delivery.retry_seconds

    def _after_failure(self, error: MessageBufferError, batch: Batch | None, delivery: Delivery) -> int | None:
        ids = {"conversation": str(batch.conversation), "batch": batch.batch_id} if batch else {}
        reason = str(error)
        if error.retryable and delivery.receives < self._options.max_attempts:
            self._telemetry.warn("reply is tried again", reason=reason, attempt=delivery.receives, **ids)
            return delivery.retry_seconds
        try:
            if batch:
                self._table.clear_answered_by(str(batch.conversation), batch.batch_id)
            self._collaborators.deliveries.dead_letter(delivery.body, reason=reason)
        except SendFailed as failed:
            self._telemetry.warn("reply could not be dead-lettered", reason=str(failed), **ids)
            return delivery.retry_seconds
        self._telemetry.warn("reply was given up", reason=reason, attempt=delivery.receives, **ids)
        return None

    # -- the owner ---------------------------------------------------------------------------------

    def _own_and_answer(self, batch: Batch, delivery: Delivery) -> int | None:
        conversation, owner, now_ms = str(batch.conversation), self._new_owner(), self._clock()
        try:
            record = self._table.acquire(conversation, owner, now_ms=now_ms, until_ms=now_ms + self._options.lock_ms)
            if isinstance(record, OwnedByAnother):
                self._telemetry.info(
                    "another run owns the conversation", conversation=conversation, batch=batch.batch_id
                )
                owned_seconds = (record.until_ms - now_ms) // 1_000
                return max(1, min(owned_seconds, delivery.retry_seconds, MAX_RETRY_SECONDS_WHILE_OWNED))
            if record.forgotten_at_ms and batch.last_message_at_ms <= record.forgotten_at_ms:
                self._drop_forgotten(batch, owner, record)
                return None
            outbox = self._table.outbox(conversation, batch.batch_id)
            if outbox and outbox.outcome:
                self._telemetry.info("batch was finished before", conversation=conversation, batch=batch.batch_id)
                self._table.release(conversation, owner, status=record.status or outbox.outcome, reason="")
                return None
            settings = {**self._table.tenant_settings(batch.conversation.tenant), **record.settings}
            max_tokens = self._options.max_question_tokens
            return self._answer(
                OwnedBatch(self._table, batch, delivery, owner, now_ms, record, outbox, settings, max_tokens)
            )
        except Exception as error:
            self._telemetry.count("ProcessingErrors")
            reason = str(error) if isinstance(error, MessageBufferError) else type(error).__name__
            self._release_after_failure(conversation, owner, reason)
            raise

    def _drop_forgotten(self, batch: Batch, owner: str, record: ConversationRecord) -> None:
        conversation = str(batch.conversation)
        if record.is_tombstone:
            self._table.release_tombstone(conversation, owner, now_ms=self._clock())
        else:
            self._table.release(conversation, owner, status=record.status or "waiting", reason="")
        self._telemetry.info("batch was forgotten", conversation=conversation, batch=batch.batch_id)

    def _release_after_failure(self, conversation: str, owner: str, reason: str) -> None:
        # The ownership ends by itself. Raise nothing, because the caller re-raises the first error.
        with suppress(SendFailed):
            self._table.release(conversation, owner, status="processing_error", reason=reason)

    # -- the steps of a batch ----------------------------------------------------------------------

    def _answer(self, owned: OwnedBatch) -> int | None:
        if owned.outbox and owned.outbox.answered_by:
            owned.release(reason="another batch answers this one, too")
            # Wait as long as after a failure. With shorter pauses, this batch could use up its attempts before the
            # batch that answers it has used up its own.
            return owned.delivery.retry_seconds
        if owned.outbox and owned.outbox.withheld:
            # An earlier run may have published the event, so send nothing, even if the reason is gone by now.
            self._finish_withheld(owned, owned.outbox.withheld)
            return None
        reason = self._reason_to_withhold(owned)
        channel = None if reason else self._collaborators.channel(owned.batch.conversation)
        if channel is None:
            self._withhold(owned, reason or CHANNEL_NOT_ALLOWED)
            return None
        return self._reply(owned, channel)

    def _reply(self, owned: OwnedBatch, channel: Channel) -> int | None:
        if owned.outbox is None:
            check = self._check_gate(owned, parts_sent=0)
            if check.newer and not check.hold:
                return self._park(owned)
            if check.hold or not self._count_for_tenant(owned):
                self._withhold(owned, ON_HOLD if check.hold else TOO_MANY_OF_TENANT, check.hold)
                return None
            self._plan(owned, channel)
        return self._send_and_finish(owned, channel)

    def _check_gate(self, owned: OwnedBatch, *, parts_sent: int) -> GateCheck:
        answered = owned.record.answered.get(owned.batch.lane, 0)
        return self._gate.check(owned.batch, parked=owned.record.parked, answered=answered, parts_sent=parts_sent)

    def _park(self, owned: OwnedBatch) -> int:
        owned.park()
        self._telemetry.info("reply waits: newer messages", conversation=owned.conversation, batch=owned.batch.batch_id)
        return self._options.gate_wait_seconds

    def _count_for_tenant(self, owned: OwnedBatch) -> bool:
        """Count the reply, even if the assistant then fails. Return False if the tenant has reached its limit."""
        tenant, at_most = owned.batch.conversation.tenant, self._options.max_tenant_replies_an_hour
        return self._table.count_reply(tenant, now_ms=self._clock(), at_most=at_most)

    def _plan(self, owned: OwnedBatch, channel: Channel) -> None:
        """Ask the assistant, and store its reply in parts."""
        if self._options.typing_indicator:
            self._show_typing(owned, channel)
        owned.require_time(self._options.assistant_seconds * 1_000)
        turns = history.fit_into_budget(
            owned.record.turns, owned.question(self._clock()), max_tokens=self._options.max_history_tokens
        )
        reply = self._collaborators.assistant().answer(
            Prompt(
                instructions=str(owned.settings.get("instructions", self._options.instructions)),
                turns=history.alternate(turns),
                model=str(owned.settings.get("model", self._options.model)),
                max_reply_tokens=self._options.max_reply_tokens,
                seconds=float(self._options.assistant_seconds),
            )
        )
        outbox = Outbox(
            parts=[Part(text) for text in split(reply.text, channel.max_part_characters)],
            also_answers=[each.batch_id for each in owned.also_answers],
            input_tokens=reply.input_tokens,
            output_tokens=reply.output_tokens,
        )
        owned.plan(outbox, now_ms=self._clock())

    def _show_typing(self, owned: OwnedBatch, channel: Channel) -> None:
        with suppress(CallBusy, CallRefused, CallUnconfirmed):
            channel.show_typing(owned.batch.recipient, owned.batch.last_message_id)

    # -- the parts of a reply, each sent at most once ------------------------------------------------

    def _send_and_finish(self, owned: OwnedBatch, channel: Channel) -> int | None:
        assert owned.outbox is not None
        self._give_up_interrupted(owned)
        for number, part in enumerate(owned.outbox.parts):
            if part.state != PLANNED:
                continue
            check = self._check_gate(owned, parts_sent=number)
            if check.hold:
                self._withhold(owned, ON_HOLD, check.hold)
                return None
            if check.newer:
                return self._park(owned)
            self._send(owned, channel, number, part.text)
        now_ms = self._clock()
        turns = [*owned.question(now_ms), Turn(ASSISTANT, owned.sent_text, now_ms, owned.batch.batch_id)]
        owned.finish(turns, outcome=ANSWERED, also_answered=owned.also_answers, now_ms=now_ms)
        self._telemetry.count("Replies")
        self._telemetry.count("InputTokens", owned.outbox.input_tokens)
        self._telemetry.count("OutputTokens", owned.outbox.output_tokens)
        self._telemetry.info(
            "replied", conversation=owned.conversation, batch=owned.batch.batch_id, parts=len(owned.outbox.parts)
        )
        return None

    def _send(self, owned: OwnedBatch, channel: Channel, number: int, text: str) -> None:
        """Send a planned part. If the channel raises CallBusy or CallRefused, mark the part as planned again."""
        owned.require_time(MIN_TIME_TO_SEND_MS)
        owned.mark(number, before=PLANNED, after=SENDING)
        try:
            channel.send(owned.batch.recipient, text)
        except (CallBusy, CallRefused):
            owned.mark(number, before=SENDING, after=PLANNED)
            raise
        except CallUnconfirmed as error:
            self._mark_unconfirmed(owned, number, str(error))
            return
        owned.mark(number, before=SENDING, after=SENT)

    def _give_up_interrupted(self, owned: OwnedBatch) -> None:
        """Mark as unconfirmed the parts that an earlier run was sending when it ended."""
        for number, part in enumerate(owned.outbox.parts if owned.outbox else ()):
            if part.state == SENDING:
                self._mark_unconfirmed(owned, number, "the run that sent it ended before the channel answered")

    def _mark_unconfirmed(self, owned: OwnedBatch, number: int, reason: str) -> None:
        owned.mark(number, before=SENDING, after=UNCONFIRMED)
        self._telemetry.count("UnconfirmedSends")
        self._telemetry.warn(
            "send was not confirmed",
            conversation=owned.conversation,
            batch=owned.batch.batch_id,
            part=number,
            reason=reason,
        )

    # -- replies that are not sent -------------------------------------------------------------------

    def _reason_to_withhold(self, owned: OwnedBatch) -> str | None:
        """Return why the settings forbid a reply to the batch, or None if they allow one."""
        settings, platform = owned.settings, owned.batch.conversation.platform
        if settings.get("projectStatus", "active") != "active":
            return INACTIVE_PROJECT
        allowed = settings.get("allowedChannels") or self._options.allowed_channels
        if allowed and platform not in allowed:
            return CHANNEL_NOT_ALLOWED
        if owned.outbox:
            # The assistant's reply was stored by an earlier run, so it costs nothing now.
            return None
        if history.estimate_tokens(owned.batch.text) > self._options.max_question_tokens:
            return QUESTION_TOO_LONG
        replies = owned.record.reply_count.at(self._clock()).replies
        return TOO_MANY_REPLIES if replies >= self._options.max_replies_an_hour else None

    def _withhold(self, owned: OwnedBatch, reason: str, hold: ActiveHold | None = None) -> None:
        """Finish the batch without sending a reply or the rest of one."""
        # An earlier run may have ended while it was sending a part.
        self._give_up_interrupted(owned)
        event = {
            "version": REPLY_WITHHELD_VERSION,
            "batchId": owned.batch.batch_id,
            "conversationId": owned.conversation,
            "tenant": owned.batch.conversation.tenant,
            "reason": reason,
            **({"hold": {"holder": hold.holder, "cause": hold.cause, "until": hold.until_ms}} if hold else {}),
        }
        detail = json.dumps(event)
        self._table.withhold(owned.conversation, owned.owner, owned.batch.batch_id, detail, now_ms=self._clock())
        self._finish_withheld(owned, detail)

    def _finish_withheld(self, owned: OwnedBatch, detail: str) -> None:
        """Publish the event, and keep the customer's words in the history, for a person or a later reply."""
        event, batch_ids = json.loads(detail), [owned.batch.batch_id]
        now_ms, sent_text = self._clock(), owned.sent_text
        turns, also_answered = [Turn(USER, owned.batch.text, now_ms, owned.batch.batch_id)], list[ParkedBatch]()
        if sent_text:
            # The parts that were sent also answer the parked batches, so no later reply answers these again.
            turns, also_answered = owned.question(now_ms), owned.also_answers
            turns.append(Turn(ASSISTANT, sent_text, now_ms, owned.batch.batch_id))
            batch_ids += [each.batch_id for each in also_answered]
        elif owned.outbox:
            self._table.clear_answered_by(owned.conversation, owned.batch.batch_id)
        for batch_id in batch_ids:
            self._collaborators.bus.publish(REPLY_WITHHELD, json.dumps(event | {"batchId": batch_id}))
            self._telemetry.count_by("RepliesWithheld", reason=event["reason"])
            self._telemetry.info("reply withheld", conversation=owned.conversation, reason=event["reason"])
        owned.finish(turns, outcome=WITHHELD, reason=event["reason"], also_answered=also_answered, now_ms=now_ms)
