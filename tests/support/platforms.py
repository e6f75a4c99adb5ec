"""Webhooks as platforms send them: recorded bodies, and signatures that are made without the code under test."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lambdas.ingest.platforms.base import BusinessReply, Intake, Update, Webhook
from message_buffer.json_object import Json

FIXTURES = Path(__file__).parents[1] / "fixtures" / "platforms"
HOST = "hooks.example.com"
FORM = "application/x-www-form-urlencoded"
RECEIVED_AT_MS = 1_700_000_000_000


# The body of the response to a webhook that had no effect and of which nothing was ignored.
NOTHING_DONE: Json = dict.fromkeys(
    ("accepted", "duplicates", "changed", "amended", "stopped", "flushed", "ignored"), 0
) | {"conversations": {}}


def fixtures() -> list[Path]:
    return [path for path in sorted(FIXTURES.rglob("*.json")) if not path.name.endswith(".expected.json")]


def name_of(fixture: Path) -> str:
    return f"{fixture.parent.name}/{fixture.stem}"


def body_of(platform: str, content: Any) -> bytes:
    return urlencode(content).encode() if platform == "twilio" else json.dumps(content).encode()


def url_of(platform: str) -> str:
    return f"https://{HOST}/webhook/{platform}"


def content_type(platform: str) -> str:
    return FORM if platform == "twilio" else "application/json"


def webhook(platform: str, body: bytes, **headers: str) -> Webhook:
    return Webhook("POST", url_of(platform), {"content-type": content_type(platform)} | headers, {}, body)


def signed(
    platform: str,
    body: bytes,
    secret: str,
    *,
    fields: list[tuple[str, str]] | None = None,
    at_seconds: float | None = None,
) -> dict[str, str]:
    """Return the headers that prove the sender of the body.

    `fields` are those of Twilio's form. `at_seconds` is the time that the generic platform signs with the body.
    """
    if platform == "telegram":
        return {"X-Telegram-Bot-Api-Secret-Token": secret}
    if platform == "twilio":
        text = url_of(platform) + "".join(name + value for name, value in sorted(fields or []))
        digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()
        return {"X-Twilio-Signature": base64.b64encode(digest).decode()}
    if platform != "generic":
        return {"X-Hub-Signature-256": _sha256(secret, body)}
    if at_seconds is None:
        return {"X-Signature-256": _sha256(secret, body)}
    time = f"{at_seconds:.0f}"
    return {"X-Signature-Timestamp": time, "X-Signature-256": _sha256(secret, f"{time}.".encode() + body)}


def _sha256(secret: str, text: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()


OBJECTS = {"whatsapp": "whatsapp_business_account", "messenger": "page", "instagram": "instagram"}


def one_message(platform: str, account: str, text: str = "Hey") -> Any:
    """Return what a platform sends for one message to this account, with the fields in the platform's order."""
    entry: Json = {"id": account}
    match platform:
        case "generic":
            return {"account": account, "conversation": "c1", "id": "m1", "text": text}
        case "twilio":
            return {"MessageSid": "SM1", "From": "+1401", "To": f"+{account}", "Body": text}
        case "telegram":
            chat = {"id": 1111111, "type": "private"}
            message = {"message_id": 1, "from": {"id": 1111111}, "chat": chat, "date": 1700000000, "text": text}
            return {"update_id": 1, "message": message}
        case "whatsapp":
            item = {"from": "491", "id": "wamid.1", "timestamp": "1700000000", "type": "text", "text": {"body": text}}
            value = {"metadata": {"display_phone_number": "1555", "phone_number_id": account}, "messages": [item]}
            entry = {"id": "1022901293", "changes": [{"value": value, "field": "messages"}]}
        case _:
            who = {"sender": {"id": "7700"}, "recipient": {"id": account}, "timestamp": 1700000000000}
            entry |= {"time": 1700000000001, "messaging": [who | {"message": {"mid": "mid.1", "text": text}}]}
    return {"object": OBJECTS[platform], "entry": [entry]}


def described(intake: Intake) -> Json:
    """Return an intake in the form of the `.expected.json` files."""
    return {
        "updates": [_described(update) for update in intake.updates],
        "ignored": {kind: count for kind, count in intake.ignored.items() if count},
        "accounts": sorted(intake.accounts),
        **({"replies": [_reply(reply) for reply in intake.human_replies]} if intake.human_replies else {}),
    }


def _reply(reply: BusinessReply) -> Json:
    return {"conversation": str(reply.conversation), "id": reply.id, "at_ms": reply.at_ms, "app": reply.app}


def _described(update: Update) -> Json:
    return {"update": type(update).__name__, "conversation": str(update.conversation), **dict(_details(update))}


def _details(update: Update) -> Iterator[tuple[str, Any]]:
    for name, value in update._asdict().items():
        if name == "author_ids":
            continue  # `test_ingest_aliases.py` shows what becomes of the ids
        if name == "message":
            yield name, value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        elif name != "conversation" and not (name in ("group", "agent") and not value):
            yield name, value
