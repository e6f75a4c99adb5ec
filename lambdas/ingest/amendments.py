"""What happens to a message after it left its buffer, and every reaction: an event of its own.

`docs/schema/messages.amended.json` is its schema.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from lambdas.ingest.platforms.base import Deleted, Edited, Reacted
from message_buffer.messages.message import Message

DETAIL_TYPE = "messages.amended"
EVENT_VERSION = 1

Amendment = Edited | Deleted | Reacted


class Publishes(Protocol):
    def publish(self, detail_type: str, detail: str) -> None: ...
    def publish_all(self, detail_type: str, details: Sequence[str]) -> None: ...


class Amendments:
    def __init__(self, bus: Publishes) -> None:
        self._bus = bus

    def send(self, events: Iterable[dict[str, Any]]) -> None:
        """Raises SendFailed. A redelivery sends them again."""
        self._bus.publish_all(DETAIL_TYPE, [_to_detail(event) for event in events])


def _to_detail(event: dict[str, Any]) -> str:
    # Half a surrogate pair cannot travel.
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


def event_of(amendment: Amendment, *, batch_id: str | None) -> dict[str, Any]:
    return {
        "version": EVENT_VERSION,
        "conversationId": str(amendment.conversation),
        "tenant": amendment.conversation.tenant,
        "batchId": batch_id,
        "lane": "debounce",
        "at": amendment.at_ms,
        "metadata": {"platform": amendment.conversation.platform},
        **_change(amendment),
    }


def _change(amendment: Amendment) -> dict[str, Any]:
    match amendment:
        case Edited(_, message):
            return _named("edited", message.id, message.author) | {"message": _as_on_the_bus(message)}
        case Deleted(_, message_id, author):
            return _named("deleted", message_id, author)
        case Reacted(_, message_id, author, emoji, _):
            return _named("reaction", message_id, author) | {"emoji": emoji}


def _named(change: str, message_id: str, author: str | None) -> dict[str, Any]:
    return {"change": change, "messageId": message_id, "author": author, "message": None, "emoji": None}


def _as_on_the_bus(message: Message) -> dict[str, Any]:
    # JSON has no NaN, which this makes null, as on the way through a buffer.
    fields: dict[str, Any] = json.loads(message.model_dump_json(by_alias=True))
    return fields
