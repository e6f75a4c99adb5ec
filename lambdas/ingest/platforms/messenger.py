"""Messenger: each item of `entry[].messaging[]` is one event, and the account is the entry's page.

Instagram's webhooks have the same shape, so `instagram.py` uses this class.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lambdas.ingest.platforms.base import (
    HumanReply,
    Incoming,
    Intake,
    Signer,
    Update,
    Webhook,
    drop_empty,
    drop_nones,
    id_of,
    list_of,
    ms_of_time,
    object_of,
    word_of,
)
from lambdas.ingest.platforms.meta import MetaPlatform
from message_buffer.json_object import Json
from message_buffer.messages.changes import Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import MAX_ATTACHMENTS, Message, profile_of
from message_buffer.rules.rules_and_defaults import UNNAMED_APP

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
_FORMER_TYPE = {"sticker": "image", "ig_post": "share"}
# Messenger's thumbs-up is a sticker in three sizes. Instagram's heart is an attachment with its own type.
_THUMBS_UP = {"369239263222822", "369239343222814", "369239383222810"}
_HEART = "like_heart"
# Types of attachments whose payload has no fields besides the common ones.
_FILES = {"image", "audio", "video", "file", "sticker", "location", "fallback"}
_IDS_OF_SHARED = ("story_media_id", "ig_post_media_id", "reel_video_id")
_TOLD = {"url", "story_media_url", "title", *_IDS_OF_SHARED}


class Messenger(MetaPlatform):
    name = "messenger"
    object_name = "page"

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for entry in self.entries_of(webhook.body):
            account = _id_or_none(entry.get("id"))
            if account is None:
                intake.ignored["unreadable"] += 1
                continue
            intake.accounts.add(account)
            events = [object_of(event) for event in list_of(entry.get("messaging"))]
            for change in map(object_of, list_of(entry.get("changes"))):
                # The Instagram API with Instagram login sends events as `changes`, and so does the console's test
                # button.
                value = object_of(change.get("value"))
                if change.get("field") == "message_echoes":
                    intake.take(_Event(value, self.name, account, received_at_ms).read_echo)
                elif "sender" in value:
                    events.append(value)
                else:
                    intake.ignored["unknown"] += 1
            for event in events:
                intake.take(_Event(event, self.name, account, received_at_ms).read)
            # Ignore threads that another app of the page controls, except the replies of people who type in that app.
            standby = list_of(entry.get("standby"))
            intake.ignored["standby"] += len(standby)
            seen = (_Event(object_of(event), self.name, account, received_at_ms).read_echo() for event in standby)
            for reply in seen:
                if isinstance(reply, HumanReply):
                    intake.add_reply(reply)
        return intake


class _Event:
    def __init__(self, event: Json, platform: str, account: str, received_at_ms: int) -> None:
        self._event = event
        self._platform = platform
        sender = object_of(event.get("sender"))
        # If a person has not written yet, a plugin on a website sends a reference instead of their id.
        self._author = _id_or_none(sender.get("id")) or word_of(sender.get("user_ref"))
        self._is_ours = self._author == account and not object_of(event.get("message")).get("is_self")
        self._profile = profile_of(user_name=word_of(sender.get("username")))
        self._conversation = ConversationId(DEFAULT_TENANT, platform, account, self._author or "")
        self._received_at_ms = received_at_ms
        self._sent_at_ms = ms_of_time(event.get("timestamp"))
        self._at_ms = self._sent_at_ms or received_at_ms

    def read(self) -> Update | HumanReply | str:
        for name, read in _READERS.items():
            content = self._event.get(name)
            if isinstance(content, dict):
                return self.read_echo() if self._is_ours or content.get("is_echo") else read(self, content)
        return next((kind for name, kind in _NO_MESSAGES.items() if name in self._event), "unknown")

    def read_echo(self) -> HumanReply | str:
        """Read a message of the business, which a human agent may have typed.

        Instagram sometimes does not name the app that sent a message. Such a message counts as an app's, too.
        """
        content = object_of(self._event.get("message"))
        user = _id_or_none(object_of(self._event.get("recipient")).get("id"))
        message_id = word_of(content.get("mid"))
        app = _id_or_none(content.get("app_id")) or (UNNAMED_APP if self._platform == "instagram" else None)
        is_echo = content.get("is_echo") is True and content.get("is_deleted") is not True
        if not (is_echo and app and user and user != self._conversation.account and message_id and self._sent_at_ms):
            return "echo"
        return HumanReply(self._conversation._replace(user=user), message_id, self._sent_at_ms, app)

    def read_message(self, content: Json) -> Update | str:
        if content.get("is_deleted"):
            return Deleted(self._conversation, id_of(content.get("mid")), self._author, self._at_ms)
        reply, chosen = object_of(content.get("reply_to")), object_of(content.get("quick_reply"))
        attachments = _attachments(content, story=object_of(reply.get("story")))
        text = content.get("text") or _emoji(content)
        # Meta withholds some types of content. Buffer such a message without its content, because it is often a
        # customer's first.
        withheld = not attachments and not word_of(text)
        fields = {
            "id": content.get("mid"),
            "text": text,
            "type": "unsupported" if withheld else "interactive" if chosen else _type(text, attachments),
            "replyTo": reply.get("mid"),
            "attachments": attachments,
        }
        referral = object_of(content.get("referral")) or object_of(self._event.get("referral"))
        return self._incoming(
            fields, interactive={"type": "quick_reply", **chosen} if chosen else None, referral=referral
        )

    def read_postback(self, content: Json) -> Update:
        """Read a button that the author pressed. Its title is the text."""
        # Older postbacks have no id. Use the time instead, since a person cannot press twice within a millisecond.
        own_id = content.get("mid") or f"postback:{self._at_ms}"
        fields = {"id": own_id, "text": content.get("title", ""), "type": "interactive"}
        referral = object_of(content.get("referral"))
        pressed = {name: value for name, value in content.items() if name != "referral"}
        return self._incoming(fields, interactive={**pressed, "type": "postback"}, referral=referral)

    def read_order(self, content: Json) -> Update:
        """Read an order. It has no id, and its text is the author's note."""
        fields = {"id": f"order:{self._at_ms}", "text": word_of(content.get("note")) or "", "type": "order"}
        return self._incoming(fields | {"order": dict(content)}, interactive=None, referral={})

    def read_feedback(self, content: Json) -> Update:
        """Read the author's answers to a survey. They have no id."""
        fields = {"id": f"feedback:{self._at_ms}", "text": "", "type": "interactive", "form": dict(content)}
        return self._incoming(fields, interactive={"type": "messaging_feedback"}, referral={})

    def read_edit(self, content: Json) -> Update:
        fields = {"id": content.get("mid"), "text": content.get("text"), "editedAt": self._at_ms}
        return Edited(self._conversation, self._message(fields), self._at_ms)

    def read_reaction(self, content: Json) -> Update:
        taken_back = content.get("action") == "unreact"
        emoji = None if taken_back else word_of(content.get("emoji")) or word_of(content.get("reaction"))
        return Reacted(self._conversation, id_of(content.get("mid")), self._author, emoji, self._at_ms)

    def _incoming(self, fields: dict[str, Any], *, interactive: Json | None, referral: Json) -> Incoming:
        said = drop_nones({"sentAt": self._sent_at_ms, "interactive": interactive})
        product = {"id": _id_or_none(object_of(referral.get("product")).get("id"))}
        details = {"referral": _referral(referral), "product": drop_empty(product), "profile": self._profile}
        return Incoming(self._conversation, self._message(fields | said | drop_empty(details)))

    def _message(self, fields: dict[str, Any]) -> Message:
        common = {"author": self._author, "receivedAt": self._received_at_ms, "platform": self._platform}
        return Message.model_validate(fields | common)


