"""Lambda entry of ingest: `GET` and `POST /webhook/{platform}`, `POST /webhook/{platform}/{door}`,
`POST /typing/{platform}`.

A REST API sends events in payload format 1.0 (proxy integration), an HTTP API or the function's own URL in format 2.0.
A queue sends batches of webhooks from AWS End User Messaging Social. The admin function sends `{"redrive": <dead letter
of a message>}`; this call returns `{"redriven": id}` or fails.
"""

import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Literal
from urllib.parse import urlencode

from lambdas.ingest.platforms.base import Webhook
from lambdas.ingest.progress import ProgressTable
from lambdas.ingest.queued_webhooks import QueuedWebhooks, WebhookQueues
from lambdas.ingest.responses import WebhookCall, refuse
from lambdas.ingest.service import Ingest
from lambdas.ingest.webhook_secrets import WebhookSecrets
from message_buffer.aliases.aliases import Aliases
from message_buffer.aliases.aliases_table import AliasesTable
from message_buffer.aws import clients as aws
from message_buffer.aws.environment import is_provisioned
from message_buffer.aws.secrets import Secrets
from message_buffer.errors import MessageBufferError
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.events.idle import IdleTable
from message_buffer.lanes.fallback import LaneWithFallback
from message_buffer.lanes.lane import Lane
from message_buffer.lanes.opening import open_dynamodb_lane, open_valkey_lane
from message_buffer.lanes.valkey.patience import WebhookPatience
from message_buffer.rules.rule_book import RuleBook
from message_buffer.rules.rules_table import RulesTable
from message_buffer.settings import IngestSettings, read_settings
from message_buffer.telemetry import Telemetry

# Retry only if the first try failed within this time. A try on a dropped connection fails fast, and a retry helps; a
# try on a hung server fails late, and a retry does not help.
RETRY_IF_FAILED_WITHIN_MS = 300
# A webhook waits at most this long for a connection to Valkey. After that, ingest stores its messages in the DynamoDB
# lane, or answers 503. Some platforms wait only 5 seconds for a response.
MAX_WEBHOOK_WAIT_MS = 4_000


@cache
def _settings() -> IngestSettings:
    return read_settings(IngestSettings)


@cache
def _telemetry() -> Telemetry:
    return Telemetry(_settings().log)


@cache
def _address() -> str | None:
    return _settings().address


@cache
def _ingest() -> Ingest:
    settings, telemetry = _settings(), _telemetry()
    patience = _patience(settings)
    return Ingest(
        lane=_lane(settings, telemetry, patience),
        secrets=WebhookSecrets(Secrets(), settings.webhook_secret_id, telemetry),
        bus=EventBus(settings.event_bus),
        telemetry=telemetry,
        book=RuleBook(
            RulesTable(settings.rules_table),
            settings.rules,
            telemetry,
            queues=settings.queues,
            has_platform_numbers=settings.platform_numbers,
        ),
        takeovers=IdleTable(settings.takeovers_table),
        progress=ProgressTable(settings.takeovers_table),
        dead_letters=DeadLetterQueue(settings.dead_letter_queue_url),
        aliases=Aliases(AliasesTable(settings.aliases_table), telemetry),
        time_is_required=settings.time_is_required,
        patience=patience,
        notes_replies=settings.notes_replies,
    )


def _patience(settings: IngestSettings) -> WebhookPatience | None:
    if settings.valkey is None:
        return None
    _, connect_ms, answer_ms, _ = settings.valkey.connection
    return WebhookPatience(connect_ms=connect_ms, answer_ms=answer_ms, webhook_ms=MAX_WEBHOOK_WAIT_MS)


def _lane(settings: IngestSettings, telemetry: Telemetry, patience: WebhookPatience | None) -> Lane:
    if settings.valkey is not None and settings.dynamodb_lane is None:
        valkey_lane = open_valkey_lane(settings.valkey, telemetry, patience=patience)
        valkey_lane.prepare()
        return valkey_lane
    assert settings.dynamodb_lane is not None
    # Use short time-outs, because the platform waits only a short time for the response, and then sends the webhook
    # again.
    dynamodb_lane = open_dynamodb_lane(settings.dynamodb_lane, patience=aws.HURRIED)
    if settings.valkey is None:
        return dynamodb_lane
    valkey_lane = open_valkey_lane(
        settings.valkey, telemetry, patience=patience, retry_within_ms=RETRY_IF_FAILED_WITHIN_MS
    )
    # Begin to connect now, while ingest reads the secrets and the rules for the first time.
    valkey_lane.prepare()
    return LaneWithFallback(valkey_lane, dynamodb_lane, telemetry)


