"""The console keeps the next conversations of a stage and their time lines, and no more than fits the page."""

from typing import Any

import pytest

from bufferctl.errors import Unreachable
from console.batches import Batches, figures_of
from console.hub import Hub
from console.limits import CONVERSATIONS_SHOWN, ENTRIES_IN_A_TIME_LINE, MAX_REQUESTS_IN_A_SWEEP, TIME_LINES_KEPT
from console.looks import Looks
from console.pace import Pace
from console.time_lines import TimeLines
from console.words import shown

Json = dict[str, Any]


def row(name: str, *, due_at: int | None = 1_000, state: str = "pending", count: int = 1) -> Json:
    return {
        "conversation": f"t/p/a/{name}", "lane": "valkey", "shard": 0, "state": state, "count": count,
        "frozen": 0, "reason": "silence", "dueAt": due_at,
    }  # fmt: skip


class Stage:
    """Answers looks from pages of rows."""

    def __init__(self, *pages: list[Json]) -> None:
        self.pages = list(pages)
        self.owners: list[Json] = []
        self.asked: list[str] = []

    def look(self, operation: str, **fields: Any) -> Json:
        self.asked.append(operation)
        if operation == "rules.list":
            return {"rules": self.owners}
        if operation != "conversation.list":
            return {"letters": [], "inQueue": 0} if operation == "dead.list" else {"shards": []}
        place = int(fields["cursor"] or 0)
        last = place + 1 >= len(self.pages)
        return {"conversations": self.pages[place], "next": None if last else str(place + 1), "more": not last}


def looks_at(stage: Stage, time_lines: TimeLines | None = None) -> Looks:
    return Looks(stage, Hub(), time_lines or TimeLines(), clock=lambda: 5_000)  # type: ignore[arg-type]


def test_the_page_gets_the_next_conversations_by_due_time() -> None:
    rows = [row(f"c{n}", due_at=10_000 - n) for n in range(CONVERSATIONS_SHOWN + 50)]
    looks = looks_at(Stage(rows[:100], rows[100:]))
    looks.sweep()
    state = looks.state()
    assert state["open"] == CONVERSATIONS_SHOWN + 50
    dues = [each["dueAt"] for each in state["conversations"]]
    assert dues == sorted(each["dueAt"] for each in rows)[:CONVERSATIONS_SHOWN]


def test_a_conversation_that_has_left_disappears_and_its_time_line_says_so() -> None:
    stage, time_lines = Stage([row("a"), row("b")]), TimeLines()
    looks = looks_at(stage, time_lines)
    looks.sweep()
    stage.pages = [[row("b", count=2)]]
    looks.sweep()
    assert [each["conversation"] for each in looks.state()["conversations"]] == ["t/p/a/b"]
    assert [entry["state"] for entry in time_lines.of("t/p/a/a")] == ["pending", "idle"]
    assert [entry["count"] for entry in time_lines.of("t/p/a/b")] == [1, 2]


def test_a_conversation_has_the_agent_that_owns_its_account() -> None:
    stage = Stage([row("x"), row("other") | {"conversation": "u/p/a/x"}])
    stage.owners = [{"scope": "account:p/a", "rules": {"tenant": "t", "agent": "sales"}}]
    looks = looks_at(stage)
    looks.sweep()
    assert {each["conversation"]: each["agent"] for each in looks.state()["conversations"]} == {
        "t/p/a/x": "sales",
        "u/p/a/x": None,
    }


def test_a_row_and_its_looks_have_the_cause_of_their_own_due_time() -> None:
    stage, time_lines = Stage([row("a", due_at=1_000)]), TimeLines()
    looks, name, cause = looks_at(stage, time_lines), "t/p/a/a", {"label": "a short gap"}
    looks.sweep()
    time_lines.note_why(name, 1_000, cause)
    assert [each["cause"] for each in looks.state()["conversations"]] == [cause]
    stage.pages = [[row("a", due_at=1_000, count=2)]]
    looks.sweep()
    assert [entry["cause"] for entry in time_lines.of(name)] == [cause, cause]
    stage.pages = [[row("a", due_at=2_000)]]
    looks.sweep()
    assert [each["cause"] for each in looks.state()["conversations"]] == [None]
    assert [entry["cause"] for entry in time_lines.of(name)] == [cause, cause, None]


def test_causes_are_forgotten_with_their_time_lines() -> None:
    time_lines = TimeLines()
    for n in range(TIME_LINES_KEPT + 10):
        time_lines.add(f"c{n}", "seen", n)
        time_lines.note_why(f"c{n}", 1_000, {"label": "silence"})
    time_lines.note_why("never seen", 1_000, {"label": "silence"})
    kept = [n for n in range(TIME_LINES_KEPT + 10) if time_lines.cause_of({"conversation": f"c{n}", "dueAt": 1_000})]
    assert kept == list(range(10, TIME_LINES_KEPT + 10))
    assert time_lines.cause_of({"conversation": "never seen", "dueAt": 1_000}) is None


def test_a_look_that_shows_nothing_new_is_no_entry() -> None:
    stage, time_lines = Stage([row("a")]), TimeLines()
    looks = looks_at(stage, time_lines)
    looks.sweep()
    looks.sweep()
    assert len(time_lines.of("t/p/a/a")) == 1


def test_a_sweep_ends_after_a_bounded_number_of_requests_and_says_that_there_are_more() -> None:
    stage = Stage(*[[row(f"c{n}")] for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)])
    looks = looks_at(stage)
    looks.sweep()
    assert stage.asked.count("conversation.list") == MAX_REQUESTS_IN_A_SWEEP
    assert looks.state()["more"]


def test_what_was_not_reached_by_a_bounded_sweep_is_not_taken_for_gone() -> None:
    stage = Stage(*[[row(f"c{n}")] for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)])
    looks = looks_at(stage)
    looks.sweep()
    stage.pages.reverse()
    looks.sweep()
    assert looks.state()["open"] == MAX_REQUESTS_IN_A_SWEEP + 5


def test_a_stage_that_is_away_is_reported_and_the_last_state_stays() -> None:
    class Away(Stage):
        def look(self, operation: str, **fields: Any) -> Json:
            raise Unreachable("AWS cannot be reached: no route")

    looks = looks_at(Away())
    with pytest.raises(Unreachable):
        looks.sweep()
    assert looks.state()["conversations"] == []


def test_time_lines_are_bounded() -> None:
    time_lines = TimeLines()
    for n in range(TIME_LINES_KEPT + 10):
        time_lines.add(f"c{n}", "seen", n)
    assert time_lines.of("c0") == []
    for n in range(ENTRIES_IN_A_TIME_LINE + 10):
        time_lines.add("busy", "seen", n)
    assert [entry["at"] for entry in time_lines.of("busy")] == list(range(10, ENTRIES_IN_A_TIME_LINE + 10))


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
        assert sum(begin <= other < begin + 1 for other in begun) <= 3


def test_figures_say_how_late_a_batch_was() -> None:
    detail = {"metadata": {"firstMessageAt": 1_000, "waitMs": 2_000}, "messageCount": 3, "flushReason": "silence"}
    figures = figures_of(detail, arrived_at_ms=3_040)
    assert figures
    assert figures["lateMs"] == 40
    assert figures_of({"metadata": {}}, arrived_at_ms=1) is None


def test_figures_older_than_the_charts_are_dropped() -> None:
    batches = Batches()
    for at in (0, 10_000_000):
        batches.add({"at": at})
    assert batches.all() == [{"at": 10_000_000}]


# -- words -----------------------------------------------------------------------------------------


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
