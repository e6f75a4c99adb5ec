"""Answers a batch.

One run at a time owns a conversation. The run stores the whole reply before it sends the first part, records each part
before and after it sends it, and stores the turns and the outcome in one transaction at the end. So after a crash the
next run continues where the last one stopped. Only a part that was being sent at that moment is not sent again, but
marked as unconfirmed.
"""

from collections.abc import Callable
from uuid import uuid4

from lambdas.responder import history
from lambdas.responder.assistants.base import Prompt
from lambdas.responder.batch import Batch, Forgotten, read_batch, read_forgotten
from lambdas.responder.channels.base import Channel
from lambdas.responder.collaborators import Collaborators
from lambdas.responder.conversations_table import (
    ConversationRecord,
    ConversationsTable,
    OwnedByAnother,
    UnknownConversation,
)
from lambdas.responder.deliveries import Delivery, Later
from lambdas.responder.errors import CallBusy, CallRefused, CallUnconfirmed
from lambdas.responder.forgetting import ResponderForgetting
from lambdas.responder.gate import GateCheck, ReplyGate
from lambdas.responder.gate_client import OthersHold
from lambdas.responder.history import ASSISTANT, Turn
from lambdas.responder.outbox import PLANNED, Outbox, Part
from lambdas.responder.owned_batch import OwnedBatch
from lambdas.responder.part_sender import PartSender
from lambdas.responder.reply_parts import split
from lambdas.responder.withholding import CHANNEL_NOT_ALLOWED, ON_HOLD, TOO_MANY_OF_TENANT, Withholding
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import MessageBufferError, SendFailed
from message_buffer.settings import ResponderOptions
from message_buffer.telemetry import Telemetry

# The maximum pause for a batch that only waits because another run owns its conversation. After a failure the pause may
# be longer.
MAX_RETRY_SECONDS_WHILE_OWNED = 32
# While a batch waits for the queued reply to an earlier batch, the responder checks at least this many times within
# `gate_wait_seconds` whether that reply was sent.
MIN_CHECKS_IN_A_GATE_WAIT = 4


