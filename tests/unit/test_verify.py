"""`bufferctl verify` says how a trial ended: also if a message is refused, or if the webhook stops answering."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bufferctl import verify
from bufferctl.__main__ import main, make_parser
from bufferctl.errors import Failed
from bufferctl.load import LoadPlan, LoadResult
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

    client = SimpleNamespace(list_queues=lambda **_: {})
    stage = StageClient("https://api", "bus", "admin", lambda: None, lambda: "s3cret", lambda _: client)
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


def failed(out: str) -> list[str]:
    return [line.partition("  ")[0] for line in out.splitlines() if "FAILED" in line]


def test_a_trial_that_passes_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert (code, failed(out)) == (0, []), out
    assert out.splitlines()[-1] == "All 8 checks passed, so this stage works."


@pytest.mark.parametrize(
    ("refused", "rows", "failures"),
    [
        ("first", 2, ["the first event"]),
        ("five", 7, ["five fragments"]),
        ("edit", 8, ["an edit"]),
        ("large", 8, ["a batch of 300 KB"]),
        ("fallback", 8, ["the fallback"]),
    ],
)
def test_a_refused_message_is_a_failed_check_in_the_table(
    fake: FakeStage, capsys: pytest.CaptureFixture[str], refused: str, rows: int, failures: list[str]
) -> None:
    fake.answers[refused] = 503
    code, out, err = run(capsys)
    assert (code, failed(out), len(out.splitlines())) == (5, failures, 1 + rows)
    assert "FAILED: a message was refused: the webhook answers 503: no" in out
    assert f"1 of {rows} checks failed. `make doctor STAGE=prod` may say why." in err
    assert "passed" not in out


def test_a_webhook_that_stops_answering_leaves_a_table_and_a_hint(
    fake: FakeStage, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.silent = "edit"
    code, out, err = run(capsys)
    assert (code, [line.partition("  ")[0] for line in out.splitlines()]) == (
        3, ["check", "a wrong signature", "the first event"],
    )  # fmt: skip
    assert "The webhook cannot be reached: no route. `make doctor STAGE=prod` may say why." in err
    assert "passed" not in out


def test_what_could_not_be_erased_is_named_with_commands_that_a_shell_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> Json:
        raise Failed("Valkey cannot be reached.")

    monkeypatch.setattr(verify, "erase", unreachable)
    _, _, err = run(capsys)
    commands = [line.strip() for line in err.splitlines() if line.startswith("  ")]
    assert all(each.startswith(".venv/bin/python -m bufferctl --stage prod ") for each in commands)
    assert len(commands) == 2
    for each in commands:
        make_parser().parse_args(each.split()[3:])


def test_a_message_lost_under_load_fails_the_trial_and_its_conversations_are_erased(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    erased = list[str]()

    class LossyLoad:
        names = frozenset({"load-0"})

        def __init__(self, *_: Any) -> None: ...

        def run(self, plan: LoadPlan, _say: Any) -> LoadResult:
            return LoadResult(accepted=plan.turns, conversations=1, late_ms=[7], lost=1)

    monkeypatch.setattr(verify, "Load", LossyLoad)

    def erase(_: StageClient, conversation: str) -> Json:
        erased.append(conversation)
        return {"againInMs": None}

    monkeypatch.setattr(verify, "erase", erase)
    code, out, err = run(capsys, "--load", "10/s", "--for", "1m")
    assert (code, failed(out)) == (5, [])
    assert "sends 600 messages of 120 batches in 60 s" in err.splitlines()[1]
    assert "Under load: 1 message lost." in err
    assert "passed" not in out
    assert any(name.endswith("-load-0") for name in erased)
