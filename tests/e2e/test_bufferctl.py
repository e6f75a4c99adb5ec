"""Every command once, as an operator types it, on the local stage."""

import io
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bufferctl.__main__ import main
from bufferctl.events import ArrivedEvent
from message_buffer.json_object import Json
from tests.support.judge import ids_of
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]

LIVE_SECONDS = 10.0
# Longer than any machine needs to look at a held conversation, or at one that is not yet due.
LONG_MS = 60_000


class Operator:
    def __init__(self, stage: LocalStage, capsys: pytest.CaptureFixture[str]) -> None:
        self.stage = stage
        self.user = f"u-{uuid.uuid4().hex[:12]}"
        self.conversation = f"default/generic/bufferctl/{self.user}"
        self.outputs = ["--outputs", str(stage.stage.outputs_file)]
        self._capsys = capsys

    def types(self, *words: str, code: int = 0) -> str:
        """Run a command and return what a person sees: its output, or its error if it ends with `code`."""
        self._capsys.readouterr()
        ended = main([*self.outputs, *words])
        captured = self._capsys.readouterr()
        assert ended == code, captured.err
        return captured.err if code else captured.out

    def asks(self, *words: str) -> Json:
        """Run a command with `--json` and return its result."""
        answer: Json = json.loads(self.types(*words, "--json"))
        return answer

    def sends(self, text: str = "Hey") -> Json:
        """Send a message and return the conversation's state from the answer."""
        answer = self.asks("send", text, "--user", self.user)
        state: Json = answer["conversations"][self.conversation]
        return state

    def sees(self, *, after: int = 0, timeout_seconds: float = 20.0) -> ArrivedEvent:
        """Return the conversation's first batch after so many others. It may have come already; if not, wait for it."""
        assert self.stage.inbox.wait_until(lambda _: len(self.batches()) > after, timeout_seconds=timeout_seconds)
        return self.batches()[after]

    def batches(self) -> list[ArrivedEvent]:
        arrivals = self.stage.inbox.arrivals
        return [arrival for arrival in arrivals if arrival.batch["conversationId"] == self.conversation]


