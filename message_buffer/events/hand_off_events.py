"""The events about hand-offs and completed tasks. `docs/schema` has a schema for each type.

This module imports no pydantic, which would make the gate's cold start a third longer.
"""

from typing import Any, NamedTuple

from message_buffer.json_object import to_json
from message_buffer.messages.conversation_id import ConversationId

HANDED_OFF = "messages.conversation.handed_off"
HANDED_BACK = "messages.conversation.handed_back"
COMPLETED = "messages.conversation.completed"
EVENT_VERSION = 1
# The reason of a hand-off, or the summary of a task, has at most this many characters.
MAX_REASON_CHARACTERS = 1_000


class Initiator(NamedTuple):
    """Names the cause of a hand-off, of its end, or of a completed task, and what the event says of it."""

    cause: str
    """`answer` (of a human agent, on the platform), `operator`, or the name that a consumer gave."""
    by: str | None = None
    """The name that the caller claims to have. None if a human agent has answered."""
    reason: str | None = None
    message_id: str | None = None
    """The platform's id of the human agent's answer."""
    agent: str | None = None
    """The AI agent that serves the account, if the rules name one."""


def conversation_event(conversation: ConversationId, agent: str | None, at_ms: int, fields: dict[str, Any]) -> str:
    """Return an event about a conversation, with the fields that all of them have."""
    event = {
        "version": EVENT_VERSION,
        "conversationId": str(conversation),
        "tenant": conversation.tenant,
        **({} if agent is None else {"agent": agent}),
        **fields,
        "at": at_ms,
        "metadata": {"platform": conversation.platform},
    }
    return to_json(event).decode()
