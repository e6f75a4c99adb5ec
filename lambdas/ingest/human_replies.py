"""Hands a conversation to people after a human agent has answered in it."""

from collections.abc import Iterable
from functools import partial

from lambdas.ingest.preparation import PreparedReply
from lambdas.ingest.report import Done
from message_buffer.events.hand_offs import ANSWER, HandOffs, Initiator
from message_buffer.takeovers.takeover import Takeover

# A human agent writes to one customer after the other, so platforms report few human agents' replies at once.
MAX_CONVERSATIONS_HANDED_OFF_IN_A_WEBHOOK = 50


def hand_off_all(hand_offs: HandOffs, replies: Iterable[PreparedReply], done: Done) -> None:
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
        change = partial(Takeover.after_reply, reply_id=reply.id, at_ms=reply.at_ms, hold_ms=reply.hold_ms)
        initiator = Initiator(ANSWER, message_id=reply.id, agent=reply.agent)
        _, is_new = hand_offs.take_over(reply.conversation, initiator, change)
        if is_new:
            done.handed_off.append(conversation)
