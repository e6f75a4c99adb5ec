"""The id of a conversation: its tenant, platform, account and user.

    acme/whatsapp/106540352242922/491701234567

`/` and `%` inside a part are escaped, so that different parts never make the same id.
"""

from functools import lru_cache
from typing import NamedTuple

from message_buffer.errors import InvalidId
from message_buffer.limits import MAX_CONVERSATION_NAMES_KEPT

DEFAULT_TENANT = "default"


class ConversationId(NamedTuple):
    tenant: str
    platform: str
    account: str
    user: str

    def __str__(self) -> str:
        return _joined(self)


@lru_cache(maxsize=MAX_CONVERSATION_NAMES_KEPT)
def _joined(conversation: ConversationId) -> str:
    if not all(conversation):
        raise InvalidId("no part of a conversation id may be empty")
    return "/".join(map(escape_part, conversation))


def escape_part(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


def parse_conversation_id(text: str) -> ConversationId:
    """Return the parts of a conversation's id. Raises InvalidId."""
    parts = [part.replace("%2F", "/").replace("%25", "%") for part in text.split("/")]
    if len(parts) != len(ConversationId._fields) or not all(parts):
        raise InvalidId("a conversation id reads tenant/platform/account/user")
    return ConversationId(*parts)
