"""Telegram's Bot API: one update per webhook, authenticated by the secret token that was given to setWebhook.

An update does not name its bot. The account is the bot whose token came with the update, or `bot` for the platform-wide
token. Each of these is one conversation:

- a group, or a topic of a forum
- the messages of one customer to a channel
- a private chat in which a person lets the bot answer their customer (Telegram Business)
- a chat of other people into which a message summons the bot
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lambdas.ingest.platforms.base import (
    Credentials,
    HumanReply,
    Incoming,
    Intake,
    InvalidWebhook,
    Platform,
    Signer,
    Update,
    Webhook,
    drop_empty,
    drop_nones,
    id_of,
    is_same,
    list_of,
    ms_of_seconds,
    number_of,
    object_of,
    parse_json,
    strings_of,
    word_of,
)
from lambdas.ingest.platforms.telegram_rich import RichMessage
from message_buffer.json_object import Json
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import Message, Profile, profile_of

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
_KINDS_WITHOUT_TEXT = (
    "story",
    "paid_media",
    "game",
    "invoice",
    "giveaway",
    "giveaway_winners",
    "unique_gift",
    "passport_data",
)

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
        update = parse_json(webhook.body)
        if not isinstance(update, dict):
            raise InvalidWebhook("The body must be a JSON object.")
        (account,) = _bots(signer)
        intake = Intake(accounts={account})
        reading = _UpdateReading(update, account, received_at_ms)
        deleted = object_of(update.get("deleted_business_messages"))
        for message_id in list_of(deleted.get("message_ids"))[:MAX_MESSAGES_DELETED_AT_ONCE]:
            intake.take(partial(reading.read_deletion, deleted, message_id))
        if not deleted:
            intake.take(reading.read)
        return intake


def _bots(signer: Signer) -> set[str]:
    return {*signer.accounts, *([THE_ONLY_BOT] if signer.all_but is not None else [])}


class _UpdateReading:
    def __init__(self, update: Json, account: str, received_at_ms: int) -> None:
        self._update = update
        self._account = account
        self._received_at_ms = received_at_ms

    def read(self) -> Update | HumanReply | str:
        for name, read in _READERS.items():
            content = self._update.get(name)
            if isinstance(content, dict):
                return read(self, content)
        return next((kind for name, kind in _NO_MESSAGES.items() if name in self._update), "unknown")

    def read_message(self, message: Json) -> Update | str:
        if message.get("is_automatic_forward") is True:
            # This is a channel's post, which Telegram has copied into the channel's group.
            return "channel"
        content = _content_of(message)
        if content is None:
            return "unsupported"
        fields = content | self._common(message) | {"id": self._id_of(message)}
        return Incoming(self._conversation(message), Message.model_validate(fields), _is_group(message))

    def read_guest_message(self, message: Json) -> Update | str:
        """Read a message that summons the bot into a chat of other people. Our reply must contain the query's id."""
        read = self.read_message(message)
        if not isinstance(read, Incoming):
            return read
        # Add a prefix, because a private chat of two people may have the same id as one person's chat with the bot.
        chat = read.conversation._replace(user=f"guest:{read.conversation.user}")
        return read._replace(conversation=chat, group=True)

    def read_edit(self, message: Json) -> Update | str:
        if "location" in message:
            # A live location is edited every few seconds while its author moves.
            return "moved"
        if message.get("is_automatic_forward") is True:
            return "channel"
        content = _content_of(message)
        if content is None:
            return "unsupported"
        at_ms = ms_of_seconds(message.get("edit_date")) or self._received_at_ms
        fields = content | self._common(message) | {"id": self._id_of(message), "editedAt": at_ms}
        return Edited(self._conversation(message), Message.model_validate(fields), at_ms, _is_group(message))

    def read_press(self, query: Json) -> Update | str:
        """Read the press of a button below the bot's message. The text is the button's label, or else its data.

        If the bot's message was sent through another chat, the update does not contain the message, so use the author's
        private chat.
        """
        private = {"chat": {"id": object_of(query.get("from")).get("id"), "type": "private"}}
        below = object_of(query.get("message")) or private
        data = word_of(query.get("data"))
        if data is None:
            return "unsupported"
        labels = [
            word_of(object_of(button).get("text"))
            for row in list_of(object_of(below.get("reply_markup")).get("inline_keyboard"))
            for button in list_of(row)
            if object_of(button).get("callback_data") == data
        ]
        if rich := object_of(below.get("rich_message")):
            labels.append(RichMessage(rich).labels.get(data))
        fields = {
            "id": f"callback:{id_of(query.get('id'))}",
            "type": "interactive",
            "text": next(filter(None, labels), data),
            "interactive": {"type": "callback_query", "data": data},
            "replyTo": _replied_id(below),
            "author": _author(query),
            "receivedAt": self._received_at_ms,
            "platform": Telegram.name,
        } | drop_empty({"profile": _profile(query), "chat": _chat(below)})
        return Incoming(self._conversation(below), Message.model_validate(fields), _is_group(below))

    def read_reaction(self, reaction: Json) -> Update:
        """Read a reaction. Telegram does not name the message's topic, so use the conversation of the whole chat."""
        latest = [object_of(each) for each in list_of(reaction.get("new_reaction"))]
        emojis = [
            word_of(each.get("emoji"))
            or word_of(each.get("custom_emoji_id"))
            or ("⭐" if each.get("type") == "paid" else None)
            for each in latest
        ]
        return Reacted(
            self._conversation(reaction),
            id_of(reaction.get("message_id")),
            _author({"from": reaction.get("user"), "sender_chat": reaction.get("actor_chat")}),
            strings_of(emojis, separator="") or None,
            ms_of_seconds(reaction.get("date")) or self._received_at_ms,
        )

    def read_vote(self, answer: Json) -> Update:
        """Read a vote. Telegram does not name the poll's chat, so use the private chat, whose id is the voter's."""
        voter = _author({"from": answer.get("user"), "sender_chat": answer.get("voter_chat")})
        poll, chosen = id_of(answer.get("poll_id")), list_of(answer.get("option_ids"))
        fields = {
            "id": f"poll:{poll}:{id_of(self._update.get('update_id'))}",
            "type": "poll_answer",
            "interactive": {"type": "poll_answer", "pollId": poll, "optionIds": chosen},
            "author": voter,
            "receivedAt": self._received_at_ms,
            "platform": Telegram.name,
        } | drop_empty({"profile": _profile({"from": answer.get("user")})})
        conversation = ConversationId(DEFAULT_TENANT, Telegram.name, self._account, voter or "")
        return Incoming(conversation, Message.model_validate(fields))

    def read_business_message(self, message: Json) -> Update | HumanReply | str:
        return self.read_message(message) if _is_of_customer(message) else self._read_echo(message)

    def _read_echo(self, message: Json) -> HumanReply | str:
        """Read a message that the account's owner or the owner's bot sent. Only the owner's may be a human reply.

        Greetings, away messages and scheduled messages are not human replies, because Telegram sends them
        automatically.
        """
        by_bot = "sender_business_bot" in message or object_of(message.get("from")).get("is_bot") is not False
        at_ms = ms_of_seconds(message.get("date"))
        if by_bot or "is_from_offline" in message or _content_of(message) is None or not at_ms:
            return "echo"
        return HumanReply(self._conversation(message), self._id_of(message), at_ms)

    def read_business_edit(self, message: Json) -> Update | str:
        return self.read_edit(message) if _is_of_customer(message) else "echo"

    def read_deletion(self, deleted: Json, message_id: Any) -> Update:
        """Read one deletion in a customer's chat with a human agent. Telegram does not say who deleted the message."""
        return Deleted(self._conversation(deleted), id_of(message_id), None, self._received_at_ms)

    def _id_of(self, message: Json) -> str:
        # Every message that only one person sees has the id 0, so use the update's id instead.
        return id_of(message.get("message_id") or f"update:{id_of(self._update.get('update_id'))}")

    def _conversation(self, message: Json) -> ConversationId:
        chat = id_of(object_of(message.get("chat")).get("id"))
        if business := word_of(message.get("business_connection_id")):
            chat = f"{business}:{chat}"
        # Outside of forums a thread is only a chain of replies, so it belongs to the chat's conversation.
        topic = f":{id_of(message.get('message_thread_id'))}" if message.get("is_topic_message") is True else ""
        if customer := object_of(message.get("direct_messages_topic")):
            topic = f":{id_of(customer.get('topic_id'))}"
        return ConversationId(DEFAULT_TENANT, Telegram.name, self._account, chat + topic)

    def _common(self, message: Json) -> dict[str, Any]:
        replied_to = object_of(message.get("reply_to_message"))
        replied = replied_to.get("message_id")
        # In a topic every message is marked as a reply to the message that opened the topic, so ignore that mark.
        opened_topic = message.get("is_topic_message") is True and replied == message.get("message_thread_id")
        is_reply = replied is not None and not opened_topic
        details = {
            "profile": _profile(message),
            "chat": _chat(message),
            "forwarded": "forward_origin" in message or "forward_date" in message,
            "quoted": _quoted(message, {} if opened_topic else replied_to),
            "links": _links(message),
            "guestQueryId": word_of(message.get("guest_query_id")),
        }
        return drop_empty(details) | {
            "author": _author(message),
            "replyTo": _replied_id(replied_to) if is_reply else None,
            "sentAt": ms_of_seconds(message.get("date")),
            "receivedAt": self._received_at_ms,
            "platform": Telegram.name,
            # This id is the same for all messages of an album.
            "groupId": word_of(message.get("media_group_id")),
        }


