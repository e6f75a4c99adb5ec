"""Plays customers: makes the webhooks that a platform posts when a person types, sends a file or presses a button."""

import uuid
from typing import Any, NamedTuple

from message_buffer.json_object import Json
from tools.local.webhooks import whatsapp, whatsapp_text

PICTURE = "https://example.com/picture.jpg"
VOICE = "https://example.com/voice.ogg"
# What a customer can do, by platform. A `transcript` is the edit that adds the words of a voice note.
KINDS: dict[str, tuple[str, ...]] = {
    "generic": ("text", "file", "voice", "transcript", "typing", "edit", "delete"),
    "whatsapp": ("text", "file", "button", "edit", "delete"),
}


class Customer(NamedTuple):
    """A person who writes to an account on a platform. Only a webhook of the generic platform can name a tenant."""

    platform: str
    account: str
    user: str
    tenant: str | None = None

    @property
    def conversation(self) -> str:
        """Return the conversation's id. The stage uses another id if its rules assign the account to a tenant."""
        parts = (self.tenant or "default", self.platform, self.account, self.user)
        return "/".join(part.replace("%", "%25").replace("/", "%2F") for part in parts)


class PostedWebhook(NamedTuple):
    """The body that a platform posts, and the id of the message that it is about."""

    body: Any
    message_id: str
    route: str = "webhook"


def webhook(customer: Customer, kind: str, *, text: str, message_id: str | None) -> PostedWebhook:
    """Return the webhook. The message's id is new unless it is given, as for an edit or a second delivery."""
    about = message_id or f"wamid.{uuid.uuid4().hex}"
    make = _whatsapp if customer.platform == "whatsapp" else _generic
    return PostedWebhook(make(customer, kind, about, text), about, "typing" if kind == "typing" else "webhook")


def _generic(customer: Customer, kind: str, message_id: str, text: str) -> Json:
    about = {"account": customer.account, "conversation": customer.user}
    if customer.tenant:
        about["tenant"] = customer.tenant
    if kind == "typing":
        return about
    about["id"] = message_id
    if kind == "delete":
        return about | {"deleted": True}
    voice = {"type": "audio", "url": VOICE}
    special: dict[str, Json] = {
        "file": {"type": "image", "attachments": [{"type": "image", "url": PICTURE}]},
        "voice": {"type": "audio", "attachments": [voice | {"pending": True}]},
        "transcript": {"type": "audio", "attachments": [voice], "edited": True},
        "edit": {"edited": True},
    }
    return about | {"text": text, "author": customer.user} | special.get(kind, {})


def _whatsapp(customer: Customer, kind: str, message_id: str, text: str) -> Json:
    message = whatsapp_text(message_id, text, sender=customer.user)
    match kind:
        case "file":
            image = {"id": uuid.uuid4().hex, "mime_type": "image/jpeg", "caption": text}
            message |= {"type": "image", "image": image, "text": None}
        case "button":
            reply = {"type": "button_reply", "button_reply": {"id": text, "title": text}}
            message |= {"type": "interactive", "interactive": reply, "text": None}
        case "edit":
            edit = {"original_message_id": message_id, "message": {"type": "text", "text": {"body": text}}}
            message |= {"id": f"wamid.{uuid.uuid4().hex}", "type": "edit", "edit": edit, "text": None}
        case "delete":
            revoke = {"original_message_id": message_id}
            message |= {"id": f"wamid.{uuid.uuid4().hex}", "type": "revoke", "revoke": revoke, "text": None}
    return whatsapp(message, phone_number_id=customer.account)
