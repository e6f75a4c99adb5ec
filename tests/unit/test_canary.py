"""The canary judges its burst of messages as `bufferctl verify` does, and counts failures and lateness."""

import json
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas.canary import handler
from lambdas.canary.burst import Burst
from lambdas.canary.listening import ArrivedEvent, Subscription
from lambdas.canary.service import Canary
from lambdas.canary.webhook import GenericWebhook, WebhookResponse, WebhookUnreachable, generic_secret
from lambdas.ingest.report import Done, report
from message_buffer.lanes import outcomes as o
from message_buffer.messages.conversation_id import TRIAL_TENANT, ConversationId, is_trial
from message_buffer.settings import CanarySettings, LogSettings
from tests.support.fakes import RecordedTelemetry

NOW_MS = 1_700_000_100_000
DUE_MS = NOW_MS + 1_000
CONVERSATION = f"{TRIAL_TENANT}/generic/canary/7"


class FakeWebhook(GenericWebhook):
    """Answers as ingest does. `counts` are the numbers of waiting messages in its answers, one for each post."""

    def __init__(self, counts: Sequence[int] = (1, 2, 3), status: int = 200) -> None:
        super().__init__("https://nobody.example", "secret")
        self.posted: list[Any] = []
        self._counts = list(counts)
        self._status = status

    def post(self, messages: Any) -> WebhookResponse:
        self.posted.append(messages)
        if not self._counts:
            raise WebhookUnreachable("The webhook cannot be reached: no route")
        named = messages if isinstance(messages, dict) else messages[0]
        conversation = f"{named['tenant']}/generic/{named['account']}/{named['conversation']}"
        waits = {"dueAt": DUE_MS, "count": self._counts.pop(0)}
        return WebhookResponse(self._status, json.dumps({"conversations": {conversation: waits}, "error": "no"}))


class Bus(Subscription):
    """Delivers one batch for each list of ids."""

    def __init__(self, *batches: list[str], at_ms: int = DUE_MS + 40) -> None:
        super().__init__(None, "queue")
        self._arrivals = [arrival(ids, f"b{place}", at_ms=at_ms) for place, ids in enumerate(batches)]

    def poll(self, *, wait_seconds: int) -> list[ArrivedEvent]:
        arrived, self._arrivals = self._arrivals, []
        return arrived


def arrival(ids: list[str], batch_id: str, *, at_ms: int = DUE_MS, conversation: str = CONVERSATION) -> ArrivedEvent:
    detail = {"conversationId": conversation, "batchId": batch_id, "messages": [{"id": each} for each in ids]}
    return ArrivedEvent({"detail-type": "messages.batch.ready", "detail": detail}, at_ms)


def sent(*counts: int) -> Burst:
    burst = Burst(FakeWebhook(counts), "canary", "7")
    for number in range(len(counts)):
        burst.send(f"m{number}", "Hey")
    return burst


def run(bus: Bus, webhook: FakeWebhook | None = None) -> RecordedTelemetry:
    telemetry = RecordedTelemetry()
    clock = lambda: 7 * 300_000  # noqa: E731
    canary = Canary(webhook or FakeWebhook(), bus, telemetry, clock=clock)
    canary.run("r", lambda: 5_050)
    return telemetry


def test_one_batch_with_all_fragments_in_order_is_right() -> None:
    burst = sent(1, 2, 3)
    arrivals = [arrival(["m0", "m1", "m2"], "b", at_ms=DUE_MS + 40)]
    assert burst.problem(arrivals) is None
    assert burst.late_ms(arrivals) == 40


@pytest.mark.parametrize(
    "batches", [[], [["m0", "m1"]], [["m0", "m1"], ["m2"]], [["m1", "m0", "m2"]], [["m0", "m1", "m2"], ["m2"]]]
)
def test_a_missing_split_disordered_or_doubled_batch_is_wrong(batches: list[list[str]]) -> None:
    arrivals = [arrival(ids, f"b{place}") for place, ids in enumerate(batches)]
    assert sent(1, 2, 3).problem(arrivals)


