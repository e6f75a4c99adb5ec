"""Plays customers: makes the webhooks that a platform posts when a person types, sends a file or presses a button."""

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from message_buffer.json_object import Json
from tools.local.webhooks import meta, telegram_message, twilio_message, whatsapp, whatsapp_echo, whatsapp_text

CUSTOMERS_KEPT = 50
BODIES_KEPT_OF_A_CUSTOMER = 200
PICTURE = "https://example.com/picture.jpg"
VOICE = "https://example.com/voice.ogg"


class CannotDo(Exception):
    """Raised if the platform has no such webhook, or if the customer has not sent the message that it is about."""


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


def _generic(customer: Customer, kind: str, message_id: str, text: str) -> Any:
    about = {"account": customer.account, "conversation": customer.user}
    if customer.tenant:
        about["tenant"] = customer.tenant
    if kind == "typing":
        return about
    about["id"] = message_id
    message = about | {"text": text, "author": customer.user}
    match kind:
        case "file":
            return message | {"type": "image", "attachments": [{"type": "image", "url": PICTURE}]}
        case "voice":
            return message | {"type": "audio", "attachments": [{"type": "audio", "url": VOICE, "pending": True}]}
        case "edit":
            return message | {"edited": True}
        case "delete":
            return about | {"deleted": True}
        case _:
            return message


def _whatsapp(customer: Customer, kind: str, message_id: str, text: str) -> Any:
    def body(**content: Any) -> Json:
        return whatsapp(
            whatsapp_text(own_id, "", sender=customer.user) | {"text": None} | content,
            phone_number_id=customer.account,
        )

    own_id = message_id
    match kind:
        case "text":
            return whatsapp(whatsapp_text(message_id, text, sender=customer.user), phone_number_id=customer.account)
        case "file":
            return body(type="image", image={"id": uuid.uuid4().hex, "mime_type": "image/jpeg", "caption": text})
        case "button":
            reply = {"type": "button_reply", "button_reply": {"id": text, "title": text}}
            return body(type="interactive", interactive=reply)
        case "human_reply":
            return whatsapp_echo(message_id, text, recipient=customer.user, phone_number_id=customer.account)
    own_id = f"wamid.{uuid.uuid4().hex}"
    if kind == "edit":
        new = {"type": "text", "text": {"body": text}}
        return body(type="edit", edit={"original_message_id": message_id, "message": new})
    return body(type="revoke", revoke={"original_message_id": message_id})


def _meta(customer: Customer, kind: str, message_id: str, text: str) -> Any:
    event: Json
    match kind:
        case "text":
            event = {"message": {"mid": message_id, "text": text}}
        case "file":
            event = {"message": {"mid": message_id, "attachments": [{"type": "image", "payload": {"url": PICTURE}}]}}
        case "button":
            event = {"message": {"mid": message_id, "text": text, "quick_reply": {"payload": text}}}
        case "edit":
            event = {"message_edit": {"mid": message_id, "text": text, "num_edit": 1}}
        case _:
            event = {"message": {"mid": message_id, "is_deleted": True}}
    return meta(customer.platform, event, account=customer.account, user=customer.user)


def _twilio(customer: Customer, kind: str, message_id: str, text: str) -> Any:
    fields = twilio_message(message_id, text, sender=f"+{customer.user}", to=f"+{customer.account}")
    match kind:
        case "file":
            return fields | {"NumMedia": "1", "MediaUrl0": PICTURE, "MediaContentType0": "image/jpeg"}
        case "button":
            return fields | {"ButtonText": text, "ButtonPayload": text, "MessageType": "button"}
        case _:
            return fields


