"""WhatsApp Cloud API.

A webhook has up to 1,000 messages and statuses of several users and accounts, in no order. An entry or item that we
cannot read is left out and counted. If we refused the webhook instead, WhatsApp would send all its items again for
seven days.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from lambdas.ingest.platforms.base import (
    HumanReply,
    Incoming,
    Intake,
    Signer,
    Update,
    Webhook,
    author_ids,
    drop_empty,
    drop_nones,
    id_of,
    list_of,
    ms_of_time,
    number_of,
    object_in,
    object_of,
    strings_of,
    word_of,
)
from lambdas.ingest.platforms.meta import MetaPlatform
from message_buffer.json_object import Json
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, Profile, profile_of

TYPED_IN_THE_APP = "smb_message_echoes"
# Types of echoes that contain no new message.
NO_REPLIES = {None, "edit", "revoke", "reaction", "system"}

# Cut the title of an error, because each message of a change may have a copy of it. WhatsApp's longest titles have a
# few dozen characters.
MAX_TITLE_CHARACTERS = 256

# Messages in these fields are not meant for the bot. `standby` has messages that Meta's own agent answers, and
# `history` has files of earlier messages, which WhatsApp sends after a business has connected its app.
NOT_FOR_THE_BOT = ("standby", "history")


class WhatsApp(MetaPlatform):
    name = "whatsapp"
    object_name = "whatsapp_business_account"

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for field, value in _changes(self.entries_of(webhook.body), intake):
            account = word_of(object_of(value.get("metadata")).get("phone_number_id"))
            if account is None:
                intake.ignored["unknown"] += 1
                continue
            intake.accounts.add(account)
            items = list_of(value.get("messages"))
            if field in NOT_FOR_THE_BOT:
                intake.ignored[field] += len(items)
                items = []
            contacts = _Contacts(value)
            for item in map(object_of, items):
                contact = contacts.find(item.get("from"), item.get("from_user_id"), among=len(items))
                intake.take(_WhatsAppItem(_with_errors(item, value), account, contact, received_at_ms).read)
            intake.ignored["system"] += len(list_of(value.get("user_id_update")))
            intake.ignored["status"] += len(list_of(value.get("statuses")))
            echoes = list_of(value.get("message_echoes"))
            for echo in map(object_of, echoes):
                contact = contacts.find(echo.get("to"), echo.get("to_user_id"), among=len(echoes))
                intake.take(partial(_read_echo, field, echo, contact, account))
        return intake


class _WhatsAppItem:
    def __init__(self, item: Json, account: str, contact: Json, received_at_ms: int) -> None:
        self._item = item
        self._received_at_ms = received_at_ms
        # If the author hides their number, WhatsApp sends an id that only this business knows. Keep the id's upper
        # case, because WhatsApp accepts a reply only to the unchanged id.
        number, user_id = word_of(item.get("from")), word_of(item.get("from_user_id"))
        user_id = user_id or word_of(contact.get("user_id"))
        self._author = number or user_id or word_of(contact.get("wa_id"))
        self._profile = _profile(contact, user_id)
        self._ids = author_ids(number or contact.get("wa_id"), user_id)
        group = word_of(item.get("group_id"))
        self._group = group is not None
        user = group or (self._author or "").strip().removeprefix("+")
        self._conversation = ConversationId(DEFAULT_TENANT, WhatsApp.name, account, user)

    def read(self) -> Update | str:
        kind = _kind_of(self._item)
        content = object_of(self._item.get(kind or ""))
        sent_at_ms = ms_of_time(self._item.get("timestamp")) or self._received_at_ms
        match kind:
            case "reaction":
                # The emoji is missing if the author has removed the reaction.
                emoji = word_of(content.get("emoji"))
                ids = None if self._group else self._ids
                message_id = id_of(content.get("message_id"))
                return Reacted(self._conversation, message_id, self._author, emoji, sent_at_ms, ids)
            case "revoke":
                message_id = id_of(content.get("original_message_id"))
                return Deleted(self._conversation, message_id, self._author, sent_at_ms, self._group, self._ids)
            case "edit":
                message = self._message(
                    object_of(content.get("message")), content.get("original_message_id"), editedAt=sent_at_ms
                )
                return (
                    message
                    if isinstance(message, str)
                    else Edited(self._conversation, message, sent_at_ms, self._group, author_ids=self._ids)
                )
            case "system" | "request_welcome":
                # WhatsApp wrote this message itself, or sent it because a customer opened a chat without writing.
                return kind
        message = self._message(self._item, self._item.get("id"), sentAt=ms_of_time(self._item.get("timestamp")))
        if isinstance(message, str):
            return message
        return Incoming(self._conversation, message, self._group, author_ids=self._ids)

    def _message(self, item: Json, message_id: Any, **times: int | None) -> Message | str:
        kind = _kind_of(item)
        if kind is None:
            return "unknown"
        context = object_of(item.get("context"))
        fields = {
            "id": message_id,
            "type": kind,
            "author": self._author,
            "replyTo": context.get("id"),
            "receivedAt": self._received_at_ms,
            "platform": WhatsApp.name,
        }
        # The content of `contacts` is a list; that of the other types is an object.
        content = item.get(kind)
        content = {"items": content} if isinstance(content, list) else object_of(content)
        # A message whose content WhatsApp withholds is often a customer's first. Buffer it without the content, like a
        # message of an unknown type.
        read = _READERS.get(kind)
        said = read(content) if read else {}
        return Message.model_validate(fields | drop_nones(times) | said | self._details(item, context))

    def _details(self, item: Json, context: Json) -> dict[str, Any]:
        return drop_empty(
            {
                "profile": self._profile,
                "chat": {"type": "group"} if self._group else None,
                "forwarded": context.get("forwarded") is True or context.get("frequently_forwarded") is True,
                "quoted": drop_empty({"author": word_of(context.get("from"))}) if "id" in context else None,
                "referral": _referral(object_of(item.get("referral"))),
                "product": _product(object_of(context.get("referred_product"))),
                "withheld": _withheld(item),
            }
        )


def _changes(entries: Iterable[Json], intake: Intake) -> Iterator[tuple[Any, Json]]:
    """Yield the `field` and `value` of every change of every entry.

    Count entries without a list of changes as unreadable.
    """
    for entry in entries:
        changes = entry.get("changes")
        if not isinstance(changes, list):
            intake.ignored["unreadable"] += 1
            continue
        for change in map(object_of, changes):
            yield change.get("field"), object_of(change.get("value"))


def _read_echo(field: Any, echo: Json, contact: Json, account: str) -> HumanReply | str:
    """Read a message of the business. Only `smb_message_echoes` has what a human agent typed in WhatsApp's app."""
    number, user_id = word_of(echo.get("to")), word_of(echo.get("to_user_id")) or word_of(contact.get("user_id"))
    user = (number or user_id or word_of(contact.get("wa_id")) or "").strip().removeprefix("+")
    message_id, at_ms = word_of(echo.get("id")), ms_of_time(echo.get("timestamp"))
    if field != TYPED_IN_THE_APP or _kind_of(echo) in NO_REPLIES or not (user and message_id and at_ms):
        return "echo"
    conversation = ConversationId(DEFAULT_TENANT, WhatsApp.name, account, user)
    return HumanReply(conversation, message_id, at_ms, customer_ids=author_ids(number or contact.get("wa_id"), user_id))


