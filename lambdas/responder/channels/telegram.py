"""Sends replies through Telegram's Bot API. The credential is `botToken`; the user is a chat, or `chat:topic`."""

from lambdas.responder.channels.base import MAX_SEND_SECONDS, Credentials, require_credential
from lambdas.responder.errors import CallRefused
from lambdas.responder.http_client import Http
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

URL = "https://api.telegram.org"


class TelegramChannel:
    max_part_characters = 4_096

    def __init__(self, http: Http, credentials: Credentials, *, url: str = URL) -> None:
        self._http = http
        self._token = require_credential(credentials, "botToken")
        self._url = url

    def send(self, to: ConversationId, text: str) -> None:
        self._post("sendMessage", to, {"text": text})

    def show_typing(self, to: ConversationId, message_id: str) -> None:  # noqa: ARG002 - other channels need it
        self._post("sendChatAction", to, {"action": "typing"})

    def _post(self, method: str, to: ConversationId, fields: Json) -> None:
        chat, _, topic = to.user.partition(":")
        if topic and not topic.isdecimal():
            raise CallRefused("the conversation's user is neither a chat nor chat:topic")
        place: Json = {"chat_id": chat} | ({"message_thread_id": int(topic)} if topic else {})
        self._http.post_json(
            f"{self._url}/bot{self._token}/{method}", place | fields, headers={}, seconds=MAX_SEND_SECONDS
        )
