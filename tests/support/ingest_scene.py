"""Ingest behind its handler; the test plays everything around it."""

import base64
import gc
import hmac
import json
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode

import psutil
import pytest

from lambdas.ingest import handler as handler_module
from lambdas.ingest.progress import ProgressTable
from lambdas.ingest.service import Ingest
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.aliases.aliases import Aliases
from message_buffer.json_object import Json
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.outcomes import BatchTaken
from message_buffer.limits import SECRET_LIFE_MS
from message_buffer.messages.message import decode
from message_buffer.rules.queues import NO_QUEUES, Queues
from message_buffer.rules.quota import ACCOUNT_QUOTA, Quota
from message_buffer.rules.rule_book import RuleBook
from tests.support.engine import Engine
from tests.support.fakes import (
    FakeBus,
    FakeFunctions,
    FakeQueue,
    FakeRules,
    FakeSecrets,
    RecordedTelemetry,
    valkey_lane,
)
from tests.support.platforms import HOST, OBJECTS, body_of, content_type, signed
from tests.support.takeovers import FakeTakeovers

SECRET, VERIFY_TOKEN = "s3cret", "let me in"
SECRETS = {
    "generic": [SECRET, "the next one"],
    "whatsapp": {"secret": SECRET, "verifyToken": VERIFY_TOKEN},
    "messenger": {"secret": SECRET, "verifyToken": VERIFY_TOKEN},
    "instagram": {"secret": SECRET, "verifyToken": VERIFY_TOKEN},
    "twilio": SECRET,
    "telegram": {"accounts": {"shopbot": {"secret": SECRET}}},
}
HEADERS = {"generic": "x-signature-256", "whatsapp": "x-hub-signature-256"}


def signature(body: bytes, secret: str = SECRET) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, sha256).hexdigest()


def gateway(
    platform: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
    route: str = "webhook",
) -> Json:
    """Return the event that the HTTP API passes to the function, in payload format 2.0."""
    return {
        "version": "2.0",
        "routeKey": f"{method} /{route}/{{platform}}",
        "rawPath": f"/{route}/{platform}",
        "rawQueryString": urlencode(query or {}, errors="surrogatepass"),
        "pathParameters": {"platform": platform},
        "requestContext": {"domainName": HOST, "http": {"method": method}},
        "headers": headers or {},
        **({"queryStringParameters": query} if query else {}),
        "body": base64.b64encode(body).decode(),
        "isBase64Encoded": True,
    }


def rest_gateway(
    platform: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
    stage: str = "live",
) -> Json:
    """Return the event of the REST API: format 1.0, all media types binary, null for every part that is missing."""
    return {
        "resource": "/webhook/{platform}",
        "path": f"/webhook/{platform}",
        "httpMethod": method,
        "pathParameters": {"platform": platform},
        "requestContext": {
            "domainName": HOST,
            "httpMethod": method,
            "path": f"/{stage}/webhook/{platform}",
            "resourcePath": "/webhook/{platform}",
        },
        "headers": headers,
        "queryStringParameters": query,
        "multiValueQueryStringParameters": {name: [value] for name, value in query.items()} if query else None,
        "body": base64.b64encode(body).decode() if body else None,
        "isBase64Encoded": bool(body),
    }


URL_HOST = "abcdefghijklmnopqrstuvwxyz012345.lambda-url.us-east-1.on.aws"


def function_url(
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    headers: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
) -> Json:
    """Return the event of the function's own address: format 2.0 without a route; parts that are missing have no key.

    Lambda passes a body of an unknown or binary type in base64, and a text as it is.
    """
    found = {name.lower(): value for name, value in (headers or {}).items()}
    is_text = found.get("content-type", "").startswith(("text/", "application/json"))
    event: Json = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": urlencode(query or {}, errors="surrogatepass"),
        "headers": {"host": URL_HOST, "x-forwarded-proto": "https", "x-forwarded-port": "443", **found},
        "requestContext": {
            "accountId": "anonymous",
            "apiId": URL_HOST.partition(".")[0],
            "domainName": URL_HOST,
            "domainPrefix": URL_HOST.partition(".")[0],
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "192.0.2.1", "userAgent": "p"},
            "routeKey": "$default",
            "stage": "$default",
        },
        "isBase64Encoded": bool(body) and not is_text,
    }
    if body:
        event["body"] = body.decode() if is_text else base64.b64encode(body).decode()
    if query:
        event["queryStringParameters"] = query
    return event


class FakeProgress(ProgressTable):
    def __init__(self) -> None:
        self._marks: dict[str, int] = {}

    def read(self, webhook: str, *, now_ms: int) -> int:
        return self._marks.get(webhook, 0)

    def save(self, webhook: str, done: int, *, now_ms: int) -> None:
        self._marks[webhook] = done


