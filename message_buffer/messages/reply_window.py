"""The time in which a platform lets a business answer a customer freely.

After that time, WhatsApp accepts only templates, and Messenger and Instagram accept only tagged messages.
"""

from message_buffer.limits import DAY_MS
from message_buffer.messages.conversation_id import ConversationId

_PLATFORMS = frozenset({"instagram", "messenger", "whatsapp"})


def reply_until_ms(conversation: ConversationId, last_message_at_ms: int) -> int | None:
    """Return the end of the reply window, or None if the platform has none.

    `last_message_at_ms` is when the customer sent the last message.
    """
    # An account of Twilio begins with the name of its channel.
    of_twilio = conversation.platform == "twilio" and conversation.account.startswith("whatsapp:")
    if conversation.platform not in _PLATFORMS and not of_twilio:
        return None
    return last_message_at_ms + DAY_MS
