"""`bufferctl verify` says how a trial ended: also if a message is refused, or if the webhook stops answering."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bufferctl import verify
from bufferctl.__main__ import main
from bufferctl.errors import Failed
from bufferctl.load import LoadPlan
from bufferctl.stage import StageClient
from lambdas.canary.burst import BATCH_READY
from lambdas.canary.listening import ArrivedEvent
from lambdas.canary.webhook import WebhookResponse
from lambdas.canary.webhook import WebhookUnreachable as NoAnswer
from message_buffer.json_object import Json

DUE_MS = 1_700_000_000_000


class FakeStage:
    """A stage whose webhook and bus work, except for the conversations in `answers` or `silent`."""

    def __init__(self) -> None:
        self.answers: dict[str, int] = {}
        """The status of the answers to a conversation, by the end of its name."""
        self.silent: str | None = None
        self.edits = True
        self._texts: dict[str, dict[str, str]] = {}
        self._arrivals: list[ArrivedEvent] = []

    def post(self, secret: str, messages: Any) -> WebhookResponse:
        listed: list[Json] = [messages] if isinstance(messages, dict) else list(messages)
        first = listed[0]
        name = first["conversation"].partition("-")[2]
        if secret.startswith("not "):
            return WebhookResponse(401, "{}")
        if name == self.silent:
            raise NoAnswer("The webhook cannot be reached: no route")
        if name in self.answers:
            return WebhookResponse(self.answers[name], "no")
        conversation = f"{first['tenant']}/generic/{first['account']}/{first['conversation']}"
        known = self._texts.setdefault(conversation, {})
        duplicates = sum(each["id"] in known and not each.get("edited") for each in listed)
        for each in listed:
            if self.edits or not each.get("edited"):
                known[each["id"]] = each["text"]
        if listed[-1]["text"] == verify.STOP_WORD:
            self._publish(conversation, verify.CANCELLED, dropped=1)
        elif not duplicates:
            self._publish(
                conversation, BATCH_READY, batchId=conversation,
                lane="dynamodb" if name == "fallback" else "valkey",
                messages=[{"id": message_id, "text": text} for message_id, text in known.items()],
            )  # fmt: skip
        counts = {"duplicates": duplicates, "accepted": len(listed) - duplicates}
        waits = {conversation: {"dueAt": DUE_MS, "count": len(known)}}
        return WebhookResponse(200, json.dumps(counts | {"conversations": waits}))

    def _publish(self, conversation: str, detail_type: str, **detail: Any) -> None:
        # The last event of a conversation replaces the earlier ones, because its batch contains their messages.
        self._arrivals = [each for each in self._arrivals if each.batch["conversationId"] != conversation]
        event = {"detail-type": detail_type, "detail": {"conversationId": conversation, **detail}}
        self._arrivals.append(ArrivedEvent(event, DUE_MS + 9))

    def poll(self, *, wait_seconds: int) -> list[ArrivedEvent]:
        arrived, self._arrivals = self._arrivals, []
        return arrived


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeStage:
    made = FakeStage()
    clock = {"now": 0.0}

    def pass_by(seconds: float) -> None:
        clock["now"] += seconds

    def monotonic() -> float:
        clock["now"] += 0.1
        return clock["now"]

    @contextmanager
    def subscribed(*_: Any, **__: Any) -> Iterator[FakeStage]:
        yield made

    def webhook(_url: str, secret: str) -> Any:
        return SimpleNamespace(post=lambda messages: made.post(secret, messages))

    secrets = {"SecretString": '{"generic": "s3cret"}'}
    client = SimpleNamespace(list_queues=lambda **_: {}, get_secret_value=lambda **_: secrets)
    stage = StageClient("https://api", "bus", "admin", lambda: None, lambda: "secret", lambda _: client)
    monkeypatch.setattr(verify, "time", SimpleNamespace(sleep=pass_by, monotonic=monotonic, time=lambda: 0.0))
    monkeypatch.setattr(verify, "GenericWebhook", webhook)
    monkeypatch.setattr(verify, "subscribe", subscribed)
    monkeypatch.setattr(verify, "erase", lambda *_: {"againInMs": None})
    monkeypatch.setattr(StageClient, "ask", lambda *_, **__: {})
    monkeypatch.setattr("bufferctl.stage._find_in_aws", lambda *_, **__: stage)
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["--stage", "prod", "verify", "--fallback", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_trial_that_passes_shows_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--json")
    found = json.loads(out)
    assert (code, found["load"], [each["ok"] for each in found["checks"]]) == (0, None, [True] * 8)


@pytest.mark.parametrize(("refused", "rows"), [("first", 1), ("five", 2), ("fallback", 2)])
def test_a_refused_message_ends_the_trial_with_the_results_so_far(
    fake: FakeStage, capsys: pytest.CaptureFixture[str], refused: str, rows: int
) -> None:
    fake.answers[refused] = 503
    code, out, err = run(capsys, "--json")
    assert (code, len(json.loads(out)["checks"])) == (5, rows)
    assert "the webhook answers 503: no" in err
    assert "`make doctor STAGE=prod`" in err


def test_a_webhook_that_stops_answering_leaves_the_results_so_far(
    fake: FakeStage, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.silent = "edit"
    code, out, err = run(capsys, "--json")
    assert (code, len(json.loads(out)["checks"])) == (3, 2)
    assert "no route" in err


def test_a_failed_check_is_named(
    fake: FakeStage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "edits", False)
    code, out, err = run(capsys, "--json")
    assert (code, [each["check"] for each in json.loads(out)["checks"] if not each["ok"]]) == (5, ["an edit"])
    assert "an edit: the old text" in err


def test_what_could_not_be_erased_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any) -> Json:
        raise Failed("Valkey cannot be reached.")

    monkeypatch.setattr(verify, "erase", unreachable)
    _, _, err = run(capsys)
    assert "-first, and did not try the conversations after it: Valkey cannot be reached." in err
    assert "`bufferctl --stage prod conversation list --tenant " in err


def test_a_message_lost_under_load_fails_the_trial_and_its_conversations_are_erased(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = list[str]()

    def lossy(plan: LoadPlan, *_: Any) -> Json:
        return {"accepted": plan.turns, "lost": 1, "emittedTwice": 0, "reordered": 0, "notAccepted": {}}

    def erase(_: StageClient, conversation: str) -> Json:
        erased.append(conversation)
        return {"againInMs": None}

    monkeypatch.setattr(verify, "run_load", lossy)
    monkeypatch.setattr(verify, "erase", erase)
    code, out, err = run(capsys, "--load", "10/s", "--for", "1m")
    assert code == 5
    assert "600 messages of 120 batches in 60 s" in err
    assert "1 message lost" in err
    assert "passed" not in out
    assert any(name.endswith("-load-0") for name in erased)
