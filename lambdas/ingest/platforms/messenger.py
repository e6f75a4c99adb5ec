"""Messenger and Instagram: each item of `entry[].messaging[]` is one event, and the account is the entry's page.

Echoes (`is_echo`) and messages that the author deleted (`is_deleted`) arrive as `message` objects with a flag.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lambdas.ingest.platforms.base import (
    BusinessReply,
    Fields,
    Incoming,
    Intake,
    Signer,
    Update,
    Webhook,
    drop_empty,
    drop_nones,
    ms_of_time,
)
from lambdas.ingest.platforms.meta import MetaPlatform
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
    # Another app, such as the page's inbox, has got the thread or given it back.
    **dict.fromkeys(
        ("pass_thread_control", "take_thread_control", "request_thread_control", "app_roles"), "messaging_handovers"
    ),
}
_OUR_NAME = {"file": "document"}
_FORMER_TYPE = {"sticker": "image", "ig_post": "share"}
# Messenger's thumbs-up is a sticker in three sizes. Instagram's heart is an attachment with its own type.
_THUMBS_UP = {"369239263222822", "369239343222814", "369239383222810"}
_HEART = "like_heart"
# Types of attachments whose payload has no fields besides the common ones.
_FILES = {"image", "audio", "video", "file", "sticker", "location", "fallback"}
_REFERRAL = {"type": "source", "id": "ad_id", "url": "referer_uri", "ref": "ref"}
_AD = {"title": "ad_title", "mediaUrl": "photo_url", "postId": "post_id", "productId": "product_id"}
_IDS_OF_SHARED = ("story_media_id", "ig_post_media_id", "reel_video_id")
_TOLD = {"url", "story_media_url", "title", *_IDS_OF_SHARED}


class Messenger(MetaPlatform):
    name = "messenger"
    object_name = "page"

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for entry in self.entries_of(webhook.body):
            account = entry.name_or_number("id")
            if account is None:
                intake.ignored["unreadable"] += 1
                continue
            intake.accounts.add(account)
            for event in entry.parts("messaging"):
                intake.take(_Event(event, self.name, account, received_at_ms).read)
            for change in entry.parts("changes"):
                # The Instagram API with Instagram login sends events as `changes`, and so does the console's test
                # button.
                value = change.part("value")
                if change.get("field") == "message_echoes":
                    intake.take(_Event(value, self.name, account, received_at_ms).read_echo)
                elif change.get("field") == "standby":
                    intake.take(_Event(value, self.name, account, received_at_ms).read_echo, kind="standby")
                elif "sender" in value:
                    intake.take(_Event(value, self.name, account, received_at_ms).read)
                else:
                    intake.ignored["unknown"] += 1
            # Ignore threads that another app of the page controls, except the replies of people who type in that app.
            for event in entry.parts("standby"):
                intake.take(_Event(event, self.name, account, received_at_ms).read_echo, kind="standby")
        return intake


class Instagram(Messenger):
    name = "instagram"
    object_name = "instagram"


class _Event:
    def __init__(self, event: Fields, platform: str, account: str, received_at_ms: int) -> None:
        self._event = event
        self._platform = platform
        sender = event.part("sender")
        # If a person has not written yet, a plugin on a website sends a reference instead of their id.
        self._author = sender.name_or_number("id") or sender.word("user_ref")
        self._is_ours = self._author == account and not event.part("message").get("is_self")
        self._profile = profile_of(user_name=sender.word("username"))
        self._conversation = ConversationId(DEFAULT_TENANT, platform, account, self._author or "")
        self._received_at_ms = received_at_ms
        self._sent_at_ms = ms_of_time(event.get("timestamp"))
        self._at_ms = self._sent_at_ms or received_at_ms

    def read(self) -> Update | BusinessReply | str:
        for name, read in _READERS.items():
            if isinstance(self._event.get(name), dict):
                content = self._event.part(name)
                return self.read_echo() if self._is_ours or content.get("is_echo") else read(self, content)
        return next((kind for name, kind in _NO_MESSAGES.items() if name in self._event), "unknown")

    def read_echo(self) -> BusinessReply | str:
        """Read a message of the business, which a human agent may have typed.

        Instagram sometimes does not name the app that sent a message. Such a message counts as sent by an app.
        """
        content = self._event.part("message")
        user = self._event.part("recipient").name_or_number("id")
        message_id = content.word("mid")
        app = content.name_or_number("app_id") or (UNNAMED_APP if self._platform == "instagram" else None)
        is_echo = content.get("is_echo") is True and content.get("is_deleted") is not True
        if not (is_echo and app and user and user != self._conversation.account and message_id and self._sent_at_ms):
            return "echo"
        return BusinessReply(self._conversation._replace(user=user), message_id, self._sent_at_ms, app)

    def read_message(self, content: Fields) -> Update | str:
        if content.get("is_deleted"):
            return Deleted(self._conversation, content.id("mid"), self._author, self._at_ms)
        reply, chosen = content.part("reply_to"), content.part("quick_reply")
        attachments = _attachments(content, story=reply.part("story"))
        text = content.word("text") or _emoji(content)
        # Meta withholds some types of content. Buffer such a message without its content, because it is often a
        # customer's first.
        withheld = not attachments and not text
        fields = {
            "id": content.get("mid"),
            "text": text,
            "type": "unsupported" if withheld else "interactive" if chosen else _type(text, attachments),
            "replyTo": reply.get("mid"),
            "attachments": attachments,
        }
        return self._incoming(fields | ({"interactive": {"type": "quick_reply", **chosen}} if chosen else {}), content)

    def read_postback(self, content: Fields) -> Update:
        """Read a button that the author pressed. Its title is the text."""
        # Older postbacks have no id. Use the time instead, since a person cannot press twice within a millisecond.
        own_id = content.get("mid") or f"postback:{self._at_ms}"
        pressed = {name: value for name, value in content.items() if name != "referral"} | {"type": "postback"}
        fields = {"id": own_id, "text": content.get("title", ""), "type": "interactive", "interactive": pressed}
        return self._incoming(fields, content)

    def read_order(self, content: Fields) -> Update:
        """Read an order. It has no id, and its text is the author's note."""
        text = content.word("note") or ""
        fields = {"id": f"order:{self._at_ms}", "text": text, "type": "order", "order": content}
        return self._incoming(fields, content)

    def read_feedback(self, content: Fields) -> Update:
        """Read the author's answers to a survey. They have no id."""
        fields = {"id": f"feedback:{self._at_ms}", "type": "interactive", "form": content}
        return self._incoming(fields | {"interactive": {"type": "messaging_feedback"}}, content)

    def read_edit(self, content: Fields) -> Update:
        fields = {"id": content.get("mid"), "text": content.get("text"), "editedAt": self._at_ms}
        return Edited(self._conversation, self._message(fields), self._at_ms)

    def read_reaction(self, content: Fields) -> Update:
        taken_back = content.get("action") == "unreact"
        emoji = None if taken_back else content.word("emoji") or content.word("reaction")
        return Reacted(self._conversation, content.id("mid"), self._author, emoji, self._at_ms)

    def _incoming(self, fields: dict[str, Any], content: Fields) -> Incoming:
        referral = content.part("referral") or self._event.part("referral")
        details = {"product": referral.part("product").renamed({"id": "id"}), "profile": self._profile}
        details["referral"] = _referral(referral)
        message = self._message(fields | {"sentAt": self._sent_at_ms} | drop_empty(details))
        return Incoming(self._conversation, message)

    def _message(self, fields: dict[str, Any]) -> Message:
        common = {"author": self._author, "receivedAt": self._received_at_ms, "platform": self._platform}
        return Message.model_validate(fields | common)


