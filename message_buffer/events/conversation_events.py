"""The events about a conversation other than its batches and hand-offs. `docs/schema` has a schema for each type."""

from typing import Any, Literal

from message_buffer.events.batch_ready import message_fields
from message_buffer.events.event_bus import conversation_event
from message_buffer.lanes.outcomes import AlreadyCancelled, BufferCancelled, LaneName
from message_buffer.messages.changes import Change, Deleted, Edited, Failed, Reacted
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import encode
from message_buffer.messages.wire_form import decode_fields

AMENDED = "messages.amended"
CANCELLED = "messages.buffer.cancelled"
FORGOTTEN = "messages.conversation.forgotten"
REPLY_FAILED = "messages.reply.failed"


def amended_event(change: Change, *, batch_id: str | None, lane: LaneName, agent: str | None = None) -> str:
    """Return the event about a change that can no longer be made in a buffer.

    `lane` is the lane that looked for the message's batch. `batch_id` is None if it found none.
    """
    about: dict[str, Any]
    match change:
        case Edited(_, message):
            edited = message_fields(decode_fields(encode(message)))
            about = {"change": "edited", "messageId": message.id, "author": message.author, "message": edited}
        case Deleted(_, message_id, author):
            about = {"change": "deleted", "messageId": message_id, "author": author}
        case Reacted(_, message_id, author, emoji):
            about = {"change": "reaction", "messageId": message_id, "author": author, "emoji": emoji}
    fields = {"batchId": batch_id, "lane": lane, "message": None, "emoji": None}
    return conversation_event(change.conversation, agent, change.at_ms, fields | about)


def failed_event(failed: Failed, *, agent: str | None = None) -> str:
    """Return the event about a message of the business that the platform could not deliver."""
    fields = {"messageId": failed.message_id, "code": failed.code, "text": failed.text}
    return conversation_event(failed.conversation, agent, failed.at_ms, fields)


def cancelled_event(
    conversation: ConversationId,
    outcome: BufferCancelled | AlreadyCancelled,
    *,
    reason: Literal["stop_word", "operator"],
    at_ms: int,
    message_id: str | None = None,
    agent: str | None = None,
) -> str:
    """Return the event about a buffer that an author or an operator has cancelled.

    A repeated cancel knows neither the counts nor the generation, so they are null.
    """
    first = outcome if isinstance(outcome, BufferCancelled) else None
    fields = {
        "generation": first.generation if first else None,
        "dropped": first.buffered if first else None,
        "frozen": first.frozen if first else None,
        "leaving": first.leaving if first else None,
        "messageId": message_id,
        "reason": reason,
        "lane": outcome.lane,
    }
    return conversation_event(conversation, agent, at_ms, fields)


def forgotten_event(conversation: ConversationId, *, at_ms: int) -> str:
    """Return the event which asks consumers to erase everything of the conversation that arrived until `at_ms`."""
    return conversation_event(conversation, None, at_ms, {})
