"""Telegram's Bot API: one update per webhook, authenticated by the secret token that was given to setWebhook.

An update does not name its bot. The account is the bot whose token came with the update, or `bot` for the platform-wide
token. Each of these is one conversation:

- a group, or a topic of a forum
- the messages of one customer to a channel
- a private chat in which a person lets the bot answer their customer (Telegram Business)
- a chat of other people into which a message summons the bot
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from lambdas.ingest.platforms.base import (
    BusinessReply,
    Credentials,
    Fields,
    Incoming,
    Intake,
    Platform,
    Signer,
    Update,
    Webhook,
    drop_empty,
    drop_nones,
    is_same,
    ms_of_time,
    object_of,
    parse_object,
    strings_of,
)
from lambdas.ingest.platforms.telegram_rich import RichMessage
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, profile_of

# Telegram reports the deletion of at most this many messages in one update.
MAX_MESSAGES_DELETED_AT_ONCE = 100
# Telegram marks at most this many words of a text, and a text has at most this many characters. Cut longer lists and
# texts, because each link is a copy of a part of the text.
MAX_ENTITIES, MAX_CHARACTERS_OF_A_TEXT = 100, 4_096
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
    # A live photo comes with a still picture, which is read before its video.
    "live_photo": "video",
}

# Kinds of content, besides texts and files, that a person sends. Service messages, for example about a new member, are
# of other kinds.
_NO_TEXT = ("story", "paid_media", "game", "invoice", "giveaway", "giveaway_winners", "unique_gift", "passport_data")

_NO_MESSAGES = {
    "channel_post": "channel",
    "edited_channel_post": "channel",
    "my_chat_member": "member",
    "chat_member": "member",
    "chat_join_request": "member",
    "message_reaction_count": "reactions",
    "business_connection": "account",
}


class Telegram(Platform):
    name = "telegram"
    punishes_refusals = True
    # Telegram documents no maximum, but its longest text has 4,096 characters, and an update contains few texts.
    max_body_bytes = 1024 * 1024

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        given = webhook.headers.get("x-telegram-bot-api-secret-token")
        if given is None:
            return None
        # A comparison takes less than a microsecond, however long the body is, so every secret is tried.
        signer = credentials.signer(lambda secret: is_same(given, secret), among=credentials.every_secret)
        # If two bots have the same token, ingest cannot know which of them sent the update.
        return signer if signer and len(_bots(signer)) == 1 else None

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:
        update = parse_object(webhook.body)
        (account,) = _bots(signer)
        intake = Intake(accounts={account})
        reading = _UpdateReading(update, account, received_at_ms)
        deleted = update.part("deleted_business_messages")
        for message_id in deleted.values_of("message_ids")[:MAX_MESSAGES_DELETED_AT_ONCE]:
            intake.take(partial(reading.read_deletion, deleted, Fields(id=message_id)))
        if not deleted:
            intake.take(reading.read)
        return intake


def _bots(signer: Signer) -> set[str]:
    return {*signer.accounts, *([THE_ONLY_BOT] if signer.all_but is not None else [])}


class _UpdateReading:
    def __init__(self, update: Fields, account: str, received_at_ms: int) -> None:
        self._update = update
        self._account = account
        self._received_at_ms = received_at_ms

    def read(self) -> Update | BusinessReply | str:
        for name, read in _READERS.items():
            if isinstance(self._update.get(name), dict):
                return read(self, self._update.part(name))
        return next((kind for name, kind in _NO_MESSAGES.items() if name in self._update), "unknown")

    def read_message(self, message: Fields) -> Update | str:
        read = self._message(message)
        return read if isinstance(read, str) else Incoming(self._conversation(message), read, _is_group(message))

    def read_guest_message(self, message: Fields) -> Update | str:
        """Read a message that summons the bot into a chat of other people. Our reply must contain the query's id."""
        read = self.read_message(message)
        if not isinstance(read, Incoming):
            return read
        # Add a prefix, because a private chat of two people may have the same id as one person's chat with the bot.
        chat = read.conversation._replace(user=f"guest:{read.conversation.user}")
        return read._replace(conversation=chat, group=True)

    def read_edit(self, message: Fields) -> Update | str:
        if "location" in message:
            # A live location is edited every few seconds while its author moves.
            return "moved"
        at_ms = ms_of_time(message.get("edit_date")) or self._received_at_ms
        read = self._message(message, editedAt=at_ms)
        return read if isinstance(read, str) else Edited(self._conversation(message), read, at_ms, _is_group(message))

    def read_press(self, query: Fields) -> Update | str:
        """Read the press of a button below the bot's message. The text is the button's label, or else its data.

        If the bot's message was sent in inline mode, the update does not contain it. The press then belongs to the
        author's private chat.
        """
        below = query.part("message") or Fields(chat={"id": query.part("from").get("id"), "type": "private"})
        data = query.word("data")
        if data is None:
            return "unsupported"
        rows = below.part("reply_markup").values_of("inline_keyboard")
        buttons = (object_of(button) for row in rows if isinstance(row, list) for button in row)
        labels = [button.word("text") for button in buttons if button.get("callback_data") == data]
        labels.append(RichMessage(below.part("rich_message")).labels.get(data))
        fields = {
            "id": f"callback:{query.id('id')}",
            "type": "interactive",
            "text": next(filter(None, labels), data),
            "interactive": {"type": "callback_query", "data": data},
            "replyTo": _replied_id(below),
        }
        message = Message.model_validate(fields | self._sent_by(query, below))
        return Incoming(self._conversation(below), message, _is_group(below))

    def read_reaction(self, reaction: Fields) -> Update:
        """Read a reaction. Telegram does not name the message's topic, so use the conversation of the whole chat."""
        emojis = [
            each.word("emoji") or each.word("custom_emoji_id") or ("⭐" if each.get("type") == "paid" else None)
            for each in reaction.parts("new_reaction")
        ]
        return Reacted(
            self._conversation(reaction),
            reaction.id("message_id"),
            _author(Fields({"from": reaction.get("user"), "sender_chat": reaction.get("actor_chat")})),
            strings_of(emojis, separator="") or None,
            ms_of_time(reaction.get("date")) or self._received_at_ms,
        )

    def read_vote(self, answer: Fields) -> Update:
        """Read a vote. Telegram does not name the poll's chat, so use the private chat, whose id is the voter's."""
        voter = Fields({"from": answer.get("user"), "sender_chat": answer.get("voter_chat")})
        poll, chosen = answer.id("poll_id"), answer.values_of("option_ids")
        fields = {
            "id": f"poll:{poll}:{self._update.id('update_id')}",
            "type": "poll_answer",
            "interactive": {"type": "poll_answer", "pollId": poll, "optionIds": chosen},
        }
        conversation = ConversationId(DEFAULT_TENANT, Telegram.name, self._account, _author(voter) or "")
        return Incoming(conversation, Message.model_validate(fields | self._sent_by(voter, Fields())))

    def read_business_message(self, message: Fields) -> Update | BusinessReply | str:
        return self.read_message(message) if _is_of_customer(message) else self._read_echo(message)

    def _read_echo(self, message: Fields) -> BusinessReply | str:
        """Read a message of the account's owner or the owner's bot. Only the owner's messages may be human replies.

        Greetings, away messages and scheduled messages are not human replies, because Telegram sends them
        automatically.
        """
        by_bot = "sender_business_bot" in message or message.part("from").get("is_bot") is not False
        at_ms = ms_of_time(message.get("date"))
        if by_bot or "is_from_offline" in message or _content_of(message) is None or not at_ms:
            return "echo"
        return BusinessReply(self._conversation(message), self._id_of(message), at_ms)

    def read_business_edit(self, message: Fields) -> Update | str:
        return self.read_edit(message) if _is_of_customer(message) else "echo"

    def read_deletion(self, deleted: Fields, message: Fields) -> Update:
        """Read one deletion in a customer's chat with a human agent. Telegram does not say who deleted the message."""
        return Deleted(self._conversation(deleted), message.id("id"), None, self._received_at_ms)

    def _id_of(self, message: Fields) -> str:
        # Every message that only one person sees has the id 0, so use the update's id instead.
        return _replied_id(message) or f"update:{self._update.id('update_id')}"

    def _conversation(self, message: Fields) -> ConversationId:
        chat = message.part("chat").id("id")
        if business := message.word("business_connection_id"):
            chat = f"{business}:{chat}"
        # Outside of forums a thread is only a chain of replies, so it belongs to the chat's conversation.
        topic = f":{message.id('message_thread_id')}" if message.get("is_topic_message") is True else ""
        if customer := message.part("direct_messages_topic"):
            topic = f":{customer.id('topic_id')}"
        return ConversationId(DEFAULT_TENANT, Telegram.name, self._account, chat + topic)

    def _message(self, message: Fields, **times: int) -> Message | str:
        if message.get("is_automatic_forward") is True:
            # This is a channel's post, which Telegram has copied into the channel's group.
            return "channel"
        content = _content_of(message)
        if content is None:
            return "unsupported"
        replied_to = message.part("reply_to_message")
        # In a topic every message is marked as a reply to the message that opened the topic, so ignore that mark.
        if message.get("is_topic_message") is True and replied_to.get("message_id") == message.get("message_thread_id"):
            replied_to = Fields()
        fields = {
            "id": self._id_of(message),
            "replyTo": _replied_id(replied_to),
            "sentAt": ms_of_time(message.get("date")),
            # This id is the same for all messages of an album.
            "groupId": message.word("media_group_id"),
        }
        details = {
            "forwarded": "forward_origin" in message or "forward_date" in message,
            "quoted": _quoted(message, replied_to),
            "links": _links(message),
            "guestQueryId": message.word("guest_query_id"),
        }
        fields = content | drop_empty(details) | fields | self._sent_by(message, message) | times
        return Message.model_validate(fields)

    def _sent_by(self, who: Fields, where: Fields) -> dict[str, Any]:
        details = drop_empty({"profile": _profile(who), "chat": _chat(where)})
        return {"author": _author(who), "receivedAt": self._received_at_ms, "platform": Telegram.name} | details


