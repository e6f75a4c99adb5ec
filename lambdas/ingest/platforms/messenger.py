"""Messenger: each item of `entry[].messaging[]` is one event, and the account is the entry's page.

Instagram's webhooks have the same shape, so `instagram.py` uses this class.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lambdas.ingest.platforms.base import (
    Incoming,
    Intake,
    InvalidWebhook,
    Json,
    Signer,
    Update,
    Webhook,
    drop_nones,
    id_of,
    list_of,
    object_of,
    strings_of,
    time_ms,
    word_of,
)
from lambdas.ingest.platforms.meta import MetaPlatform
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import Message

# Receipts for our own messages, and user events that are not messages.
_NO_MESSAGES = {
    "read": "read",
    "delivery": "delivery",
    "typing": "typing",
    "optin": "optin",
    "referral": "referral",
    "account_linking": "account",
}
_OUR_NAME = {"file": "document"}


class Messenger(MetaPlatform):
    name = "messenger"
    object_name = "page"

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for place, entry in enumerate(self.entries_of(webhook.body)):
            account = word_of(entry.get("id"))
            if account is None:
                raise InvalidWebhook(f"entry[{place}].id is missing, or is not a string.")
            intake.accounts.add(account)
            for event in list_of(entry.get("messaging")):
                intake.take(_Event(object_of(event), self.name, account, received_at_ms).read)
            # Ignore threads that another app of the page controls.
            intake.ignored["standby"] += len(list_of(entry.get("standby")))
            intake.ignored["unknown"] += len(list_of(entry.get("changes")))
        return intake


class _Event:
    def __init__(self, event: Json, platform: str, account: str, received_at_ms: int) -> None:
        self._event = event
        self._platform = platform
        self._author = word_of(object_of(event.get("sender")).get("id"))
        self._conversation = ConversationId(DEFAULT_TENANT, platform, account, self._author or "")
        self._received_at_ms = received_at_ms
        self._sent_at_ms = time_ms(event.get("timestamp"))
        self._at_ms = self._sent_at_ms or received_at_ms

    def read(self) -> Update | str:
        for name, read in _READERS.items():
            content = self._event.get(name)
            if isinstance(content, dict):
                return read(self, content)
        return next((kind for name, kind in _NO_MESSAGES.items() if name in self._event), "unknown")

    def read_message(self, content: Json) -> Update | str:
        if content.get("is_echo"):
            return "echo"
        if content.get("is_deleted"):
            return Deleted(self._conversation, id_of(content.get("mid")), self._author, self._at_ms)
        if content.get("is_unsupported"):
            return "unsupported"
        reply, chosen = object_of(content.get("reply_to")), object_of(content.get("quick_reply"))
        attachments = _attachments(content, story=object_of(reply.get("story")))
        if not attachments and not word_of(content.get("text")):
            return "unsupported"
        fields = {
            "id": content.get("mid"),
            "text": content.get("text") or strings_of([each.get("name") for each in attachments]),
            "type": "interactive" if chosen else _type(content, attachments),
            "replyTo": reply.get("mid"),
            "attachments": attachments,
        }
        return self._incoming(fields, interactive={"type": "quick_reply", **chosen} if chosen else None)

    def read_postback(self, content: Json) -> Update:
        """Read a button that the author pressed. Its title is the text."""
        # Older postbacks have no id. Use the time instead, since a person cannot press twice within a millisecond.
        own_id = content.get("mid") or f"postback:{self._at_ms}"
        fields = {"id": own_id, "text": content.get("title", ""), "type": "interactive"}
        return self._incoming(fields, interactive={**content, "type": "postback"})

    def read_edit(self, content: Json) -> Update:
        fields = {"id": content.get("mid"), "text": content.get("text"), "editedAt": self._at_ms}
        return Edited(self._conversation, self._message(fields), self._at_ms)

    def read_reaction(self, content: Json) -> Update:
        taken_back = content.get("action") == "unreact"
        emoji = None if taken_back else word_of(content.get("emoji")) or word_of(content.get("reaction"))
        return Reacted(self._conversation, id_of(content.get("mid")), self._author, emoji, self._at_ms)

    def _incoming(self, fields: dict[str, Any], *, interactive: Json | None) -> Incoming:
        said = drop_nones({"sentAt": self._sent_at_ms, "interactive": interactive})
        return Incoming(self._conversation, self._message(fields | said))

    def _message(self, fields: dict[str, Any]) -> Message:
        common = {"author": self._author, "receivedAt": self._received_at_ms, "platform": self._platform}
        return Message.model_validate(fields | common)


_READERS: Mapping[str, Callable[[_Event, Json], Update | str]] = {
    "message": _Event.read_message,
    "postback": _Event.read_postback,
    "message_edit": _Event.read_edit,
    "reaction": _Event.read_reaction,
}


def _type(content: Json, attachments: list[dict[str, Any]]) -> str:
    # A text with a link preview, or in reply to a story, is still a text.
    beside = {"fallback", "story"} if word_of(content.get("text")) else set()
    kinds = [str(each["type"]) for each in attachments if each["type"] not in beside]
    return kinds[0] if kinds else "text"


def _attachments(content: Json, *, story: Json) -> list[dict[str, Any]]:
    found = [_attachment(object_of(each)) for each in list_of(content.get("attachments"))]
    if story:
        found.append(drop_nones({"type": "story", "url": story.get("url"), "id": story.get("id")}))
    # For now Messenger sends each sticker twice, as a sticker and as an image, because stickers used to be images.
    stickers = {each.get("id") for each in found if each["type"] == "sticker"}
    return [each for each in found if each["type"] != "image" or each.get("id") not in stickers]


def _attachment(given: Json) -> dict[str, Any]:
    payload = object_of(given.get("payload"))
    kind = word_of(given.get("type")) or "fallback"
    sticker, place = payload.get("sticker_id"), object_of(payload.get("coordinates"))
    return drop_nones(
        {
            "type": _OUR_NAME.get(kind, kind),
            "url": payload.get("url") or given.get("url"),
            "id": str(sticker) if sticker else None,
            "name": payload.get("title") or given.get("title"),
            "latitude": place.get("lat"),
            "longitude": place.get("long"),
        }
    )
