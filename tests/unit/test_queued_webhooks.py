"""WhatsApp's webhooks that AWS End User Messaging Social publishes: what becomes of each delivery of the queue."""

import json
from typing import Any

import pytest

from lambdas.ingest import handler as handler_module
from lambdas.ingest.queued_webhooks import (
    MAX_QUEUED_WEBHOOK_PAUSE_SECONDS,
    MIN_MS_LEFT_FOR_A_QUEUED_WEBHOOK,
    MIN_QUEUED_WEBHOOK_PAUSE_SECONDS,
    QueuedWebhooks,
    Receipt,
    WebhookQueues,
)
from lambdas.ingest.service import RETRY_AFTER_SECONDS
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.json_object import Json
from message_buffer.rules.quota import Quota
from tests.support.engine import Engine
from tests.support.ingest_scene import Scene
from tests.unit.test_webhook_cases import with_odd_values

NUMBER, ADA = "106540352242922", "491701234567"
CHAT = f"default/whatsapp/{NUMBER}/{ADA}"


def entry(*texts: str) -> Json:
    messages = [
        {"from": ADA, "id": f"wamid.{text}", "timestamp": "1700000000", "type": "text", "text": {"body": text}}
        for text in texts
    ]
    contacts = [{"profile": {"name": "Ada"}, "wa_id": ADA}]
    metadata = {"display_phone_number": "15550783881", "phone_number_id": NUMBER}
    value = {"messaging_product": "whatsapp", "metadata": metadata, "contacts": contacts, "messages": messages}
    return {"id": "524126980791429", "changes": [{"value": value, "field": "messages"}]}


def notification(webhook_entry: Any) -> Json:
    """Return what AWS publishes, as its user guide shows it."""
    arn = "arn:aws:social-messaging:us-east-1:111122223333:"
    return {
        "context": {
            "MetaWabaIds": [{"wabaId": "524126980791429", "arn": f"{arn}waba/fb2594b8a7974770b128a409e2example"}],
            "MetaPhoneNumberIds": [{"metaPhoneNumberId": NUMBER, "arn": f"{arn}phone-number-id/976c72a700aa"}],
        },
        "whatsAppWebhookEntry": webhook_entry if isinstance(webhook_entry, str) else json.dumps(webhook_entry),
        "aws_account_id": "111122223333",
        "message_timestamp": "2025-01-08T23:30:43.271279391Z",
        "messageId": "6d69f07a-c317-4278-9d5c-6a84078419ec",
    }


class FakeQueues(WebhookQueues):
    def __init__(self) -> None:
        self.pauses: dict[str, int] = {}
        self.aside: dict[str, tuple[str, str]] = {}
        self.is_away = False

    def pause(self, receipt: Receipt, *, seconds: int) -> None:
        self._answer()
        self.pauses[receipt.message_id] = seconds

    def put_aside(self, receipt: Receipt, *, problem: str) -> None:
        self._answer()
        self.aside[receipt.message_id] = (receipt.body, problem)

    def _answer(self) -> None:
        if self.is_away:
            raise SendFailed("the queue is away")


class Context:
    left_ms = 15_000

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


class Desk:
    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene, self.queues, self.context = scene, FakeQueues(), Context()
        webhooks = QueuedWebhooks(scene.ingest, self.queues, scene.telemetry)
        monkeypatch.setattr(handler_module, "_queued_webhooks", lambda: webhooks)

    def deliver(self, *bodies: Any, deliveries: int = 1) -> list[str]:
        """Deliver the bodies as records n0, n1, …, and return the ids of those that the queue must deliver again."""
        records = [
            {
                "messageId": f"n{number}",
                "receiptHandle": f"handle {number}",
                "body": body if isinstance(body, str) else json.dumps(body),
                "attributes": {"ApproximateReceiveCount": str(deliveries)},
                "eventSource": "aws:sqs",
            }
            for number, body in enumerate(bodies)
        ]
        answer = handler_module.handler({"Records": records}, self.context)
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    def texts(self) -> list[str]:
        return [each["text"] for each in self.scene.buffered(CHAT)]


