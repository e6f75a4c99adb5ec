"""Explains an outage of Valkey in plain words, because the stage's errors name only the call that failed."""

import re

from bufferctl.errors import Failed, Unreachable
from message_buffer.json_object import Json

_VALKEY_IS_OUT = re.compile(r"Valkey\b.*\bcannot be reached")
_WITH_FALLBACK = (
    "Valkey does not answer. New messages are safe: they wait in DynamoDB, and are emitted from there. Older messages"
    " still wait in Valkey, and are emitted when it answers again. So what a customer writes before and during the"
    " outage is emitted in separate batches, perhaps the newer one first."
)
_WITHOUT_FALLBACK = (
    "Valkey does not answer. This stage has no DynamoDB lane, so it refuses new messages, and the platforms send them"
    " again. Older messages still wait in Valkey, and are emitted when it answers again."
)
_UNTIL = "Until then, this page does not show what waits. It goes on by itself."
NO_REASON = "Valkey does not answer. The message waits in DynamoDB, and its batch is emitted from there."


def is_outage(error: Exception) -> bool:
    """Return whether an operation failed because Valkey does not answer."""
    return isinstance(error, Unreachable) and _VALKEY_IS_OUT.search(str(error)) is not None


def in_words(error: Failed, *, status: Json | None) -> str:
    """Return the error's text for the page.

    `status` is the stage's last status, which shows whether it has both lanes. Without a status, assume the default
    settings.
    """
    if not is_outage(error):
        return str(error)
    has_fallback = status is None or "windows" in status
    return f"{_WITH_FALLBACK if has_fallback else _WITHOUT_FALLBACK} {_UNTIL}"
