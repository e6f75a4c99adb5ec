"""The keys of the AI and of the channels: one secret in AWS, a JSON object, kept for a while.

    {"openai": {"apiKey": "…"},
     "whatsapp": {"accessToken": "…", "accounts": {"<phone number id>": {"accessToken": "of another business"}}},
     "twilio": {"accountSid": "AC…", "authToken": "…"},
     "messenger": {"accounts": {"<page id>": {"pageToken": "…"}}},
     "telegram": {"botToken": "…", "accounts": {"<bot>": {"botToken": "…"}}}}

What stands under an account is laid over what stands beside `accounts`.
"""

import json
from collections.abc import Mapping
from typing import Any

from message_buffer.aws.cached_secret import KeptSecret, ReadsSecrets
from message_buffer.clock import Clock, system_clock


class CredentialStore:
    def __init__(self, secrets: ReadsSecrets, secret_id: str, *, clock: Clock = system_clock) -> None:
        self._kept = KeptSecret(secrets, secret_id, _parsed, clock=clock)

    def of(self, service: str, account: str = "") -> Mapping[str, str]:
        """Raises SendFailed if there is nothing to go by; an old answer is better than none."""
        known = _object(self._kept.value().get(service))
        own = _object(_object(known.get("accounts")).get(account))
        return {name: value for name, value in {**known, **own}.items() if isinstance(value, str)}


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        return _object(json.loads(text))
    except ValueError:
        return {}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
