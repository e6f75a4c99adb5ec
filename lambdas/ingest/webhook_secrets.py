"""The platforms' secrets: one secret in AWS, a JSON object, kept for a while.

    {"generic": "s3cret",
     "whatsapp": {"secret": ["the new app secret", "the old one"], "verifyToken": "chosen by us",
                  "accounts": {"<phone number id>": {"secret": "of an app of its own"}}},
     "telegram": {"accounts": {"<bot>": {"secret": "its secret token"}}}}

- generic: a secret of our choice; accounts as the body's `account` says.
- whatsapp, messenger, instagram: the app secret of the Meta app, and a `verifyToken` of our choice; accounts are the
  phone number id, the page id, the professional account's id.
- twilio: the auth token; accounts are the numbers written to, digits only, `whatsapp:<digits>` for WhatsApp.
- telegram: setWebhook's `secret_token`, another one for each bot; accounts are what we call the bots. The bot of the
  platform's own secret is called `bot`.

A secret may be a list, of two while one replaces the other. What stands under an account is good for that account
alone, and nothing else is; the platform's own is good for every account that has none. A platform, or an account, that
is here without a secret is switched off, as is one that is not here.
"""

import json
from collections.abc import Mapping
from typing import Any

from lambdas.ingest.platforms.base import Credentials, object_of
from lambdas.limits import MIN_MS_BETWEEN_SECRET_READS
from message_buffer.aws.cached_secret import LIFE_MS, KeptSecret, ReadsSecrets
from message_buffer.clock import Clock, system_clock
from message_buffer.telemetry import Telemetry

NOBODY = Credentials()


class WebhookSecrets:
    def __init__(
        self,
        secrets: ReadsSecrets,
        secret_id: str,
        telemetry: Telemetry,
        *,
        clock: Clock = system_clock,
    ) -> None:
        self._kept = KeptSecret(
            secrets,
            secret_id,
            _parse,
            not_renewed=lambda error: telemetry.warn("webhook secrets not renewed", reason=str(error)),
            clock=clock,
        )

    def of(self, platform: str, *, at_most_ms_old: int = LIFE_MS) -> Credentials:
        """Raises SendFailed if there is nothing to go by; an old answer is better than none."""
        return self._kept.value(at_most_ms_old=at_most_ms_old).get(platform, NOBODY)

    def after_a_refusal(self, platform: str) -> Credentials:
        """Read early: the secret may just have been replaced."""
        return self.of(platform, at_most_ms_old=MIN_MS_BETWEEN_SECRET_READS)


def _parse(text: str) -> Mapping[str, Credentials]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    # Not to be understood is to let nobody in.
    return {platform: _credentials(value) for platform, value in object_of(parsed).items()}


def _credentials(value: Any) -> Credentials:
    described = _described(value)
    verify_token = described.get("verifyToken")
    return Credentials(
        _secrets(described),
        {account: _secrets(_described(own)) for account, own in object_of(described.get("accounts")).items()},
        verify_token if isinstance(verify_token, str) and verify_token else None,
    )


def _described(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {"secret": value}


def _secrets(described: Mapping[str, Any]) -> tuple[str, ...]:
    secrets = described.get("secret")
    valid = secrets if isinstance(secrets, list) else [secrets]
    return tuple(secret for secret in valid if isinstance(secret, str) and secret and _is_text(secret))


def _is_text(secret: str) -> bool:
    """Half a surrogate pair has no bytes to sign with."""
    return not any("\ud800" <= character <= "\udfff" for character in secret)
