"""How a reply gets to its reader.

None of the four providers documents a key by which it would know a repeated message, so none is ever sent twice:
what nobody confirmed is counted, not repeated.
"""

import re
from collections.abc import Mapping
from typing import Protocol

from message_buffer.messages.conversation_id import ConversationId
from responder.errors import Refused

Credentials = Mapping[str, str]

SECONDS = 8.0
# Where a text may be split, the best first.
BREAKS = ("\n\n", "\n", ". ", " ")


class Channel(Protocol):
    longest: int
    """Characters of one part."""

    def send(self, to: ConversationId, text: str) -> None:
        """Raises Refused, Busy or Unconfirmed."""

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        """`message_id`: what the reader wrote last."""


def required(credentials: Credentials, name: str) -> str:
    if not credentials.get(name):
        raise Refused(f"the responder's secret has no {name} for this account")
    return credentials[name]


def phone(address: str) -> str:
    """As it is dialled; conversations are named without the plus."""
    return f"+{address}" if re.fullmatch(r"\d+", address) else address


def split(text: str, longest: int) -> list[str]:
    """Parts that a channel takes, broken where a reader would not mind."""
    parts: list[str] = []
    # Half a surrogate pair, which an AI may answer with, can neither be written down nor sent.
    rest = text.encode("utf-8", "replace").decode().strip()
    while len(rest) > longest:
        # Not so near to the beginning that the parts get many.
        at = next((at for each in BREAKS if (at := rest.rfind(each, longest // 2, longest)) != -1), None)
        cut = longest if at is None else at + 1
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*parts, rest]
