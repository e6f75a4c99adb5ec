"""Doors: webhooks of any other product, which ingest reads by a mapping that operators wrote.

docs/doors.md describes the mappings. A door's address is `/webhook/custom/<door>`. Its secrets are in the webhook
secrets under `custom/<door>`.
"""

import hmac
from base64 import b64encode
from functools import partial

from lambdas.ingest.platforms.base import (
    Credentials,
    Incoming,
    Intake,
    Platform,
    Signer,
    Update,
    Webhook,
    is_same,
    parse_json,
)
from message_buffer.rules.door_reading import PLATFORM, DoorItem, Sent, items_of
from message_buffer.rules.doors import Door


class Custom(Platform):
    def __init__(self, door: Door) -> None:
        self._door, self._proof = door, door.mapping.proof
        self.name = f"{PLATFORM}/{door.name}"
        self.skips_invalid = door.mapping.unreadable == "ignore"
        self.comes_again = door.mapping.comes_again
        self.time_header, self.requires_time = self._proof.time_header, True

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        proof = self._proof
        given = webhook.headers.get(proof.header)
        if given is None:
            return None
        if proof.type == "hmac" and proof.encoding == "hex":
            given = proof.prefix + given.removeprefix(proof.prefix).lower()
        if proof.type == "basic":
            # A sender may write `Basic` in upper or lower case.
            scheme, _, password = given.partition(" ")
            given = f"{scheme.capitalize()} {password.strip()}"
        return credentials.signer(
            lambda secret: is_same(given, self.expected(webhook, secret)), among=credentials.candidates(())
        )

    def expected(self, webhook: Webhook, secret: str) -> str:
        """Return the header that a sender with this secret would send."""
        proof, signed = self._proof, webhook.body
        if self.time_header:
            signed = webhook.headers.get(self.time_header, "").encode("utf-8", "surrogatepass") + b"." + signed
        if proof.type == "basic":
            return f"Basic {b64encode(secret.encode()).decode()}"
        if proof.type == "token":
            return proof.prefix + secret
        digest = hmac.digest(secret.encode(), signed, proof.algorithm)
        return proof.prefix + (digest.hex() if proof.encoding == "hex" else b64encode(digest).decode())

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:  # noqa: ARG002 - the protocol's
        intake = Intake()
        for item in items_of(self._door, parse_json(webhook.body), received_at_ms=received_at_ms):
            read = partial(_update, item, intake)
            if self.skips_invalid:
                intake.take(read)
            elif isinstance(update := read(), str):
                intake.ignored[update] += 1
            else:
                intake.add(update)
        return intake


def _update(item: DoorItem, intake: Intake) -> Update | str:
    found = item.read()
    if item.left_out and intake.left_out_value is None:
        intake.left_out_value = item.left_out[0]
    return Incoming(found.conversation, found.message, found.group) if isinstance(found, Sent) else found
