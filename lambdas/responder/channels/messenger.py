"""Sends replies through Messenger's Send API. The credential is `pageToken`; the account is the page."""

from urllib.parse import quote

from lambdas.responder.channels.base import MAX_SEND_SECONDS, Credentials, require_credential
from lambdas.responder.http_client import Http
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

URL = "https://graph.facebook.com/v25.0"


class MessengerChannel:
    max_part_characters = 2_000

    def __init__(self, http: Http, credentials: Credentials, *, url: str = URL) -> None:
        self._http = http
        self._token = require_credential(credentials, "pageToken")
        self._url = url

    def send(self, to: ConversationId, text: str) -> None:
        self._post(to, {"messaging_type": "RESPONSE", "message": {"text": text}})

    def show_typing(self, to: ConversationId, message_id: str) -> None:  # noqa: ARG002 - other channels need it
        self._post(to, {"sender_action": "typing_on"})

    def _post(self, to: ConversationId, fields: Json) -> None:
        # The token goes into a header, because URLs end up in logs.
        self._http.post_json(
            f"{self._url}/{quote(to.account, safe='')}/messages",
            {"recipient": {"id": to.user}, **fields},
            headers={"Authorization": f"Bearer {self._token}"},
            seconds=MAX_SEND_SECONDS,
        )
