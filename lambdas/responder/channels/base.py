"""The interface of all channels, which send replies to customers.

None of the four providers documents a key by which it recognises a repeated request. So the responder never sends a
part twice. If the provider does not confirm a part, the responder marks the part as unconfirmed.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from lambdas.responder.errors import CallRefused
from message_buffer.messages.conversation_id import ConversationId

# A channel needs little time, because it only accepts a part, and delivers the part later.
MAX_SEND_SECONDS = 8.0
Credentials = Mapping[str, str]


class Channel(Protocol):
    max_part_characters: int
    """A longer reply is sent in parts (`reply_parts.py`)."""

    def send(self, to: ConversationId, text: str) -> None:
        """Send one part. Raise CallRefused, CallBusy or CallUnconfirmed."""

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        """Show the customer that a reply is being written. `message_id` is the id of the customer's last message."""


def require_credential(credentials: Credentials, name: str) -> str:
    if not credentials.get(name):
        raise CallRefused(f"the responder's secret has no {name} for this account")
    return credentials[name]


def phone(address: str) -> str:
    """Return a phone number with the plus, which conversation ids omit."""
    return f"+{address}" if re.fullmatch(r"\d+", address) else address
