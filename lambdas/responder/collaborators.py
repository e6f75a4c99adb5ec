"""Everything outside the responder that it calls, apart from its own table."""

from collections.abc import Callable
from typing import NamedTuple

from message_buffer.messages.conversation_id import ConversationId
from responder.assistants.base import Assistant
from responder.batch import Objects
from responder.channels.base import Channel
from responder.events import Bus
from responder.gate_client import Buffer


class Collaborators(NamedTuple):
    bus: Bus
    objects: Objects
    buffer: Buffer
    dead_letter: Callable[[str, str], None]
    """Puts a delivery's body into the dead-letter queue, with the reason."""
    assistant: Callable[[], Assistant]
    channel: Callable[[ConversationId], Channel | None]
    """Returns None if there is no channel for the conversation's platform."""
