"""Twilio: SMS, WhatsApp and the other channels of its Messaging API, one message per form.

The account is the number that people write to. Except for SMS, the account begins with the channel, so that SMS and
WhatsApp to the same number have two accounts: `15558675310`, `whatsapp:15558675310`.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lambdas.ingest.platforms.base import (
    Credentials,
    Fields,
    Incoming,
    Intake,
    InvalidWebhook,
    Platform,
    Signer,
    Update,
    Webhook,
    author_ids,
    drop_empty,
    drop_nones,
    failed,
    is_same,
    object_in,
)
from message_buffer.messages.conversation_id import DEFAULT_TENANT, AuthorIds, ConversationId
from message_buffer.messages.message import Message, profile_of
from message_buffer.messages.wire_form import mend_id

# Twilio accepts at most this many files in one message.
MAX_MEDIA_IN_A_TWILIO_FORM = 10
# TwiML that sends nothing to the author.
NO_REPLY = ("<Response></Response>", "text/xml")
SMS = "sms"
DEFAULT_PORTS = {"https": 443, "http": 80}
PLACE = {"Latitude": "latitude", "Longitude": "longitude", "Address": "address", "Label": "name"}
# WhatsApp's id of an author, which also identifies authors who hide their number. Twilio documents both names.
USER_IDS = ("ExternalUserId", "ExternalUserIdentifier")
REFERRAL = {
    "type": "ReferralSourceType",
    "id": "ReferralSourceId",
    "url": "ReferralSourceUrl",
    "title": "ReferralHeadline",
    "text": "ReferralBody",
    "mediaUrl": "ReferralMediaUrl",
    "clickId": "ReferralCtwaClid",
}
# The statuses of a message of the business that did not arrive.
FAILURES = ("failed", "undelivered")
CHOICE = ("ButtonText", "ButtonPayload", "ListId", "ListTitle", "ListDescription")


class Twilio(Platform):
    name = "twilio"
    # A form encodes a character in at most 12 bytes, so this is enough for 5,000 characters. An SMS has at most 1,600.
    max_body_bytes = 64 * 1024
    comes_again = False
    signs_url = True
    # Twilio would send a text to the author, and log JSON as an error.
    empty_response = NO_REPLY

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        given = webhook.headers.get("x-twilio-signature")
        if given is None:
            return None
        try:
            # No signature covers a body that is not a form.
            form = _form(webhook)
            urls = _urls(webhook.url)
        except ValueError:
            return None
        # Twilio's own libraries sort the fields, and use a field only once if it comes twice with the same value.
        fields = "".join(name + value for name, value in sorted(set(form)))
        texts = [(url + fields).encode("utf-8", "surrogatepass") for url in urls]
        return credentials.signer(
            # Try both texts, even if the first one matches, so that the response time does not show which text matched.
            lambda secret: True in [is_same(given, _signature(secret, text)) for text in texts],
            among=credentials.candidates(_named_accounts(Fields(form))),
        )

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        form = Fields(_form(webhook))
        intake.take(lambda: _read(form, received_at_ms))
        return intake


# -- the signature ---------------------------------------------------------------------------------


def _form(webhook: Webhook) -> list[tuple[str, str]]:
    """Return the fields of the form. Raise InvalidWebhook."""
    kind = webhook.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise InvalidWebhook("The body is not a form.")
    try:
        # Twilio sends a few dozen fields. Refuse a form with many more, because it only costs time.
        return parse_qsl(webhook.body.decode(), keep_blank_values=True, max_num_fields=1_000)
    except ValueError as error:
        raise InvalidWebhook("The body is not a form.") from error


def _urls(url: str) -> tuple[str, str]:
    """Return the URL (without its port, with its port), because Twilio may sign either."""
    parts = urlsplit(url)
    host = parts.netloc if parts.port is None else parts.netloc.rpartition(":")[0]
    port = parts.port or DEFAULT_PORTS.get(parts.scheme)
    return parts._replace(netloc=host).geturl(), parts._replace(netloc=f"{host}:{port}").geturl()


def _signature(secret: str, text: bytes) -> str:
    return b64encode(hmac.digest(secret.encode(), text, "sha1")).decode()


def _named_accounts(form: Fields) -> Iterator[str]:
    """Yield the receiver's and the sender's number. Ours is the receiver of a message, but the sender in a status."""
    for name in ("To", "From"):
        try:
            yield _account(form.get(name, ""))
        except InvalidWebhook:
            continue


# -- the message -----------------------------------------------------------------------------------


def _read(form: Fields, received_at_ms: int) -> Update | str:
    status = form.word("MessageStatus") or form.word("SmsStatus") or "received"
    if status not in ("received", *FAILURES):
        return "status"
    message_id = form.get("MessageSid") or form.get("SmsMessageSid") or form.get("SmsSid")
    if not message_id or "From" not in form or "To" not in form:
        return "unknown"
    user_id = next(filter(None, map(form.get, USER_IDS)), None)
    if status in FAILURES:
        # The message is ours, so sender and receiver have changed places.
        conversation = _conversation(form["From"], form["To"], user_id)
        code, words = form.get("ErrorCode"), (form.get("ErrorMessage"), form.get("ChannelStatusMessage"))
        ids = _author_ids(form["To"], user_id)
        return failed(conversation, mend_id(message_id), received_at_ms, code=code, words=words, ids=ids)
    conversation = _conversation(form["To"], form["From"], user_id)
    attachments = [*_media(form), *_place(form)]
    fields = {
        "id": message_id,
        "text": form.get("Body") or form.get("ButtonText") or form.get("ListTitle") or form.get("Label", ""),
        "type": _type(form, attachments),
        "author": form["From"] if form["From"].rpartition(":")[2].strip() else f"{form['From']}{user_id}",
        "attachments": attachments,
        "replyTo": form.get("OriginalRepliedMessageSid") or None,
        "receivedAt": received_at_ms,
        "platform": Twilio.name,
    }
    details = {
        "profile": profile_of(name=form.get("ProfileName"), user_id=user_id, country=form.get("FromCountry")),
        "referral": form.renamed(REFERRAL),
        "forwarded": "true" in (form.get("Forwarded"), form.get("FrequentlyForwarded")),
        "quoted": form.renamed({"author": "OriginalRepliedMessageSender"}),
        "form": object_in(form.get("InteractiveData")),
    }
    message = Message.model_validate(fields | _choice(form) | drop_empty(details))
    return Incoming(conversation, message, author_ids=_author_ids(form["From"], user_id))


def _conversation(ours: str, theirs: str, user_id: str | None) -> ConversationId:
    return ConversationId(DEFAULT_TENANT, Twilio.name, _account(ours), _author(theirs, user_id))


def _author(given: str, user_id: str | None) -> str:
    """Return the author's number or address. If WhatsApp hides the number, return the author's id unchanged."""
    channel, _, address = given.rpartition(":")
    if channel.lower() == "whatsapp":
        return mend_id(address.strip().removeprefix("+") or user_id or "")
    return _channel_and_address(given)[1]


def _author_ids(given: str, user_id: str | None) -> AuthorIds | None:
    """Return the ids by which WhatsApp names an author, or None for other channels, where an author has one id."""
    channel, _, address = given.rpartition(":")
    return author_ids(address, user_id) if channel.lower() == "whatsapp" else None


def _channel_and_address(given: str) -> tuple[str, str]:
    channel, _, address = given.partition(":") if ":" in given else (SMS, "", given)
    if not address:
        raise InvalidWebhook("an address is missing")
    return channel.lower(), mend_id(address).strip().removeprefix("+").lower()


def _account(to: str) -> str:
    channel, address = _channel_and_address(to)
    return address if channel == SMS else f"{channel}:{address}"


def _type(form: Fields, attachments: list[dict[str, Any]]) -> str:
    if _choice(form) or form.get("InteractiveData"):
        return "interactive"
    if not attachments:
        # If a message has neither text nor files, Twilio sends only the name of its type.
        return "text" if form.get("Body") else form.get("MessageType") or "text"
    kind: str = attachments[0]["type"]
    return "contacts" if kind == "contact" else kind


def _choice(form: Fields) -> dict[str, Any]:
    chosen = {name: form[name] for name in CHOICE if form.get(name)}
    return {"interactive": chosen} if chosen else {}


def _media(form: Fields) -> list[dict[str, Any]]:
    files = range(MAX_MEDIA_IN_A_TWILIO_FORM)
    kinds = [(form.get(f"MediaContentType{n}"), form.get(f"MediaUrl{n}")) for n in files]
    return [drop_nones({"type": _kind(mime), "url": url, "mimeType": mime}) for mime, url in kinds if url]


def _kind(mime_type: str | None) -> str:
    family, _, kind = (mime_type or "").lower().partition("/")
    if kind in ("vcard", "x-vcard", "directory"):
        return "contact"
    return family if family in ("image", "audio", "video") else "document"


def _place(form: Fields) -> list[dict[str, Any]]:
    if not form.get("Latitude") or not form.get("Longitude"):
        return []
    place: dict[str, Any] = {ours: form[theirs] for theirs, ours in PLACE.items() if form.get(theirs)}
    try:
        place |= {"latitude": float(place["latitude"]), "longitude": float(place["longitude"])}
    except ValueError:
        return []
    return [{"type": "location", **place}]
