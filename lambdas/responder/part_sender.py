"""Sends the parts of a reply, each at most once, and records the state of each."""

from lambdas.responder.channels.base import MAX_SEND_SECONDS, Channel
from lambdas.responder.errors import CallBusy, CallRefused, CallUnconfirmed
from lambdas.responder.outbox import PLANNED, SENDING, SENT, UNCONFIRMED
from lambdas.responder.owned_batch import OwnedBatch
from message_buffer.limits import MAX_CALL_MS
from message_buffer.telemetry import Telemetry

# If a run ends after it has recorded `sending`, the part is never sent again. So there must be time to send the part,
# and also to write to the table.
MIN_TIME_TO_SEND_MS = int(MAX_SEND_SECONDS * 1_000) + MAX_CALL_MS


class PartSender:
    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def send(self, owned: OwnedBatch, channel: Channel, number: int, text: str) -> None:
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
        self._telemetry.count("PartsSent")

    def give_up_interrupted(self, owned: OwnedBatch) -> None:
        """Mark as unconfirmed the parts that an earlier run was sending when it ended. They are never sent again."""
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
