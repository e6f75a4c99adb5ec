"""The console has a sentence for each rule by which a batch may be due."""

from typing import Any, get_args

from message_buffer.rules.layers import RULE_FIELDS
from message_buffer.rules.timing import RuleName
from tools.console.batches import Batches
from tools.console.bus import BusListener, Takers
from tools.console.simulator import waiting_part
from tools.console.time_lines import TimeLines
from tools.console.why import WORDS, why, why_due

NOT_RULES = {"maxBytes", "typing", "hold", "resume", "flush", "split"}


def test_there_is_a_sentence_for_everything_that_may_set_a_due_time() -> None:
    assert set(WORDS) == set(get_args(RuleName))
    assert set(WORDS) - NOT_RULES <= set(RULE_FIELDS.values())


def test_a_sentence_says_the_wait_or_that_there_is_none_now_or_in_the_past() -> None:
    assert why("silenceMs", 1_500)["text"] == "The batch is emitted after 1.5 s of silence."
    assert why("silenceMs", 2_000, was_emitted=True)["text"] == "The batch was emitted after 2 s of silence."
    assert why("pressedSilenceMs", 0)["text"] == "Because of a button, the batch is emitted at once."
    for rule in WORDS:
        for wait_ms in (0, 2_000):
            assert "{" not in why(rule, wait_ms)["text"]


def test_a_rule_of_a_newer_stage_is_named() -> None:
    assert why("moonPhase", 1)["text"] == "The rule is moonPhase."


def test_a_conversation_that_waits_in_the_dynamodb_lane_alone_is_explained_too() -> None:
    shown = {"count": 0, "batch": None, "rule": None, "dynamodb": {"count": 1, "rule": "silenceMs", "appliedWaitMs": 1}}
    assert (why_due(waiting_part(shown)) or {})["rule"] == "silenceMs"
    assert why_due(waiting_part({"count": 0, "batch": None, "rule": None})) is None


class Hub:
    def __init__(self) -> None:
        self.published: list[dict[str, Any]] = []

    def publish(self, _kind: str, data: dict[str, Any]) -> None:
        self.published.append(data)


class Polls:
    def hurry(self) -> None:
        return


def test_the_page_the_charts_and_the_time_line_say_why_a_batch_has_left_and_nobodys_words() -> None:
    hub: Any = Hub()
    polls: Any = Polls()
    time_lines, batches = TimeLines(), Batches()
    bus = BusListener([], Takers(hub, polls, time_lines, batches, lambda _kind, _detail: None), words=False)
    times = {"firstMessageAt": 1_000, "lastMessageAt": 1_400, "waitMs": 3_400}
    detail = {
        "conversationId": "t/p/a/ada", "batchId": "b1", "messageCount": 2, "flushReason": "silence", "lane": "valkey",
        "messages": [{"id": "m1", "text": "a word"}], "text": "a word",
        "metadata": {**times, "rule": "typingInferenceMs", "appliedWaitMs": 3_000},
    }  # fmt: skip
    bus.take("messages.batch.ready", detail, at_ms=5_000)
    (seen,) = hub.published
    assert seen["why"] == time_lines.of("t/p/a/ada")[-1]["why"] == why("typingInferenceMs", 3_000, was_emitted=True)
    assert seen["figures"]["why"] == batches.all()[-1]["why"] == "a short gap"
    assert "a word" not in repr([hub.published, time_lines.of("t/p/a/ada"), batches.all()])
