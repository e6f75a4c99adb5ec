"""WhatsApp Cloud API.

A webhook has up to 1,000 messages and statuses of several users and accounts, in no order. An entry or item that we
cannot read is left out and counted. If we refused the webhook instead, WhatsApp would send all its items again for
seven days.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lambdas.ingest.platforms.base import (
    BusinessReply,
    Fields,
    Incoming,
    Intake,
    InvalidWebhook,
    Signer,
    Update,
    Webhook,
    author_ids,
    drop_empty,
    drop_nones,
    failed,
    ms_of_time,
    object_in,
    object_of,
    strings_of,
)
from lambdas.ingest.platforms.meta import MetaPlatform
from message_buffer.messages.changes import Deleted, Edited, Failed, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, AuthorIds, ConversationId
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, profile_of

TYPED_IN_THE_APP = "smb_message_echoes"
# Types of echoes that contain no new message.
NO_REPLIES = {None, "edit", "revoke", "reaction", "system"}

# Cut the title of an error, because each message of a change may have a copy of it. WhatsApp's longest titles have a
# few dozen characters.
MAX_TITLE_CHARACTERS = 256

# Messages in these fields are not meant for the bot. `standby` has messages that Meta's own agent answers, and
# `history` has files of earlier messages, which WhatsApp sends after a business has connected its app.
NOT_FOR_THE_BOT = ("standby", "history")
# Says that Meta's own agent or another app takes a conversation over, or gives it back.
HANDOVERS = "messaging_handovers"
_REFERRAL = {
    "type": "source_type",
    "id": "source_id",
    "url": "source_url",
    "title": "headline",
    "text": "body",
    "clickId": "ctwa_clid",
}
_PRODUCT = {"id": "product_retailer_id", "catalogId": "catalog_id"}


class WhatsApp(MetaPlatform):
    name = "whatsapp"
    object_name = "whatsapp_business_account"

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for entry in self.entries_of(webhook.body):
            intake.ignored["unreadable"] += not isinstance(entry.get("changes"), list)
            for change in entry.parts("changes"):
                _read_change(change.get("field"), change.part("value"), intake, received_at_ms)
        return intake


def _read_change(field: Any, value: Fields, intake: Intake, received_at_ms: int) -> None:
    account = value.part("recipient" if field == HANDOVERS else "metadata").word("phone_number_id")
    if account is None:
        intake.ignored["unknown"] += 1
        return
    intake.accounts.add(account)
    items, echoes = value.values_of("messages"), value.values_of("message_echoes")
    statuses = value.values_of("statuses")
    if field == HANDOVERS:
        intake.ignored[field] += 1
        return
    if field in NOT_FOR_THE_BOT:
        intake.ignored[field] += len(items) + len(echoes) + len(statuses)
        return
    contacts = _Contacts(value)
    for item in map(object_of, items):
        contact = contacts.find(item.get("from"), item.get("from_user_id"), among=len(items))
        intake.take(_WhatsAppItem(_with_errors(item, value), account, contact, received_at_ms).read)
    intake.ignored["system"] += len(value.values_of("user_id_update"))
    for status in map(object_of, statuses):
        contact = contacts.find(status.get("recipient_id"), status.get("recipient_user_id"), among=len(statuses))
        intake.take(partial(_read_status, status, contact, account, received_at_ms, sent=intake.sent))
    for echo in map(object_of, echoes):
        contact = contacts.find(echo.get("to"), echo.get("to_user_id"), among=len(echoes))
        intake.take(partial(_read_echo, field, echo, contact, account))


class _WhatsAppItem:
    def __init__(self, item: Fields, account: str, contact: Fields, received_at_ms: int) -> None:
        self._item = item
        self._received_at_ms = received_at_ms
        self._author, user_id, self._ids = _names(item.word("from"), item.word("from_user_id"), contact)
        self._profile = _profile(contact, user_id)
        group = item.word("group_id")
        self._group = group is not None
        user = group or _user(self._author)
        self._conversation = ConversationId(DEFAULT_TENANT, WhatsApp.name, account, user)

    def read(self) -> Update | str:
        kind = _kind_of(self._item)
        content = self._item.part(kind or "")
        sent_at_ms = ms_of_time(self._item.get("timestamp"))
        at_ms = sent_at_ms or self._received_at_ms
        match kind:
            case None:
                return "unknown"
            case "system" | "request_welcome":
                # WhatsApp wrote this message itself, or sent it because a customer opened a chat without writing.
                return kind
            case "reaction":
                # The emoji is missing if the author has removed the reaction.
                emoji, ids = content.word("emoji"), None if self._group else self._ids
                return Reacted(self._conversation, content.id("message_id"), self._author, emoji, at_ms, ids)
            case "revoke":
                message_id = content.id("original_message_id")
                return Deleted(self._conversation, message_id, self._author, at_ms, self._group, self._ids)
            case "edit":
                message = self._message(content.part("message"), content.get("original_message_id"), editedAt=at_ms)
                return Edited(self._conversation, message, at_ms, self._group, author_ids=self._ids)
        message = self._message(self._item, self._item.get("id"), sentAt=sent_at_ms)
        return Incoming(self._conversation, message, self._group, author_ids=self._ids)

    def _message(self, item: Fields, message_id: Any, **times: int | None) -> Message:
        kind = _kind_of(item)
        if kind is None:
            raise InvalidWebhook("the edit contains no message")
        context = item.part("context")
        fields = {
            "id": message_id,
            "type": kind,
            "author": self._author,
            "replyTo": context.get("id"),
            "receivedAt": self._received_at_ms,
            "platform": WhatsApp.name,
            **times,
        }
        # The content of `contacts` is a list; that of the other types is an object.
        content = item.get(kind)
        content = Fields(items=content) if isinstance(content, list) else object_of(content)
        # A message whose content WhatsApp withholds is often a customer's first. Buffer it without the content, like a
        # message of an unknown type.
        said = _READERS[kind](content) if kind in _READERS else {}
        details = {
            "profile": self._profile,
            "chat": {"type": "group"} if self._group else None,
            "forwarded": context.get("forwarded") is True or context.get("frequently_forwarded") is True,
            "quoted": context.renamed({"author": "from"}) if "id" in context else None,
            "referral": _referral(item.part("referral")),
            "product": context.part("referred_product").renamed(_PRODUCT),
            "withheld": _withheld(item),
        }
        return Message.model_validate(fields | said | drop_empty(details))


def _read_echo(field: Any, echo: Fields, contact: Fields, account: str) -> BusinessReply | str:
    """Read a message of the business. Only `smb_message_echoes` has what a human agent typed in WhatsApp's app."""
    name, _, customer_ids = _names(echo.word("to"), echo.word("to_user_id"), contact)
    user, message_id, at_ms = _user(name), echo.word("id"), ms_of_time(echo.get("timestamp"))
    if field != TYPED_IN_THE_APP or _kind_of(echo) in NO_REPLIES or not (user and message_id and at_ms):
        return "echo"
    conversation = ConversationId(DEFAULT_TENANT, WhatsApp.name, account, user)
    return BusinessReply(conversation, message_id, at_ms, customer_ids=customer_ids)