_READERS: Mapping[str, Callable[[_Event, Fields], Update | str]] = {
    "message": _Event.read_message,
    "postback": _Event.read_postback,
    "order": _Event.read_order,
    "messaging_feedback": _Event.read_feedback,
    "message_edit": _Event.read_edit,
    "reaction": _Event.read_reaction,
}


def _emoji(content: Fields) -> str:
    """Return the emoji of a thumbs-up or a heart, which Meta sends as an attachment without text."""
    given = list(content.parts("attachments", most=MAX_ATTACHMENTS))
    places = [content, *(each.part("payload") for each in given)]
    if any(place.name_or_number("sticker_id") in _THUMBS_UP for place in places):
        return "👍"
    return "❤️" if any(each.get("type") == _HEART for each in given) else ""


def _referral(given: Fields) -> dict[str, str]:
    """Read the ad or link that led the author to write."""
    ad = given.part("ads_context_data")
    return given.renamed(_REFERRAL) | ad.renamed({"mediaUrl": "video_url"}) | ad.renamed(_AD)


def _type(text: str, attachments: list[dict[str, Any]]) -> str:
    # If there is a text, ignore a link preview or a story beside it, because the message is still a text.
    beside = {"fallback", "story"} if text else set()
    kinds = [str(each["type"]) for each in attachments if each["type"] not in beside]
    return kinds[0] if kinds else "text"


def _attachments(content: Fields, *, story: Fields) -> list[dict[str, Any]]:
    found = [_attachment(each) for each in content.parts("attachments", most=MAX_ATTACHMENTS)]
    if story:
        found.append(drop_nones({"type": "story", "url": story.get("url"), "id": story.name_or_number("id")}))
    # Meta sends an attachment of a new type twice, the second time with its former type. Drop the second.
    new = {(_FORMER_TYPE[each["type"]], each.get("id")) for each in found if each["type"] in _FORMER_TYPE}
    return [each for each in found if (each["type"], each.get("id")) not in new]


def _attachment(given: Fields) -> dict[str, Any]:
    payload = given.part("payload")
    kind = given.word("type") or "fallback"
    sticker, place = payload.get("sticker_id"), payload.part("coordinates")
    shared = next((payload.name_or_number(name) for name in payload if name in _IDS_OF_SHARED), None)
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
