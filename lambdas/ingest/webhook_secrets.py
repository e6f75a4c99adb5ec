"""The platforms' secrets: one secret in AWS, a JSON object, kept for a while.

    {"generic": "s3cret", "whatsapp": {"secret": "app secret", "verifyToken": "chosen by us"}}

A secret may be a list, of two while one replaces the other. A platform that is not in it is switched off.
"""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from lambdas.ingest.platforms.base import Credentials
from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import SendFailed
from lambdas.shared.telemetry import Telemetry

LIFE_MS = 60_000

NOBODY = Credentials(())


class ReadsSecrets(Protocol):
    def read(self, secret_id: str) -> str: ...


class WebhookSecrets:
    def __init__(
        self,
        secrets: ReadsSecrets,
        secret_id: str,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._secrets = secrets
        self._secret_id = secret_id
        self._telemetry = telemetry
        # Wall time: a frozen function's own clock may stand still while its secrets grow old.
        self._clock = clock
        self._known: Mapping[str, Credentials] | None = None
        self._read_at_ms = 0

    def of(self, platform: str) -> Credentials:
        """Raises SendFailed if there is nothing to go by; an old answer is better than none."""
        if self._known is None or self._clock() - self._read_at_ms > LIFE_MS:
            try:
                self._known = _parse(self._secrets.read(self._secret_id))
            except SendFailed as error:
                if self._known is None:
                    raise
                self._telemetry.warn("webhook secrets not renewed", reason=str(error))
            self._read_at_ms = self._clock()
        return self._known.get(platform, NOBODY)


def _parse(text: str) -> Mapping[str, Credentials]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        # Not to be understood is to let nobody in.
        return {}
    return {platform: _credentials(value) for platform, value in parsed.items()}


def _credentials(value: Any) -> Credentials:
    described = value if isinstance(value, dict) else {"secret": value}
    secrets, verify_token = described.get("secret"), described.get("verifyToken")
    valid = secrets if isinstance(secrets, list) else [secrets]
    return Credentials(
        tuple(secret for secret in valid if isinstance(secret, str) and secret),
        verify_token if isinstance(verify_token, str) and verify_token else None,
    )