_READERS: Mapping[str, Callable[[_UpdateReading, Json], Update | HumanReply | str]] = {
    "message": _UpdateReading.read_message,
    "edited_message": _UpdateReading.read_edit,
    "business_message": _UpdateReading.read_business_message,
    "edited_business_message": _UpdateReading.read_business_edit,
    "guest_message": _UpdateReading.read_guest_message,
    "callback_query": _UpdateReading.read_press,
    "message_reaction": _UpdateReading.read_reaction,
    "poll_answer": _UpdateReading.read_vote,
}


def _is_group(message: Json) -> bool:
    return object_of(message.get("chat")).get("type") != "private"


def _author(message: Json) -> str | None:
    """Return the author's id. If the author is anonymous, return the id of the chat that they write for."""
    who = object_of(message.get("sender_chat")) or object_of(message.get("from"))
    return id_of(who["id"]) if "id" in who else None


def _is_of_customer(message: Json) -> bool:
    """Return True if the customer wrote this, and False if the account's owner or the owner's bot did."""
    return object_of(message.get("from")).get("id") in (None, object_of(message.get("chat")).get("id"))


def _profile(message: Json) -> Profile:
    # If a person writes in the name of a chat, Telegram puts a placeholder into `from`.
    who = object_of(message.get("sender_chat")) or object_of(message.get("from"))
    names = [who.get("title"), who.get("first_name"), who.get("last_name")]
    return profile_of(
        name=strings_of(names, separator=" "),
        user_name=word_of(who.get("username")),
        language=word_of(who.get("language_code")),
    )


