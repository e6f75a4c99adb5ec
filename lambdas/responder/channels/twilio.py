"""Sends SMS and WhatsApp messages through Twilio's Messages API. The credentials are `accountSid` and `authToken`."""

from base64 import b64encode
from urllib.parse import urlencode

from lambdas.responder.channels.base import MAX_SEND_SECONDS, Credentials, phone, require_credential
from lambdas.responder.http_client import Http
from message_buffer.messages.conversation_id import ConversationId

URL = "https://api.twilio.com"
TYPING_URL = "https://messaging.twilio.com"
WHATSAPP = "whatsapp"


class TwilioChannel:
    max_part_characters = 1_600

    def __init__(self, http: Http, credentials: Credentials, *, url: str = URL, typing_url: str = TYPING_URL) -> None:
        self._http = http
        self._sid = require_credential(credentials, "accountSid")
        self._token = require_credential(credentials, "authToken")
        self._url = url
        self._typing_url = typing_url

    def send(self, to: ConversationId, text: str) -> None:
        channel, sender = _channel_and_number(to.account)
        prefix = f"{channel}:" if channel else ""
        form = {"From": prefix + phone(sender), "To": prefix + phone(to.user), "Body": text}
        self._post(f"{self._url}/2010-04-01/Accounts/{self._sid}/Messages.json", form)

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        channel, _ = _channel_and_number(to.account)
        if channel == WHATSAPP:
            form = {"messageId": message_id, "channel": WHATSAPP}
            self._post(f"{self._typing_url}/v2/Indicators/Typing.json", form)

    def _post(self, url: str, form: dict[str, str]) -> None:
        authorization = b64encode(f"{self._sid}:{self._token}".encode()).decode()
        headers = {"Authorization": f"Basic {authorization}", "Content-Type": "application/x-www-form-urlencoded"}
        self._http.post(url, urlencode(form, errors="replace").encode(), headers=headers, seconds=MAX_SEND_SECONDS)


def _channel_and_number(account: str) -> tuple[str, str]:
    """Return the channel and the number of an account. The channel is empty for SMS."""
    channel, colon, number = account.partition(":")
    return (channel, number) if colon else ("", account)