# -- author, referral and errors -------------------------------------------------------------------


def _kind_of(item: Json) -> str | None:
    """Return the item's type. If it is missing, as for some locations, return the name of the content's field."""
    return word_of(item.get("type")) or next((kind for kind in _READERS if kind in item), None)


class _Contacts:
    """The contacts of a change, by their numbers and ids."""

    def __init__(self, value: Json) -> None:
        self._all = [object_of(contact) for contact in list_of(value.get("contacts"))]
        self._by_name = {
            (field, contact[field]): contact
            for contact in self._all
            for field in ("wa_id", "user_id")
            if word_of(contact.get(field))
        }

    def find(self, number: Any, user_id: Any, *, among: int) -> Json:
        """Return the contact with this number or id. If only one contact and one item exist, return that contact.

        A single contact belongs to a single item, even if their numbers are written differently, or the item does not
        name its author.
        """
        for name in (("wa_id", word_of(number)), ("user_id", word_of(user_id))):
            if name in self._by_name:
                return self._by_name[name]
        return self._all[0] if len(self._all) == among == 1 else {}


def _profile(contact: Json, user_id: str | None) -> Profile:
    profile = object_of(contact.get("profile"))
    return profile_of(
        name=word_of(profile.get("name")),
        user_name=word_of(profile.get("username")) or word_of(contact.get("username")),
        user_id=user_id,
        country=word_of(profile.get("country_code")),
    )


