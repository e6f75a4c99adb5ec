"""WhatsApp Cloud API.

A webhook carries up to 1,000 updates, of several users and accounts, messages and statuses mixed, in no order.
Its envelope must be right; a single item that we cannot read is left out and counted, since a refused webhook is
sent again for seven days, and with it its good neighbours.
"""

import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from lambdas.ingest.platforms.base import (
    Credentials,
    Headers,
    Inbound,
    Intake,
    InvalidWebhook,
    Query,
    parse_json,
    signed_with,
)
from lambdas.shared.conversation import DEFAULT_TENANT, ConversationId
from lambdas.shared.errors import InvalidId
from lambdas.shared.keys import encode_conversation
from lambdas.shared.message import Message

Json = Mapping[str, Any]

# Digits of the last second that a time may have.
LONGEST_SECONDS = 11


class WhatsApp:
    name = "whatsapp"
    leaves_out_what_is_wrong = True

    def is_authentic(self, body: bytes, headers: Headers, credentials: Credentials) -> bool:
        return signed_with(credentials.secrets, body=body, signature=headers.get("x-hub-signature-256"))

    def challenge(self, query: Query, credentials: Credentials) -> str | None:
        if query.get("hub.mode") != "subscribe" or not credentials.verify_token:
            return None
        given = query.get("hub.verify_token", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, credentials.verify_token.encode()):
            return None
        return query.get("hub.challenge")

    def read(self, body: bytes, *, received_at_ms: int) -> Intake:
        messages: list[Inbound] = []
        ignored = 0
        for value in _values(parse_json(body)):
            account = _object(value.get("metadata")).get("phone_number_id")
            for item in _list(value.get("messages")):
                inbound = self._one(_object(item), account, received_at_ms)
                if inbound:
                    messages.append(inbound)
                else:
                    ignored += 1
            ignored += len(_list(value.get("statuses")))
        return Intake(messages, ignored)

    def _one(self, item: Json, account: Any, received_at_ms: int) -> Inbound | None:
        kind = item.get("type")
        read = _READERS.get(kind) if isinstance(kind, str) else None
        author = item.get("from")
        if read is None or not isinstance(account, str) or not isinstance(author, str):
            return None
        try:
            conversation = ConversationId(DEFAULT_TENANT, self.name, account, author)
            encode_conversation(str(conversation))
            fields = {
                "id": item.get("id"),
                "type": kind,
                "author": author,
                "replyTo": _object(item.get("context")).get("id"),
                "sentAt": _sent_at_ms(item.get("timestamp")),
                "receivedAt": received_at_ms,
                "platform": self.name,
            }
            content = item.get(str(kind))
            # Contacts are a list where the other types have an object.
            content = {"items": content} if isinstance(content, list) else _object(content)
            return Inbound(conversation, Message.model_validate(fields | read(content)))
        except (ValidationError, InvalidId):
            return None


def _values(parsed: Any) -> Iterator[Json]:
    """The `value` of every change of every entry."""
    if not isinstance(parsed, dict):
        raise InvalidWebhook("The body must be a JSON object.")
    entries = parsed.get("entry")
    if not isinstance(entries, list):
        raise InvalidWebhook("entry is missing, or is not a list.")
    for place, entry in enumerate(entries):
        changes = _object(entry).get("changes")
        if not isinstance(changes, list):
            raise InvalidWebhook(f"entry[{place}].changes is missing, or is not a list.")
        for change in changes:
            yield _object(_object(change).get("value"))


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _sent_at_ms(timestamp: Any) -> int | None:
    """WhatsApp says seconds, as a string."""
    text = str(timestamp)
    return int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) <= LONGEST_SECONDS else None


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
        return {"text": content.get("caption", ""), "attachments": [_without_nothing(attachment)]}

    return read


def _location(content: Json) -> dict[str, Any]:
    described = [content.get("name"), content.get("address")]
    place = {"type": "location", "latitude": content.get("latitude"), "longitude": content.get("longitude")}
    return {
        "text": ", ".join(part for part in described if isinstance(part, str)),
        "attachments": [_without_nothing(place)],
    }


def _contacts(content: Json) -> dict[str, Any]:
    cards = [_object(card) for card in _list(content.get("items"))]
    names = [_object(card.get("name")).get("formatted_name") for card in cards]
    return {
        "text": ", ".join(name for name in names if isinstance(name, str)),
        "attachments": [{**card, "type": "contact", "name": name} for card, name in zip(cards, names, strict=True)],
    }


def _reply(content: Json) -> dict[str, Any]:
    """A choice that the author made: its title is what they said, its id is what the bot knows it by."""
    chosen = _object(content.get("button_reply")) or _object(content.get("list_reply"))
    return {"text": chosen.get("title", ""), "interactive": dict(content)}


def _button(content: Json) -> dict[str, Any]:
    return {"text": content.get("text", ""), "interactive": dict(content)}


def _reaction(content: Json) -> dict[str, Any]:
    # Taking a reaction back comes without an emoji: nothing that we could say to the agent.
    return {"text": content.get("emoji") or None, "replyTo": content.get("message_id")}


_READERS: Mapping[str, Callable[[Json], dict[str, Any]]] = {
    "text": _text,
    **{kind: _media(kind) for kind in ("image", "audio", "video", "document", "sticker")},
    "location": _location,
    "contacts": _contacts,
    "interactive": _reply,
    "button": _button,
    "reaction": _reaction,
}


def _without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
