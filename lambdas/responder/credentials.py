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
from typing import Any, Protocol

from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import SendFailed

LIFE_MS = 60_000


class ReadsSecrets(Protocol):
    def read(self, secret_id: str) -> str: ...


class CredentialStore:
    def __init__(self, secrets: ReadsSecrets, secret_id: str, *, clock: Clock = system_clock) -> None:
        self._secrets = secrets
        self._secret_id = secret_id
        self._clock = clock
        self._known: Mapping[str, Any] | None = None
        self._read_at_ms = 0

    def of(self, service: str, account: str = "") -> Mapping[str, str]:
        """Raises SendFailed if there is nothing to go by; an old answer is better than none."""
        known = _object(self._all().get(service))
        own = _object(_object(known.get("accounts")).get(account))
        return {name: value for name, value in {**known, **own}.items() if isinstance(value, str)}

    def _all(self) -> Mapping[str, Any]:
        if self._known is None or self._clock() - self._read_at_ms > LIFE_MS:
            try:
                self._known = _parsed(self._secrets.read(self._secret_id))
            except SendFailed:
                if self._known is None:
                    raise
            self._read_at_ms = self._clock()
        return self._known


def _parsed(text: str) -> Mapping[str, Any]:
    try:
        return _object(json.loads(text))
    except ValueError:
        return {}


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