class Scene:
    def __init__(
        self,
        engine: Engine,
        monkeypatch: pytest.MonkeyPatch,
        *,
        stage_rules: Json | None = None,
        queues: Queues = NO_QUEUES,
        lane: Lane | None = None,
        quota: Quota = ACCOUNT_QUOTA,
        time_is_required: bool = False,
        aliases: Aliases | None = None,
    ) -> None:
        self.engine = engine
        self.functions, self.telemetry = FakeFunctions(), RecordedTelemetry()
        self.bus = FakeBus()
        self.rules = FakeRules()
        self.takeovers = FakeTakeovers()
        self.dead_letters = FakeQueue()
        self.secrets = FakeSecrets(json.dumps(SECRETS))
        self.secrets_now_ms = 0
        self.ingest = Ingest(
            lane=lane or valkey_lane(engine.store, self.functions, self.telemetry),
            secrets=WebhookSecrets(self.secrets, "id", self.telemetry, clock=lambda: self.secrets_now_ms),
            bus=self.bus,
            telemetry=self.telemetry,
            book=RuleBook(
                self.rules, stage_rules or {}, self.telemetry, queues=queues, quota=quota, clock=engine.clock
            ),
            takeovers=self.takeovers,
            progress=FakeProgress(),
            dead_letters=self.dead_letters,
            clock=engine.clock,
            aliases=aliases,
            time_is_required=time_is_required,
        )
        monkeypatch.setattr(handler_module, "_ingest", lambda: self.ingest)
        monkeypatch.setattr(handler_module, "_telemetry", lambda: self.telemetry)

    def call(self, event: Json) -> tuple[int, Any]:
        answer = handler_module.handler(event, None)
        text = answer["body"]
        is_json = answer["headers"]["Content-Type"] == "application/json"
        return answer["statusCode"], json.loads(text) if is_json else text

    def post(self, platform: str, body: Any, *, secret: str = SECRET, route: str = "webhook") -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else body_of(platform, body)
        fields = list(body.items()) if platform == "twilio" else None
        headers = {"content-type": content_type(platform), **signed(platform, raw, secret, fields=fields)}
        return self.call(gateway(platform, raw, headers=headers, route=route))

    def keep_secrets(self, platform: str, count: int, *, platform_wide: str | None = None) -> None:
        """Give each of `count` accounts a secret of its own. The secret of account n is `secret n`."""
        own = {account(number): {"secret": f"secret {number}"} for number in range(count)}
        self.secrets.text = json.dumps({platform: {"secret": platform_wide, "accounts": own}})
        self.secrets_now_ms += SECRET_LIFE_MS + 1

    def amended(self) -> list[Json]:
        return self._published("messages.amended")

    def cancelled(self) -> list[Json]:
        return self._published("messages.buffer.cancelled")

    def handed_off(self) -> list[Json]:
        return self._published("messages.conversation.handed_off")

    def _published(self, wanted: str) -> list[Json]:
        return [json.loads(detail) for detail_type, detail in self.bus.published if detail_type == wanted]

    def buffered(self, conversation: str) -> list[Json]:
        key = f"msgs:{conversation}"
        found = next((each.value for name, each in self.engine.keys().items() if name.endswith(key)), [])
        return [decode(payload).model_dump(by_alias=True, exclude_defaults=True) for payload in found]

    def is_empty(self) -> bool:
        return all(name.endswith(":quota") for name in list(self.engine.keys()))


def account(number: int) -> str:
    return f"1555{number:06}"


def request(platform: str, content: Any, secret: str, *, at_seconds: float | None = None) -> Json:
    """Return the gateway's event of a signed body."""
    raw = content if isinstance(content, bytes) else body_of(platform, content)
    fields = parse_qsl(raw.decode("utf-8", "replace"), keep_blank_values=True) if platform == "twilio" else None
    proof = signed(platform, raw, secret, fields=fields, at_seconds=at_seconds)
    return gateway(platform, raw, headers={"content-type": content_type(platform), **proof})


def resident_bytes() -> int:
    """Return the memory of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


CHAT = "default/generic/shop/c1"
"""The conversation that `message` writes in."""


def message(message_id: str = "m1", text: Any = "Hey", **fields: Any) -> Json:
    return {"account": "shop", "conversation": "c1", "id": message_id, "text": text} | fields


def photo(message_id: str = "m1", text: str = "", **fields: Any) -> Json:
    return message(message_id, text, type="image", attachments=[{"type": "image", "id": "f"} | fields])


def waits_ms(scene: Scene, answer: Json, conversation: str = CHAT) -> int:
    return int(answer["conversations"][conversation]["dueAt"]) - scene.engine.clock.now_ms


def texts(scene: Scene, conversation: str = CHAT) -> list[str]:
    return [each.get("text", "") for each in scene.buffered(conversation)]


def whatsapp(*messages: Any, field: str = "messages", account: Any = "555", **value: Any) -> Json:
    value = {"metadata": {"phone_number_id": account}, **({"messages": list(messages)} if messages else {}), **value}
    return {"object": OBJECTS["whatsapp"], "entry": [{"id": "1", "changes": [{"field": field, "value": value}]}]}


def telegram(text: str = "Hey", *, message_id: int = 1, edited: bool = False) -> Json:
    ada = {"id": 1111111, "is_bot": False, "first_name": "Ada"}
    message = {"message_id": message_id, "from": ada, "chat": {"id": 1111111, "type": "private"}, "date": 1700000000}
    if edited:
        return {"update_id": 2, "edited_message": message | {"text": text, "edit_date": 1700000100}}
    return {"update_id": 1, "message": message | {"text": text}}


def emit(scene: Scene) -> BatchTaken:
    """Take the batch that waits, and leave it in its conversation processor's hands."""
    scene.engine.clock.advance(60_000)
    assert scene.engine.claim() == [CHAT]
    taken = scene.engine.store.take_batch(CHAT, "token")
    assert isinstance(taken, BatchTaken)
    return taken
