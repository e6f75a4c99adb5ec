"""The event about a conversation that an operator has erased with `forget`.

`docs/schema/messages.conversation.forgotten.json` is its schema.
"""

import json

from message_buffer.messages.conversation_id import ConversationId

DETAIL_TYPE = "messages.conversation.forgotten"
EVENT_VERSION = 1


def forgotten_event(conversation: ConversationId, *, at_ms: int) -> str:
    """Return the event's detail, which asks consumers to erase everything that arrived until `at_ms`."""
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(conversation),
        "tenant": conversation.tenant,
        "at": at_ms,
        "metadata": {"platform": conversation.platform},
    }
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))