def _chat(message: Json) -> dict[str, Any]:
    chat = object_of(message.get("chat"))
    if chat.get("type") == "private":
        return {}
    return drop_empty({"type": word_of(chat.get("type")), "title": word_of(chat.get("title"))})


def _replied_id(message: Json) -> str | None:
    """Return the id of the message that was replied to. The id 0, which many messages have, counts as none."""
    return id_of(message.get("message_id")) if message.get("message_id") else None


def _quoted(message: Json, replied_to: Json) -> dict[str, Any]:
    """Return the text to which the author replies, or the part of it that they marked, and who wrote it.

    If the author replies to a story, or to a message of another chat, Telegram may send only who wrote it.
    """
    marked = word_of(object_of(message.get("quote")).get("text"))
    rich = object_of(replied_to.get("rich_message"))
    whole = word_of(replied_to.get("text")) or word_of(replied_to.get("caption")) or (rich and RichMessage(rich).text)
    story = object_of(object_of(message.get("reply_to_story")).get("chat")).get("id")
    elsewhere = object_of(object_of(message.get("external_reply")).get("origin"))
    author = _author(replied_to) or _origin(elsewhere) or (str(story) if type(story) is int else None)
    return drop_empty({"text": marked or whole, "author": author})


def _origin(given: Json) -> str | None:
    """Return the id of the person or chat that first sent this message. If a person hides the id, return the name."""
    places = (object_of(given.get(name)).get("id") for name in ("sender_user", "sender_chat", "chat"))
    found = next((place for place in places if type(place) is int), None)
    return word_of(given.get("sender_user_name")) if found is None else str(found)


