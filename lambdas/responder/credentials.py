"""The keys of the AI and of the channels. They are one JSON object in AWS Secrets Manager, which each instance caches.

    {"openai": {"apiKey": "…"},
     "whatsapp": {"accessToken": "…", "accounts": {"<phone number id>": {"accessToken": "of another business"}}},
     "twilio": {"accountSid": "AC…", "authToken": "…"},
     "messenger": {"accounts": {"<page id>": {"pageToken": "…"}}},
     "telegram": {"botToken": "…", "accounts": {"<bot>": {"botToken": "…"}}}}

A key inside an account replaces the key of the same name outside of `accounts`.
"""

import json
from collections.abc import Mapping
from typing import Any

from message_buffer.aws.cached_secret import KeptSecret, ReadsSecrets
from message_buffer.clock import Clock, system_clock


class CredentialStore:
    def __init__(self, secrets: ReadsSecrets, secret_id: str, *, clock: Clock = system_clock) -> None:
        self._secret = KeptSecret(secrets, secret_id, _parse_object, clock=clock)

    def of(self, service: str, account: str = "") -> Mapping[str, str]:
        """Return the keys of a service's account, as they were last read. Raise SendFailed if they were never read."""
        common = _as_object(self._secret.value().get(service))
        own = _as_object(_as_object(common.get("accounts")).get(account))
        return {name: value for name, value in {**common, **own}.items() if isinstance(value, str)}


def _parse_object(text: str) -> Mapping[str, Any]:
    try:
        return _as_object(json.loads(text))
    except ValueError:
        return {}


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
