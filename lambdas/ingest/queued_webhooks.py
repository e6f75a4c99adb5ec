"""Reads WhatsApp's webhooks from a queue behind the topic on which AWS End User Messaging Social publishes them.

IAM proves the sender, since only the topic may send to the queue. If a webhook is refused for now, the queue delivers
it again after growing pauses. The queue has no dead-letter queue, because SQS would move a webhook there after a number
of deliveries, even if each was refused only for now. Ingest moves only webhooks that it cannot read, to the queue of
unreadable webhooks.
"""

import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import NamedTuple

from lambdas.ingest.platforms.base import Signer, Webhook, object_in, object_of
from lambdas.ingest.report import report_refusal
from lambdas.ingest.responses import Response
from lambdas.ingest.service import Ingest
from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.telemetry import Telemetry

# The pause after which a webhook that was refused for now is delivered again. It doubles with each delivery, from the
# minimum to the maximum. So every webhook is delivered within five minutes after the end of an outage.
MIN_QUEUED_WEBHOOK_PAUSE_SECONDS = 2
MAX_QUEUED_WEBHOOK_PAUSE_SECONDS = 300
# A webhook takes milliseconds, but may take ten seconds. If less time than this is left, the queue delivers the
# remaining webhooks of the batch again at once.
MIN_MS_LEFT_FOR_A_QUEUED_WEBHOOK = 12_000
PLATFORM = "whatsapp"
# Trust the topic for every number, even if the number has its own secret, because that secret signs only webhooks that
# Meta sends directly.
TOPIC = Signer(all_but=frozenset())

NO_NOTIFICATION = "This is not a notification of AWS End User Messaging Social."


class Receipt(NamedTuple):
    """One delivery of a queued webhook."""

    message_id: str
    handle: str
    body: str
    deliveries: int
    """How often the queue has delivered this webhook, including this delivery."""


class WebhookQueues:
    def __init__(self, queue_url: str, unreadable_url: str) -> None:
        self._queue_url = queue_url
        self._unreadable_url = unreadable_url

    def pause(self, receipt: Receipt, *, seconds: int) -> None:
        """Hide a webhook for this time; then the queue delivers it again."""
        with aws.errors_as_ours("put webhook back"):
            aws.client("sqs").change_message_visibility(
                QueueUrl=self._queue_url, ReceiptHandle=receipt.handle, VisibilityTimeout=seconds
            )

    def put_aside(self, receipt: Receipt, *, problem: str) -> None:
        """Send a webhook to the queue of unreadable webhooks."""
        with aws.errors_as_ours("put unreadable webhook aside"):
            aws.client("sqs").send_message(
                QueueUrl=self._unreadable_url,
                MessageBody=receipt.body,
                MessageAttributes={"problem": {"DataType": "String", "StringValue": problem}},
            )


class QueuedWebhooks:
    def __init__(self, ingest: Ingest, queues: WebhookQueues, telemetry: Telemetry) -> None:
        self._ingest = ingest
        self._queues = queues
        self._telemetry = telemetry

    def take_all(self, records: Iterable[Json], time_left: Callable[[], int]) -> list[str]:
        """Buffer the webhooks of a batch of deliveries. Return the ids of those that the queue must deliver again."""
        return [receipt.message_id for receipt in map(_receipt_of, records) if not self._is_done(receipt, time_left)]

    def _is_done(self, receipt: Receipt, time_left: Callable[[], int]) -> bool:
        """Buffer a webhook. Return whether the queue may delete it."""
        try:
            if time_left() < MIN_MS_LEFT_FOR_A_QUEUED_WEBHOOK:
                self._queues.pause(receipt, seconds=0)
                return False
            body = _webhook_in(receipt.body)
            if body is None:
                report_refusal(self._telemetry, PLATFORM, status=HTTPStatus.BAD_REQUEST, problem=NO_NOTIFICATION)
                self._queues.put_aside(receipt, problem=NO_NOTIFICATION)
                return True
            response = self._answer(body)
            match response.status:
                case HTTPStatus.OK if response.unreadable:
                    problem = f"{response.unreadable} items could not be read; the others are buffered."
                    self._queues.put_aside(receipt, problem=problem)
                case HTTPStatus.BAD_REQUEST | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                    self._queues.put_aside(receipt, problem=str(object_in(response.body).get("error")))
                case status if status != HTTPStatus.OK:
                    self._queues.pause(receipt, seconds=_pause_seconds(receipt, response))
                    return False
        except SendFailed as error:
            # The queue delivers the webhook again when its visibility time-out is over.
            self._telemetry.warn("queued webhook stays", reason=str(error))
            return False
        return True

    def _answer(self, body: bytes) -> Response:
        try:
            return self._ingest.answer_proven(PLATFORM, Webhook("POST", "", {}, {}, body), signer=TOPIC)
        except Exception as error:  # noqa: BLE001 - an unforeseen error must not hold up the other webhooks
            self._telemetry.count("Crashes")
            self._telemetry.crash("ingest failed", error)
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, "")


def _receipt_of(record: Json) -> Receipt:
    attributes = object_of(record.get("attributes"))
    return Receipt(
        record["messageId"], record["receiptHandle"], record["body"], int(attributes.get("ApproximateReceiveCount", 1))
    )


def _webhook_in(notification: str) -> bytes | None:
    """Return the body that Meta would have sent, or None if the notification contains none.

    AWS publishes each entry of Meta's body separately, as a JSON string.
    """
    entry = object_in(object_in(notification).get("whatsAppWebhookEntry"))
    try:
        return json.dumps({"object": "whatsapp_business_account", "entry": [entry]}).encode() if entry else None
    except RecursionError:
        return None  # the parser accepts a few more levels than can be written


def _pause_seconds(receipt: Receipt, response: Response) -> int:
    """Return a pause that doubles with each delivery, and is at least as long as the response asks for."""
    # After 16 doublings the pause has its maximum. More would only make a huge number.
    doubled = MIN_QUEUED_WEBHOOK_PAUSE_SECONDS << min(max(receipt.deliveries - 1, 0), 16)
    return max(min(doubled, MAX_QUEUED_WEBHOOK_PAUSE_SECONDS), int(response.headers.get("Retry-After", 0)))
