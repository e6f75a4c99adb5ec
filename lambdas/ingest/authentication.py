"""Checks who signed a webhook, and answers the challenge by which a platform checks this endpoint.

An instance caches the secrets. If none matches, it reads them again, because one may just have been replaced.
"""

from collections.abc import Iterable

from lambdas.ingest.platforms.base import MAX_SIGNATURE_AGE_MS, Platform, Signer, Webhook
from lambdas.ingest.unauthenticated import UnauthenticatedLog
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.clock import Clock
from message_buffer.errors import MessageBufferError
from message_buffer.limits import MINUTE_MS
from message_buffer.telemetry import Telemetry

WRONG_SIGNATURE = "The signature is missing or wrong."


class Unauthentic(MessageBufferError):
    """Raised if a signature is too old, or was not made with a secret that is valid for the webhook's accounts.

    A second argument is for the log alone, because strangers are not told as much.
    """


class Authentication:
    def __init__(
        self, secrets: WebhookSecrets, telemetry: Telemetry, unauthenticated: UnauthenticatedLog, *,
        clock: Clock, time_is_required: bool,
    ) -> None:  # fmt: skip
        self._secrets = secrets
        self._telemetry = telemetry
        self._unauthenticated = unauthenticated
        self._clock = clock
        self._time_is_required = time_is_required

    def warm_up(self) -> None:
        self._secrets.of("")

    def pass_challenge(self, platform: Platform, webhook: Webhook) -> str | None:
        """Return the challenge that the platform expects back, or None if the request's verify token is not ours.

        Raise SendFailed if the secrets were never read.
        """
        echo = platform.challenge(webhook.query, self._secrets.of(platform.name))
        if echo is None:
            echo = platform.challenge(webhook.query, self._secrets.after_a_refusal(platform.name))
        if echo is None:
            self._unauthenticated.info("challenge", platform=platform.name, passed=False)
        else:
            self._telemetry.info("challenge", platform=platform.name, passed=True)
        return echo

    def signer_of(self, platform: Platform, webhook: Webhook) -> Signer:
        """Return the accounts for which the secret that made the webhook's signature is valid.

        Raise Unauthentic, or SendFailed if the secrets were never read.
        """
        credentials = self._secrets.of(platform.name)
        signer = platform.authenticate(webhook, credentials)
        if signer is None and (renewed := self._secrets.after_a_refusal(platform.name)) != credentials:
            credentials, signer = renewed, platform.authenticate(webhook, renewed)
        if signer is None:
            missing = f"The platform has no secret in this stage: run `bufferctl secret set {platform.name}`."
            raise Unauthentic(WRONG_SIGNATURE, *([] if credentials.every_secret else [missing]))
        if not platform.is_fresh(webhook, now_ms=self._clock(), time_is_required=self._time_is_required):
            minutes = MAX_SIGNATURE_AGE_MS // MINUTE_MS
            raise Unauthentic(f"The time in the signature is missing, or not within {minutes} minutes of ours.")
        return signer


def require_authority(signer: Signer, accounts: Iterable[str]) -> None:
    """Raise Unauthentic unless the signer's secret is valid for all of these accounts."""
    if not all(signer.speaks_for(account) for account in accounts):
        raise Unauthentic(WRONG_SIGNATURE)
