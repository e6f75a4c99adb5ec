"""The credentials of the AI and of the channels: one JSON object in AWS Secrets Manager, which each instance caches.

    {"openai": {"apiKey": "…", "tenants": {"acme": {"apiKey": "of a tenant"}}},
     "whatsapp": {"accessToken": "…", "accounts": {"<phone number id>": {"accessToken": "of another business"}}},
     "twilio": {"accountSid": "AC…", "authToken": "…"},
     "messenger": {"accounts": {"<page id>": {"pageToken": "…"}}},
     "telegram": {"botToken": "…", "accounts": {"<bot>": {"secret": "message-buffer-<stage>/acme/telegram"}}}}

A field of a tenant overrides the field of the same name outside of `tenants`. A field of an account overrides both.
Any of these objects may have a field `secret`: the name of another secret, whose JSON object contains the credentials.
"""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from lambdas.responder.errors import CallRefused
from message_buffer.aws.cached_secret import KeptSecret, ReadsSecrets
from message_buffer.clock import Clock, system_clock


class CredentialStore:
    def __init__(self, secrets: ReadsSecrets, secret_id: str, *, prefix: str, clock: Clock = system_clock) -> None:
        # The main secret may name secrets whose names begin with `prefix`.
        self._secret = KeptSecret(secrets, secret_id, _parse_object, clock=clock)
        self._prefix = prefix
        self._named = cache(lambda name: KeptSecret(secrets, name, _parse_object, clock=clock))

    def of(self, service: str, account: str = "", tenant: str = "") -> Mapping[str, str]:
        """Return the keys for a tenant's request to a service's account, as they were last read.

        Raise SendFailed if a secret was never read, and CallRefused if a secret that is named may not be, or has no
        keys.
        """
        common = _as_object(self._secret.value().get(service))
        of_tenant = _as_object(_as_object(common.get("tenants")).get(tenant))
        of_account = _as_object(_as_object(common.get("accounts")).get(account))
        return {name: key for each in (common, of_tenant, of_account) for name, key in self._keys(each).items()}

    def _keys(self, given: Mapping[str, Any]) -> Mapping[str, str]:
        keys = _texts(given)
        secret = keys.pop("secret", None)
        if secret is None:
            return keys
        if not secret.startswith(self._prefix):
            # Do not quote the name: somebody may have put a key there, and the error is logged.
            raise CallRefused(f"the responder's secret names a secret that does not begin with {self._prefix}")
        named = _texts(self._named(secret).value())
        if not named:
            raise CallRefused(f"the secret {secret} is not a JSON object with keys")
        return keys | named


def _texts(given: Mapping[str, Any]) -> dict[str, str]:
    return {name: value for name, value in given.items() if isinstance(value, str)}


def _parse_object(text: str) -> Mapping[str, Any]:
    try:
        return _as_object(json.loads(text))
    except ValueError:
        return {}


def _as_object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