@pytest.fixture
def operator(stage: LocalStage, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(stage, capsys)


@contextmanager
def tailing(operator: Operator, *, count: int) -> Iterator[Callable[[], list[Json]]]:
    """Run `bufferctl tail` beside the block; yield a call that waits for `count` events and returns them."""
    arguments = ["tail", "--json", "--count", str(count), "--seconds", "30", "--conversation", operator.conversation]
    process = subprocess.Popen(
        [sys.executable, "-m", "bufferctl", *operator.outputs, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr
        assert "Listening" in process.stderr.readline()
        yield lambda: [json.loads(line) for line in process.communicate(timeout=40)[0].splitlines()]
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_a_held_conversation_is_looked_at_and_resumed(operator: Operator) -> None:
    held = operator.asks("conversation", "hold", operator.conversation, "--for", "1m")
    operator.sends("what I wrote")
    shown = operator.asks("conversation", "show", operator.conversation)
    assert (shown["state"], shown["count"], shown["heldUntil"]) == ("pending", 1, held["heldUntil"])
    assert "what I wrote" not in operator.types("conversation", "show", operator.conversation)
    assert "what I wrote" in operator.types("conversation", "show", operator.conversation, "--messages")
    assert operator.asks("status")["pending"] >= 1
    assert "nextDueAt" in operator.types("status")
    operator.types("conversation", "resume", operator.conversation)
    assert operator.sees().batch["flushReason"] == "resume"
    operator.types("conversation", "resume", operator.conversation, code=4)


def test_waiting_messages_are_flushed_or_cancelled_and_both_are_published(operator: Operator) -> None:
    with tailing(operator, count=2) as events:
        operator.types("conversation", "hold", operator.conversation)
        operator.sends()
        assert operator.asks("conversation", "flush", operator.conversation)["count"] == 1
        assert operator.sees().batch["flushReason"] == "flush"
        operator.sends()
        operator.sends()
        assert operator.asks("conversation", "cancel", operator.conversation, "--yes")["dropped"] == 2
        flushed, cancelled = events()
    assert flushed["detail-type"] == "messages.batch.ready"
    assert (cancelled["detail-type"], cancelled["detail"]["reason"]) == ("messages.buffer.cancelled", "operator")
    assert cancelled["detail"]["generation"] > flushed["detail"]["generation"]
    rules = operator.stage.outputs.client("events").list_rules(EventBusName=operator.stage.outputs.EventBusName)
    assert not [rule for rule in rules["Rules"] if "bufferctl" in rule["Name"]], "nothing is left behind"
    operator.types("conversation", "flush", operator.conversation, code=4)


@pytest.mark.case(32)
def test_rules_are_live_within_ten_seconds_and_for_open_buffers_at_once(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = f"conversation:{operator.conversation}"
    operator.sends()
    operator.types("rules", "set", scope, json.dumps({"silenceMs": LONG_MS, "maxWaitMs": 2 * LONG_MS}))
    set_at = time.monotonic()
    while operator.sends()["dueAt"] < time.time() * 1_000 + LONG_MS / 2:
        assert time.monotonic() < set_at + LIVE_SECONDS
        time.sleep(0.2)
    explained = operator.asks("rules", "explain", operator.conversation)["rules"]["silenceMs"]
    stored = operator.asks("rules", "get", scope)
    assert explained == {"value": LONG_MS, "layer": scope, "via": "set here", "version": stored["version"]}
    assert scope in operator.types("rules", "list", "conversation:")
    assert scope in operator.types("rules", "explain", operator.conversation)

    refused = operator.types("rules", "set", scope, '{"maxWaitMs": 10, "silenceMs": 2000}', code=1)
    assert "silenceMs: 2000 is not below maxWaitMs" in refused
    stale = ["--expected-version", str(stored["version"] - 1)]
    operator.types("rules", "delete", scope, *stale, code=1)
    earlier = len(operator.batches())
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"silenceMs": 100, "typingInferenceMs": 0}'))
    assert operator.asks("rules", "set", scope, "-")["open"] == {"looked": 1, "retimed": 1, "complete": True}
    operator.sees(after=earlier)
    operator.types("rules", "delete", scope)
    operator.types("rules", "get", scope, code=4)


@pytest.mark.case(30)
def test_a_dead_batch_is_found_and_sent_again_under_its_batch_id(operator: Operator) -> None:
    message_id = f"m-{uuid.uuid4().hex}"
    with operator.stage.denied("conversation_processor", "events:PutEvents"):
        operator.asks("send", "what I wrote", "--user", operator.user, "--id", message_id)
        letter = wait_for_letter(lambda: operator.asks("dead", "list"), operator.conversation)
        assert letter["reason"] == "put event: AccessDeniedException"
        assert operator.types("dead", "redrive", letter["batchId"], code=1) == "1 of 1 were not sent again.\n"
    assert letter["batchId"] in operator.types("dead", "list")
    assert "what I wrote" not in operator.types("dead", "show", letter["batchId"])
    assert "what I wrote" in operator.types("dead", "show", letter["batchId"], "--payloads")
    assert operator.asks("dead", "redrive", "--all", "--yes")["redriven"] == [letter["batchId"]]
    assert operator.stage.inbox.wait_until(lambda _: bool(operator.batches()), timeout_seconds=10)
    (batch,) = operator.batches()
    assert (batch.batch["batchId"], ids_of(batch)) == (letter["batchId"], [message_id])
    assert operator.asks("dead", "list")["letters"] == []


def wait_for_letter(list_letters: Callable[[], Json], conversation: str) -> Json:
    """Return the dead letter of a conversation, once it is listed."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for letter in list_letters()["letters"]:
            if letter["conversationId"] == conversation:
                return dict(letter)
        time.sleep(0.5)
    raise AssertionError("no dead letter came")
