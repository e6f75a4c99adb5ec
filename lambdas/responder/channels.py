"""The channels on which replies are sent to customers.

None of the four providers documents a key by which it recognises a repeated request. So the responder never sends a
part twice. If the provider does not confirm a part, the responder marks the part as unconfirmed.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode
from uuid import uuid4

from lambdas.responder.errors import CallRefused
from lambdas.responder.http_client import Http
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

# A channel needs little time, because it only accepts a part, and delivers the part later.
MAX_SEND_SECONDS = 8.0
# The providers' ids are shorter. A longer one is not kept, because a reply may have many parts.
MAX_PART_ID_CHARACTERS = 256
# Separators at which a text may be split, from the best to the worst.
BREAKS = ("\n\n", "\n", ". ", " ")
GRAPH_URL = "https://graph.facebook.com/v25.0"
TELEGRAM_URL = "https://api.telegram.org"
TWILIO_URL = "https://api.twilio.com"
TWILIO_TYPING_URL = "https://messaging.twilio.com"
WHATSAPP = "whatsapp"
# The beginning of the ids with which WhatsApp replaces hidden numbers.
WHATSAPP_USER_ID = re.compile(r"[A-Za-z]{2}\.")
Credentials = Mapping[str, str]


class Channel(Protocol):
    max_part_characters: int
    """A longer reply is sent in parts."""

    def send(self, to: ConversationId, text: str) -> str:
        """Send one part. Return the provider's id of it, or an empty text if the provider's response has none.

        Raise CallRefused, CallBusy or CallUnconfirmed.
        """

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        """Show the customer that a reply is being written. `message_id` is the id of the customer's last message."""


