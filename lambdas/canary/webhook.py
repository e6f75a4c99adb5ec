"""Sends signed messages to the generic webhook of a stage."""

import hashlib
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from message_buffer.clock import Clock, system_clock
from message_buffer.json_object import Json

# Ingest's cold start and its slowest response together take less time than this.
MAX_WEBHOOK_ANSWER_SECONDS = 20.0


class WebhookUnreachable(Exception):
    """Raised if the webhook does not answer."""


class WebhookResponse(NamedTuple):
    status: int
    body: str

    @property
    def json(self) -> Json:
        parsed = json.loads(self.body)
        assert isinstance(parsed, dict)
        return parsed


class GenericWebhook:
    def __init__(self, api_endpoint: str, secret: str, *, clock: Clock = system_clock) -> None:
        self._url = f"{api_endpoint}/webhook/generic"
        self._secret = secret
        self._clock = clock

    def post(self, messages: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> WebhookResponse:
        """POST one or more messages; sign the time too. Raise WebhookUnreachable if the webhook does not answer."""
        body = json.dumps(messages).encode()
        now = str(self._clock() // 1_000)
        signature = hmac.new(self._secret.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "X-Signature-Timestamp": now,
            "X-Signature-256": f"sha256={signature}",
        }
        request = urllib.request.Request(self._url, data=body, headers=headers)  # noqa: S310 - the stage's own endpoint
        try:
            with urllib.request.urlopen(request, timeout=MAX_WEBHOOK_ANSWER_SECONDS) as response:  # noqa: S310
                return WebhookResponse(response.status, response.read().decode())
        except urllib.error.HTTPError as error:
            return WebhookResponse(error.code, error.read().decode(errors="replace"))
        except OSError as error:
            raise WebhookUnreachable(f"The webhook cannot be reached: {error}") from error


def generic_secret(secrets: str) -> str | None:
    """Return the generic webhook's secret from the content of a stage's webhook secrets, or None if it is missing."""
    try:
        found = json.loads(secrets).get("generic")
    except (ValueError, AttributeError):
        return None
    described = found.get("secret") if isinstance(found, dict) else found
    secret = described[0] if isinstance(described, list) and described else described
    return secret if isinstance(secret, str) and secret else None