@pytest.fixture
def desk(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(Scene(fake, monkeypatch), monkeypatch)


def fail(desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, *, on: str = "wamid.") -> None:
    """Let Valkey fail for the messages whose ids begin with `on`."""
    lane = desk.scene.ingest._buffering._lane
    buffer = lane.buffer_message

    def buffer_message(conversation: str, message_id: str, **more: Any) -> Any:
        if message_id.startswith(on):
            raise error
        return buffer(conversation, message_id, **more)

    monkeypatch.setattr(lane, "buffer_message", buffer_message)


def test_the_messages_of_a_notification_are_buffered_once(desk: Desk) -> None:
    for _ in range(2):
        assert desk.deliver(notification(entry("Hey", "I have a question"))) == []
    assert desk.texts() == ["Hey", "I have a question"]
    assert desk.scene.buffered(CHAT)[0]["profile"] == {"name": "Ada"}
    assert (desk.queues.aside, desk.queues.pauses) == ({}, {})


def test_a_failed_delivery_is_published(desk: Desk) -> None:
    failing = entry()
    failing["changes"][0]["value"]["statuses"] = [
        {"id": "wamid.9", "status": "failed", "timestamp": "1700000000", "recipient_id": ADA}
    ]
    assert desk.deliver(notification(failing)) == []
    ((kind, detail),) = desk.scene.bus.published
    assert (kind, json.loads(detail)["conversationId"]) == ("messages.reply.failed", CHAT)


@pytest.mark.parametrize(
    "body",
    [
        "no json", "[]", json.dumps(json.dumps(notification(entry("Hey")))),
                {"whatsAppWebhookEntry": None}, {"whatsAppWebhookEntry": "{"}, {"whatsAppWebhookEntry": "[1]"},
        {"Type": "Notification", "Message": json.dumps(notification(entry("Hey")))},
    ],
)  # fmt: skip
def test_only_what_cannot_be_read_is_put_aside_with_all_its_bytes(desk: Desk, body: Any) -> None:
    assert desk.deliver(body, notification(entry("Hey"))) == []
    ((message_id, (kept, problem)),) = desk.queues.aside.items()
    assert (message_id, kept) == ("n0", body if isinstance(body, str) else json.dumps(body))
    assert problem == "This is not a notification of AWS End User Messaging Social."
    assert desk.texts() == ["Hey"]
    assert desk.scene.telemetry.counts["BodiesRefused"] == 1


def test_a_webhook_that_ingest_refuses_for_good_is_put_aside_with_the_reason(desk: Desk) -> None:
    many = entry(*map(str, range(3)))
    value = many["changes"][0]["value"]
    for number in range(1_100):
        value["messages"].append({**value["messages"][0], "id": f"wamid.x{number}", "from": f"4917{number:07}"})
    assert desk.deliver(notification(many)) == []
    assert "at most 1000 messages" in desk.queues.aside["n0"][1]
    assert desk.scene.is_empty()


def test_a_webhook_with_an_item_that_cannot_be_read_is_put_aside_too_and_the_others_are_buffered(desk: Desk) -> None:
    partly = entry("Hey")
    partly["changes"][0]["value"]["messages"].append({"from": ADA, "type": "text", "text": {"body": "no id"}})
    assert desk.deliver(notification(partly)) == []
    assert desk.texts() == ["Hey"]
    assert desk.queues.aside["n0"][1] == "1 items could not be read; the others are buffered."
    assert desk.deliver(notification({"id": "1"})) == []
    assert len(desk.queues.aside) == 1


@pytest.mark.parametrize("deliveries", [1, 5, 10**6])
def test_what_is_refused_for_now_comes_again_after_growing_pauses_however_often(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, deliveries: int
) -> None:
    fail(desk, monkeypatch, StoreUnavailable("away"), on="wamid.Hey")
    assert desk.deliver(notification(entry("Hey")), notification(entry("Hello")), deliveries=deliveries) == ["n0"]
    doubled = MIN_QUEUED_WEBHOOK_PAUSE_SECONDS * 2 ** min(deliveries - 1, 20)
    assert desk.queues.pauses == {"n0": max(min(doubled, MAX_QUEUED_WEBHOOK_PAUSE_SECONDS), RETRY_AFTER_SECONDS)}
    assert desk.texts() == ["Hello"]
    assert desk.queues.aside == {}


def test_if_the_time_is_short_the_rest_comes_again_at_once(desk: Desk) -> None:
    desk.context.left_ms = MIN_MS_LEFT_FOR_A_QUEUED_WEBHOOK - 1
    assert desk.deliver(notification(entry("Hey")), "no json") == ["n0", "n1"]
    assert desk.queues.pauses == {"n0": 0, "n1": 0}
    assert desk.scene.is_empty()


def test_while_the_queue_is_away_nothing_is_deleted_that_was_not_buffered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.queues.is_away = True
    fail(desk, monkeypatch, StoreUnavailable("away"), on="wamid.Hey")
    assert desk.deliver("no json", notification(entry("Hey")), notification(entry("Hello"))) == ["n0", "n1"]
    assert desk.texts() == ["Hello"]


def test_no_odd_value_in_a_notification_raises_and_all_that_fails_is_kept(desk: Desk) -> None:
    for _place, odd in with_odd_values(notification(entry("Hey"))):
        assert desk.deliver(odd) == []
    for _place, odd in with_odd_values(entry("Hey")):
        assert desk.deliver(notification(odd)) == []
    assert "Crashes" not in desk.scene.telemetry.counts


def test_a_number_with_a_secret_of_its_own_may_also_come_by_the_topic(desk: Desk) -> None:
    desk.scene.secrets.text = json.dumps({"whatsapp": {"accounts": {NUMBER: {"secret": "its own"}}}})
    assert desk.deliver(notification(entry("Hey"))) == []
    assert desk.texts() == ["Hey"]


def test_the_queues_are_called_as_sqs_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from message_buffer.aws import clients  # noqa: PLC0415

    calls: list[tuple[str, Json]] = []

    class Sqs:
        def __getattr__(self, name: str) -> Any:
            return lambda **arguments: calls.append((name, arguments))

    monkeypatch.setattr(clients, "client", lambda _service: Sqs())
    queues, receipt = WebhookQueues("the queue", "the other"), Receipt("n0", "handle", "body", 1)
    queues.pause(receipt, seconds=7)
    queues.put_aside(receipt, problem="unreadable")
    problem = {"problem": {"DataType": "String", "StringValue": "unreadable"}}
    assert calls == [
        ("change_message_visibility", {"QueueUrl": "the queue", "ReceiptHandle": "handle", "VisibilityTimeout": 7}),
        ("send_message", {"QueueUrl": "the other", "MessageBody": "body", "MessageAttributes": problem}),
    ]


def test_an_entry_that_is_nested_too_deeply_to_be_written_again_is_put_aside(desk: Desk) -> None:
    # The parser accepts a few more levels than can be written; how many depends on Python's version.
    levels = range(700, 1_000)
    bodies = [notification('{"changes":' + "[" * each + "]" * each + "}") for each in levels]
    assert desk.deliver(*bodies, notification(entry("Hey"))) == []
    assert f"n{len(levels) - 1}" in desk.queues.aside
    assert desk.texts() == ["Hey"]


def test_an_account_over_its_quota_is_taken_later(fake: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(Scene(fake, monkeypatch, quota=Quota(messages_per_minute=6, conversations_per_minute=6)), monkeypatch)
    desk.scene.rules.write(f"account:whatsapp/{NUMBER}", {"quota": {"messagesPerMinute": 1}})
    assert desk.deliver(notification(entry("one")), notification(entry("two"))) == ["n1"]
    assert desk.queues.pauses["n1"] >= 30
    fake.clock.advance(60_000)
    assert desk.deliver(notification(entry("two")), deliveries=2) == []
    assert desk.texts() == ["one", "two"]


def test_an_unforeseen_error_holds_up_no_other_webhook(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(desk, monkeypatch, RuntimeError("a bug"), on="wamid.Hey")
    assert desk.deliver(notification(entry("Hey")), notification(entry("Hello"))) == ["n0"]
    assert (desk.texts(), desk.queues.aside) == (["Hello"], {})
    assert desk.scene.telemetry.counts["Crashes"] == 1