def _read_status(
    status: Fields, contact: Fields, account: str, at_ms: int, *, sent: list[BusinessReply]
) -> Failed | str:
    """Return a failed delivery, or the name under which to count the status. Add a message that was sent to `sent`."""
    kind, is_group = status.get("status"), status.get("recipient_type") == "group"
    if kind not in ("sent", "failed") or (kind == "sent" and is_group):
        return "status"
    name, _, ids = _names(status.word("recipient_id"), status.word("recipient_user_id"), contact)
    conversation = ConversationId(DEFAULT_TENANT, WhatsApp.name, account, _user(name))
    at_ms = ms_of_time(status.get("timestamp")) or at_ms
    if kind == "sent":
        sent.append(BusinessReply(conversation, status.id("id"), at_ms, customer_ids=ids))
        return "status"
    error = next(status.parts("errors", most=1), Fields())
    return failed(
        conversation,
        status.id("id"),
        at_ms,
        code=error.get("code"),
        words=(error.get("title"), error.part("error_data").get("details")),
        ids=None if is_group else ids,
    )


# -- author, referral and errors -------------------------------------------------------------------


def _kind_of(item: Fields) -> str | None:
    """Return the item's type. If it is missing, as for some locations, return the name of the content's field."""
    return item.word("type") or next((kind for kind in _READERS if kind in item), None)


def _names(number: str | None, user_id: str | None, contact: Fields) -> tuple[str | None, str | None, AuthorIds]:
    """Return the author's name, the author's id, and both ids.

    If the author hides their number, WhatsApp sends an id that only this business knows. Keep the id's upper case,
    because WhatsApp accepts a reply only to the unchanged id.
    """
    user_id, known_number = user_id or contact.word("user_id"), contact.word("wa_id")
    return number or user_id or known_number, user_id, author_ids(number or known_number, user_id)


