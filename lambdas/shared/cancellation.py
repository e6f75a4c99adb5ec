"""What the bus is told when a buffer was cancelled, by a control word or by an operator.

`docs/schema/messages.buffer.cancelled.json` is the event's schema.
"""

import json
from typing import Any, Literal

from lambdas.shared.conversation import parse_conversation_id
from lambdas.shared.store.outcomes import AlreadyCancelled, Cancelled

DETAIL_TYPE = "messages.buffer.cancelled"
EVENT_VERSION = 1


def cancellation_of(
    conversation: str,
    outcome: Cancelled | AlreadyCancelled,
    *,
    reason: Literal["stop_word", "operator"],
    message_id: str | None,
    at_ms: int,
) -> str:
    """The event's detail. That of a repeated cancel names nothing dropped: its first event may never have gone out."""
    dropped, frozen, leaving = 0, 0, False
    if isinstance(outcome, Cancelled):
        dropped, frozen, leaving = outcome.buffered, outcome.frozen, outcome.leaving
    named = parse_conversation_id(conversation)
    detail: dict[str, Any] = {
        "version": EVENT_VERSION,
        "conversationId": conversation,
        "tenant": named.tenant,
        "generation": outcome.generation,
        "dropped": dropped,
        "frozen": frozen,
        "leaving": leaving,
        "messageId": message_id,
        "reason": reason,
        "at": at_ms,
        "lane": "debounce",
        "metadata": {"platform": named.platform},
    }
    # Half a surrogate pair cannot travel.
    return json.dumps(detail, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()