@cache
def _queued_webhooks() -> QueuedWebhooks:
    settings = _settings()
    assert settings.whatsapp_queue is not None, "only a stage with this queue invokes ingest with its batches"
    return QueuedWebhooks(_ingest(), WebhookQueues(*settings.whatsapp_queue), _telemetry())


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Return a response even after an unforeseen error. An exception would become a 500 with the gateway's text."""
    telemetry = _telemetry()
    if "Records" in event:
        again = _queued_webhooks().take_all(event["Records"], context.get_remaining_time_in_millis)
        telemetry.flush()
        return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in again]}
    if "redrive" in event:
        try:
            return {"redriven": _ingest().redrive(event["redrive"])}
        finally:
            telemetry.flush()
    try:
        response = _ingest().answer(_request(event))
    except Exception as error:  # noqa: BLE001 - the boundary: log an unforeseen error, and return a 500
        telemetry.count("Crashes")
        telemetry.crash("ingest failed", error)
        response = refuse(500, "Something went wrong here; send it again.")
    telemetry.flush()
    headers = {"Content-Type": response.content_type, **response.headers}
    return {"statusCode": response.status, "headers": headers, "body": response.body}


# Matches the paths of ingest's routes. A path that does not match names no platform and no door.
_PATH = r"/(webhook|typing)/([a-z0-9_-]{1,32})(?:/([a-zA-Z0-9_-]{1,64}))?"


def _request(event: dict[str, Any]) -> WebhookCall:
    context = event["requestContext"]
    headers = {name.lower(): value or "" for name, value in (event.get("headers") or {}).items()}
    route, platform, door = _path(event)
    webhook = Webhook(
        method=context["http"]["method"] if "http" in context else context["httpMethod"],
        url=_public_url(event, headers),
        headers=headers,
        query=event.get("queryStringParameters") or {},
        body=_body(event),
    )
    return WebhookCall(platform, webhook, route, door)


def _path(event: Mapping[str, Any]) -> tuple[Literal["webhook", "typing"], str, str | None]:
    """Return (route, platform, door). The platform is empty if ingest has no route with this path.

    API Gateway splits the path itself; at the function's own URL, ingest splits it.
    """
    named = event.get("pathParameters")
    if named is not None:
        route = event.get("routeKey") or event.get("resource") or ""
        return "typing" if "/typing/" in route else "webhook", str(named.get("platform", "")), named.get("door")
    found = re.fullmatch(_PATH, str(event.get("rawPath") or ""))
    if found is None:
        return "webhook", "", None
    return "typing" if found[1] == "typing" else "webhook", found[2], found[3]


def _body(event: Mapping[str, Any]) -> bytes:
    """Return the bytes that the platform sent and signed."""
    body = event.get("body") or ""
    return b64decode(body) if event.get("isBase64Encoded") else str(body).encode("utf-8", "surrogatepass")


def _public_url(event: dict[str, Any], headers: Mapping[str, str]) -> str:
    """Return the URL that the platform called, which Twilio signs."""
    context, address = event["requestContext"], _address()
    scheme = headers.get("x-forwarded-proto", "").partition(",")[0].strip() or "https"
    # Use the gateway's own host name, because a caller can send any Host header. But Twilio signs the host name as an
    # operator typed it, and the gateway's is in lower case. So use the header if it differs only in upper and lower
    # case.
    host, called = context.get("domainName", ""), headers.get("host", "")
    if not host or host == called.lower():
        host = called
    if "http" in context:
        path, query = event.get("rawPath", ""), event.get("rawQueryString", "")
    else:
        # In the event of a REST API, only the context has the whole path, which begins with the stage. The event has
        # the query only in parsed form, so encode the query again.
        path = context.get("path") or event.get("path", "")
        query = urlencode(event.get("multiValueQueryStringParameters") or {}, doseq=True, errors="surrogatepass")
    # What stands before the API may change the host name and the beginning of the path, but not the route.
    called_url = f"{address}{event.get('rawPath') or event.get('path', '')}" if address else f"{scheme}://{host}{path}"
    return f"{called_url}{'?' if query else ''}{query}"


if is_provisioned():
    with suppress(MessageBufferError):
        _ingest().warm_up()
