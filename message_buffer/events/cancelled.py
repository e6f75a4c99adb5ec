"""The event that tells of a cancelled buffer, whoever cancelled it.

`docs/schema/messages.buffer.cancelled.json` is its schema.
"""

import json
from typing import Literal

from message_buffer.lanes.outcomes import AlreadyCancelled, Cancelled
from message_buffer.messages.conversation_id import ConversationId

DETAIL_TYPE = "messages.buffer.cancelled"
EVENT_VERSION = 1


def cancelled_event(
    conversation: ConversationId,
    outcome: Cancelled | AlreadyCancelled,
    *,
    reason: Literal["stop_word", "operator"],
    at_ms: int,
    message_id: str | None = None,
) -> str:
    """Of a repeat, whose first telling may be lost, nobody knows any more what was dropped, and at which generation."""
    first = outcome if isinstance(outcome, Cancelled) else None
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(conversation),
        "tenant": conversation.tenant,
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
