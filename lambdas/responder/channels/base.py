"""The interface of all channels, which send replies to customers.

None of the four providers documents a key by which it recognises a repeated request. So the responder never sends a
part twice: if a part's arrival is not confirmed, it counts the part.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from lambdas.responder.errors import CallRefused
from message_buffer.messages.conversation_id import ConversationId

# A channel needs little time, because it only accepts a part, and delivers the part later.
MAX_SEND_SECONDS = 8.0
Credentials = Mapping[str, str]

# Places where a text may be split, the best first.
BREAKS = ("\n\n", "\n", ". ", " ")


class Channel(Protocol):
    max_part_characters: int

    def send(self, to: ConversationId, text: str) -> None:
        """Send one part. Raises CallRefused, CallBusy or CallUnconfirmed."""

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        """Show the customer that a reply is being written. `message_id` is the id of the customer's last message."""


def require_credential(credentials: Credentials, name: str) -> str:
    if not credentials.get(name):
        raise CallRefused(f"the responder's secret has no {name} for this account")
    return credentials[name]


def phone(address: str) -> str:
    """Return a phone number as it is dialled. Conversation ids contain it without the plus."""
    return f"+{address}" if re.fullmatch(r"\d+", address) else address


def split(text: str, max_characters: int) -> list[str]:
    """Return the text in parts of at most `max_characters`, divided between paragraphs, lines, sentences or words."""
    parts: list[str] = []
    # An AI may return half of a surrogate pair, which can neither be stored nor sent.
    rest = text.encode("utf-8", "replace").decode().strip()
    while len(rest) > max_characters:
        # Do not divide in the first half, or there would be too many parts.
        places = (rest.rfind(each, max_characters // 2, max_characters) for each in BREAKS)
        at = next((place for place in places if place != -1), None)
        cut = max_characters if at is None else at + 1
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*parts, rest]
