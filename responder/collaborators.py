"""Everything outside the responder that it calls, apart from its own table."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from message_buffer.messages.conversation_id import ConversationId
from responder.assistants.base import Assistant
from responder.batch import Objects
from responder.channels.base import Channel
from responder.events import Bus
from responder.gate_client import Buffer


class SentMessages(Protocol):
    def begin_sending(self, conversation: str, *, now_ms: int, until_ms: int) -> None: ...

    def end_sending(self, conversation: str, message_id: str | None, *, now_ms: int) -> None: ...

    def doubt_sending(self, conversation: str, *, now_ms: int, until_ms: int) -> None: ...


class Collaborators(NamedTuple):
    bus: Bus
    objects: Objects
    buffer: Buffer
    sent_messages: SentMessages
    dead_letter: Callable[[str, str], None]
    """Puts a delivery's body into the dead-letter queue, with the reason."""
    assistant: Callable[[], Assistant]
    channel: Callable[[ConversationId], Channel | None]
    """Returns None if there is no channel for the conversation's platform."""