def test_two_batches_are_right_if_the_webhook_said_that_the_second_fragment_began_a_buffer() -> None:
    burst = sent(1, 1, 2)
    assert burst.expected == [["m0"], ["m1", "m2"]]
    assert burst.problem([arrival(["m0"], "b1"), arrival(["m1", "m2"], "b2")]) is None
    assert burst.problem([arrival(["m0", "m1", "m2"], "b1")])


def test_an_event_that_the_bus_delivers_again_and_events_of_others_change_nothing() -> None:
    right = arrival(["m0"], "b")
    other = arrival(["m0"], "c", conversation=f"{TRIAL_TENANT}/generic/canary/8")
    assert sent(1).problem([right, right, other, arrival(["of an earlier run"], "d")]) is None


def test_a_batch_that_is_too_large_for_an_event_is_fetched() -> None:
    large = arrival([], "b")
    large.batch["messagesRef"] = {"key": "k"}
    assert sent(1).problem([large], fetch=lambda reference: [{"id": "m0"}] if reference == {"key": "k"} else []) is None


def test_the_canary_publishes_how_late_its_batch_is() -> None:
    telemetry = run(Bus(["r-0", "r-1", "r-2"]))
    assert telemetry.counts == {"CanaryLatenessMs": 40}


def test_a_batch_that_is_too_late_is_a_failure() -> None:
    telemetry = run(Bus(["r-0", "r-1", "r-2"], at_ms=DUE_MS + 15_001))
    assert telemetry.counts == {"CanaryLatenessMs": 15_001, "CanaryFailures": 1}


@pytest.mark.parametrize(
    ("bus", "webhook"),
    [
        (Bus(), None),
        (Bus(["r-0"], ["r-1", "r-2"]), None),
        (Bus(), FakeWebhook([])),
        (Bus(), FakeWebhook([1], status=503)),
    ],
)
def test_the_canary_counts_each_way_to_fail(bus: Bus, webhook: FakeWebhook | None) -> None:
    telemetry = run(bus, webhook)
    assert telemetry.counts == {"CanaryFailures": 1}


@pytest.mark.parametrize(
    ("secrets", "secret"),
    [
        ('{"generic": "s"}', "s"),
        ('{"generic": {"secret": ["new", "old"]}}', "new"),
        ('{"generic": {"secret": []}}', None),
        ('{"whatsapp": "s"}', None),
        ("no JSON", None),
        ("[]", None),
    ],
)
def test_the_secret_of_the_generic_webhook_is_found(secrets: str, secret: str | None) -> None:
    assert generic_secret(secrets) == secret


def test_a_canary_without_its_secret_fails_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = RecordedTelemetry()
    settings = CanarySettings(LogSettings(), api_endpoint="x", webhook_secret_id="x", queue_url="x")
    monkeypatch.setattr(handler, "_parts", lambda: (settings, telemetry))
    monkeypatch.setattr("lambdas.canary.handler.Secrets.read", lambda *_: "{}")
    with pytest.raises(Exception, match="no secret for the generic webhook"):
        handler.handler({"id": "e"}, SimpleNamespace())


def test_the_messages_of_trials_are_not_counted() -> None:
    def reported(*tenants: str) -> dict[str, int]:
        telemetry, done = RecordedTelemetry(), Done(counts=Counter(accepted=1))
        for tenant in tenants:
            conversation = ConversationId(tenant, "generic", "shop", "c1")
            done.note_wait(conversation, o.MessageDuplicate(None, 0))
        report(telemetry, "generic", done)
        return dict(telemetry.counts)

    assert reported(TRIAL_TENANT) == {}
    assert reported(TRIAL_TENANT, "acme") == reported("acme") == {"Messages": 1}
    assert not is_trial(f"{TRIAL_TENANT}-of-another/generic/shop/c1")