def _user(name: str | None) -> str:
    return (name or "").strip().removeprefix("+")


class _Contacts:
    """The contacts of a change, by their numbers and ids."""

    def __init__(self, value: Fields) -> None:
        self._all = value.values_of("contacts")
        self._by_name = {
            (field, name): place
            for place, contact in enumerate(value.parts("contacts"))
            for field in ("wa_id", "user_id")
            if (name := contact.word(field))
        }

    def find(self, number: Any, user_id: Any, *, among: int) -> Fields:
        """Return the contact with this number or id. If only one contact and one item exist, return that contact.

        A single contact belongs to a single item, even if their numbers are written differently, or the item does not
        name its author.
        """
        for name in (("wa_id", number), ("user_id", user_id)):
            if isinstance(name[1], str) and name in self._by_name:
                return object_of(self._all[self._by_name[name]])
        return object_of(self._all[0]) if len(self._all) == among == 1 else Fields()


def _profile(contact: Fields, user_id: str | None) -> dict[str, str]:
    profile = contact.part("profile")
    return profile_of(
        name=profile.word("name"),
        user_name=profile.word("username") or contact.word("username"),
        user_id=user_id,
        country=profile.word("country_code"),
    )


def _referral(given: Fields) -> dict[str, str]:
    """Read the ad or post that led the author to write."""
    media = next(filter(None, map(given.word, ("image_url", "video_url", "thumbnail_url"))), None)
    welcome = given.part("welcome_message").renamed({"welcome": "text"})
    return given.renamed(_REFERRAL) | ({"mediaUrl": media} if media else {}) | welcome


def _with_errors(item: Fields, value: Fields) -> Fields:
    """Return the item. If it has neither content nor errors, add the errors of the change that contains it."""
    errors = value.get("errors")
    is_empty = not item.get("errors") and not item.get(_kind_of(item) or "")
    return Fields(item, errors=errors) if errors and is_empty else item


def _withheld(item: Fields) -> dict[str, Any]:
    """Return WhatsApp's reason for withholding the content, and the content's type if WhatsApp names it."""
    for error in item.parts("errors", most=1):
        title = (error.word("title") or "")[:MAX_TITLE_CHARACTERS]
        return drop_empty({"code": error.number("code"), "title": title, "type": item.part("unsupported").word("type")})
    return {}


# -- contents by type of message -------------------------------------------------------------------


def _media(kind: str, content: Fields) -> dict[str, Any]:
    attachment = {
        "type": kind,
        "id": content.get("id"),
        "url": content.get("link") or content.get("url"),
        "mimeType": content.get("mime_type"),
        "name": content.get("filename"),
        "sha256": content.word("sha256"),
        "voice": content.get("voice") is True or None,
        "animated": content.get("animated") is True or None,
    }
    return {"text": content.get("caption", ""), "attachments": [drop_nones(attachment)]}


def _location(content: Fields) -> dict[str, Any]:
    place = {"type": "location", "latitude": content.get("latitude"), "longitude": content.get("longitude")}
    text = strings_of([content.get("name"), content.get("address")])
    return {"text": text, "attachments": [drop_nones(place | {"url": content.word("url")})]}


def _contacts(content: Fields) -> dict[str, Any]:
    cards = list(content.parts("items", most=MAX_ATTACHMENTS))
    names = [card.part("name").get("formatted_name") for card in cards]
    contacts = [{**card, "type": "contact", "name": name} for card, name in zip(cards, names, strict=True)]
    return {"text": strings_of(names), "attachments": contacts}


def _reply(content: Fields) -> dict[str, Any]:
    """Read a choice or a form. The text is what the author saw. `interactive` has the id that the bot gave the choice.

    `form` has the values of a form, which WhatsApp sends as a JSON string.
    """
    kind = content.word("type") or next((name for name in content if name.endswith("_reply")), "")
    chosen = content.part(kind)
    text = chosen.word("title") or chosen.word("body") or chosen.word("response")
    form = object_in(chosen.get("response_json"))
    return {"text": text or "", "interactive": content} | ({"form": form} if form else {})


_READERS: Mapping[str, Callable[[Fields], dict[str, Any]]] = {
    "text": lambda content: {"text": content.get("body")},
    **{kind: partial(_media, kind) for kind in ("image", "audio", "video", "document", "sticker")},
    "location": _location,
    "contacts": _contacts,
    "interactive": _reply,
    "button": lambda content: {"text": content.get("text", ""), "interactive": content},
    # The text of an order is the author's note.
    "order": lambda content: {"text": content.get("text", ""), "order": content},
}