def split(text: str, max_characters: int) -> list[str]:
    """Return the text in parts of at most `max_characters`, divided between paragraphs, lines, sentences or words."""
    parts: list[str] = []
    rest = text.strip()
    while len(rest) > max_characters:
        # Do not divide in the first half, or there would be too many parts.
        places = (rest.rfind(each, max_characters // 2, max_characters) for each in BREAKS)
        at = next((place for place in places if place != -1), None)
        cut = max_characters if at is None else at + 1
        parts.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*parts, rest]


def require_credential(credentials: Credentials, path: str) -> str:
    """Return a service's key. `path` names both, such as `openai.apiKey`. Raise CallRefused if there is none."""
    if not (key := credentials.get(path.rpartition(".")[2])):
        raise CallRefused(f"the responder's secret has no {path}, nor one for this account or tenant")
    return key


def _id_in(response: Any, *path: str | int) -> str:
    """Return the id at this place of a provider's response, or an empty text: the part was sent all the same."""
    try:
        for step in path:
            response = response[step]
    except (LookupError, TypeError):
        return ""
    found = str(response) if isinstance(response, str | int) else ""
    return found if len(found) <= MAX_PART_ID_CHARACTERS else ""


class FakeChannel:
    """Sends nothing, for the local stage and for generic webhooks: the reply is the event `messages.reply.sent`."""

    # An event may be longer, but replies are divided as they are for WhatsApp.
    max_part_characters = 4_096

    def send(self, to: ConversationId, text: str) -> str:  # noqa: ARG002 - other channels need it
        return uuid4().hex

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        pass


class MetaChannel:
    """Posts to Meta's Graph API. The token goes into a header, because URLs end up in logs."""

    credential: str

    def __init__(self, http: Http, credentials: Credentials, *, url: str = GRAPH_URL) -> None:
        self._http = http
        self._token = require_credential(credentials, self.credential)
        self._url = url

    def _post(self, to: ConversationId, fields: Json) -> Json:
        url = f"{self._url}/{quote(to.account, safe='')}/messages"
        headers = {"Authorization": f"Bearer {self._token}"}
        return self._http.post_json(url, fields, headers=headers, seconds=MAX_SEND_SECONDS)


class WhatsAppChannel(MetaChannel):
    """Sends through the WhatsApp Cloud API. The account is the phone number id."""

    max_part_characters = 4_096
    credential = "whatsapp.accessToken"

    def send(self, to: ConversationId, text: str) -> str:
        # WhatsApp replaces a hidden number with an id. Send that id unchanged, in the field for such ids.
        name = "recipient" if WHATSAPP_USER_ID.match(to.user) else "to"
        message = {"recipient_type": "individual", name: to.user, "type": "text", "text": {"body": text}}
        return _id_in(self._post(to, {"messaging_product": WHATSAPP, **message}), "messages", 0, "id")

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        typing = {"status": "read", "message_id": message_id, "typing_indicator": {"type": "text"}}
        self._post(to, {"messaging_product": WHATSAPP, **typing})


class MessengerChannel(MetaChannel):
    """Sends through Messenger's Send API. The account is the page."""

    max_part_characters = 2_000
    credential = "messenger.pageToken"

    def send(self, to: ConversationId, text: str) -> str:
        message = {"recipient": {"id": to.user}, "messaging_type": "RESPONSE", "message": {"text": text}}
        return _id_in(self._post(to, message), "message_id")

    def show_typing(self, to: ConversationId, message_id: str) -> None:  # noqa: ARG002 - other channels need it
        self._post(to, {"recipient": {"id": to.user}, "sender_action": "typing_on"})


class TelegramChannel:
    """Sends through Telegram's Bot API. The user is a chat, or `chat:topic`."""

    max_part_characters = 4_096

    def __init__(self, http: Http, credentials: Credentials, *, url: str = TELEGRAM_URL) -> None:
        self._http = http
        self._url = f"{url}/bot{require_credential(credentials, 'telegram.botToken')}"

    def send(self, to: ConversationId, text: str) -> str:
        return _id_in(self._post("sendMessage", to, {"text": text}), "result", "message_id")

    def show_typing(self, to: ConversationId, message_id: str) -> None:  # noqa: ARG002 - other channels need it
        self._post("sendChatAction", to, {"action": "typing"})

    def _post(self, method: str, to: ConversationId, fields: Json) -> Json:
        chat, _, topic = to.user.partition(":")
        if topic and not topic.isdecimal():
            raise CallRefused("the conversation's user is neither a chat nor chat:topic")
        place: Json = {"chat_id": chat} | ({"message_thread_id": int(topic)} if topic else {})
        return self._http.post_json(f"{self._url}/{method}", place | fields, headers={}, seconds=MAX_SEND_SECONDS)


class TwilioChannel:
    """Sends SMS and WhatsApp messages through Twilio's Messages API."""

    max_part_characters = 1_600

    def __init__(
        self, http: Http, credentials: Credentials, *, url: str = TWILIO_URL, typing_url: str = TWILIO_TYPING_URL
    ) -> None:
        self._http = http
        self._sid = require_credential(credentials, "twilio.accountSid")
        self._token = require_credential(credentials, "twilio.authToken")
        # Twilio reports failed deliveries to this address.
        callback = credentials.get("statusCallback")
        self._reports = {"StatusCallback": callback} if callback else {}
        self._url = url
        self._typing_url = typing_url

    def send(self, to: ConversationId, text: str) -> str:
        # The account of SMS is only a number, and that of WhatsApp has the channel before the number.
        channel, colon, sender = to.account.rpartition(":")
        form = {"From": channel + colon + _phone(sender), "To": channel + colon + _phone(to.user), "Body": text}
        form |= self._reports
        return _id_in(self._post(f"{self._url}/2010-04-01/Accounts/{self._sid}/Messages.json", form), "sid")

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        if to.account.startswith(f"{WHATSAPP}:"):
            form = {"messageId": message_id, "channel": WHATSAPP}
            self._post(f"{self._typing_url}/v2/Indicators/Typing.json", form)

    def _post(self, url: str, form: dict[str, str]) -> Json:
        authorization = b64encode(f"{self._sid}:{self._token}".encode()).decode()
        headers = {"Authorization": f"Basic {authorization}", "Content-Type": "application/x-www-form-urlencoded"}
        body = urlencode(form, errors="replace").encode()
        return self._http.post(url, body, headers=headers, seconds=MAX_SEND_SECONDS)


def _phone(address: str) -> str:
    """Return a phone number with the plus, which conversation ids omit."""
    return f"+{address}" if re.fullmatch(r"\d+", address) else address


CHANNELS: dict[str, Callable[[Http, Credentials], Channel]] = {
    WHATSAPP: WhatsAppChannel,
    "messenger": MessengerChannel,
    "telegram": TelegramChannel,
    "twilio": TwilioChannel,
}
