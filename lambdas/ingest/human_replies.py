"""Puts a conversation on hold after a human agent has answered in it, and publishes the takeover when it begins.

If the stage has the queue `handoff`, the conversation gets a hand-off mark instead of a hold.
"""

from collections.abc import Iterable

from lambdas.ingest.preparation import PreparedReply
from lambdas.ingest.report import Done
from message_buffer.clock import Clock
from message_buffer.errors import SendFailed
from message_buffer.events.conversation_events import TAKEN_OVER, taken_over_event
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes.holds import Holder
from message_buffer.lanes.lane import Lane
from message_buffer.limits import MAX_HOLD_MS
from message_buffer.takeovers.takeover import Takeover
from message_buffer.takeovers.takeovers_table import TakeoversTable

# A human agent writes to one customer after the other, so platforms report few human agents' replies at once.
MAX_CONVERSATIONS_TAKEN_OVER_IN_A_WEBHOOK = 50
# Try to save a takeover this many times. A save fails only if another request changes the same conversation's takeover
# at the same time.
MAX_SAVES_OF_A_TAKEOVER = 5


class HumanReplies:
    def __init__(
        self, lane: Lane, bus: EventBus, table: TakeoversTable, clock: Clock, *, has_handoff_queue: bool
    ) -> None:
        self._holder: Holder = "handoff" if has_handoff_queue else "people"
        self._lane = lane
        self._bus = bus
        self._table = table
        self._clock = clock

    def hold_all(self, replies: Iterable[PreparedReply], done: Done) -> None:
        """Put the conversations of the replies, which come newest first, on hold, and count them in `done`. Raise
        StoreError or SendFailed."""
        held: set[str] = set()
        for reply in replies:
            conversation = str(reply.conversation)
            if conversation in held:
                continue  # the newest reply holds the conversation, and the older ones add nothing
            if len(held) >= MAX_CONVERSATIONS_TAKEN_OVER_IN_A_WEBHOOK:
                done.left_out_replies += 1
                continue
            held.add(conversation)
            takeover = self._takeover_after(reply)
            if takeover.is_on(self._clock()):
                self._apply(reply, takeover, done)

    def _takeover_after(self, reply: PreparedReply) -> Takeover:
        """Store the reply, and return the conversation's takeover. Raise SendFailed."""
        conversation = str(reply.conversation)
        for _ in range(MAX_SAVES_OF_A_TAKEOVER):
            before, now_ms = self._table.read(conversation), self._clock()
            after = before.after_reply(reply.id, at_ms=reply.at_ms, hold_ms=reply.hold_ms, now_ms=now_ms)
            if after is before or self._table.save(conversation, after, now_ms=now_ms):
                return after
        raise SendFailed("save takeover: other requests keep changing it")

    def _apply(self, reply: PreparedReply, takeover: Takeover, done: Done) -> None:
        """Hold the conversation until the takeover's end, and publish the takeover if it is new.

        A redelivery repeats this, because the first request may have died right after storing the takeover.
        """
        conversation = str(reply.conversation)
        # Bound the hold, because the clock of the host that stored the takeover may be ahead or behind.
        hold_ms = min(max(takeover.until_ms - self._clock(), 1), MAX_HOLD_MS)
        self._lane.hold_buffer(conversation, holder=self._holder, cause="answer", hold_ms=hold_ms)
        if not takeover.is_published:
            event = taken_over_event(
                reply.conversation, agent=reply.agent, reply_id=reply.id, at_ms=takeover.began_at_ms,
                until_ms=takeover.until_ms,
            )  # fmt: skip
            self._bus.publish(TAKEN_OVER, event)
        if self._table.mark_published(conversation, began_at_ms=takeover.began_at_ms):
            done.taken_over += [conversation] if not takeover.is_published else []
        elif not self._table.read(conversation).is_on(self._clock()):
            # An operator has resumed the conversation since the takeover was stored. The hold above may have begun
            # after that, so end it.
            self._lane.resume_buffer(conversation, holder=self._holder, cause="answer")
