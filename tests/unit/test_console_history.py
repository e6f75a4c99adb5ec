"""The console keeps the next conversations of a stage and their time lines, and no more than fits the page."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from bufferctl.reasons import why
from message_buffer.json_object import Json
from tools.console.bus import Bus
from tools.console.history import EVENTS_KEPT, OTHER_ENTRIES_KEPT, History
from tools.console.hub import Hub
from tools.console.pace import Pace
from tools.console.polls import CONVERSATIONS_SHOWN, MAX_REQUESTS_IN_A_SWEEP, Polls
from tools.console.words import shown


def row(name: str, *, due_at: int | None = 1_000, state: str = "pending", count: int = 1) -> Json:
    return {
        "conversation": f"t/p/a/{name}", "lane": "valkey", "shard": 0, "state": state, "count": count,
        "frozen": 0, "reason": "silence", "rule": "silenceMs", "appliedWaitMs": 1_000, "dueAt": due_at,
    }  # fmt: skip


class Stage:
    """Answers polls from pages of rows."""

    def __init__(self, *pages: list[Json]) -> None:
        self.pages = list(pages)
        self.platforms: Json = {}
        self.asked: list[str] = []

    def poll(self, operation: str, **fields: Any) -> Json:
        self.asked.append(operation)
        if operation != "conversation.list":
            return {"letters": [], "inQueue": 0} if operation == "dead.list" else {"shards": []}
        place = int(fields["cursor"] or 0)
        last = place + 1 >= len(self.pages)
        return {"conversations": self.pages[place], "next": None if last else str(place + 1), "more": not last}


def polls_of(stage: Stage, history: History | None = None) -> Polls:
    return Polls(stage, Hub(), history or History())  # type: ignore[arg-type]


def test_the_page_gets_the_next_conversations_by_due_time() -> None:
    rows = [row(f"c{n}", due_at=10_000 - n) for n in range(CONVERSATIONS_SHOWN + 50)]
    polls = polls_of(Stage(rows[:100], rows[100:]))
    polls.sweep()
    state = polls.state()
    assert state["open"] == CONVERSATIONS_SHOWN + 50
    dues = [each["dueAt"] for each in state["conversations"]]
    assert dues == sorted(each["dueAt"] for each in rows)[:CONVERSATIONS_SHOWN]


def test_a_conversation_that_has_left_disappears_and_its_time_line_says_so() -> None:
    stage, history = Stage([row("a"), row("b")]), History()
    polls = polls_of(stage, history)
    polls.sweep()
    stage.pages = [[row("b", count=2)]]
    for _ in range(3):
        polls.sweep()
    assert [each["conversation"] for each in polls.state()["conversations"]] == ["t/p/a/b"]
    assert [entry["state"] for entry in history.of("t/p/a/a")] == ["pending", "idle"]
    assert [entry["count"] for entry in history.of("t/p/a/b")] == [1, 2]


class SlowStage(Stage):
    """Needs 50 ms for each answer."""

    now = 1_000

    def poll(self, operation: str, **fields: Any) -> Json:
        self.now += 50
        return super().poll(operation, **fields)


def test_a_look_is_in_the_time_line_when_it_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduce a defect: a look that showed a message was in the time line before the message."""
    stage, history = SlowStage([row("a")]), History()
    monkeypatch.setattr("tools.console.polls.now_ms", lambda: stage.now)
    polls_of(stage, history).sweep()
    assert [entry["at"] for entry in history.of("t/p/a/a")] == [stage.now]


def test_a_sweep_ends_after_a_bounded_number_of_requests_and_says_that_there_are_more() -> None:
    stage = Stage(*[[row(f"c{n}")] for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)])
    polls = polls_of(stage)
    polls.sweep()
    assert stage.asked.count("conversation.list") == MAX_REQUESTS_IN_A_SWEEP
    assert polls.state()["more"]


def test_what_a_bounded_sweep_did_not_reach_is_neither_shown_nor_taken_for_gone() -> None:
    """Reproduce a defect: with too many open conversations, those that had left were kept and shown for ever."""
    stage, history = Stage(*[[row(f"c{n}")] for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)]), History()
    polls = polls_of(stage, history)
    for _ in range(3):
        polls.sweep()
        stage.pages = [*stage.pages[5:], *stage.pages[:5]]
        assert polls.state()["open"] == MAX_REQUESTS_IN_A_SWEEP
    lines = [history.of(f"t/p/a/c{n}") for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)]
    assert {entry["state"] for line in lines for entry in line} == {"pending"}


