"""The events about a conversation other than its batches. `docs/schema` has a schema for each type."""

from typing import Any, Literal, NamedTuple

from message_buffer.events.batch_ready import message_fields
from message_buffer.json_object import to_json
from message_buffer.lanes.outcomes import AlreadyCancelled, BufferCancelled, LaneName
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import encode
from message_buffer.messages.wire_form import decode_fields

AMENDED = "messages.amended"
CANCELLED = "messages.buffer.cancelled"
HANDED_OFF = "messages.conversation.handed_off"
HANDED_BACK = "messages.conversation.handed_back"
COMPLETED = "messages.conversation.completed"
FORGOTTEN = "messages.conversation.forgotten"
EVENT_VERSION = 1
# The reason of a hand-off, or the summary of a task, has at most this many characters.
MAX_REASON_CHARACTERS = 1_000


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
    return _event(change.conversation, agent, change.at_ms, fields | about)


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
    return _event(conversation, agent, at_ms, fields)


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
    return _event(conversation, initiator.agent, at_ms, fields)


def handed_back_event(conversation: ConversationId, initiator: Initiator, *, at_ms: int, handed_off_at_ms: int) -> str:
    """Return the event about a conversation that agents may answer again from `at_ms` on.

    `handed_off_at_ms` is the `at` of the event about the hand-off that has ended.
    """
    about = {"cause": initiator.cause, "by": initiator.by, "reason": initiator.reason}
    return _event(conversation, initiator.agent, at_ms, {**about, "handedOffAt": handed_off_at_ms})


def completed_event(conversation: ConversationId, initiator: Initiator, *, at_ms: int) -> str:
    """Return the event about a task that is done. All messages that arrived until `at_ms` belong to the task."""
    about = {"cause": initiator.cause, "by": initiator.by, "summary": initiator.reason}
    return _event(conversation, initiator.agent, at_ms, about)


def forgotten_event(conversation: ConversationId, *, at_ms: int) -> str:
    """Return the event which asks consumers to erase everything of the conversation that arrived until `at_ms`."""
    return _event(conversation, None, at_ms, {})


def _event(conversation: ConversationId, agent: str | None, at_ms: int, fields: dict[str, Any]) -> str:
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
