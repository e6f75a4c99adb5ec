"""The event about a conversation that a human agent has taken over by answering.

`docs/schema/messages.conversation.taken_over.json` is its schema.
"""

from message_buffer.json_object import to_json
from message_buffer.messages.conversation_id import ConversationId

DETAIL_TYPE = "messages.conversation.taken_over"
EVENT_VERSION = 1


def taken_over_event(
    conversation: ConversationId, *, agent: str | None, reply_id: str, at_ms: int, until_ms: int
) -> str:
    """Return the event's detail. `at_ms` is the reply's time. `until_ms` is the end of the hold, unless another reply
    prolongs it."""
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(conversation),
        "tenant": conversation.tenant,
        **({"agent": agent} if agent else {}),
        "messageId": reply_id,
        "at": at_ms,
        "until": until_ms,
        "metadata": {"platform": conversation.platform},
    }
    return to_json(event).decode()
