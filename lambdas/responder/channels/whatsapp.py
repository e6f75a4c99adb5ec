"""Sends replies through the WhatsApp Cloud API. The credential is `accessToken`; the account is the phone number id."""

import re
from urllib.parse import quote

from lambdas.responder.channels.base import MAX_SEND_SECONDS, Credentials, require_credential
from lambdas.responder.http_client import Http
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

URL = "https://graph.facebook.com/v25.0"
# The beginning of the ids with which WhatsApp replaces hidden numbers.
USER_ID = re.compile(r"[A-Za-z]{2}\.")


class WhatsAppChannel:
    max_part_characters = 4_096

    def __init__(self, http: Http, credentials: Credentials, *, url: str = URL) -> None:
        self._http = http
        self._token = require_credential(credentials, "accessToken")
        self._url = url

    def send(self, to: ConversationId, text: str) -> None:
        # WhatsApp replaces a hidden number with an id. Send that id unchanged, in the field for such ids.
        name = "recipient" if USER_ID.match(to.user) else "to"
        fields = {"recipient_type": "individual", name: to.user, "type": "text", "text": {"body": text}}
        self._post(to, fields)

    def show_typing(self, to: ConversationId, message_id: str) -> None:
        self._post(to, {"status": "read", "message_id": message_id, "typing_indicator": {"type": "text"}})

    def _post(self, to: ConversationId, fields: Json) -> Json:
        return self._http.post_json(
            f"{self._url}/{quote(to.account, safe='')}/messages",
            {"messaging_product": "whatsapp", **fields},
            headers={"Authorization": f"Bearer {self._token}"},
            seconds=MAX_SEND_SECONDS,
        )
