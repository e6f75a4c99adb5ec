"""The console says why each batch has left, with the rules that applied, and asks the stage for few of them."""

import json
from typing import Any

import pytest

from bufferctl.errors import Failed, Unreachable
from console.batches import Batches
from console.bus import Bus, Takers
from console.explained import Departures, Explained
from console.limits import EXPLANATIONS_KEPT, UNEXPLAINED_KEPT
from console.looks import now_ms
from console.time_lines import TimeLines

Json = dict[str, Any]
READY = "messages.batch.ready"
RULES = {
    "silenceMs": {"value": 1_000, "layer": "defaults"}, "typingInferenceMs": {"value": 3_000, "layer": "stage"},
}  # fmt: skip


class Stage:
    """Answers `rules.explain` and `conversation.show`, and notes what was asked."""

    def __init__(self) -> None:
        self.rules = RULES
        self.shown: Json = {"count": 0}
        self.asked: list[Json] = []
        self.is_away = False

    def ask(self, operation: str, **fields: Any) -> Json:
        if self.is_away:
            raise Unreachable("away")
        self.asked.append({"operation": operation, **fields})
        return {"rules": self.rules} if operation == "rules.explain" else self.shown

    look = ask


class Hub:
    def __init__(self) -> None:
        self.published: list[tuple[str, Json]] = []

    def publish(self, kind: str, data: Json) -> None:
        self.published.append((kind, json.loads(json.dumps(data))))


class Looks:
    def hurry(self) -> None:
        return


class Console:
    """The parts of the console that an event passes."""

    def __init__(self, *, words: bool = False) -> None:
        self.stage, self.hub, self.time_lines, self.batches = Stage(), Hub(), TimeLines(), Batches()
        stage: Any = self.stage
        hub: Any = self.hub
        self.explained = Explained(stage, self.time_lines, words=words)
        self.departures = Departures(
            stage, hub, explained=self.explained, time_lines=self.time_lines, batches=self.batches
        )
        looks: Any = Looks()
        takers = Takers(hub, looks, self.time_lines, self.batches, self.departures, lambda _kind, _detail: None)
        self.bus = Bus([], takers, words=False)

    def batch(self, name: str = "t/p/a/ada", *, batch_id: str = "b1", gap_ms: int = 400) -> None:
        """Let a batch of two messages leave, because of a short gap."""
        first_at_ms = now_ms() - 4_000
        last_at_ms = first_at_ms + gap_ms
        due_at_ms = last_at_ms + (3_000 if gap_ms < 1_000 else 1_000)
        messages = [
            {"id": str(at), "type": "text", "text": "a word", "receivedAt": at} for at in (first_at_ms, last_at_ms)
        ]
        self.bus.take(
            READY,
            {
                "conversationId": name, "batchId": batch_id, "messageCount": 2, "flushReason": "silence",
                "lane": "valkey", "attempt": 1, "messages": messages,
                "metadata": {
                    "firstMessageAt": first_at_ms, "lastMessageAt": last_at_ms, "waitMs": due_at_ms - first_at_ms,
                },
            },
            at_ms=now_ms(),
        )  # fmt: skip

    @property
    def causes(self) -> list[str | None]:
        """Return what the charts, the time line and the page's newest message say."""
        kind, data = self.hub.published[-1]
        cause = data["cause"]
        entry = self.time_lines.of("t/p/a/ada")[-1]["cause"]
        return [self.batches.all()[-1]["cause"], entry["label"], cause["label"], kind]

    @property
    def rules_asked(self) -> int:
        return sum(each["operation"] == "rules.explain" for each in self.stage.asked)


@pytest.fixture
def console() -> Console:
    return Console()


def test_a_batch_whose_rules_are_known_is_explained_at_once(console: Console) -> None:
    console.explained.rules("t/p/a/ada")
    console.batch()
    assert console.causes == ["a short gap", "a short gap", "a short gap", "event"]
    _, event = console.hub.published[-1]
    assert event["cause"]["rule"] == "typingInferenceMs"
    assert event["cause"]["text"]
    assert console.rules_asked == 1


def test_a_batch_whose_rules_are_not_known_is_explained_when_they_are(console: Console) -> None:
    console.batch()
    assert console.causes == ["silence", "silence", "silence", "event"]
    console.departures.explain()
    assert console.causes == ["a short gap", "a short gap", "a short gap", "cause"]


def test_the_rules_of_an_account_are_asked_once_for_all_its_conversations(console: Console) -> None:
    for number in range(20):
        console.batch(f"t/p/a/{number}", batch_id=f"b{number}")
    console.departures.explain()
    assert console.rules_asked == 1
    assert [each["cause"] for each in console.batches.all()] == ["a short gap"] * 20
    console.batch()
    assert console.causes[2:] == ["a short gap", "event"]
    console.batch("t/p/other/ada")
    assert console.hub.published[-1][1]["cause"]["label"] == "silence"


def test_rules_of_one_conversation_are_not_taken_for_those_of_its_account(console: Console) -> None:
    console.stage.rules = RULES | {"maxMessages": {"value": 5, "layer": "conversation:t/p/a/ada"}}
    console.batch("t/p/a/ada")
    console.departures.explain()
    console.batch("t/p/a/ben")
    assert console.hub.published[-1][1]["cause"]["label"] == "silence"


def test_rules_that_were_read_before_the_batch_waited_are_read_again(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.explained.rules("t/p/a/ada")
    console.batch("t/p/a/ben")
    console.departures.explain()
    monkeypatch.setattr("console.explained.time.monotonic", lambda: 1e9)
    console.batch()
    assert console.causes[2:] == ["silence", "event"]


def test_batches_that_wait_for_an_explanation_and_known_rules_are_bounded(console: Console) -> None:
    count = UNEXPLAINED_KEPT + 30
    for number in range(count):
        console.batch(f"t/p/{number}/ada", batch_id=f"b{number}")
    console.departures.explain()
    assert console.rules_asked == UNEXPLAINED_KEPT
    assert len(console.departures._rules_of_accounts) == EXPLANATIONS_KEPT
    assert [each["cause"] for each in console.batches.all()] == ["silence"] * 30 + ["a short gap"] * UNEXPLAINED_KEPT


def test_a_batch_is_explained_later_if_the_stage_does_not_answer(console: Console) -> None:
    console.batch()
    console.stage.is_away = True
    with pytest.raises(Failed):
        console.departures.explain()
    console.stage.is_away = False
    console.departures.explain()
    assert console.causes[2:] == ["a short gap", "cause"]


def test_a_cause_has_no_words_of_people(console: Console) -> None:
    console.explained.rules("t/p/a/ada")
    console.batch()
    assert "a word" not in repr(console.hub.published)
    assert "a word" not in repr(console.time_lines.of("t/p/a/ada"))


@pytest.mark.parametrize("words", [True, False])
def test_messages_are_asked_for_only_if_words_may_be_shown(words: bool) -> None:
    console = Console(words=words)
    console.explained.show("t/p/a/ada")
    assert console.stage.asked[0]["messages"] == words


def test_a_conversation_that_waits_in_the_dynamodb_lane_alone_is_explained_too(console: Console) -> None:
    part = {"count": 1, "dueAt": 11_000, "firstAt": 10_000, "lastAt": 10_000, "reason": "silence"}
    console.stage.shown = {"count": 0, "batch": None, "dynamodb": part}
    assert console.explained.show("t/p/a/ada")["why"]["cause"] == "silenceMs"
