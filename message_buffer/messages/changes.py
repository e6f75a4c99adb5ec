"""What an author does to a message after it was sent: edit it, delete it or react to it."""

from typing import NamedTuple

from message_buffer.messages.conversation_id import ConversationId
from message_buffer.messages.message import Message


class Edited(NamedTuple):
    conversation: ConversationId
    message: Message
    """The message as it is now, under the id that it always had."""
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
    """None takes the reaction back."""
    at_ms: int


Change = Edited | Deleted | Reacted