def test_a_conversation_in_both_lanes_has_an_entry_for_each_and_is_idle_when_both_are_empty() -> None:
    """Reproduce a defect: each sweep added two entries, and the first empty lane counted as an idle conversation."""
    in_valkey, in_dynamodb = row("a"), row("a") | {"lane": "dynamodb", "shard": None}
    del in_dynamodb["frozen"]
    stage, history = Stage([in_valkey, in_dynamodb]), History()
    polls = polls_of(stage, history)
    for page in ([in_valkey, in_dynamodb], [in_valkey, in_dynamodb], [in_valkey], []):
        stage.pages = [page]
        polls.sweep()
    seen = [(entry["state"], entry.get("lane")) for entry in history.of("t/p/a/a")]
    assert seen == [("pending", "valkey"), ("pending", "dynamodb"), ("idle", None)]


def test_what_is_kept_is_bounded() -> None:
    history = History()
    for n in range(max(EVENTS_KEPT, OTHER_ENTRIES_KEPT) + 10):
        history.add("c", "poll", n)
        history.add_event({"conversation": "c", "kind": "messages.amended", "at": n})
    assert len(history.events) == EVENTS_KEPT
    assert len(history.of("c")) == EVENTS_KEPT + OTHER_ENTRIES_KEPT


def test_at_most_so_many_calls_begin_in_any_second() -> None:
    now, begun = [0.0], []

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(3, now=lambda: now[0], sleep=pass_time)
    for _ in range(20):
        pace.wait()
        begun.append(now[0])
        now[0] += 0.05
    for begin in begun:
        assert sum(begin <= other < begin + 0.999 for other in begun) <= 3


# -- events ----------------------------------------------------------------------------------------


def test_a_batch_is_published_and_kept_with_its_reason_and_lateness_but_without_words() -> None:
    hub, history = MagicMock(), History()
    bus = Bus([], hub=hub, polls=MagicMock(), history=history, words=False)
    times = {"firstMessageAt": 1_000, "lastMessageAt": 1_400, "waitMs": 3_400}
    detail = {
        "conversationId": "t/p/a/ada", "batchId": "b1", "messageCount": 2, "flushReason": "silence", "lane": "valkey",
        "bufferedAt": 5_500,
        "messages": [{"id": "m1", "text": "a word"}], "text": "a word",
        "metadata": {**times, "rule": "typingInferenceMs", "appliedWaitMs": 3_000},
    }  # fmt: skip
    bus.take("messages.batch.ready", detail, at_ms=5_000)
    (published,) = [each.args for each in hub.publish.call_args_list]
    (kept,) = history.of("t/p/a/ada")
    assert published[1]["why"] == kept["why"] == why("typingInferenceMs", 3_000, was_emitted=True)
    assert published[1]["lateMs"] == kept["lateMs"] == 5_500 - 1_000 - 3_400
    assert published[1]["lateness"] == kept["lateness"] == "late"
    assert published[1]["detail"]["messages"] == [{"id": "m1"}]
    assert kept["detail"]["messages"] is None
    assert "a word" not in repr([published, kept])


def test_words_are_kept_even_then_not_when_the_page_may_show_them() -> None:
    hub, history = MagicMock(), History()
    bus = Bus([], hub=hub, polls=MagicMock(), history=history, words=True)
    bus.take("messages.reply.sent", {"conversationId": "c", "parts": [{"text": "a word"}]}, at_ms=1)
    assert "a word" in repr(hub.publish.call_args_list)
    assert "a word" not in repr(history.events)


def test_hidden_words_do_not_reach_the_page_in_any_field() -> None:
    word = "a secret of somebody"
    message = {"id": "m", "type": "text", "text": word, "author": word, "attachments": [{"url": word}], "new": word}
    detail = {
        "batchId": "b", "conversationId": "t/p/a/u", "text": word, "messages": [message], "newField": word,
        "metadata": {"platform": "p", "waitMs": 1, "newField": word}, "message": {"text": word}, "emoji": word,
    }  # fmt: skip
    seen = shown(detail, words=False)
    assert word not in repr(seen)
    assert seen["messages"] == [{"id": "m", "type": "text"}]
    assert seen["metadata"] == {"platform": "p", "waitMs": 1}
    assert shown(detail, words=True) == detail
