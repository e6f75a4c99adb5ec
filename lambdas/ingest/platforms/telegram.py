"""Telegram's Bot API: one update per webhook, authenticated by the secret token that was given to setWebhook.

An update does not name its bot. The account is the bot whose token came with it, or `bot` for the platform-wide token.
A group is one conversation, and so is each topic of a forum.
"""

from typing import Any

from lambdas.ingest.platforms.base import (
    Credentials,
    Incoming,
    Intake,
    InvalidWebhook,
    Json,
    Platform,
    Signer,
    Update,
    Webhook,
    drop_nones,
    id_of,
    is_same,
    list_of,
    ms_of_seconds,
    object_of,
    parse_json,
    strings_of,
    word_of,
)
from lambdas.limits import MAX_TELEGRAM_WEBHOOK_BYTES
from message_buffer.messages.changes import Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import Message

THE_ONLY_BOT = "bot"

# The order matters, because a message with an animation also has the field `document`.
_FILES = {
    "animation": "video",
    "audio": "audio",
    "voice": "audio",
    "video": "video",
    "video_note": "video",
    "sticker": "sticker",
    "document": "document",
}

_NO_MESSAGES = {
    "channel_post": "channel",
    "edited_channel_post": "channel",
    "my_chat_member": "member",
    "chat_member": "member",
    "chat_join_request": "member",
    "message_reaction_count": "reactions",
}


class Telegram(Platform):
    name = "telegram"
    max_body_bytes = MAX_TELEGRAM_WEBHOOK_BYTES

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        given = webhook.headers.get("x-telegram-bot-api-secret-token")
        if given is None:
            return None
        # A comparison takes less than a microsecond, however long the body is, so every secret is tried.
        signer = credentials.signer(lambda secret: is_same(given, secret), among=credentials.every_secret)
        # If two bots have the same token, nothing says which of them sent the update.
        return signer if signer and len(_bots(signer)) == 1 else None

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:
        update = parse_json(webhook.body)
        if not isinstance(update, dict):
            raise InvalidWebhook("The body must be a JSON object.")
        (account,) = _bots(signer)
        intake = Intake(accounts={account})
        intake.take(_Reading(update, account, received_at_ms).read)
        return intake


def _bots(signer: Signer) -> set[str]:
    return {*signer.accounts, *([THE_ONLY_BOT] if signer.all_but is not None else [])}