def _referral(given: Json) -> dict[str, Any]:
    """Read the ad or post that led the author to write."""
    media = word_of(given.get("image_url")) or word_of(given.get("video_url")) or word_of(given.get("thumbnail_url"))
    return drop_empty(
        {
            "type": word_of(given.get("source_type")),
            "id": word_of(given.get("source_id")),
            "url": word_of(given.get("source_url")),
            "title": word_of(given.get("headline")),
            "text": word_of(given.get("body")),
            "mediaUrl": media,
            "clickId": word_of(given.get("ctwa_clid")),
            "welcome": word_of(object_of(given.get("welcome_message")).get("text")),
        }
    )


def _product(given: Json) -> dict[str, Any]:
    return drop_empty({"id": word_of(given.get("product_retailer_id")), "catalogId": word_of(given.get("catalog_id"))})


def _with_errors(item: Json, value: Json) -> Json:
    """Return the item. If it has neither content nor errors, add the errors of the change that contains it."""
    errors = value.get("errors")
    is_empty = not item.get("errors") and not item.get(_kind_of(item) or "")
    return {**item, "errors": errors} if errors and is_empty else item


def _withheld(item: Json) -> dict[str, Any]:
    """Return WhatsApp's reason for withholding the content, and the content's type if WhatsApp names it."""
    errors = [object_of(error) for error in list_of(item.get("errors"))]
    if not errors:
        return {}
    title = (word_of(errors[0].get("title")) or "")[:MAX_TITLE_CHARACTERS]
    kind = word_of(object_of(item.get("unsupported")).get("type"))
    return drop_empty({"code": number_of(errors[0].get("code")), "title": title, "type": kind})


# -- contents by type of message -------------------------------------------------------------------


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
            "sha256": word_of(content.get("sha256")),
            "voice": content.get("voice") is True or None,
            "animated": content.get("animated") is True or None,
        }
        return {"text": content.get("caption", ""), "attachments": [drop_nones(attachment)]}

    return read


def _location(content: Json) -> dict[str, Any]:
    place = {"type": "location", "latitude": content.get("latitude"), "longitude": content.get("longitude")}
    place["url"] = word_of(content.get("url"))
    return {
        "text": strings_of([content.get("name"), content.get("address")]),
        "attachments": [drop_nones(place)],
    }


def _contacts(content: Json) -> dict[str, Any]:
    cards = [object_of(card) for card in list_of(content.get("items"))[:MAX_ATTACHMENTS]]
    names = [object_of(card.get("name")).get("formatted_name") for card in cards]
    return {
        "text": strings_of(names),
        "attachments": [{**card, "type": "contact", "name": name} for card, name in zip(cards, names, strict=True)],
    }


def _reply(content: Json) -> dict[str, Any]:
    """Read a choice or a form. The text is what the author saw. `interactive` has the id that the bot gave the choice.

    `form` has the values of a form, which WhatsApp sends as a JSON string.
    """
    kind = word_of(content.get("type")) or next((name for name in content if name.endswith("_reply")), "")
    chosen = object_of(content.get(kind))
    text = word_of(chosen.get("title")) or word_of(chosen.get("body")) or word_of(chosen.get("response"))
    form = object_in(chosen.get("response_json"))
    return {"text": text or "", "interactive": dict(content)} | ({"form": form} if form else {})


def _button(content: Json) -> dict[str, Any]:
    return {"text": content.get("text", ""), "interactive": dict(content)}


def _order(content: Json) -> dict[str, Any]:
    """Read an order. Its text is the author's note, and `order` has the products."""
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
