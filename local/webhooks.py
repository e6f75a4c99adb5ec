"""Webhooks as the platforms send them: their JSON, their signature, over HTTP."""

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import urllib3

from local.outputs import Outputs

SIGNATURE_HEADER = {"generic": "X-Signature-256", "whatsapp": "X-Hub-Signature-256"}
ANSWER_SECONDS = 30.0

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Json:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed


class Webhooks:
    """A platform, to the webhooks of a started stage."""

    def __init__(self, outputs: Outputs, *, connections: int = 50) -> None:
        self._outputs = outputs
        # A lost answer is what platforms redeliver for: whoever wants that sends again.
        self._http = urllib3.PoolManager(maxsize=connections, retries=False, timeout=ANSWER_SECONDS)

    def post(self, platform: str, body: object, *, headers: Mapping[str, str] | None = None) -> Answer:
        """POST a signed body: bytes as they are, anything else as JSON. `headers` come over the usual ones."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._http.request(
            "POST",
            self.url(platform),
            body=raw,
            headers={"Content-Type": "application/json", **self.signature(platform, raw), **(headers or {})},
        )
        return Answer(answer.status, answer.data)

    def get(self, platform: str, query: Mapping[str, str]) -> Answer:
        answer = self._http.request("GET", self.url(platform), fields=query)
        return Answer(answer.status, answer.data)

    def url(self, platform: str) -> str:
        return f"{self._outputs.ApiEndpoint}/webhook/{platform}"

    def signature(self, platform: str, raw: bytes) -> dict[str, str]:
        """The header that proves a body to come from this platform; none for a platform without a secret."""
        secret = self._outputs.WebhookSecrets.get(platform)
        if secret is None:
            return {}
        digest = hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
        return {SIGNATURE_HEADER[platform]: f"sha256={digest}"}


def whatsapp_text(message_id: str, text: str, *, sender: str) -> Json:
    return {
        "from": sender,
        "id": message_id,
        "timestamp": str(int(time.time())),
        "type": "text",
        "text": {"body": text},
    }


def whatsapp_status(message_id: str, *, recipient: str, status: str = "delivered") -> Json:
    return {"id": message_id, "status": status, "timestamp": str(int(time.time())), "recipient_id": recipient}


def whatsapp(*messages: Json, statuses: tuple[Json, ...] = (), phone_number_id: str = "106540352242922") -> Json:
    """A POST of the Cloud API with one change."""
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
