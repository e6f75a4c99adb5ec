"""Reads the platforms' secrets from one secret in AWS, a JSON object, and caches them.

    {"generic": "s3cret",
     "whatsapp": {"secret": ["the new app secret", "the old one"], "verifyToken": "chosen by us",
                  "accounts": {"<phone number id>": {"secret": "of an app of its own"}}},
     "telegram": {"accounts": {"<bot>": {"secret": "its secret token"}}}}

- generic: a secret of our choice; accounts are the values of the body's `account`.
- whatsapp, messenger, instagram: the app secret of the Meta app, and a `verifyToken` of our choice; accounts are the
  phone number id, the page id, the professional account's id.
- twilio: the auth token; accounts are the numbers that people write to, as `<digits>`, or `whatsapp:<digits>`.
- telegram: setWebhook's `secret_token`, a different one for each bot; accounts are names that we give to the bots. The
  bot that uses the platform's own secret is called `bot`.
- custom/<door>: the secret of a door; for Basic authentication `<user>:<password>`. Accounts are `<door>:<account>`.

While one secret replaces another, both are given as a list. An account with secrets of its own accepts only those, and
no other account accepts them. The platform's own secret is valid for every account without secrets of its own. A
platform or an account whose entry has no secret is switched off, like a platform without an entry.
"""

import json
from collections.abc import Mapping
from typing import Any

from lambdas.ingest.platforms.base import Credentials, object_of
from message_buffer.aws.cached_secret import KeptSecret, ReadsSecrets
from message_buffer.clock import Clock, system_clock
from message_buffer.limits import SECRET_LIFE_MS
from message_buffer.telemetry import Telemetry

# After a refused signature, an instance reads the webhook secrets again, unless its last read was more recent than
# this.
MIN_MS_BETWEEN_SECRET_READS = 10_000
NOBODY = Credentials()


class WebhookSecrets:
    def __init__(
        self, secrets: ReadsSecrets, secret_id: str, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._kept = KeptSecret(
            secrets,
            secret_id,
            parse,
            not_renewed=lambda error: telemetry.warn("webhook secrets not renewed", reason=str(error)),
            clock=clock,
        )

    def of(self, platform: str, *, at_most_ms_old: int = SECRET_LIFE_MS) -> Credentials:
        """Return a platform's secrets. If they cannot be renewed, the old ones stay valid.

        Raise SendFailed if they were never read.
        """
        return self._kept.value(at_most_ms_old=at_most_ms_old).get(platform, NOBODY)

    def after_a_refusal(self, platform: str) -> Credentials:
        """Return the platform's secrets. Unless they were just read, read them again, because a secret may be new."""
        return self.of(platform, at_most_ms_old=MIN_MS_BETWEEN_SECRET_READS)


def parse(text: str) -> Mapping[str, Credentials]:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    # A secret that is not a JSON object authenticates no webhook.
    return {platform: _credentials(value) for platform, value in object_of(parsed).items()}


def _credentials(value: Any) -> Credentials:
    entry = described(value)
    verify_token = entry.get("verifyToken")
    return Credentials(
        secrets_of(entry),
        {account: secrets_of(described(own)) for account, own in object_of(entry.get("accounts")).items()},
        verify_token if isinstance(verify_token, str) and verify_token else None,
    )


def described(value: Any) -> dict[str, Any]:
    """Return the long form of an entry, whose short form is a secret or a list of secrets."""
    return value if isinstance(value, dict) else {"secret": value}


def secrets_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
    secrets = entry.get("secret")
    valid = secrets if isinstance(secrets, list) else [secrets]
    return tuple(secret for secret in valid if isinstance(secret, str) and secret and _is_text(secret))


def _is_text(secret: str) -> bool:
    """Return False for a string with half a surrogate pair, because it cannot be encoded into a key's bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in secret)
