"""WhatsApp Cloud API.

A webhook has up to 1,000 updates of several users and accounts, messages and statuses mixed, in no order. A webhook
whose envelope is wrong is refused. A single item that we cannot read is left out and counted, because WhatsApp would
send a refused webhook again for seven days, with all its good items.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lambdas.ingest.platforms.base import (
    Incoming,
    Intake,
    InvalidWebhook,
    Json,
    Signer,
    Update,
    Webhook,
    address_of,
    drop_nones,
    id_of,
    list_of,
    ms_of_seconds,
    object_of,
    strings_of,
    word_of,
)
from lambdas.ingest.platforms.meta import MetaPlatform
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import Message


class WhatsApp(MetaPlatform):
    name = "whatsapp"
    object_name = "whatsapp_business_account"

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for value in _values(self.entries_of(webhook.body)):
            account = word_of(object_of(value.get("metadata")).get("phone_number_id"))
            if account is None:
                intake.ignored["unknown"] += 1
                continue
            intake.accounts.add(account)
            for item in list_of(value.get("messages")):
                intake.take(_Item(object_of(item), account, received_at_ms).read)
            intake.ignored["status"] += len(list_of(value.get("statuses")))
            intake.ignored["echo"] += len(list_of(value.get("message_echoes")))
        return intake


class _Item:
    def __init__(self, item: Json, account: str, received_at_ms: int) -> None:
        self._item = item
        self._received_at_ms = received_at_ms
        # If the author hides their number behind a user name, WhatsApp sends an id that only this business knows.
        self._author = word_of(item.get("from")) or word_of(item.get("from_user_id"))
        group = word_of(item.get("group_id"))
        self._group = group is not None
        self._conversation = ConversationId(
            DEFAULT_TENANT, WhatsApp.name, account, group or (address_of(self._author) if self._author else "")
        )

    def read(self) -> Update | str:
        kind = word_of(self._item.get("type"))
        content = object_of(self._item.get(kind or ""))
        sent_at_ms = ms_of_seconds(self._item.get("timestamp")) or self._received_at_ms
        match kind:
            case "reaction":
                # The emoji is missing if the author has removed the reaction.
                emoji = word_of(content.get("emoji"))
                return Reacted(self._conversation, id_of(content.get("message_id")), self._author, emoji, sent_at_ms)
            case "revoke":
                return Deleted(
                    self._conversation, id_of(content.get("original_message_id")), self._author, sent_at_ms, self._group
                )
            case "edit":
                message = self._message(
                    object_of(content.get("message")), content.get("original_message_id"), editedAt=sent_at_ms
                )
                return (
                    message
                    if isinstance(message, str)
                    else Edited(self._conversation, message, sent_at_ms, self._group)
                )
            case "system" | "unsupported":
                return kind
        message = self._message(self._item, self._item.get("id"), sentAt=ms_of_seconds(self._item.get("timestamp")))
        return message if isinstance(message, str) else Incoming(self._conversation, message, self._group)

    def _message(self, item: Json, message_id: Any, **times: int | None) -> Message | str:
        kind = word_of(item.get("type"))
        read = _READERS.get(kind or "")
        if kind is None or read is None:
            return "unknown"
        content = item.get(kind)
        fields = {
            "id": message_id,
            "type": kind,
            "author": self._author,
            "replyTo": object_of(item.get("context")).get("id"),
            "receivedAt": self._received_at_ms,
            "platform": WhatsApp.name,
        }
        # The content of `contacts` is a list; that of the other types is an object.
        content = {"items": content} if isinstance(content, list) else object_of(content)
        return Message.model_validate(fields | drop_nones(times) | read(content))


def _values(entries: Iterable[Json]) -> Iterator[Json]:
    """Yield the `value` of every change of every entry. Raises InvalidWebhook."""
    for place, entry in enumerate(entries):
        changes = entry.get("changes")
        if not isinstance(changes, list):
            raise InvalidWebhook(f"entry[{place}].changes is missing, or is not a list.")
        for change in changes:
            yield object_of(object_of(change).get("value"))


# -- what the types of messages hold ---------------------------------------------------------------


def _text(content: Json) -> dict[str, Any]:
    return {"text": content.get("body")}


def _media(kind: str) -> Callable[[Json], dict[str, Any]]:
    def read(content: Json) -> dict[str, Any]:
        attachment = {
            "type": kind,
            "id": content.get("id"),
            "url": content.get("link") or content.get("url"),
            "mimeType": content.get("mime_type"),
            "name": content.get("filename"),
        }
        return {"text": content.get("caption", ""), "attachments": [drop_nones(attachment)]}

    return read


def _location(content: Json) -> dict[str, Any]:
    place = {"type": "location", "latitude": content.get("latitude"), "longitude": content.get("longitude")}
    return {
        "text": strings_of([content.get("name"), content.get("address")]),
        "attachments": [drop_nones(place)],
    }


def _contacts(content: Json) -> dict[str, Any]:
    cards = [object_of(card) for card in list_of(content.get("items"))]
    names = [object_of(card.get("name")).get("formatted_name") for card in cards]
    return {
        "text": strings_of(names),
        "attachments": [{**card, "type": "contact", "name": name} for card, name in zip(cards, names, strict=True)],
    }


def _reply(content: Json) -> dict[str, Any]:
    """Read a choice that the author made. The text is its title, and `interactive` has the id that the bot gave it."""
    chosen = object_of(content.get("button_reply")) or object_of(content.get("list_reply"))
    return {"text": chosen.get("title", ""), "interactive": dict(content)}


def _button(content: Json) -> dict[str, Any]:
    return {"text": content.get("text", ""), "interactive": dict(content)}


def _order(content: Json) -> dict[str, Any]:
    """Read a basket. The text is the author's note, and `order` has the products."""
    return {"text": content.get("text", ""), "order": dict(content)}


_READERS: Mapping[str, Callable[[Json], dict[str, Any]]] = {
    "text": _text,
    **{kind: _media(kind) for kind in ("image", "audio", "video", "document", "sticker")},
    "location": _location,
    "contacts": _contacts,
    "interactive": _reply,
    "button": _button,
    "order": _order,
}