class Responder:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        collaborators: Collaborators,
        forgetting: ResponderForgetting,
        options: ResponderOptions,
        telemetry: Telemetry,
        clock: Clock = system_clock,
        new_owner: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._table = table
        self._collaborators = collaborators
        self._forgetting = forgetting
        self._options = options
        self._telemetry = telemetry
        self._clock = clock
        self._new_owner = new_owner
        self._gate = ReplyGate(options.gate, collaborators.buffer)
        self._sender = PartSender(telemetry)
        self._withholding = Withholding(
            table=table,
            collaborators=collaborators,
            options=options,
            telemetry=telemetry,
            sender=self._sender,
            clock=clock,
        )

    def respond(self, delivery: Delivery) -> Later | None:
        """Answer the delivery's batch. Return None if the delivery is finished, otherwise when to try again.

        A delivery is also finished if it was dead-lettered. After a failure, return Later instead of raising an error.
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

    def _forget(self, forgotten: Forgotten, delivery: Delivery) -> Later | None:
        conversation, at_ms = forgotten
        erased = self._forgetting.forget(conversation, at_ms=at_ms, time_left=delivery.time_left_ms)
        self._telemetry.info("forgotten", conversation=conversation, turns=erased.turns, finished=erased.finished)
        return None if erased.finished else Later(delivery.retry_seconds)

    def _after_failure(self, error: MessageBufferError, batch: Batch | None, delivery: Delivery) -> Later | None:
        ids = {"conversation": str(batch.conversation), "batch": batch.batch_id} if batch else {}
        reason = str(error)
        later = Later(delivery.retry_seconds)
        if error.retryable and delivery.receives < self._options.max_attempts:
            self._telemetry.count("ReplyRetries")
            self._telemetry.warn("reply is tried again", reason=reason, attempt=delivery.receives, **ids)
            return later
        try:
            if batch:
                self._table.clear_answered_by(str(batch.conversation), batch.batch_id)
            self._collaborators.dead_letter(delivery.body, reason)
        except SendFailed as failed:
            self._telemetry.warn("reply could not be dead-lettered", reason=str(failed), **ids)
            return later
        self._telemetry.count("ReplyDeadLetters")
        self._telemetry.warn("reply was given up", reason=reason, attempt=delivery.receives, **ids)
        return None

    # -- the owner ---------------------------------------------------------------------------------

    def _own_and_answer(self, batch: Batch, delivery: Delivery) -> Later | None:
        conversation, owner, now_ms = str(batch.conversation), self._new_owner(), self._clock()
        try:
            record = self._table.acquire(
                conversation,
                owner,
                now_ms=now_ms,
                until_ms=now_ms + self._options.lock_ms,
                create=self._options.unknown_conversation == "create",
            )
            if isinstance(record, OwnedByAnother):
                self._telemetry.info(
                    "another run owns the conversation", conversation=conversation, batch=batch.batch_id
                )
                owned_seconds = (record.until_ms - now_ms) // 1_000
                return Later(max(1, min(owned_seconds, delivery.retry_seconds, MAX_RETRY_SECONDS_WHILE_OWNED)))
            if isinstance(record, UnknownConversation):
                self._withholding.withhold_unknown(batch)
                return None
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
        try:
            self._table.release(conversation, owner, status="processing_error", reason=reason)
        except SendFailed as failed:
            # The ownership ends by itself. Raise nothing here, because the caller re-raises the first error, which says
            # more.
            self._telemetry.warn("conversation was not released", conversation=conversation, reason=str(failed))

    # -- the steps of a batch ----------------------------------------------------------------------

    def _answer(self, owned: OwnedBatch) -> Later | None:
        if owned.outbox and owned.outbox.answered_by:
            owned.release(reason="another batch answers this one, too")
            # Wait as long as after a failure. With shorter pauses, this batch could use up its attempts before the
            # batch that answers it has used up its own.
            return Later(owned.delivery.retry_seconds)
        reason = self._withholding.reason_for(owned)
        channel = None if reason else self._collaborators.channel(owned.batch.conversation)
        if channel is None:
            self._withhold(owned, reason or CHANNEL_NOT_ALLOWED)
            return None
        if self._gate.queues() and owned.earlier and not self._is_last_attempt(owned):
            owned.release(reason="an earlier reply goes first")
            return Later(max(1, self._options.gate_wait_seconds // MIN_CHECKS_IN_A_GATE_WAIT))
        if owned.outbox is None:
            check = self._check_gate(owned, parts_sent=0)
            if self._gate.merges() and check.newer and not check.hold:
                return self._park(owned)
            if check.hold or not self._count_for_tenant(owned):
                self._withhold(owned, ON_HOLD if check.hold else TOO_MANY_OF_TENANT, check.hold)
                return None
            self._plan(owned, channel)
        return self._send_and_finish(owned, channel)

    def _count_for_tenant(self, owned: OwnedBatch) -> bool:
        """Count the reply even if the assistant fails afterwards, because a failed call may also cost money.

        Return False if the tenant has already reached the limit of replies for this hour.
        """
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
        try:
            channel.show_typing(owned.batch.recipient, owned.batch.last_message_id)
        except (CallBusy, CallRefused, CallUnconfirmed) as error:
            self._telemetry.debug("typing was not shown", conversation=owned.conversation, reason=str(error))

    def _send_and_finish(self, owned: OwnedBatch, channel: Channel) -> Later | None:
        assert owned.outbox is not None
        self._sender.give_up_interrupted(owned)
        for number, part in enumerate(owned.outbox.parts):
            if part.state != PLANNED:
                continue
            check = self._check_gate(owned, parts_sent=number)
            if check.hold:
                self._withhold(owned, ON_HOLD, check.hold)
                return None
            if check.newer:
                return self._park(owned)
            self._sender.send(owned, channel, number, part.text)
        self._finish(owned)
        return None

    def _finish(self, owned: OwnedBatch) -> None:
        assert owned.outbox is not None
        now_ms = self._clock()
        processing_ms = owned.finish(
            [*owned.question(now_ms), Turn(ASSISTANT, owned.sent_text, now_ms, owned.batch.batch_id)],
            outcome="answered",
            status="reply_sent",
            also_answered=[each.batch_id for each in owned.also_answers],
            now_ms=now_ms,
        )
        self._measure(processing_ms)
        self._telemetry.count("Replies")
        self._telemetry.count("InputTokens", owned.outbox.input_tokens)
        self._telemetry.count("OutputTokens", owned.outbox.output_tokens)
        self._telemetry.info(
            "replied", conversation=owned.conversation, batch=owned.batch.batch_id, parts=len(owned.outbox.parts)
        )

    def _measure(self, processing_ms: int) -> None:
        self._telemetry.measure_ms("ProcessingMs", processing_ms)

    # -- the gate ----------------------------------------------------------------------------------

    def _check_gate(self, owned: OwnedBatch, *, parts_sent: int) -> GateCheck:
        record = owned.record
        answered = record.answered.get(owned.batch.lane, 0)
        return self._gate.check(owned.batch, parked=record.parked, answered=answered, parts_sent=parts_sent)

    def _withhold(self, owned: OwnedBatch, reason: str, hold: OthersHold | None = None) -> None:
        self._measure(self._withholding.withhold(owned, reason, hold=hold))

    def _park(self, owned: OwnedBatch) -> Later:
        owned.park()
        self._telemetry.count("RepliesParked")
        self._telemetry.info("reply waits: newer messages", conversation=owned.conversation, batch=owned.batch.batch_id)
        return Later(self._options.gate_wait_seconds)

    def _is_last_attempt(self, owned: OwnedBatch) -> bool:
        return owned.delivery.receives >= self._options.max_attempts
