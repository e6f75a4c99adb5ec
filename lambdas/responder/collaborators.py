"""Everything outside the responder that the responder calls, except its own table."""

from collections.abc import Callable
from typing import NamedTuple

from lambdas.responder.assistants.base import Assistant
from lambdas.responder.batch import ReadsObjects
from lambdas.responder.channels.base import Channel
from lambdas.responder.events import PublishesReplies
from lambdas.responder.gate_client import Buffer
from message_buffer.messages.conversation_id import ConversationId


class Collaborators(NamedTuple):
    bus: PublishesReplies
    objects: ReadsObjects
    buffer: Buffer
    dead_letter: Callable[[str, str], None]
    """Puts a delivery's body into the dead-letter queue, with the reason."""
    assistant: Callable[[], Assistant]
    channel: Callable[[ConversationId], Channel | None]
    """Returns None if there is no channel for the conversation's platform."""
