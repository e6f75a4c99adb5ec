"""The id of a conversation: its tenant, platform, account and user.

    acme/whatsapp/106540352242922/491701234567

`/` and `%` inside a part are escaped, so that different parts never make the same id.
"""

from typing import NamedTuple

from message_buffer.errors import InvalidId
from message_buffer.limits import DAY_MS

# This is enough for an id's four escaped parts. It is not more, because many keys in Valkey contain the id.
MAX_CONVERSATION_ID_BYTES = 1_024
DEFAULT_TENANT = "default"
# Every platform that ingest knows; a test compares these names with its modules.
PLATFORM_NAMES = ("custom", "generic", "instagram", "messenger", "telegram", "twilio", "whatsapp")
# The tenant of the conversations with which the canary and `bufferctl verify` test a stage. Statistics leave these
# conversations out.
TRIAL_TENANT = "message-buffer-trial"
# The beginning of the ids of trial conversations that use the fallback even if Valkey is available.
TRIAL_OF_FALLBACK = f"{TRIAL_TENANT}/generic/verify-fallback/"


_WITH_A_REPLY_WINDOW = frozenset({"instagram", "messenger", "whatsapp"})


class AuthorIds(NamedTuple):
    """A phone number, and the id that names the author in all chats with one business. One of them may be unknown.

    WhatsApp sends both, or only the id if the author hides the number. The id is case-sensitive.
    """

    number: str | None
    user_id: str | None


class ConversationId(NamedTuple):
    tenant: str
    platform: str
    account: str
    user: str

    def __str__(self) -> str:
        """Return the id. Raise InvalidId if a part is empty, or if the id would be too long."""
        if not all(self):
            raise InvalidId("no part of a conversation id may be empty")
        # Check the length before the id is built, because a sender may put megabytes into a part. Escapes and
        # characters of several bytes can only make the id longer than this.
        characters = sum(map(len, self)) + len(self) - 1
        if characters > MAX_CONVERSATION_ID_BYTES:
            raise InvalidId(
                f"a conversation id has 1 to {MAX_CONVERSATION_ID_BYTES} bytes; this one has at least {characters}"
            )
        return "/".join(map(escape_part, self))


def encode_conversation(conversation: str) -> bytes:
    """Return the id in UTF-8; raise InvalidId if it is empty, too long or not valid Unicode."""
    try:
        encoded = conversation.encode()
    except UnicodeEncodeError as error:
        raise InvalidId("a conversation id must be valid Unicode: it holds a lone surrogate") from error
    if not 0 < len(encoded) <= MAX_CONVERSATION_ID_BYTES:
        raise InvalidId(f"a conversation id has 1 to {MAX_CONVERSATION_ID_BYTES} bytes; this one has {len(encoded)}")
    return encoded


def is_trial(conversation: str) -> bool:
    """Return whether this conversation's messages are from the canary or from `bufferctl verify`."""
    return conversation.startswith(f"{TRIAL_TENANT}/")


def escape_part(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


def unescape_part(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")


def parse_conversation_id(text: str) -> ConversationId:
    """Return the parts of a conversation's id. Raise InvalidId."""
    parts = [unescape_part(part) for part in text.split("/")]
    if len(parts) != len(ConversationId._fields) or not all(parts):
        raise InvalidId("a conversation id reads tenant/platform/account/user")
    return ConversationId(*parts)


def door_of(platform: str, account: str) -> str:
    """Return the door's account if this account belongs to a door, or else this account."""
    return account.partition(":")[0] if platform == "custom" else account


def reply_until_ms(conversation: ConversationId, last_message_at_ms: int) -> int | None:
    """Return until when the business may answer freely after the customer's last message, or None if it always may.

    After that time, WhatsApp accepts only templates, and Messenger and Instagram accept only tagged messages.
    """
    # An account of Twilio begins with the name of its channel.
    of_twilio = conversation.platform == "twilio" and conversation.account.startswith("whatsapp:")
    return last_message_at_ms + DAY_MS if conversation.platform in _WITH_A_REPLY_WINDOW or of_twilio else None