class _Reading:
    def __init__(self, update: Json, account: str, received_at_ms: int) -> None:
        self._update = update
        self._account = account
        self._received_at_ms = received_at_ms

    def read(self) -> Update | str:
        match self._update:
            case {"message": dict(message)}:
                return self._incoming(message)
            case {"edited_message": dict(message)}:
                return self._edited(message)
            case {"callback_query": dict(query)}:
                return self._pressed(query)
            case {"message_reaction": dict(reaction)}:
                return self._reacted(reaction)
        return next((kind for name, kind in _NO_MESSAGES.items() if name in self._update), "unknown")

    def _incoming(self, message: Json) -> Update | str:
        content = _content_of(message)
        if content is None:
            return "unsupported"
        fields = content | self._common(message) | {"id": id_of(message.get("message_id"))}
        return Incoming(self._conversation(message), Message.model_validate(fields), _is_group(message))

    def _edited(self, message: Json) -> Update | str:
        content = _content_of(message)
        if content is None:
            return "unsupported"
        at_ms = ms_of_seconds(message.get("edit_date")) or self._received_at_ms
        fields = content | self._common(message) | {"id": id_of(message.get("message_id")), "editedAt": at_ms}
        return Edited(self._conversation(message), Message.model_validate(fields), at_ms, _is_group(message))

    def _pressed(self, query: Json) -> Update | str:
        """Read a button that the author pressed below the bot's message. The text is its label, or else its data."""
        below = object_of(query.get("message"))
        data = word_of(query.get("data"))
        if not below or data is None:
            return "unsupported"
        labels = [
            word_of(object_of(button).get("text"))
            for row in list_of(object_of(below.get("reply_markup")).get("inline_keyboard"))
            for button in list_of(row)
            if object_of(button).get("callback_data") == data
        ]
        fields = {
            "id": f"callback:{id_of(query.get('id'))}",
            "type": "interactive",
            "text": next(filter(None, labels), data),
            "interactive": {"type": "callback_query", "data": data},
            "replyTo": id_of(below.get("message_id")),
            "author": _author(query),
            "receivedAt": self._received_at_ms,
            "platform": Telegram.name,
        }
        return Incoming(self._conversation(below), Message.model_validate(fields), _is_group(below))

    def _reacted(self, reaction: Json) -> Update:
        """Read a reaction. Telegram does not name the message's topic, so use the conversation of the whole chat."""
        latest = [object_of(each) for each in list_of(reaction.get("new_reaction"))]
        emojis = [word_of(each.get("emoji")) or word_of(each.get("custom_emoji_id")) for each in latest]
        return Reacted(
            self._conversation(reaction),
            id_of(reaction.get("message_id")),
            _author({"from": reaction.get("user"), "sender_chat": reaction.get("actor_chat")}),
            strings_of(emojis, separator="") or None,
            ms_of_seconds(reaction.get("date")) or self._received_at_ms,
        )

    def _conversation(self, message: Json) -> ConversationId:
        chat = id_of(object_of(message.get("chat")).get("id"))
        # Outside of forums a thread is a chain of replies, and belongs to the chat's conversation.
        topic = f":{id_of(message.get('message_thread_id'))}" if message.get("is_topic_message") is True else ""
        return ConversationId(DEFAULT_TENANT, Telegram.name, self._account, chat + topic)

    def _common(self, message: Json) -> dict[str, Any]:
        replied = object_of(message.get("reply_to_message")).get("message_id")
        # In a topic every message is marked as a reply to the message that opened the topic.
        is_reply = replied is not None and replied != message.get("message_thread_id")
        return {
            "author": _author(message),
            "replyTo": id_of(replied) if is_reply else None,
            "sentAt": ms_of_seconds(message.get("date")),
            "receivedAt": self._received_at_ms,
            "platform": Telegram.name,
            # All parts of an album have the same id.
            "groupId": word_of(message.get("media_group_id")),
        }


def _is_group(message: Json) -> bool:
    return object_of(message.get("chat")).get("type") != "private"


def _author(message: Json) -> str | None:
    """Return the author's id. If the author is anonymous, return the id of the chat that they write for."""
    who = object_of(message.get("sender_chat")) or object_of(message.get("from"))
    return id_of(who["id"]) if "id" in who else None


def _content_of(message: Json) -> dict[str, Any] | None:
    if isinstance(message.get("text"), str):
        return {"text": message["text"], "type": "text"}
    attachment = _attachment_of(message)
    if attachment is None:
        return None
    kind = "contacts" if attachment["type"] == "contact" else attachment["type"]
    described = attachment.pop("text", "")
    return {"text": message.get("caption") or described, "type": kind, "attachments": [drop_nones(attachment)]}


def _attachment_of(message: Json) -> dict[str, Any] | None:
    match message:
        case {"photo": [*_, dict(largest)]}:
            return _file("image", largest)
        case {"venue": dict(venue)}:
            text = strings_of([venue.get("title"), venue.get("address")])
            return {"type": "location", "text": text, **_place(object_of(venue.get("location")))}
        case {"location": dict(location)}:
            return {"type": "location", **_place(location)}
        case {"contact": dict(contact)}:
            name = strings_of([contact.get("first_name"), contact.get("last_name")], separator=" ")
            return {"type": "contact", "text": name, "name": name, "phone": contact.get("phone_number")}
    for name, kind in _FILES.items():
        if isinstance(message.get(name), dict):
            return _file(kind, message[name])
    return None


def _file(kind: str, given: Json) -> dict[str, Any]:
    return {
        "type": kind,
        "id": given.get("file_id"),
        "mimeType": given.get("mime_type"),
        "name": given.get("file_name"),
        "sizeBytes": given.get("file_size"),
        # The emoji describes what the sticker shows.
        "text": given.get("emoji") if kind == "sticker" else "",
    }


def _place(location: Json) -> dict[str, Any]:
    return {"latitude": location.get("latitude"), "longitude": location.get("longitude")}
