"""What a platform has to tell about itself, and the words they share."""

import hmac
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

from lambdas.shared.conversation import ConversationId
from lambdas.shared.errors import InvalidInput
from lambdas.shared.message import Message

Headers = Mapping[str, str]
Query = Mapping[str, str]


class Credentials(NamedTuple):
    """What a platform proves itself with. Two secrets are valid while one replaces the other."""

    secrets: tuple[str, ...]
    verify_token: str | None = None


class Inbound(NamedTuple):
    conversation: ConversationId
    message: Message


class Intake(NamedTuple):
    """What a webhook holds: messages, and things that are none (statuses, echoes, what we cannot read)."""

    messages: list[Inbound]
    ignored: int = 0


class InvalidWebhook(InvalidInput):
    """What is wrong with a body, in a sentence for who sent it."""


class Platform(Protocol):
    name: str
    # A platform that sends a refused webhook again for days would send its good messages with it.
    leaves_out_what_is_wrong: bool

    def is_authentic(self, body: bytes, headers: Headers, credentials: Credentials) -> bool: ...

    def challenge(self, query: Query, credentials: Credentials) -> str | None:
        """The answer to a GET that asks whether we are who the platform's settings say; None refuses."""

    def read(self, body: bytes, *, received_at_ms: int) -> Intake:
        """Raises InvalidWebhook."""


def signed_with(secrets: tuple[str, ...], *, body: bytes, signature: str | None) -> bool:
    """Is this `sha256=<hex HMAC-SHA256 of the body>` by one of the secrets?"""
    if not signature or not signature.isascii():
        return False
    # Every secret is tried, and none longer than another.
    matches = [
        hmac.compare_digest("sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest(), signature)
        for secret in secrets
        if secret
    ]
    return any(matches)


def parse_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidWebhook("The body is not JSON in UTF-8.") from error
