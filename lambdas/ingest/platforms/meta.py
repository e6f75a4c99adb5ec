"""Meta's signature, challenge and envelope, which WhatsApp, Messenger and Instagram have in common."""

from collections.abc import Iterator, Mapping

from lambdas.ingest.platforms.base import (
    Credentials,
    Fields,
    InvalidWebhook,
    Platform,
    Signer,
    Webhook,
    accounts_under,
    hmac_signer,
    is_same,
    parse_object,
)


class MetaPlatform(Platform):
    object_name: str
    """The value of `object` in the body. Only this value identifies the platform, because an app has one secret for all
    of Meta's platforms."""
    punishes_refusals = True
    max_body_bytes = 3 * 1024 * 1024  # Meta sends no larger bodies

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        # Search also for the ids of entries, because some webhooks of a WhatsApp Business Account name no phone number.
        accounts = accounts_under("phone_number_id", "id")
        return hmac_signer(webhook, credentials, header="x-hub-signature-256", accounts=accounts)

    def challenge(self, query: Mapping[str, str], credentials: Credentials) -> str | None:
        token, given = credentials.verify_token, query.get("hub.verify_token")
        is_ours = query.get("hub.mode") == "subscribe" and token and is_same(given, token)
        return query.get("hub.challenge") if is_ours else None

    def entries_of(self, body: bytes) -> Iterator[Fields]:
        """Yield the body's entries. Raise InvalidWebhook."""
        parsed = parse_object(body)
        if parsed.get("object") != self.object_name:
            raise InvalidWebhook(f"object must be {self.object_name}.")
        if not isinstance(parsed.get("entry"), list):
            raise InvalidWebhook("entry is missing, or is not a list.")
        yield from parsed.parts("entry")
