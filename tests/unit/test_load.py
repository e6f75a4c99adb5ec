"""`bufferctl verify --load` sends at its rate, and says what was late, lost, emitted twice or out of order."""

import json
from typing import Any

import pytest

from bufferctl import load
from bufferctl.__main__ import make_parser
from bufferctl.errors import Misused
from bufferctl.load import Emitted, Load, LoadPlan, LoadResult, cost_of, judge_load
from lambdas.canary.burst import BATCH_READY, Burst, Fragment
from lambdas.canary.listening import ArrivedEvent
from lambdas.canary.webhook import GenericWebhook, WebhookResponse
from message_buffer.json_object import Json

DUE_MS = 1_700_000_000_000
WEBHOOK = GenericWebhook("https://api", "s3cret")
CONVERSATION = Burst(WEBHOOK, "verify", "c").conversation


def burst(*ids: str, due_at_ms: int = DUE_MS) -> Burst:
    return Burst(WEBHOOK, "verify", "c", [Fragment(each, due_at_ms, 1, 1.0) for each in ids])


def batch(name: str, *ids: str, at_ms: int = DUE_MS + 9) -> Emitted:
    return Emitted(CONVERSATION, name, ids, at_ms)


def counts(found: LoadResult) -> tuple[int, int, int]:
    return found.lost, found.emitted_twice, found.reordered


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
        ([Emitted("another", "1", ["a", "b", "c"], DUE_MS)], (3, 0, 0)),
    ],
    ids=[
        "right", "two batches", "an event delivered twice", "a message without an answer", "no event", "one lost",
        "one in two batches", "out of order", "batches out of order", "in another conversation",
    ],
)  # fmt: skip
def test_a_load_counts_what_was_lost_doubled_or_reordered(
    emitted: list[Emitted], expected: tuple[int, int, int]
) -> None:
    assert counts(judge_load([burst("a"), burst("b", "c")], emitted)) == expected


def test_a_batch_is_late_from_the_due_time_of_its_newest_message() -> None:
    bursts = [burst("a", due_at_ms=DUE_MS), burst("b", due_at_ms=DUE_MS + 5_000)]
    found = judge_load(bursts, [batch("1", "a", at_ms=DUE_MS + 30), batch("2", "b", at_ms=DUE_MS + 5_070)])
    assert found.late_ms == [30, 70]
    assert found.lateness_ms == {"median": 50, "p95": 68, "p99": 70, "max": 70}


def test_what_should_not_have_happened_is_one_text() -> None:
    found = judge_load([burst("a", "b")], [])
    found.not_accepted["the webhook answers 503"] = 1
    assert found.faults == "2 messages lost, 1 message not accepted"
    assert "1 x the webhook answers 503" in str(found.block)
    assert not judge_load([burst("a")], [batch("1", "a")]).faults


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
            messages = [{"id": each} for each in self._waiting.pop(name)]
            detail = {"conversationId": name, "batchId": message["id"], "messages": messages}
            self._arrivals.append(ArrivedEvent({"detail-type": BATCH_READY, "detail": detail}, DUE_MS + 9))
        return WebhookResponse(200, json.dumps(answer))

    def poll(self, *, wait_seconds: int) -> list[ArrivedEvent]:
        arrived, self._arrivals = self._arrivals, []
        return arrived

    def burst(self, name: str) -> Burst:
        webhook: Any = self
        return Burst(webhook, "verify", name)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "LOAD_PAUSE_SECONDS", 0)
    monkeypatch.setattr(load, "MAX_SECOND_EVENT_SECONDS", 0)


def test_a_run_sends_its_messages_and_uses_conversations_again() -> None:
    stage = FakeStage()
    run = Load(stage.burst, stage.poll)
    found = run.run(LoadPlan(100, 0.5), lambda _: None)
    assert (found.accepted, len(found.late_ms), counts(found)) == (50, 10, (0, 0, 0))
    assert set(found.late_ms) == {9}
    assert len(run.names) == found.conversations < 10


def test_a_refused_message_is_counted_by_its_reason_and_not_as_lost() -> None:
    stage = FakeStage(refused="-1")
    found = Load(stage.burst, stage.poll).run(LoadPlan(100, 0.1), lambda _: None)
    assert (found.accepted, dict(found.not_accepted), counts(found)) == (8, {"the webhook answers 503": 2}, (0, 0, 0))


def test_a_listener_that_fails_ends_the_run() -> None:
    def refused(*, wait_seconds: int) -> list[ArrivedEvent]:
        raise PermissionError("AccessDenied")

    with pytest.raises(PermissionError):
        Load(FakeStage().burst, refused).run(LoadPlan(20, 60), lambda _: None)


def test_a_run_says_first_what_it_sends_and_costs() -> None:
    plan = LoadPlan(50, 600)
    dollars = cost_of(plan, "dev")
    assert dollars is not None
    assert 0.05 < dollars < 1
    assert f"30,000 messages of 6,000 batches in 600 s, for about ${dollars:.2f}" in plan.announcement("dev")
    assert "for about $0.00" in plan.announcement("local")
    assert "at an unknown cost" in plan.announcement("of-another-clone")


@pytest.mark.parametrize(("words", "expected"), [("50/s", (50, 60)), ("30/m --for 10m", (0.5, 600))])
def test_a_rate_and_a_time_are_read(words: str, expected: tuple[float, float]) -> None:
    given = make_parser().parse_args(["verify", "--load", *words.split()])
    assert (given.load, given.load_seconds) == expected


@pytest.mark.parametrize("words", ["0/s", "101/s", "50", "-1/s", "5/h", "1/s --for 2h", "1/s --for 0s"])
def test_a_rate_or_a_time_beyond_the_bounds_is_refused(words: str) -> None:
    with pytest.raises(Misused):
        make_parser().parse_args(["verify", "--load", *words.split()])