_READERS: Mapping[str, Callable[[_Event, Json], Update | str]] = {
    "message": _Event.read_message,
    "postback": _Event.read_postback,
    "order": _Event.read_order,
    "messaging_feedback": _Event.read_feedback,
    "message_edit": _Event.read_edit,
    "reaction": _Event.read_reaction,
}


def _id_or_none(value: Any) -> str | None:
    """Return an id that Meta gives as a string or, in some webhooks, as a number."""
    return str(value) if type(value) is int else word_of(value)


def _emoji(content: Json) -> str:
    """Return the emoji of a thumbs-up or a heart, which Meta sends as an attachment without text."""
    given = [object_of(each) for each in list_of(content.get("attachments"))[:MAX_ATTACHMENTS]]
    places = [content, *(object_of(each.get("payload")) for each in given)]
    if any(_id_or_none(place.get("sticker_id")) in _THUMBS_UP for place in places):
        return "👍"
    return "❤️" if any(each.get("type") == _HEART for each in given) else ""


def _referral(given: Json) -> dict[str, Any]:
    """Read the ad or link that led the author to write."""
    ad = object_of(given.get("ads_context_data"))
    return drop_empty(
        {
            "type": word_of(given.get("source")),
            "id": _id_or_none(given.get("ad_id")),
            "url": word_of(given.get("referer_uri")),
            "ref": word_of(given.get("ref")),
            "title": word_of(ad.get("ad_title")),
            "mediaUrl": word_of(ad.get("photo_url")) or word_of(ad.get("video_url")),
            "postId": _id_or_none(ad.get("post_id")),
            "productId": _id_or_none(ad.get("product_id")),
        }
    )


def _type(text: Any, attachments: list[dict[str, Any]]) -> str:
    # If there is a text, ignore a link preview or a story beside it, because the message is still a text.
    beside = {"fallback", "story"} if word_of(text) else set()
    kinds = [str(each["type"]) for each in attachments if each["type"] not in beside]
    return kinds[0] if kinds else "text"


def _attachments(content: Json, *, story: Json) -> list[dict[str, Any]]:
    found = [_attachment(object_of(each)) for each in list_of(content.get("attachments"))[:MAX_ATTACHMENTS]]
    if story:
        found.append(drop_nones({"type": "story", "url": story.get("url"), "id": _id_or_none(story.get("id"))}))
    # Meta sends an attachment of a new type twice, the second time with its former type. Drop the second.
    new = {(_FORMER_TYPE[each["type"]], each.get("id")) for each in found if each["type"] in _FORMER_TYPE}
    return [each for each in found if (each["type"], each.get("id")) not in new]


def _attachment(given: Json) -> dict[str, Any]:
    payload = object_of(given.get("payload"))
    kind = word_of(given.get("type")) or "fallback"
    sticker, place = payload.get("sticker_id"), object_of(payload.get("coordinates"))
    shared = next((_id_or_none(payload[name]) for name in payload if name in _IDS_OF_SHARED), None)
    fields = {
        "type": _OUR_NAME.get(kind, kind),
        "url": payload.get("url") or payload.get("story_media_url") or given.get("url") or given.get("URL"),
        "id": str(sticker) if sticker else shared,
        "name": payload.get("title") or given.get("title"),
        "latitude": place.get("lat"),
        "longitude": place.get("long"),
    }
    # A template, a product or an appointment has fields of its own, so keep them all.
    details = None if kind in _FILES else {name: value for name, value in payload.items() if name not in _TOLD}
    return drop_nones(fields) | ({"details": details} if details else {})
