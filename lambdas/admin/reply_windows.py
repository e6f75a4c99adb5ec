"""Computes until when a platform accepts ordinary replies in a conversation, so that operators can see it."""

from message_buffer.errors import MalformedMessage
from message_buffer.json_object import Json
from message_buffer.lanes.outcomes import Conversation
from message_buffer.messages.conversation_id import parse_conversation_id, reply_until_ms
from message_buffer.messages.wire_form import decode_fields, sent_at_ms

OUTLASTS_REPLY_WINDOW = (
    "The hold ends after the platform's reply window (replyUntil). From then on the platform refuses ordinary replies "
    "until the customer writes again."
)


def reply_until(name: str, seen: Conversation) -> Json:
    """Return the field `replyUntil`, or no field if the platform has no reply window, or if no message is known.

    The reply window begins when the last message was sent. If the payload of that message was not read, use the time of
    its arrival instead.
    """
    at_ms = _last_sent_at_ms(seen) if seen.payloads and len(seen.payloads) == seen.count else seen.last_at_ms
    until_ms = None if at_ms is None else reply_until_ms(parse_conversation_id(name), at_ms)
    return {} if until_ms is None else {"replyUntil": until_ms}


def _last_sent_at_ms(seen: Conversation) -> int | None:
    try:
        return max(sent_at_ms(decode_fields(payload)) for payload in seen.payloads)
    except MalformedMessage:
        return seen.last_at_ms
