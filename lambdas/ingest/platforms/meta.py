"""Meta's signature, challenge and envelope, which WhatsApp, Messenger and Instagram have in common."""

from collections.abc import Iterator

from lambdas.ingest.platforms.base import (
    Credentials,
    InvalidWebhook,
    Json,
    Platform,
    Query,
    Signer,
    Webhook,
    hmac_signer,
    is_same,
    object_of,
    parse_json,
)


class MetaPlatform(Platform):
    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        return hmac_signer(webhook, credentials, header="x-hub-signature-256")

    def challenge(self, query: Query, credentials: Credentials) -> str | None:
        if query.get("hub.mode") != "subscribe" or not credentials.verify_token:
            return None
        if not is_same(query.get("hub.verify_token"), credentials.verify_token):
            return None
        return query.get("hub.challenge")


def entries_of(body: bytes) -> Iterator[Json]:
    parsed = parse_json(body)
    if not isinstance(parsed, dict):
        raise InvalidWebhook("The body must be a JSON object.")
    entries = parsed.get("entry")
    if not isinstance(entries, list):
        raise InvalidWebhook("entry is missing, or is not a list.")
    yield from map(object_of, entries)
