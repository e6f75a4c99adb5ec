"""Lambda entry of ingest: `GET` and `POST /webhook/{platform}`, `POST /typing/{platform}`.

Behind an HTTP API events have payload format 2.0, behind a REST API that of its proxy integration, 1.0.
"""

from base64 import b64decode
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from lambdas import environment as config
from lambdas.ingest.http import Request, Response, refuse
from lambdas.ingest.platforms.base import Webhook
from lambdas.ingest.service import Ingest
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.aws import clients as aws
from message_buffer.aws.cache_token import sign_cache_token
from message_buffer.aws.functions import Functions
from message_buffer.aws.secrets import Secrets
from message_buffer.events.event_bus import EventBus
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import TriggerQueue
from message_buffer.lanes.fallback import RETRY_IF_FAILED_WITHIN_MS, Lane, LaneWithFallback
from message_buffer.lanes.valkey.processor_starter import NO_PROCESSOR, ProcessorStarter
from message_buffer.lanes.valkey.settings import ValkeySettings
from message_buffer.lanes.valkey.sign_in import Opener, open_store
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_table import RulesTable
from message_buffer.telemetry import Telemetry


@cache
def _telemetry() -> Telemetry:
    return Telemetry()


@cache
def _ingest() -> Ingest:
    settings, telemetry = config.read_ingest(), _telemetry()
    return Ingest(
        lane=_lane(settings, telemetry),
        secrets=WebhookSecrets(Secrets(), settings.webhook_secret_id, telemetry),
        starter=ProcessorStarter(Functions(), settings.processor_function or NO_PROCESSOR, telemetry),
        bus=EventBus(settings.event_bus),
        telemetry=telemetry,
        book=RuleBook(RulesTable(settings.rules_table), settings.rules, telemetry),
    )


def _lane(settings: config.IngestSettings, telemetry: Telemetry) -> Lane:
    if settings.dynamodb_lane is None:
        return _valkey_lane(settings.valkey, telemetry)
    # A webhook waits for it, and its platform sends it again.
    table = MessageTable(settings.dynamodb_lane.table, patience=aws.HURRIED)
    triggers = TriggerQueue(settings.dynamodb_lane.queue_url, patience=aws.HURRIED)
    dynamodb_lane = DynamoDbLane(table, triggers)
    if settings.valkey is None:
        return dynamodb_lane
    return LaneWithFallback(
        _valkey_lane(settings.valkey, telemetry, retry_within_ms=RETRY_IF_FAILED_WITHIN_MS),
        dynamodb_lane,
        table,
        telemetry,
    )


def _valkey_lane(valkey: ValkeySettings | None, telemetry: Telemetry, *, retry_within_ms: int | None = None) -> Store:
    assert valkey is not None
    opener = Opener(valkey, sign_cache_token, count_swallowed=lambda: telemetry.count("StoreRetries"))
    return open_store(valkey, opener, retry_within_ms=retry_within_ms)


def handler(event: dict[str, Any], _context: Any) -> dict[str, Any]:
    """Answers whatever happens: an exception would become a 500 without a body, and cost the warm worker."""
    telemetry = _telemetry()
    try:
        response = _ingest().answer(_request(event))
    except Exception as error:  # noqa: BLE001 - the boundary: what is not foreseen is told, and answered
        telemetry.count("Crashes")
        telemetry.crash("ingest failed", error)
        response = refuse(500, "Something went wrong here; send it again.")
    telemetry.flush()
    return _to_gateway(response)


def _request(event: dict[str, Any]) -> Request:
    body, context = event.get("body") or "", event["requestContext"]
    headers = {name.lower(): value or "" for name, value in (event.get("headers") or {}).items()}
    route = event.get("routeKey") or event.get("resource") or ""
    return Request(
        platform=(event.get("pathParameters") or {}).get("platform", ""),
        route="typing" if "/typing/" in route else "webhook",
        webhook=Webhook(
            method=context["http"]["method"] if "http" in context else context["httpMethod"],
            url=_public_url(event, headers),
            headers=headers,
            query=event.get("queryStringParameters") or {},
            # Signatures are over the bytes that came in.
            body=b64decode(body) if event.get("isBase64Encoded") else body.encode("utf-8", "surrogatepass"),
        ),
    )


def _public_url(event: dict[str, Any], headers: Mapping[str, str]) -> str:
    context = event["requestContext"]
    scheme = headers.get("x-forwarded-proto", "").partition(",")[0].strip() or "https"
    host = headers.get("host") or context.get("domainName", "")
    if "http" in context:
        path, query = event.get("rawPath", ""), event.get("rawQueryString", "")
    else:
        # A REST API tells the stage's path in its context alone, and never the query as it was sent.
        path = context.get("path") or event.get("path", "")
        query = urlencode(event.get("multiValueQueryStringParameters") or {}, doseq=True, errors="surrogatepass")
    return f"{scheme}://{host}{path}{'?' if query else ''}{query}"


def _to_gateway(response: Response) -> dict[str, Any]:
    return {
        "statusCode": response.status,
        "headers": {"Content-Type": response.content_type, **response.headers},
        "body": response.body,
    }