def _links(message: Json) -> list[dict[str, str]]:
    """Return the linked words, each with the linked URL or person. Telegram counts positions in UTF-16 units."""
    text = word_of(message.get("text")) or word_of(message.get("caption")) or ""
    words = text[:MAX_CHARACTERS_OF_A_TEXT].encode("utf-16-le", "surrogatepass")
    entities = list_of(message.get("entities")) or list_of(message.get("caption_entities"))
    found = []
    for entity in map(object_of, entities[:MAX_ENTITIES]):
        url, offset, length = _address(entity), entity.get("offset"), entity.get("length")
        if url and type(offset) is int and type(length) is int and offset >= 0:
            shown = words[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")
            found += [{"text": shown, "url": url}] if shown else []
    return found


def _address(entity: Json) -> str | None:
    person = object_of(entity.get("user")).get("id")
    return word_of(entity.get("url")) or (f"tg://user?id={person}" if type(person) is int else None)


def _content_of(message: Json) -> dict[str, Any] | None:
    if isinstance(message.get("text"), str):
        return {"text": message["text"], "type": "text"}
    if rich := object_of(message.get("rich_message")):
        return _rich_content_of(rich)
    attachment = _attachment_of(message)
    if attachment is None:
        return _other_content_of(message)
    kind = "contacts" if attachment["type"] == "contact" else attachment["type"]
    described = attachment.pop("text", "")
    return {"text": message.get("caption") or described, "type": kind, "attachments": [drop_nones(attachment)]}


def _rich_content_of(given: Json) -> dict[str, Any]:
    rich = RichMessage(given)
    files = [drop_nones(file) for file in map(_attachment_of, rich.files) if file]
    for file in files:
        file.pop("text", None)
    return {"text": rich.text, "type": "text", "attachments": files} | ({"links": rich.links} if rich.links else {})


def _other_content_of(message: Json) -> dict[str, Any] | None:
    """Return the content of a message that has neither text nor file, or None if it is a service message."""
    for name, read in _OTHER_CONTENT.items():
        content = message.get(name)
        if isinstance(content, dict):
            return read(content)
    kind = next((kind for kind in _KINDS_WITHOUT_TEXT if isinstance(message.get(kind), dict)), None)
    caption = word_of(message.get("caption"))
    # A service message has no caption. So if there is a caption, the message has a file of an unknown kind.
    return {"type": kind or "unsupported", "text": caption or ""} if kind or caption else None


def _web_app_data(data: Json) -> dict[str, Any]:
    shown = word_of(data.get("button_text")) or ""
    return {"type": "interactive", "text": shown, "interactive": {**data, "type": "web_app_data"}}


def _users_shared(shared: Json) -> dict[str, Any]:
    users = [object_of(user) for user in list_of(shared.get("users"))]
    # Older Telegram servers send only the ids, or a single id.
    ids = [*list_of(shared.get("user_ids")), *([shared["user_id"]] if "user_id" in shared else [])]
    return _shared("contact", "user_id", users or [{"user_id": user} for user in ids], shared)


def _chat_shared(shared: Json) -> dict[str, Any]:
    return _shared("chat", "chat_id", [shared], shared)


def _payment(payment: Json) -> dict[str, Any]:
    return {"type": "payment", "text": "", "payment": dict(payment)}


def _gift(gift: Json) -> dict[str, Any]:
    return {"type": "gift", "text": word_of(gift.get("text")) or ""}


def _dice(dice: Json) -> dict[str, Any]:
    return {"type": "dice", "text": word_of(dice.get("emoji")) or "", "value": number_of(dice.get("value"))}


def _poll(poll: Json) -> dict[str, Any]:
    options = [object_of(option).get("text") for option in list_of(poll.get("options"))]
    return {"type": "poll", "text": strings_of([poll.get("question"), *options], separator="\n")}


def _checklist(checklist: Json) -> dict[str, Any]:
    tasks = [object_of(task).get("text") for task in list_of(checklist.get("tasks"))]
    return {"type": "checklist", "text": strings_of([checklist.get("title"), *tasks], separator="\n")}


def _shared(kind: str, id_field: str, given: list[Json], answer: Json) -> dict[str, Any]:
    """Read the people or the chat that the author chose for the bot's request."""
    found = [
        drop_empty(
            {
                "type": kind,
                "id": id_of(each[id_field]) if id_field in each else None,
                "name": strings_of([each.get("title"), each.get("first_name"), each.get("last_name")], separator=" "),
                "userName": word_of(each.get("username")),
            }
        )
        for each in given
    ]
    shared = f"{'users' if kind == 'contact' else 'chat'}_shared"
    names = strings_of([each.get("name") for each in found])
    chosen = {"type": shared, "requestId": answer.get("request_id")}
    return {"type": "interactive", "text": names, "attachments": found, "interactive": chosen}


_OTHER_CONTENT: Mapping[str, Callable[[Json], dict[str, Any]]] = {
    "web_app_data": _web_app_data,
    "users_shared": _users_shared,
    "user_shared": _users_shared,
    "chat_shared": _chat_shared,
    "successful_payment": _payment,
    "gift": _gift,
    "dice": _dice,
    "poll": _poll,
    "checklist": _checklist,
}


def _attachment_of(message: Json) -> dict[str, Any] | None:
    match message:
        case {"photo": [*_, dict(largest)]} | {"live_photo": {"photo": [*_, dict(largest)]}}:
            return _file("image", largest)
        case {"venue": dict(venue)}:
            text = strings_of([venue.get("title"), venue.get("address")])
            return {"type": "location", "text": text, **_place(object_of(venue.get("location")))}
        case {"location": dict(location)}:
            return {"type": "location", **_place(location), "livePeriodSeconds": location.get("live_period")}
        case {"contact": dict(contact)}:
            name = strings_of([contact.get("first_name"), contact.get("last_name")], separator=" ")
            phone, user = contact.get("phone_number"), contact.get("user_id")
            person = {"id": str(user) if type(user) is int else None, "phone": phone}
            return {"type": "contact", "text": name, "name": name, **person}
    for name, kind in _FILES.items():
        if isinstance(message.get(name), dict):
            return _file(kind, message[name]) | ({"voice": True} if name == "voice" else {})
    return None


def _file(kind: str, given: Json) -> dict[str, Any]:
    return {
        "type": kind,
        "id": given.get("file_id"),
        "mimeType": given.get("mime_type"),
        "name": given.get("file_name"),
        "sizeBytes": given.get("file_size"),
        "stableId": word_of(given.get("file_unique_id")),
        "durationSeconds": number_of(given.get("duration")),
        "title": word_of(given.get("title")),
        "performer": word_of(given.get("performer")),
        # Use the emoji as the text, because it describes what the sticker shows.
        "text": (word_of(given.get("emoji")) or "") if kind == "sticker" else "",
    }


def _place(location: Json) -> dict[str, Any]:
    return {"latitude": location.get("latitude"), "longitude": location.get("longitude")}
