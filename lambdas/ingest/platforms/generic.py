"""Our own platform: signed JSON, for chat channels that somebody builds.

{"account", "conversation", "id", "text", "type"?, "author"?, "sentAt"?, "replyTo"?, "attachments"?, "tenant"?,
 "agent"?}, or a list of them. `X-Signature-256: sha256=<hex HMAC-SHA256 of the raw body>`
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lambdas.ingest.platforms.base import (
    Credentials,
    Headers,
    Inbound,
    Intake,
    InvalidWebhook,
    Query,
    parse_json,
    signed_with,
)
from lambdas.shared.conversation import DEFAULT_TENANT, ConversationId
from lambdas.shared.message import Message

MOST_MESSAGES = 1_000

OF_THE_MESSAGE = ("id", "text", "type", "author", "attachments", "replyTo", "sentAt")


class Generic:
    name = "generic"
    leaves_out_what_is_wrong = False

    def is_authentic(self, body: bytes, headers: Headers, credentials: Credentials) -> bool:
        return signed_with(credentials.secrets, body=body, signature=headers.get("x-signature-256"))

    def challenge(self, _query: Query, _credentials: Credentials) -> str | None:
        return None

    def read(self, body: bytes, *, received_at_ms: int) -> Intake:
        parsed = parse_json(body)
        if isinstance(parsed, dict):
            return Intake([self._one(parsed, "", received_at_ms)])
        if not isinstance(parsed, list) or not 1 <= len(parsed) <= MOST_MESSAGES:
            raise InvalidWebhook(f"The body must be a message or a list of 1 to {MOST_MESSAGES} of them.")
        return Intake([self._one(each, f"[{place}].", received_at_ms) for place, each in enumerate(parsed)])

    def _one(self, given: Any, where: str, received_at_ms: int) -> Inbound:
        if not isinstance(given, dict):
            raise InvalidWebhook(f"{where.removesuffix('.')} must be a JSON object.")
        conversation = ConversationId(
            tenant=_name(given, "tenant", where, default=DEFAULT_TENANT),
            platform=self.name,
            account=_name(given, "account", where),
            user=_name(given, "conversation", where),
        )
        for field in ("id", "text"):
            if field not in given:
                raise InvalidWebhook(f"{where}{field} is missing.")
        if given.get("agent") is not None:
            _name(given, "agent", where)
        fields = {name: given[name] for name in OF_THE_MESSAGE if given.get(name) is not None or name in ("id", "text")}
        return Inbound(conversation, _message(fields, where, received_at_ms, self.name))


def _name(given: Mapping[str, Any], field: str, where: str, *, default: str | None = None) -> str:
    value = given.get(field, default)
    if value is None:
        raise InvalidWebhook(f"{where}{field} is missing.")
    if not isinstance(value, str) or not value:
        raise InvalidWebhook(f"{where}{field} must be a string that is not empty.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidWebhook(f"{where}{field} must be valid Unicode.") from error
    return value


def _message(fields: dict[str, Any], where: str, received_at_ms: int, platform: str) -> Message:
    try:
        return Message.model_validate(fields | {"receivedAt": received_at_ms, "platform": platform})
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False, include_context=False)[0]
        path = ".".join(map(str, wrong["loc"])) or "the message"
        raise InvalidWebhook(f"{where}{path} is not valid: {wrong['msg']}.") from error
