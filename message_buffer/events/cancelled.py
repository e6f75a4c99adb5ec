"""The event about a buffer that an author or an operator has cancelled.

`docs/schema/messages.buffer.cancelled.json` is its schema.
"""

import json
from typing import Literal

from message_buffer.lanes.outcomes import AlreadyCancelled, BufferCancelled
from message_buffer.messages.conversation_id import ConversationId

DETAIL_TYPE = "messages.buffer.cancelled"
EVENT_VERSION = 1


def cancelled_event(
    conversation: ConversationId,
    outcome: BufferCancelled | AlreadyCancelled,
    *,
    reason: Literal["stop_word", "operator"],
    at_ms: int,
    message_id: str | None = None,
    agent: str | None = None,
) -> str:
    """Return the event's detail. A repeated cancel knows neither the counts nor the generation, so they are null."""
    first = outcome if isinstance(outcome, BufferCancelled) else None
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(conversation),
        "tenant": conversation.tenant,
        **({} if agent is None else {"agent": agent}),
        "generation": first.generation if first else None,
        "dropped": first.buffered if first else None,
        "frozen": first.frozen if first else None,
        "leaving": first.leaving if first else None,
        "messageId": message_id,
        "reason": reason,
        "at": at_ms,
        "lane": outcome.lane,
        "metadata": {"platform": conversation.platform},
    }
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
