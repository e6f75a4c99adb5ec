"""The events that the responder publishes on the buffer's bus."""

import json
from typing import Protocol

from lambdas.responder.batch import Batch
from lambdas.responder.gate_client import OthersHold
from message_buffer.messages.conversation_id import ConversationId

REPLY_SENT = "messages.reply.sent"
REPLY_WITHHELD = "messages.reply.withheld"
EVENT_VERSION = 1


class PublishesReplies(Protocol):
    def publish(self, detail_type: str, detail: str) -> None: ...


def publish_reply_sent(bus: PublishesReplies, to: ConversationId, text: str) -> None:
    detail = {"version": EVENT_VERSION, "conversationId": str(to), "tenant": to.tenant, "text": text}
    bus.publish(REPLY_SENT, json.dumps(detail))


def publish_reply_withheld(
    bus: PublishesReplies, batch: Batch, *, reason: str, outcome: str, hold: OthersHold | None = None
) -> None:
    detail = {
        "version": EVENT_VERSION,
        "batchId": batch.batch_id,
        "conversationId": str(batch.conversation),
        "tenant": batch.conversation.tenant,
        "reason": reason,
        "outcome": outcome,
        **({"hold": {"holder": hold.holder, "cause": hold.cause, "until": hold.until_ms}} if hold else {}),
    }
    bus.publish(REPLY_WITHHELD, json.dumps(detail))
