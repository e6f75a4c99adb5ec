"""Sends the parts of a reply, each at most once, and records the state of each.

If the platform may report the part to the buffer as a message of the business, the responder also records the send in
the buffer's table of takeovers. Otherwise the buffer could believe that a person has answered, and hold the
conversation. If that table fails, a batch waits for it once. Then the reply is sent without a record, because a
customer without an answer is worse than a hold that an operator can end.
"""

from message_buffer.clock import Clock
from message_buffer.errors import SendFailed
from message_buffer.limits import MAX_CALL_MS
from message_buffer.telemetry import Telemetry
from responder.channels.base import Channel
from responder.collaborators import SentMessages
from responder.errors import Busy, Refused, Unconfirmed
from responder.limits import MIN_RECEIVES_TO_SEND_UNRECORDED, MIN_TIME_TO_SEND_MS
from responder.outbox import PLANNED, SENDING, SENT, UNCONFIRMED
from responder.owned_batch import OwnedBatch


class PartSender:
    def __init__(self, sent_messages: SentMessages, telemetry: Telemetry, clock: Clock, *, max_attempts: int) -> None:
        self._sent_messages = sent_messages
        self._telemetry = telemetry
        self._clock = clock
        self._min_receives_to_send_unrecorded = min(MIN_RECEIVES_TO_SEND_UNRECORDED, max_attempts)

    def send(self, owned: OwnedBatch, channel: Channel, number: int, text: str) -> None:
        """Send a planned part. If the channel raises Busy or Refused, mark the part as planned again."""
        needed_ms = MIN_TIME_TO_SEND_MS + (MAX_CALL_MS if channel.is_echoed else 0)
        owned.require_time(needed_ms)
        if channel.is_echoed:
            # Do this before the part is marked, so that after a failure here the part may still be sent.
            self._begin_sending(owned, needed_ms)
        owned.mark(number, before=PLANNED, after=SENDING)
        try:
            message_id = channel.send(owned.batch.recipient, text)
        except (Busy, Refused):
            owned.mark(number, before=SENDING, after=PLANNED)
            self._end_sending(owned, channel, None)
            raise
        except Unconfirmed as error:
            self._mark_unconfirmed(owned, channel, number, str(error))
            return
        if message_id is not None:
            self._end_sending(owned, channel, message_id)
        else:
            self._doubt_sending(owned, channel)
        owned.mark(number, before=SENDING, after=SENT)
        self._telemetry.count("PartsSent")

    def give_up_interrupted(self, owned: OwnedBatch, channel: Channel | None) -> None:
        """Mark as unconfirmed the parts that an earlier run was sending when it ended. They are never sent again.

        The channel is None if nothing is sent any more. Then the platform may have reported those parts.
        """
        for number, part in enumerate(owned.outbox.parts if owned.outbox else ()):
            if part.state == SENDING:
                self._mark_unconfirmed(owned, channel, number, "the run that sent it ended before the channel answered")

    def _mark_unconfirmed(self, owned: OwnedBatch, channel: Channel | None, number: int, reason: str) -> None:
        self._doubt_sending(owned, channel)
        owned.mark(number, before=SENDING, after=UNCONFIRMED)
        self._telemetry.count("UnconfirmedSends")
        self._telemetry.warn(
            "send was not confirmed",
            conversation=owned.conversation,
            batch=owned.batch.batch_id,
            part=number,
            reason=reason,
        )

    # -- the buffer's table ------------------------------------------------------------------------

    def _begin_sending(self, owned: OwnedBatch, needed_ms: int) -> None:
        """Record that a part is being sent. If that fails in the first of several attempts, raise SendFailed."""
        now_ms = self._clock()
        try:
            self._sent_messages.begin_sending(owned.conversation, now_ms=now_ms, until_ms=now_ms + needed_ms)
        except SendFailed as error:
            if owned.delivery.receives < self._min_receives_to_send_unrecorded:
                raise
            # The message's id may still be recorded after the send.
            self._warn(owned, error)

    # The part was sent, or will be sent again, so a failure here must not fail the batch. Without a record of its end,
    # the buffer treats the send as unconfirmed.

    def _end_sending(self, owned: OwnedBatch, channel: Channel, message_id: str | None) -> None:
        if not channel.is_echoed:
            return
        try:
            self._sent_messages.end_sending(owned.conversation, message_id, now_ms=self._clock())
        except SendFailed as error:
            self._warn(owned, error)

    def _doubt_sending(self, owned: OwnedBatch, channel: Channel | None) -> None:
        if channel is not None and not channel.is_echoed:
            return
        now_ms = self._clock()
        try:
            self._sent_messages.doubt_sending(owned.conversation, now_ms=now_ms, until_ms=now_ms)
        except SendFailed as error:
            self._warn(owned, error)

    def _warn(self, owned: OwnedBatch, error: SendFailed) -> None:
        self._telemetry.warn("sent message was not recorded", conversation=owned.conversation, reason=str(error))
