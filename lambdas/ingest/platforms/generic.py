"""Our own platform: signed JSON, for chat channels that you build yourself.

The body is an object with these fields (`?`: optional), or a list of such objects:

    {"account", "conversation", "id", "text", "type"?, "author"?, "sentAt"?, "replyTo"?, "attachments"?, "tenant"?,
     "agent"?, "groupId"?, "edited"?}

The signature is a header: `X-Signature-256: sha256=<hex HMAC-SHA256 of "<time>.<raw body>">`. The time, in seconds
since 1970, is in the header `X-Signature-Timestamp`. A sender without this header signs the body alone, unless the
stage requires the time.

A sender that signs with a secret of one account must not name a tenant.

With `"edited": true`, the object is the new version of the message with that id, for example a voice note whose
attachment had `"pending": true` until its transcript was ready.

The typing route accepts {"account", "conversation", "tenant"?}, or a list of such objects.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lambdas.ingest.platforms.base import (
    Credentials,
    Incoming,
    Intake,
    InvalidWebhook,
    Platform,
    Signer,
    Webhook,
    claims_of,
    hmac_signer,
    ms_of_seconds,
    parse_json,
)
from lambdas.limits import MAX_MESSAGES_IN_A_GENERIC_WEBHOOK, MAX_SIGNATURE_AGE_MS
from message_buffer.messages.changes import Edited
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import Message

TIMESTAMP = "x-signature-timestamp"
_CLAIMS = claims_of("account")
OF_THE_MESSAGE = ("id", "text", "type", "author", "attachments", "replyTo", "sentAt", "groupId")


class Generic(Platform):
    name = "generic"
    leaves_out_what_is_wrong = False
    tells_typing = True

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        time = webhook.headers.get(TIMESTAMP)
        # An attacker cannot drop the header and send the time in front of the body, because that is not JSON.
        prefix = b"" if time is None else f"{time}.".encode("utf-8", "surrogatepass")
        return hmac_signer(webhook, credentials, header="x-signature-256", claims=_CLAIMS, prefix=prefix)

    def is_fresh(self, webhook: Webhook, *, now_ms: int, time_is_required: bool) -> bool:
        if TIMESTAMP not in webhook.headers:
            return not time_is_required
        signed_at_ms = ms_of_seconds(webhook.headers[TIMESTAMP])
        return signed_at_ms is not None and abs(now_ms - signed_at_ms) <= MAX_SIGNATURE_AGE_MS

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:
        intake = Intake()
        for given, where in _objects(webhook.body):
            intake.add(_update(given, where, received_at_ms, signer))
        return intake

    def read_typing(self, webhook: Webhook, *, signer: Signer) -> list[ConversationId]:
        return [_conversation(given, where, signer) for given, where in _objects(webhook.body)]


def _objects(body: bytes) -> list[tuple[Mapping[str, Any], str]]:
    """Return the body's objects, each with the prefix that names its place in error messages."""
    parsed = parse_json(body)
    if isinstance(parsed, dict):
        return [(parsed, "")]
    if not isinstance(parsed, list) or not 1 <= len(parsed) <= MAX_MESSAGES_IN_A_GENERIC_WEBHOOK:
        raise InvalidWebhook(
            f"The body must be a JSON object or a list of 1 to {MAX_MESSAGES_IN_A_GENERIC_WEBHOOK} of them."
        )
    for place, given in enumerate(parsed):
        if not isinstance(given, dict):
            raise InvalidWebhook(f"[{place}] must be a JSON object.")
    return [(given, f"[{place}].") for place, given in enumerate(parsed)]


def _update(given: Mapping[str, Any], where: str, received_at_ms: int, signer: Signer) -> Incoming | Edited:
    conversation = _conversation(given, where, signer)
    for field in ("id", "text"):
        if field not in given:
            raise InvalidWebhook(f"{where}{field} is missing.")
    agent = None if given.get("agent") is None else _name(given, "agent", where)
    edited = given.get("edited", False)
    if not isinstance(edited, bool):
        raise InvalidWebhook(f"{where}edited must be true or false.")
    fields = {name: given[name] for name in OF_THE_MESSAGE if given.get(name) is not None or name in ("id", "text")}
    message = _message(fields, where, received_at_ms)
    if edited:
        return Edited(conversation, message, received_at_ms, agent=agent)
    return Incoming(conversation, message, agent=agent)


def _conversation(given: Mapping[str, Any], where: str, signer: Signer) -> ConversationId:
    tenant = _name(given, "tenant", where, default=DEFAULT_TENANT)
    # The secret of an account may belong to a customer, who must not act in another tenant.
    if signer.all_but is None and tenant != DEFAULT_TENANT:
        raise InvalidWebhook(f"{where}tenant may not be named here: the rules say which tenant owns the account.")
    return ConversationId(
        tenant=tenant,
        platform=Generic.name,
        account=_name(given, "account", where),
        user=_name(given, "conversation", where),
    )


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


def _message(fields: dict[str, Any], where: str, received_at_ms: int) -> Message:
    try:
        return Message.model_validate(fields | {"receivedAt": received_at_ms, "platform": Generic.name})
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False, include_context=False)[0]
        path = ".".join(map(str, wrong["loc"])) or "the message"
        raise InvalidWebhook(f"{where}{path} is not valid: {wrong['msg']}.") from error
