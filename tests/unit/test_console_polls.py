"""The console keeps the next conversations of a stage and their time lines, and no more than fits the page."""

from typing import Any

from message_buffer.json_object import Json
from tools.console.batches import figures_of
from tools.console.hub import Hub
from tools.console.pace import Pace
from tools.console.polls import CONVERSATIONS_SHOWN, MAX_REQUESTS_IN_A_SWEEP, Polls
from tools.console.time_lines import ENTRIES_IN_A_TIME_LINE, TIME_LINES_KEPT, TimeLines
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
        self.owners: list[Json] = []
        self.asked: list[str] = []

    def poll(self, operation: str, **fields: Any) -> Json:
        self.asked.append(operation)
        if operation == "rules.list":
            return {"rules": self.owners}
        if operation != "conversation.list":
            return {"letters": [], "inQueue": 0} if operation == "dead.list" else {"shards": []}
        place = int(fields["cursor"] or 0)
        last = place + 1 >= len(self.pages)
        return {"conversations": self.pages[place], "next": None if last else str(place + 1), "more": not last}


def polls_of(stage: Stage, time_lines: TimeLines | None = None) -> Polls:
    return Polls(stage, Hub(), time_lines or TimeLines(), clock=lambda: 5_000)  # type: ignore[arg-type]


def test_the_page_gets_the_next_conversations_by_due_time() -> None:
    rows = [row(f"c{n}", due_at=10_000 - n) for n in range(CONVERSATIONS_SHOWN + 50)]
    polls = polls_of(Stage(rows[:100], rows[100:]))
    polls.sweep()
    state = polls.state()
    assert state["open"] == CONVERSATIONS_SHOWN + 50
    dues = [each["dueAt"] for each in state["conversations"]]
    assert dues == sorted(each["dueAt"] for each in rows)[:CONVERSATIONS_SHOWN]


def test_a_conversation_that_has_left_disappears_and_its_time_line_says_so() -> None:
    stage, time_lines = Stage([row("a"), row("b")]), TimeLines()
    polls = polls_of(stage, time_lines)
    polls.sweep()
    stage.pages = [[row("b", count=2)]]
    polls.sweep()
    assert [each["conversation"] for each in polls.state()["conversations"]] == ["t/p/a/b"]
    assert [entry["state"] for entry in time_lines.of("t/p/a/a")] == ["pending", "idle"]
    assert [entry["count"] for entry in time_lines.of("t/p/a/b")] == [1, 2]


def test_a_conversation_has_the_agent_that_owns_its_account() -> None:
    stage = Stage([row("x"), row("other") | {"conversation": "u/p/a/x"}])
    stage.owners = [{"scope": "account:p/a", "rules": {"tenant": "t", "agent": "sales"}}]
    polls = polls_of(stage)
    polls.sweep()
    assert {each["conversation"]: each["agent"] for each in polls.state()["conversations"]} == {
        "t/p/a/x": "sales",
        "u/p/a/x": None,
    }


def test_a_sweep_ends_after_a_bounded_number_of_requests_and_says_that_there_are_more() -> None:
    stage = Stage(*[[row(f"c{n}")] for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)])
    polls = polls_of(stage)
    polls.sweep()
    assert stage.asked.count("conversation.list") == MAX_REQUESTS_IN_A_SWEEP
    assert polls.state()["more"]


def test_what_a_bounded_sweep_did_not_reach_is_neither_shown_nor_taken_for_gone() -> None:
    """Reproduce a defect: with too many open conversations, those that had left were kept and shown for ever."""
    stage, time_lines = Stage(*[[row(f"c{n}")] for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)]), TimeLines()
    polls = polls_of(stage, time_lines)
    for _ in range(3):
        polls.sweep()
        stage.pages = [*stage.pages[5:], *stage.pages[:5]]
        assert polls.state()["open"] == MAX_REQUESTS_IN_A_SWEEP
    lines = [time_lines.of(f"t/p/a/c{n}") for n in range(MAX_REQUESTS_IN_A_SWEEP + 5)]
    assert {entry["state"] for line in lines for entry in line} == {"pending"}


def test_many_unchanged_conversations_do_not_displace_the_time_line_of_one_that_changes() -> None:
    """Reproduce a defect: with more open conversations than time lines, each sweep displaced every time line."""
    stage = Stage([row(f"c{n}") for n in range(2 * TIME_LINES_KEPT)])
    time_lines = TimeLines()
    polls = polls_of(stage, time_lines)
    polls.sweep()
    time_lines.add("t/p/a/c0", "sent text", 5_000)
    for _ in range(3):
        polls.sweep()
    assert [entry["kind"] for entry in time_lines.of("t/p/a/c0")] == ["sent text"]


def test_a_conversation_in_both_lanes_has_an_entry_for_each_and_is_idle_when_both_are_empty() -> None:
    """Reproduce a defect: each sweep added two entries, and the first empty lane counted as an idle conversation."""
    in_valkey, in_dynamodb = row("a"), row("a") | {"lane": "dynamodb", "shard": None}
    stage, time_lines = Stage([in_valkey, in_dynamodb]), TimeLines()
    polls = polls_of(stage, time_lines)
    for page in ([in_valkey, in_dynamodb], [in_valkey, in_dynamodb], [in_valkey], []):
        stage.pages = [page]
        polls.sweep()
    seen = [(entry["state"], entry.get("lane")) for entry in time_lines.of("t/p/a/a")]
    assert seen == [("pending", "valkey"), ("pending", "dynamodb"), ("idle", None)]


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
