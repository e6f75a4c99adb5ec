"""An author's changes to a message that was sent before: an edit, a deletion or a reaction."""

from typing import NamedTuple

from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import Message


class Edited(NamedTuple):
    conversation: ConversationId
    message: Message
    """The message after the edit, under its original id."""
    at_ms: int
    group: bool = False
    """Several authors write in this conversation."""
    agent: str | None = None
    """The agent who serves the conversation, if the platform names one."""


class Deleted(NamedTuple):
    conversation: ConversationId
    message_id: str
    author: str | None
    at_ms: int
    group: bool = False


class Reacted(NamedTuple):
    conversation: ConversationId
    message_id: str
    author: str | None
    emoji: str | None
    """None if the author has removed the reaction."""
    at_ms: int


Change = Edited | Deleted | Reacted
