"""Hands a conversation to people after a human agent has answered in it."""

from collections.abc import Iterable

from lambdas.ingest.preparation import PreparedReply
from lambdas.ingest.report import Done
from message_buffer.clock import Clock
from message_buffer.events.hand_offs import ANSWER, HandOffs, Initiator
from message_buffer.takeovers.takeover import Takeover

# A human agent writes to one customer after the other, so platforms report few human agents' replies at once.
MAX_CONVERSATIONS_HANDED_OFF_IN_A_WEBHOOK = 50


class HumanReplies:
    def __init__(self, hand_offs: HandOffs, clock: Clock) -> None:
        self._hand_offs = hand_offs
        self._clock = clock

    def hand_off_all(self, replies: Iterable[PreparedReply], done: Done) -> None:
        """Hand the conversations of the replies, which come newest first, to people, and count them in `done`. Raise
        StoreError or SendFailed."""
        seen: set[str] = set()
        for reply in replies:
            conversation = str(reply.conversation)
            if conversation in seen:
                continue  # the newest reply hands the conversation off, and the older ones add nothing
            if len(seen) >= MAX_CONVERSATIONS_HANDED_OFF_IN_A_WEBHOOK:
                done.left_out_replies += 1
                continue
            seen.add(conversation)
            if self._hand_off(reply):
                done.handed_off.append(conversation)

    def _hand_off(self, reply: PreparedReply) -> bool:
        """Store the reply, and apply the takeover. Return True if it is new.

        A redelivery repeats this, because the first request may have died right after storing the takeover.
        """

        def after(takeover: Takeover, now_ms: int) -> Takeover:
            return takeover.after_reply(reply.id, at_ms=reply.at_ms, hold_ms=reply.hold_ms, now_ms=now_ms)

        takeover = self._hand_offs.change(reply.conversation, after)
        if not takeover.is_on(self._clock()):
            return False
        initiator = Initiator(ANSWER, message_id=reply.id, agent=reply.agent)
        return self._hand_offs.apply(reply.conversation, takeover, initiator)
