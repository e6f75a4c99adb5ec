"""Our own platform: signed JSON, for chat channels that you build yourself.

docs/sending.md describes the body and its signature, and docs/schema/generic.webhook.json the fields. A sender that
signs with a secret of one account must not name a tenant, nor an agent other than the account's.
"""

import re
from datetime import datetime
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
    accounts_under,
    hmac_signer,
    parse_json,
)
from message_buffer.json_object import Json
from message_buffer.limits import MAX_ITEMS_IN_A_WEBHOOK
from message_buffer.messages.changes import Change, Deleted, Edited, Reacted
from message_buffer.messages.conversation_id import DEFAULT_TENANT, ConversationId
from message_buffer.messages.message import Message
from message_buffer.rules.rules_and_defaults import nearest_name

OF_THE_MESSAGE = ("id", "text", "type", "author", "attachments", "replyTo", "sentAt", "groupId")
OF_THE_CONVERSATION = frozenset({"account", "conversation", "tenant"})
FIELDS = OF_THE_CONVERSATION | {*OF_THE_MESSAGE, "agent", "edited", "deleted", "reaction"}
OF_A_DELETION = OF_THE_CONVERSATION | {"id", "author", "deleted"}
OF_A_REACTION = OF_THE_CONVERSATION | {"id", "author", "reaction"}
MAX_FIELD_CHARACTERS = 40
# `datetime.fromisoformat` also accepts other forms, and times without a zone.
ISO_TIME = r"(?a)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)"


class Generic(Platform):
    name = "generic"
    skips_invalid = False
    reports_typing = True
    time_header = "x-signature-timestamp"

    def authenticate(self, webhook: Webhook, credentials: Credentials) -> Signer | None:
        time = webhook.headers.get(self.time_header)
        # An attacker cannot drop the header and send the time in front of the body, because such a body is not JSON.
        prefix = b"" if time is None else f"{time}.".encode("utf-8", "surrogatepass")
        return hmac_signer(
            webhook, credentials, header="x-signature-256", accounts=accounts_under("account"), prefix=prefix
        )

    def read(self, webhook: Webhook, *, signer: Signer, received_at_ms: int) -> Intake:
        # The secret of an account may belong to a customer, who must not speak as another's agent.
        intake = Intake(only_agents_of_rules=signer.all_but is None)
        for given, where in _objects(webhook.body):
            intake.add(_update(given, where, received_at_ms, signer))
        return intake

    def read_typing(self, webhook: Webhook, *, signer: Signer) -> list[ConversationId]:
        conversations = []
        for given, where in _objects(webhook.body):
            _refuse_others(given, where, OF_THE_CONVERSATION)
            conversations.append(_conversation(given, where, signer))
        return conversations


def _objects(body: bytes) -> list[tuple[Json, str]]:
    """Return the body's objects, each with the prefix that names its place in error messages."""
    parsed = parse_json(body)
    if isinstance(parsed, dict):
        return [(parsed, "")]
    if not isinstance(parsed, list) or not 1 <= len(parsed) <= MAX_ITEMS_IN_A_WEBHOOK:
        raise InvalidWebhook(f"The body must be a JSON object or a list of 1 to {MAX_ITEMS_IN_A_WEBHOOK} of them.")
    for place, given in enumerate(parsed):
        if not isinstance(given, dict):
            raise InvalidWebhook(f"[{place}] must be a JSON object.")
    return [(given, f"[{place}].") for place, given in enumerate(parsed)]


def _update(given: Json, where: str, received_at_ms: int, signer: Signer) -> Incoming | Change:
    _refuse_others(given, where, FIELDS)
    conversation = _conversation(given, where, signer)
    if _flag(given, "deleted", where):
        _refuse_others(given, where, OF_A_DELETION, beside="deleted")
        return Deleted(conversation, _id(given, where), _name_or_none(given, "author", where), received_at_ms)
    if "reaction" in given:
        _refuse_others(given, where, OF_A_REACTION, beside="reaction")
        author, emoji = (_name_or_none(given, field, where) for field in ("author", "reaction"))
        return Reacted(conversation, _id(given, where), author, emoji, received_at_ms)
    for field in ("id", "text"):
        if field not in given:
            raise InvalidWebhook(f"{where}{field} is missing.")
    agent = _name_or_none(given, "agent", where)
    edited = _flag(given, "edited", where)
    fields = {name: given[name] for name in OF_THE_MESSAGE if given.get(name) is not None or name in ("id", "text")}
    if isinstance(fields.get("sentAt"), str):
        fields["sentAt"] = _ms_of_iso(fields["sentAt"], where)
    message = _message(fields, where, received_at_ms)
    if message.type == "text" and not message.text and not message.attachments:
        raise InvalidWebhook(f"{where}text is empty, and there are no attachments.")
    if edited:
        return Edited(conversation, message, received_at_ms, agent=agent)
    return Incoming(conversation, message, agent=agent)


def _refuse_others(given: Json, where: str, fields: frozenset[str], *, beside: str | None = None) -> None:
    """Raise InvalidWebhook if the object has a field that is not in `fields`. Suggest the most similar valid name.

    Do not quote the unknown name, because the error is logged, and a sender may put any text there.
    """
    others = sorted(given.keys() - fields)
    if not others:
        return
    if beside is not None:
        raise InvalidWebhook(f"{where}{others[0]} cannot be beside {beside}.")
    nearest = nearest_name(others[0][:MAX_FIELD_CHARACTERS], {field.lower(): field for field in sorted(fields)})
    hint = f"did you mean {nearest}?" if nearest else f"valid are {', '.join(sorted(fields))}."
    place = f"{where.removesuffix('.')}: " if where else ""
    raise InvalidWebhook(f"{place}A field is unknown; {hint}")


def _flag(given: Json, field: str, where: str) -> bool:
    value = given.get(field, False)
    if not isinstance(value, bool):
        raise InvalidWebhook(f"{where}{field} must be true or false.")
    return value


def _id(given: Json, where: str) -> str:
    """Return the id of an earlier message, in the form in which that message is stored."""
    if given.get("id") is None:
        raise InvalidWebhook(f"{where}id is missing.")
    return _message({"id": given["id"]}, where, 0).id


def _ms_of_iso(value: str, where: str) -> int:
    try:
        time = datetime.fromisoformat(value) if re.fullmatch(ISO_TIME, value) else None
    except ValueError:
        time = None
    if time is None:
        raise InvalidWebhook(
            f"{where}sentAt must be milliseconds since 1970, or a time in ISO 8601 with its zone, such as "
            "2026-01-31T12:00:00Z."
        )
    return round(time.timestamp() * 1_000)


def _conversation(given: Json, where: str, signer: Signer) -> ConversationId:
    tenant = _name({"tenant": DEFAULT_TENANT, **given}, "tenant", where)
    # The secret of an account may belong to a customer, who must not act in another tenant.
    if signer.all_but is None and tenant != DEFAULT_TENANT:
        raise InvalidWebhook(f"{where}tenant may not be named here: the rules say which tenant owns the account.")
    account, user = (_name(given, field, where) for field in ("account", "conversation"))
    return ConversationId(tenant, Generic.name, account, user)


def _name_or_none(given: Json, field: str, where: str) -> str | None:
    return None if given.get(field) is None else _name(given, field, where)


def _name(given: Json, field: str, where: str) -> str:
    value = given.get(field)
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
