"""`bufferctl verify --load` sends at its rate, and says what was late, lost, emitted twice or out of order."""

import json
from typing import Any

import pytest

from bufferctl import load
from bufferctl.errors import Misused
from bufferctl.load import LoadPlan, faults_of, judge_load, plan_of, run_load
from lambdas.canary.burst import BATCH_READY, Burst, Fragment
from lambdas.canary.listening import ArrivedEvent
from lambdas.canary.webhook import GenericWebhook, WebhookResponse
from message_buffer.json_object import Json

DUE_MS = 1_700_000_000_000
WEBHOOK = GenericWebhook("https://api", "s3cret")
CONVERSATION = Burst(WEBHOOK, "verify", "c").conversation


def burst(*ids: str, due_at_ms: int = DUE_MS) -> Burst:
    return Burst(WEBHOOK, "verify", "c", [Fragment(each, due_at_ms, 1) for each in ids])


def batch(name: str, *ids: str, at_ms: int = DUE_MS + 9, conversation: str = CONVERSATION) -> ArrivedEvent:
    detail = {"conversationId": conversation, "batchId": name, "messages": [{"id": each} for each in ids]}
    return ArrivedEvent({"detail-type": BATCH_READY, "detail": detail}, at_ms)


def counts(found: Json) -> tuple[int, int, int]:
    return found["lost"], found["emittedTwice"], found["reordered"]


@pytest.mark.parametrize(
    ("emitted", "expected"),
    [
        ([batch("1", "a", "b", "c")], (0, 0, 0)),
        ([batch("1", "a", "b"), batch("2", "c", at_ms=DUE_MS + 10)], (0, 0, 0)),
        ([batch("1", "a", "b", "c"), batch("1", "a", "b", "c")], (0, 0, 0)),
        ([batch("1", "a", "b", "unanswered", "c")], (0, 0, 0)),
        ([], (3, 0, 0)),
        ([batch("1", "a", "c")], (1, 0, 0)),
        ([batch("1", "a", "b", "c"), batch("2", "b", at_ms=DUE_MS + 10)], (0, 1, 0)),
        ([batch("1", "a", "c", "b")], (0, 0, 1)),
        ([batch("1", "a", "b", at_ms=DUE_MS + 10), batch("2", "c")], (0, 0, 2)),
        ([batch("1", "a", "b", "c", conversation="another")], (3, 0, 0)),
    ],
    ids=[
        "right", "two batches", "an event delivered twice", "a message without an answer", "no event", "one lost",
        "one in two batches", "out of order", "batches out of order", "in another conversation",
    ],
)  # fmt: skip
def test_a_load_counts_what_was_lost_doubled_or_reordered(
    emitted: list[ArrivedEvent], expected: tuple[int, int, int]
) -> None:
    assert counts(judge_load([burst("a", "b", "c")], emitted)) == expected


def test_a_batch_is_late_from_the_due_time_of_its_newest_message() -> None:
    sent = burst("a", "b")
    sent.fragments += burst("c", due_at_ms=DUE_MS + 5_000).fragments
    found = judge_load([sent], [batch("1", "a", "b", at_ms=DUE_MS + 30), batch("2", "c", at_ms=DUE_MS + 5_070)])
    assert found["latenessMs"] == {"median": 50, "p95": 68, "p99": 70, "max": 70}


def test_what_should_not_have_happened_is_one_text() -> None:
    found = judge_load([burst("a", "b")], []) | {"notAccepted": {"the webhook answers 503": 1}}
    assert faults_of(found) == "2 messages lost, 1 message not accepted"
    assert not faults_of(judge_load([burst("a")], [batch("1", "a")]) | {"notAccepted": {}})


class FakeStage:
    """Emits each conversation's messages when the last fragment has arrived, and refuses what `refused` says."""

    def __init__(self, refused: str = "none") -> None:
        self.refused = refused
        self._waiting: dict[str, list[str]] = {}
        self._arrivals: list[ArrivedEvent] = []

    def post(self, message: Json) -> WebhookResponse:
        if message["id"].endswith(self.refused):
            return WebhookResponse(503, "no")
        name = f"{message['tenant']}/generic/{message['account']}/{message['conversation']}"
        waiting = self._waiting.setdefault(name, [])
        waiting.append(message["id"])
        answer = {"conversations": {name: {"dueAt": DUE_MS, "count": len(waiting)}}}
        if message["id"].endswith(f"-{load.LOAD_FRAGMENTS - 1}"):
            self._arrivals.append(batch(message["id"], *self._waiting.pop(name), conversation=name))
        return WebhookResponse(200, json.dumps(answer))

    def poll(self, *, wait_seconds: int) -> list[ArrivedEvent]:
        arrived, self._arrivals = self._arrivals, []
        return arrived

    def run(self, plan: LoadPlan) -> Json:
        webhook: Any = self
        bursts = [Burst(webhook, "verify", name) for name in plan.names]
        return run_load(plan, bursts, self.poll, lambda _: None)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LOAD_PAUSE_SECONDS", 0)
    monkeypatch.setattr(load, "MAX_SECOND_EVENT_SECONDS", 0)


def test_a_run_sends_its_messages_and_uses_conversations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "TURN_SECONDS", 0.25)
    found = FakeStage().run(LoadPlan(100, 0.5))
    assert (found["accepted"], found["batches"], found["conversations"], counts(found)) == (50, 10, 5, (0, 0, 0))
    assert found["latenessMs"]["max"] == 9


def test_a_refused_message_is_counted_by_its_reason_and_not_as_lost() -> None:
    found = FakeStage(refused="-1").run(LoadPlan(100, 0.1))
    assert (found["accepted"], found["notAccepted"], counts(found)) == (8, {"the webhook answers 503": 2}, (0, 0, 0))


def test_a_listener_that_fails_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*, wait_seconds: int) -> list[ArrivedEvent]:
        raise PermissionError("AccessDenied")

    stage = FakeStage()
    monkeypatch.setattr(stage, "poll", refused)
    with pytest.raises(PermissionError):
        stage.run(LoadPlan(20, 60))


def test_a_run_says_first_what_it_sends_and_costs() -> None:
    plan = LoadPlan(50, 600)
    dollars = plan.cost_on("dev")
    assert dollars is not None
    assert 0.05 < dollars < 1
    assert f"30,000 messages of 6,000 batches in 600 s, for about ${dollars:.2f}" in plan.announcement("dev")
    assert (plan.cost_on("local"), plan.cost_on("of-another-clone")) == (0.0, None)


@pytest.mark.parametrize(("rate", "expected"), [("50/s", 50), ("30/m", 0.5), ("100/s", 100)])
def test_a_rate_is_read(rate: str, expected: float) -> None:
    assert plan_of(rate, 60_000) == (expected, 60)


@pytest.mark.parametrize(("rate", "hours"), [("0/s", 1), ("101/s", 1), ("50", 1), ("-1/s", 1), ("5/h", 1), ("1/s", 2)])
def test_a_rate_or_a_time_beyond_the_bounds_is_refused(rate: str, hours: int) -> None:
    with pytest.raises(Misused):
        plan_of(rate, hours * 3_600_000)
