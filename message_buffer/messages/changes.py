"""A platform's reports about a message that was sent before: its author's edit, deletion or reaction, or its failed
delivery if it is a message of the business."""

from typing import NamedTuple

from message_buffer.messages.conversation_id import AuthorIds, ConversationId
from message_buffer.messages.message import Message


class Edited(NamedTuple):
    conversation: ConversationId
    message: Message
    """The message after the edit, under its original id."""
    at_ms: int
    group: bool = False
    """True if several authors write in this conversation."""
    agent: str | None = None
    """The agent who serves the conversation, if the webhook names one."""
    author_ids: AuthorIds | None = None


class Deleted(NamedTuple):
    conversation: ConversationId
    message_id: str
    author: str | None
    at_ms: int
    group: bool = False
    author_ids: AuthorIds | None = None


class Reacted(NamedTuple):
    conversation: ConversationId
    message_id: str
    author: str | None
    emoji: str | None
    """None if the author has removed the reaction."""
    at_ms: int
    author_ids: AuthorIds | None = None
    """None in a group, because a group's conversation does not depend on the author."""


Change = Edited | Deleted | Reacted


class Failed(NamedTuple):
    """A message of the business that the platform could not deliver."""

    conversation: ConversationId
    message_id: str
    code: int | None
    """The platform's number of the error."""
    text: str
    """The platform's words about the error."""
    at_ms: int
    author_ids: AuthorIds | None = None
    """The customer's ids. None in a group, because a group's conversation does not depend on them."""
