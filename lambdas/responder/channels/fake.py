"""Publishes each reply as an event on the bus, for the local stage and for generic webhooks."""

from lambdas.responder.errors import CallUnconfirmed
from lambdas.responder.events import PublishesReplies, publish_reply_sent
from message_buffer.errors import SendFailed
from message_buffer.messages.conversation_id import ConversationId


class FakeChannel:
    # An event may be longer, but replies are divided as they are for WhatsApp.
    max_part_characters = 4_096

    def __init__(self, bus: PublishesReplies) -> None:
        self._bus = bus

    def send(self, to: ConversationId, text: str) -> None:
        try:
            publish_reply_sent(self._bus, to, text)
        except SendFailed as error:
            # The bus may have accepted the event although its response was lost.
            raise CallUnconfirmed(str(error)) from error

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        pass
