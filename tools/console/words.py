"""Decides what the page may show of an event: everything, or only fields without people's words and names."""

from message_buffer.json_object import Json

# The fields of an event that contain no words of people. The page does not show any other field, not even a new one.
SHOWN = (
    "version", "batchId", "conversationId", "tenant", "agent", "generation", "attempt", "messageCount", "bufferedAt",
    "flushReason", "lane", "metadata", "replyUntil", "change", "messageId", "at", "reason", "dropped", "frozen",
    "leaving", "until", "platform", "queue", "handoff", "traceparent", "code", "replyId", "batchIds",
    "operation", "subject", "holdMs",
)  # fmt: skip
SHOWN_OF_A_MESSAGE = ("id", "type", "receivedAt", "timestamp", "platform")
METADATA = (
    "platform", "firstMessageAt", "lastMessageAt", "previousMessageAt", "waitMs", "rule", "appliedWaitMs",
)  # fmt: skip


def shown(detail: Json, *, words: bool) -> Json:
    """Return the event's detail, without people's words unless `words` is true."""
    if words:
        return detail
    seen = {name: detail[name] for name in SHOWN if name in detail}
    if isinstance(detail.get("metadata"), dict):
        seen["metadata"] = {name: detail["metadata"][name] for name in METADATA if name in detail["metadata"]}
    if isinstance(detail.get("messages"), list):
        seen["messages"] = [
            {name: each[name] for name in SHOWN_OF_A_MESSAGE if name in each}
            for each in detail["messages"]
            if isinstance(each, dict)
        ]
    return seen
