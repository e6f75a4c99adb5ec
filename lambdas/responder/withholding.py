"""Finishes the batches that settings of the stage, the tenant or the conversation forbid to answer."""

from lambdas.responder.batch import Batch
from lambdas.responder.collaborators import Collaborators
from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.events import publish_reply_withheld
from lambdas.responder.gate_client import OthersHold
from lambdas.responder.history import ASSISTANT, USER, Turn, estimate_tokens
from lambdas.responder.owned_batch import OwnedBatch
from lambdas.responder.part_sender import PartSender
from message_buffer.clock import Clock
from message_buffer.settings import ResponderOptions
from message_buffer.telemetry import Telemetry

UNKNOWN_CONVERSATION = "unknown_conversation"
ON_HOLD = "on_hold"
INACTIVE_PROJECT = "inactive_project"
CHANNEL_NOT_ALLOWED = "channel_not_allowed"
QUESTION_TOO_LONG = "question_too_long"
TOO_MANY_REPLIES = "too_many_replies"
TOO_MANY_OF_TENANT = "too_many_replies_of_tenant"


class Withholding:
    def __init__(
        self,
        *,
        table: ConversationsTable,
        collaborators: Collaborators,
        options: ResponderOptions,
        telemetry: Telemetry,
        sender: PartSender,
        clock: Clock,
    ) -> None:
        self._table = table
        self._collaborators = collaborators
        self._options = options
        self._telemetry = telemetry
        self._sender = sender
        self._clock = clock
        self._outcomes = {
            ON_HOLD: "hold",
            INACTIVE_PROJECT: options.inactive_project,
            CHANNEL_NOT_ALLOWED: options.channel_not_allowed,
        }

    def reason_for(self, owned: OwnedBatch) -> str | None:
        """Return why the settings forbid a reply to the batch, or None if they allow one."""
        return self._reason_to_be_silent(owned) or self._reason_to_save(owned)

    def _reason_to_save(self, owned: OwnedBatch) -> str | None:
        """Return which limit a reply to this batch would exceed, or None. The limits bound the assistant's cost."""
        if owned.outbox:
            # The assistant's reply was stored by an earlier run, so it costs nothing now.
            return None
        if estimate_tokens(owned.batch.text) > self._options.max_question_tokens:
            return QUESTION_TOO_LONG
        replies = owned.record.reply_count.at(self._clock()).replies
        return TOO_MANY_REPLIES if replies >= self._options.max_replies_an_hour else None

    def _reason_to_be_silent(self, owned: OwnedBatch) -> str | None:
        settings, platform = owned.settings, owned.batch.conversation.platform
        if settings.get("projectStatus", "active") != "active":
            return INACTIVE_PROJECT
        allowed = settings.get("allowedChannels") or self._options.allowed_channels
        return CHANNEL_NOT_ALLOWED if allowed and platform not in allowed else None

    def withhold(self, owned: OwnedBatch, reason: str, *, hold: OthersHold | None = None) -> int:
        """Finish the batch without sending a reply or the rest of one. Return how many milliseconds the batch took.

        The customer's words stay in the history, for a person or a later reply.
        """
        outcome, batch = self._outcomes.get(reason, "drop"), owned.batch
        if owned.outbox:
            # An earlier run planned a reply. If it ended while it was sending a part, that part stays unconfirmed.
            self._sender.give_up_interrupted(owned)
            self._table.clear_answered_by(owned.conversation, batch.batch_id)
        now_ms = self._clock()
        if outcome == "hold" and hold is None:
            self._collaborators.buffer.hold(owned.conversation, self._options.hold_seconds * 1_000)
        self._publish(batch, reason, outcome, hold)
        turns = [Turn(USER, batch.text, now_ms, batch.batch_id)]
        if sent_text := owned.sent_text:
            turns.append(Turn(ASSISTANT, sent_text, now_ms, batch.batch_id))
        return owned.finish(turns, outcome="withheld", status="reply_withheld", reason=reason, now_ms=self._clock())

    def withhold_unknown(self, batch: Batch) -> None:
        """Finish a batch whose conversation has no record, if the stage creates no records."""
        self._publish(batch, UNKNOWN_CONVERSATION, "drop")
        self._table.finish_unknown(str(batch.conversation), batch.batch_id, "withheld", now_ms=self._clock())

    def _publish(self, batch: Batch, reason: str, outcome: str, hold: OthersHold | None = None) -> None:
        publish_reply_withheld(self._collaborators.bus, batch, reason=reason, outcome=outcome, hold=hold)
        self._telemetry.count_by("RepliesWithheld", reason=reason)
        self._telemetry.info("reply withheld", conversation=str(batch.conversation), reason=reason, outcome=outcome)