def _telegram(customer: Customer, kind: str, message_id: str, text: str) -> Any:
    number, user = int(message_id), int(customer.user)
    if kind == "button":
        message = telegram_message(number, "", user=user)["message"]
        pressed = {"id": uuid.uuid4().hex, "from": message["from"], "data": text, "message": message}
        return {"update_id": number, "callback_query": pressed}
    update = telegram_message(number, text, user=user, edited=kind == "edit")
    if kind == "file":
        message = update["message"]
        del message["text"]
        message |= {"caption": text, "photo": [{"file_id": uuid.uuid4().hex, "width": 9, "height": 9}]}
    return update


# The kinds of webhooks of each platform. `again` sends a body a second time, as a platform does if it gets no answer.
# `human_reply` reports a message that a human agent wrote.
KINDS: dict[str, tuple[str, ...]] = {
    "generic": ("text", "file", "voice", "typing", "edit", "delete", "again"),
    "whatsapp": ("text", "file", "button", "edit", "delete", "again", "human_reply"),
    "messenger": ("text", "file", "button", "edit", "again"),
    "instagram": ("text", "file", "button", "edit", "delete", "again"),
    "twilio": ("text", "file", "button", "again"),
    "telegram": ("text", "file", "button", "edit", "again"),
}
_MAKERS: dict[str, Callable[[Customer, str, str, str], Any]] = {
    "generic": _generic,
    "whatsapp": _whatsapp,
    "messenger": _meta,
    "instagram": _meta,
    "twilio": _twilio,
    "telegram": _telegram,
}
_CHANGES = ("edit", "delete")


class Customers:
    """Keeps what each customer sent, so that a message can be edited, deleted or delivered again."""

    def __init__(self) -> None:
        self._sent: OrderedDict[Customer, OrderedDict[str, PostedWebhook]] = OrderedDict()

    def webhook(self, customer: Customer, kind: str, *, text: str = "", message_id: str | None = None) -> PostedWebhook:
        """Return the webhook. Raise CannotDo if the platform has none of this kind, or there is no such message.

        Without a `message_id`, an edit, a deletion and a redelivery are about the customer's newest message.
        """
        if kind not in KINDS.get(customer.platform, ()):
            raise CannotDo(f"The platform {customer.platform} has no webhook for '{kind}'.")
        sent = self._sent.setdefault(customer, OrderedDict())
        self._sent.move_to_end(customer)
        if len(self._sent) > CUSTOMERS_KEPT:
            self._sent.popitem(last=False)
        if kind in (*_CHANGES, "again"):
            if not sent or message_id not in (None, *sent):
                raise CannotDo("This customer has not sent that message.")
            about = message_id or next(reversed(sent))
            if kind == "again":
                return sent[about]
            body = _MAKERS[customer.platform](customer, kind, about, text)
            if kind == "edit" and customer.platform == "generic":
                body |= _with_ready_files(sent[about].body)
            return PostedWebhook(body, about)
        if kind == "typing":
            return PostedWebhook(_generic(customer, kind, "", ""), "", route="typing")
        new_id = _new_id(customer.platform)
        if kind == "human_reply":
            # The customer did not send this message, and so cannot edit it.
            return PostedWebhook(_MAKERS[customer.platform](customer, kind, new_id, text), new_id)
        sent[new_id] = PostedWebhook(_MAKERS[customer.platform](customer, kind, new_id, text), new_id)
        if len(sent) > BODIES_KEPT_OF_A_CUSTOMER:
            sent.popitem(last=False)
        return sent[new_id]


def _with_ready_files(body: Json) -> Json:
    """Return the files of an edited message: those of the earlier message, no longer marked as pending."""
    if "attachments" not in body:
        return {}
    files = [{name: value for name, value in each.items() if name != "pending"} for each in body["attachments"]]
    return {"type": body["type"], "attachments": files}


def _new_id(platform: str) -> str:
    match platform:
        case "telegram":
            return str(time.time_ns() // 1_000_000 % 2_000_000_000)
        case "whatsapp":
            return f"wamid.{uuid.uuid4().hex}"
        case "twilio":
            return f"SM{uuid.uuid4().hex}"
        case _:
            return f"m_{uuid.uuid4().hex[:16]}"