_READERS: Mapping[str, Callable[[_UpdateReading, Fields], Update | BusinessReply | str]] = {
    "message": _UpdateReading.read_message,
    "edited_message": _UpdateReading.read_edit,
    "business_message": _UpdateReading.read_business_message,
    "edited_business_message": _UpdateReading.read_business_edit,
    "guest_message": _UpdateReading.read_guest_message,
    "callback_query": _UpdateReading.read_press,
    "message_reaction": _UpdateReading.read_reaction,
    "poll_answer": _UpdateReading.read_vote,
}


def _is_group(message: Fields) -> bool:
    return message.part("chat").get("type") != "private"


def _who(message: Fields) -> Fields:
    # If a person writes in the name of a chat, Telegram puts a placeholder into `from`.
    return message.part("sender_chat") or message.part("from")


def _author(message: Fields) -> str | None:
    """Return the author's id. If the author is anonymous, return the id of the chat that they write for."""
    return _who(message).id("id") if "id" in _who(message) else None


def _is_of_customer(message: Fields) -> bool:
    """Return whether the customer wrote the message, and not the account's owner or the owner's bot."""
    return message.part("from").get("id") in (None, message.part("chat").get("id"))


def _profile(message: Fields) -> dict[str, str]:
    who = _who(message)
    name = strings_of(map(who.get, ("title", "first_name", "last_name")), separator=" ")
    return profile_of(name=name, user_name=who.word("username"), language=who.word("language_code"))


