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
    """What began or ended a hand-off, or completed a task."""

    cause: str
    """`answer` (of a human agent, on the platform), `operator`, or the name that a consumer gave."""
    by: str | None = None
    """The name that the caller gave, which nobody has verified. None if a human agent has answered."""
    reason: str | None = None
    message_id: str | None = None
    """The platform's id of the human agent's answer."""
    agent: str | None = None
    """The AI agent that serves the account, if the rules name one."""


def handed_off_event(conversation: ConversationId, initiator: Initiator, *, at_ms: int, until_ms: int | None) -> str:
    """Return the event about a conversation that people answer from `at_ms` on.

    `until_ms` is the end, unless the hand-off is prolonged. None if there is no limit.
    """
    about = {"cause": initiator.cause, "by": initiator.by, "reason": initiator.reason}
    fields = {**about, "messageId": initiator.message_id, "until": until_ms}
    return conversation_event(conversation, initiator.agent, at_ms, fields)


def handed_back_event(conversation: ConversationId, initiator: Initiator, *, at_ms: int, handed_off_at_ms: int) -> str:
    """Return the event about a conversation that agents may answer again from `at_ms` on.

    `handed_off_at_ms` is the `at` of the event about the hand-off that has ended.
    """
    about = {"cause": initiator.cause, "by": initiator.by, "reason": initiator.reason}
    return conversation_event(conversation, initiator.agent, at_ms, {**about, "handedOffAt": handed_off_at_ms})


def completed_event(conversation: ConversationId, initiator: Initiator, *, at_ms: int) -> str:
    """Return the event about a task that is done. All messages that arrived until `at_ms` belong to the task."""
    about = {"cause": initiator.cause, "by": initiator.by, "summary": initiator.reason}
    return conversation_event(conversation, initiator.agent, at_ms, about)


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
