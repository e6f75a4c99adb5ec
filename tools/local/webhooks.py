"""Sends webhooks as the platforms send them: in their JSON, with their signature, over HTTP."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

import urllib3

from message_buffer.json_object import Json
from tools.local.outputs import Outputs

# Long enough for the start of a process of ingest, which the emulator needs if no process is free.
MAX_WEBHOOK_ANSWER_SECONDS = 30.0
SIGNATURE_HEADER = {
    "generic": "X-Signature-256",
    "whatsapp": "X-Hub-Signature-256",
    "messenger": "X-Hub-Signature-256",
    "instagram": "X-Hub-Signature-256",
    "twilio": "X-Twilio-Signature",
    "telegram": "X-Telegram-Bot-Api-Secret-Token",
}
FORM, JSON = "application/x-www-form-urlencoded", "application/json"


@dataclass(frozen=True)
class StageResponse:
    status: int
    body: bytes
    content_type: str

    @property
    def json(self) -> Json:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed


class Webhooks:
    """Calls the webhooks of a running stage as a platform does."""

    def __init__(self, outputs: Outputs, *, connections: int = 50) -> None:
        self._outputs = outputs
        # Do not retry, because the caller decides whether to send again after a lost response, as a platform would.
        self._http = urllib3.PoolManager(maxsize=connections, retries=False, timeout=MAX_WEBHOOK_ANSWER_SECONDS)

    def post(
        self, platform: str, body: object, *, headers: Mapping[str, str] | None = None, route: str = "webhook"
    ) -> StageResponse:
        """POST a signed body: bytes unchanged, Twilio's fields as a form, everything else as JSON.

        `headers` replace the usual ones of the same name.
        """
        raw, content_type = _encoded(platform, body)
        response = self._http.request(
            "POST",
            self.url(platform, route=route),
            body=raw,
            headers={"Content-Type": content_type, **self.signature(platform, raw), **(headers or {})},
        )
        return StageResponse(response.status, response.data, response.headers.get("Content-Type", ""))

    def get(self, platform: str, query: Mapping[str, str]) -> StageResponse:
        response = self._http.request("GET", self.url(platform), fields=query)
        return StageResponse(response.status, response.data, response.headers.get("Content-Type", ""))

    def url(self, platform: str, *, route: str = "webhook") -> str:
        return f"{self._outputs.ApiEndpoint}/{route}/{platform}"

    def signature(self, platform: str, raw: bytes) -> dict[str, str]:
        """Return the headers that prove the body's origin, or an empty dict for a platform without a secret."""
        secret = self._outputs.WebhookSecrets.get(platform)
        if secret is None:
            return {}
        match platform:
            case "telegram":
                proof = secret
            case "twilio":
                proof = _sign_form(secret, self._outputs.WebhookUrls[platform], raw)
            case "generic":
                now = str(int(time.time()))
                proof = _sign_bytes(secret, f"{now}.".encode() + raw)
                return {"X-Signature-Timestamp": now, SIGNATURE_HEADER[platform]: proof}
            case _:
                proof = _sign_bytes(secret, raw)
        return {SIGNATURE_HEADER[platform]: proof}


def _encoded(platform: str, body: object) -> tuple[bytes, str]:
    content_type = FORM if platform == "twilio" else JSON
    if isinstance(body, bytes):
        return body, content_type
    if platform == "twilio":
        assert isinstance(body, Mapping)
        return urlencode(body).encode(), content_type
    return json.dumps(body).encode(), content_type


def _sign_bytes(secret: str, signed: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def _sign_form(secret: str, url: str, raw: bytes) -> str:
    """Return Twilio's signature of a form that it posts to this URL."""
    fields = sorted(set(parse_qsl(raw.decode(), keep_blank_values=True)))
    signed = url + "".join(name + value for name, value in fields)
    return base64.b64encode(hmac.new(secret.encode(), signed.encode(), hashlib.sha1).digest()).decode()


def whatsapp_text(message_id: str, text: str, *, sender: str) -> Json:
    return {
        "from": sender,
        "id": message_id,
        "timestamp": str(int(time.time())),
        "type": "text",
        "text": {"body": text},
    }


def whatsapp(*messages: Json, statuses: tuple[Json, ...] = (), phone_number_id: str = "106540352242922") -> Json:
    """Return the body of a webhook of WhatsApp's Cloud API, with one entry."""
    value: Json = {
        "messaging_product": "whatsapp",
        "metadata": {"display_phone_number": "15550783881", "phone_number_id": phone_number_id},
    }
    if messages:
        senders = dict.fromkeys(message["from"] for message in messages)
        value["contacts"] = [{"profile": {"name": "Ada"}, "wa_id": sender} for sender in senders]
        value["messages"] = list(messages)
    if statuses:
        value["statuses"] = list(statuses)
    entry = {"id": "102290129340398", "changes": [{"field": "messages", "value": value}]}
    return {"object": "whatsapp_business_account", "entry": [entry]}