def _chat(message: Fields) -> dict[str, str]:
    chat = message.part("chat")
    return {} if chat.get("type") == "private" else chat.renamed({"type": "type", "title": "title"})


def _replied_id(message: Fields) -> str | None:
    """Return the message's id, or None for the id 0, which many messages have."""
    return message.id("message_id") if message.get("message_id") else None


def _quoted(message: Fields, replied_to: Fields) -> dict[str, Any]:
    """Return the text to which the author replies, or the part of it that they quoted, and the text's writer.

    If the author replies to a story, or to a message of another chat, Telegram may send the writer without the text.
    """
    marked = message.part("quote").word("text")
    whole = replied_to.word("text") or replied_to.word("caption") or RichMessage(replied_to.part("rich_message")).text
    story = message.part("reply_to_story").part("chat").name_or_number("id")
    author = _author(replied_to) or _origin(message.part("external_reply").part("origin")) or story
    return drop_empty({"text": marked or whole, "author": author})


def _origin(given: Fields) -> str | None:
    """Return the id of the person or chat that first sent this message. If a person hides the id, return the name."""
    places = (given.part(name).name_or_number("id") for name in ("sender_user", "sender_chat", "chat"))
    return next(filter(None, places), None) or given.word("sender_user_name")


def _links(message: Fields) -> list[dict[str, str]]:
    """Return the linked words, each with the linked URL or person. Telegram counts positions in UTF-16 units."""
    text = message.word("text") or message.word("caption") or ""
    words = text[:MAX_CHARACTERS_OF_A_TEXT].encode("utf-16-le", "surrogatepass")
    entities = "entities" if message.values_of("entities") else "caption_entities"
    found = []
    for entity in message.parts(entities, most=MAX_ENTITIES):
        url, offset, length = _address(entity), entity.get("offset"), entity.get("length")
        if url and type(offset) is int and type(length) is int and offset >= 0:
            shown = words[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")
            found += [{"text": shown, "url": url}] if shown else []
    return found


def _address(entity: Fields) -> str | None:
    person = entity.part("user").name_or_number("id")
    return entity.word("url") or (f"tg://user?id={person}" if person else None)


def _content_of(message: Fields) -> dict[str, Any] | None:
    if isinstance(message.get("text"), str):
        return {"text": message["text"], "type": "text"}
    if rich := message.part("rich_message"):
        return _rich_content_of(rich)
    attachment = _attachment_of(message)
    if attachment is None:
        return _other_content_of(message)
    kind = "contacts" if attachment["type"] == "contact" else attachment["type"]
    described = attachment.pop("text", "")
    return {"text": message.get("caption") or described, "type": kind, "attachments": [drop_nones(attachment)]}


def _rich_content_of(given: Fields) -> dict[str, Any]:
    rich = RichMessage(given)
    files = [drop_nones(file | {"text": None}) for file in map(_attachment_of, rich.files) if file]
    return {"text": rich.text, "type": "text", "attachments": files} | ({"links": rich.links} if rich.links else {})


def _other_content_of(message: Fields) -> dict[str, Any] | None:
    """Return the content of a message that has neither text nor file, or None if it is a service message."""
    for name, read in _OTHER_CONTENT.items():
        if isinstance(message.get(name), dict):
            return read(message.part(name))
    kind = next((kind for kind in _NO_TEXT if isinstance(message.get(kind), dict)), None)
    caption = message.word("caption")
    # A service message has no caption. So if there is a caption, the message has a file of an unknown kind.
    return {"type": kind or "unsupported", "text": caption or ""} if kind or caption else None


def _users_shared(shared: Fields) -> dict[str, Any]:
    # Older Telegram servers send only the ids, or a single id.
    ids = [*shared.values_of("user_ids"), *([shared["user_id"]] if "user_id" in shared else [])]
    users = list(shared.parts("users", most=MAX_ATTACHMENTS)) or [
        Fields(user_id=user) for user in ids[:MAX_ATTACHMENTS]
    ]
    return _shared("contact", "user_id", users, {"type": "users_shared", "requestId": shared.get("request_id")})


def _shared(kind: str, id_field: str, given: Iterable[Fields], interactive: dict[str, Any]) -> dict[str, Any]:
    """Read the people or the chat that the author chose for the bot's request."""
    found = [
        {"type": kind, "name": strings_of(map(each.get, ("title", "first_name", "last_name")), separator=" ")}
        | each.renamed({"id": id_field, "userName": "username"})
        for each in given
    ]
    names = strings_of(each["name"] for each in found)
    chosen = [drop_empty(each) for each in found]
    return {"type": "interactive", "text": names, "attachments": chosen, "interactive": interactive}


def _lines(content: Fields, title: str, items: str) -> str:
    texts = (item.get("text") for item in content.parts(items))
    return strings_of([content.get(title), *texts], separator="\n")


_OTHER_CONTENT: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "web_app_data": lambda data: {
        "type": "interactive",
        "text": data.word("button_text") or "",
        "interactive": {**data, "type": "web_app_data"},
    },
    "users_shared": _users_shared,
    "user_shared": _users_shared,
    "chat_shared": lambda shared: _shared(
        "chat", "chat_id", [shared], {"type": "chat_shared", "requestId": shared.get("request_id")}
    ),
    "successful_payment": lambda payment: {"type": "payment", "payment": payment},
    "gift": lambda gift: {"type": "gift", "text": gift.word("text") or ""},
    "dice": lambda dice: {"type": "dice", "text": dice.word("emoji") or "", "value": dice.number("value")},
    "poll": lambda poll: {"type": "poll", "text": _lines(poll, "question", "options")},
    "checklist": lambda checklist: {"type": "checklist", "text": _lines(checklist, "title", "tasks")},
}


