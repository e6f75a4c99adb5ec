"""Doors on a stage: a product's webhooks by a mapping, and WhatsApp's webhooks by a topic of SNS and a queue."""

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from message_buffer.json_object import Json
from tests.support.local_stage import WHATSAPP_TOPIC, LocalStage
from tools.local.webhooks import whatsapp, whatsapp_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("window-stage")]

ROOT = Path(__file__).parents[2]
WAHA = json.loads((ROOT / "examples/doors/waha.json").read_text("utf-8"))
TEXT = json.loads((ROOT / "tests/fixtures/doors/waha/text.json").read_text("utf-8"))
KEY = uuid.uuid4().hex
NUMBER_ID = "106540352242922"


@pytest.fixture(scope="module")
def topic(dynamodb_stage: LocalStage) -> Callable[[str], None]:
    """Return a function that publishes to the topic, to which the queue is subscribed as the template says.

    The emulator cannot subscribe a queue to a topic that does not exist yet, so this fixture subscribes it.
    """
    sns = dynamodb_stage.outputs.client("sns")
    assert sns.create_topic(Name=WHATSAPP_TOPIC.rpartition(":")[2])["TopicArn"] == WHATSAPP_TOPIC
    arn = f"arn:aws:sqs:us-east-1:000000000000:{queue_url(dynamodb_stage, 'WhatsAppWebhooks').rpartition('/')[2]}"
    sns.subscribe(TopicArn=WHATSAPP_TOPIC, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"})
    return lambda message: sns.publish(TopicArn=WHATSAPP_TOPIC, Message=message)


def queue_url(dynamodb_stage: LocalStage, name: str) -> str:
    (found,) = (url for url in dynamodb_stage.outputs.client("sqs").list_queues()["QueueUrls"] if name in url)
    return str(found)


def until(answer: Callable[[], Any], *, timeout_seconds: float = 40) -> Any:
    deadline = time.monotonic() + timeout_seconds
    while not (found := answer()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.5)
    return found


def post(dynamodb_stage: LocalStage, body: Json, *, door: str = "waha", key: str = KEY) -> int:
    raw = json.dumps(body).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Webhook-Hmac": hmac.new(key.encode(), raw, hashlib.sha512).hexdigest(),
        "X-Webhook-Hmac-Algorithm": "sha512",
    }
    url = f"{dynamodb_stage.outputs.ApiEndpoint}/webhook/custom/{door}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, raw, headers)) as answer:  # noqa: S310 - our own stage
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def waha(user: str, message_id: str, text: str) -> Json:
    chat = f"{user}@c.us"
    payload = TEXT["payload"] | {"id": f"false_{chat}_{message_id}", "from": chat, "body": text}
    return {**TEXT, "payload": payload}


def notification(*messages: Json) -> str:
    (entry,) = whatsapp(*messages, phone_number_id=NUMBER_ID)["entry"]
    return json.dumps({"context": {}, "whatsAppWebhookEntry": json.dumps(entry), "aws_account_id": "000000000000"})


def test_a_door_is_opened_without_a_deployment_and_its_messages_become_an_event(dynamodb_stage: LocalStage) -> None:
    user, ids = str(uuid.uuid4().int)[:13], [uuid.uuid4().hex, uuid.uuid4().hex]
    assert post(dynamodb_stage, waha(user, ids[0], "Hey")) == 404
    dynamodb_stage.admin.ask("rules.set", scope="door:waha", rules=WAHA, expectedVersion=None)
    secrets = dynamodb_stage.outputs.WebhookSecrets | {"custom/waha": KEY}
    (secret,) = dynamodb_stage.outputs.client("secretsmanager").list_secrets()["SecretList"]
    dynamodb_stage.outputs.client("secretsmanager").put_secret_value(
        SecretId=secret["ARN"], SecretString=json.dumps(secrets)
    )
    until(lambda: post(dynamodb_stage, waha(user, ids[0], "Hey")) == 200)
    assert post(dynamodb_stage, waha(user, ids[1], "Order #12345")) == 200
    assert post(dynamodb_stage, waha(user, ids[1], "forged"), key="guessed") == 401
    assert post(dynamodb_stage, waha(user, ids[1], "x"), door="other") == 404
    until(lambda: _seen(dynamodb_stage, f"default/custom/waha:default/{user}@c.us") == set(ids))


def _seen(stage: LocalStage, conversation: str) -> set[str]:
    found = (each.batch for each in stage.inbox.arrivals if each.batch["conversationId"] == conversation)
    return {message["id"] for batch in found for message in batch["messages"]}


def test_webhooks_of_a_topic_become_events_and_only_what_cannot_be_read_is_put_aside(
    dynamodb_stage: LocalStage, topic: Callable[[str], None]
) -> None:
    user, message_id, unreadable = str(uuid.uuid4().int)[:13], uuid.uuid4().hex, f"no notification {uuid.uuid4().hex}"
    topic(unreadable)
    topic(notification(whatsapp_text(message_id, "Hey", sender=user)))
    sqs, aside = dynamodb_stage.outputs.client("sqs"), queue_url(dynamodb_stage, "UnreadableWebhooks")

    def received() -> list[Json]:
        found = sqs.receive_message(QueueUrl=aside, MessageAttributeNames=["problem"], MaxNumberOfMessages=10)
        return list(found.get("Messages", []))

    (letter,) = until(received)
    assert letter["Body"] == unreadable
    assert letter["MessageAttributes"]["problem"]["StringValue"].startswith("This is not a notification")
    until(lambda: _seen(dynamodb_stage, f"default/whatsapp/{NUMBER_ID}/{user}") == {message_id})
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]

    def is_empty() -> bool:
        found = sqs.get_queue_attributes(QueueUrl=queue_url(dynamodb_stage, "WhatsAppWebhooks"), AttributeNames=names)
        return set(found["Attributes"].values()) == {"0"}

    until(is_empty)
