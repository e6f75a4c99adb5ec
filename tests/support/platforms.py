"""Webhooks as platforms send them: recorded bodies, and signatures that are made without the code under test."""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lambdas.ingest.platforms.base import Intake, Update, Webhook

FIXTURES = Path(__file__).parents[1] / "fixtures" / "platforms"
HOST = "hooks.example.com"
FORM = "application/x-www-form-urlencoded"
RECEIVED_AT_MS = 1_700_000_000_000
Json = dict[str, Any]


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


def signed(platform: str, body: bytes, secret: str, *, fields: list[tuple[str, str]] | None = None) -> dict[str, str]:
    """Return the header that proves the sender of the body. `fields` are those of Twilio's form."""
    if platform == "telegram":
        return {"X-Telegram-Bot-Api-Secret-Token": secret}
    if platform == "twilio":
        text = url_of(platform) + "".join(name + value for name, value in sorted(fields or []))
        digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()
        return {"X-Twilio-Signature": base64.b64encode(digest).decode()}
    name = "X-Signature-256" if platform == "generic" else "X-Hub-Signature-256"
    return {name: "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}


def described(intake: Intake) -> Json:
    """Return an intake in the form of the `.expected.json` files."""
    return {
        "updates": [_described(update) for update in intake.updates],
        "ignored": {kind: count for kind, count in intake.ignored.items() if count},
        "accounts": sorted(intake.accounts),
    }


def _described(update: Update) -> Json:
    return {"update": type(update).__name__, "conversation": str(update.conversation), **dict(_details(update))}


def _details(update: Update) -> Iterator[tuple[str, Any]]:
    for name, value in update._asdict().items():
        if name == "message":
            yield name, value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        elif name != "conversation" and not (name in ("group", "agent") and not value):
            yield name, value
