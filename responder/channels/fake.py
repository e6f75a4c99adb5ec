"""No provider: a reply is an event on the bus. For the local stage, and for owners of generic webhooks."""

import json
from typing import Protocol

from message_buffer.errors import SendFailed
from message_buffer.messages.conversation_id import ConversationId
from responder.errors import Unconfirmed

DETAIL_TYPE = "messages.reply.sent"
EVENT_VERSION = 1


class Bus(Protocol):
    def publish(self, detail_type: str, detail: str) -> None: ...


class Fake:
    longest = 4_096

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def send(self, to: ConversationId, text: str) -> None:
        detail = {"version": EVENT_VERSION, "conversationId": str(to), "tenant": to.tenant, "text": text}
        try:
            self._bus.publish(DETAIL_TYPE, json.dumps(detail))
        except SendFailed as error:
            # The bus does not say whether it took an event that it failed to answer for.
            raise Unconfirmed(str(error)) from error

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        pass