def _attachment_of(message: Fields) -> dict[str, Any] | None:
    match message:
        case {"photo": [*_, dict(largest)]} | {"live_photo": {"photo": [*_, dict(largest)]}}:
            return _file("image", object_of(largest))
        case {"venue": dict()}:
            venue = message.part("venue")
            text = strings_of([venue.get("title"), venue.get("address")])
            return {"type": "location", "text": text, **_place(venue.part("location"))}
        case {"location": dict(location)}:
            return {"type": "location", **_place(location), "livePeriodSeconds": location.get("live_period")}
        case {"contact": dict()}:
            contact = message.part("contact")
            name = strings_of([contact.get("first_name"), contact.get("last_name")], separator=" ")
            person = {"id": contact.name_or_number("user_id"), "phone": contact.get("phone_number")}
            return {"type": "contact", "text": name, "name": name, **person}
    for name, kind in _FILES.items():
        if isinstance(message.get(name), dict):
            return _file(kind, message.part(name)) | ({"voice": True} if name == "voice" else {})
    return None


def _file(kind: str, given: Fields) -> dict[str, Any]:
    return {
        "type": kind,
        "id": given.get("file_id"),
        "mimeType": given.get("mime_type"),
        "name": given.get("file_name"),
        "sizeBytes": given.get("file_size"),
        "stableId": given.word("file_unique_id"),
        "durationSeconds": given.number("duration"),
        "title": given.word("title"),
        "performer": given.word("performer"),
        # Use the emoji as the text, because it describes what the sticker shows.
        "text": (given.word("emoji") or "") if kind == "sticker" else "",
    }


def _place(location: Mapping[str, Any]) -> dict[str, Any]:
    return {"latitude": location.get("latitude"), "longitude": location.get("longitude")}
