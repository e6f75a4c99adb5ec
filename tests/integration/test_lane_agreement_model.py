"""Random histories of a stage with a fallback: every message comes out in one batch, whichever lanes it was in.

The same judgement finds each bug below, planted into the protocol between the lanes.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lambdas.conversation_processor.disputes import Disputes
from lambdas.conversation_processor.lane_agreement import Agreed, DynamoDbLaneUnasked, LaneAgreement
from lambdas.dynamodb_processor.service import DynamoDbProcessor
from message_buffer.lanes.dynamodb import table as message_table
from message_buffer.lanes.dynamodb.table import Contents, MessageTable, StoredMessage
from message_buffer.lanes.dynamodb.window import Window
from message_buffer.lanes.fallback import LaneWithFallback
from message_buffer.lanes.outcomes import Absent, Buffered, Excluded, Taken
from message_buffer.lanes.valkey.store import Store
from message_buffer.limits import DAY_MS
from tests.support.two_lanes import INGESTERS, MAX_ATTEMPTS, Do, Interruption, Step, TwoLanes
from tests.support.window import make_message_table

ingesters = st.integers(0, INGESTERS - 1)
picks = st.integers(0, 3)
hows = st.sampled_from(["swallowed", "unanswered", "late"])
past_valkey = st.builds(lambda i, how, n: Step("deliver_past_valkey", (i, how, n)), ingesters, hows, picks)
by_people = st.one_of(
    st.builds(lambda i: Step("deliver", (i,)), ingesters),
    st.builds(lambda i, n: Step("redeliver", (i, n)), ingesters, picks),
    past_valkey,
    st.builds(lambda i, n: Step("delete", (i, n)), ingesters, picks),
    st.builds(lambda i: Step("stop", (i,)), ingesters),
)
by_fate = st.one_of(
    st.builds(lambda ms: Step("wait", (ms,)), st.sampled_from([300, 1_100, 2_000, 9_000])),
    st.builds(
        lambda role, how: Step("cut", (role, how)),
        st.sampled_from(["ingest", "ingest", "conversation_processor"]),
        hows,
    ),
    st.builds(lambda role: Step("mend", (role,)), st.sampled_from(["ingest", "conversation_processor"])),
    st.just(Step("arrive")),
    st.just(Step("wipe")),
)
by_services = st.sampled_from(
    [Step(name) for name in ("execute", "execute", "empty_windows", "let_windows_end", "settle", "take_over")]
)
undisturbed = st.one_of(by_people, by_people, by_fate, by_services)
interruptions = st.builds(
    Interruption,
    st.integers(1, 10),
    st.sampled_from(["before", "after"]),
    st.one_of(st.sampled_from(["kill", "fail"]), st.lists(undisturbed, min_size=1, max_size=4)),
)
disturbed = st.builds(lambda step, what: step._replace(interruption=what), by_services | by_people, interruptions)
anything = st.lists(undisturbed | disturbed, min_size=6, max_size=16)
# Histories in which both lanes work on one message at the same time, which is rare by chance.
past, ends, execute = Step("deliver_past_valkey", (0, "swallowed", 0)), Step("let_windows_end"), Step("execute")
collisions = st.builds(
    lambda before, service, at, when, meanwhile: [
        *before,
        Step("wait", (5_000,)),
        Step(service, (), Interruption(at, when, meanwhile)),
        Step("take_over"),
    ],
    st.sampled_from([[], [past], [past], [past]]) | st.lists(by_people, max_size=2),
    st.sampled_from(["execute", "empty_windows"]),
    st.integers(1, 8),
    st.sampled_from(["before", "after"]),
    st.sampled_from([[past, ends], [execute], [ends], [Step("take_over")], "fail"]),
)
# Histories in which Valkey is wiped while both lanes have a message.
losses = st.builds(
    lambda before, at, do, between, after: [
        *before,
        Step("wait", (5_000,)),
        Step("execute", (), Interruption(at, "before", do)),
        *between,
        *after,
    ],
    st.sampled_from([[], [past]]),
    st.integers(2, 8),
    st.sampled_from(["fail", "fail", "kill", [Step("wipe")], [Step("wipe"), past]]),
    st.permutations([Step("wipe"), past, ends, Step("settle")]),
    st.lists(undisturbed | disturbed, max_size=4),
)
histories = st.one_of(anything, collisions, collisions, losses).map(lambda steps: [Step("deliver", (0,)), *steps])
waits = st.sampled_from([0, 0, 3])
# Without the table the lanes know nothing of each other; a batch keeps its content all the same.
patience = st.sampled_from([MAX_ATTEMPTS, MAX_ATTEMPTS, 4, 0])
skews = st.sampled_from([0, 0, 1_000, -1_000])


def live(database: Any, history: list[Step], skew_ms: int, max_waits: int, max_attempts_of_agreement: int) -> None:
    make_message_table(database)
    world = TwoLanes(skew_ms, max_waits, max_attempts_of_agreement)
    for step in history:
        world.do(step)
    world.come_to_rest()
    world.judge()


@pytest.mark.case(24)
@pytest.mark.promise("P1", "P2")
@pytest.mark.timeout(600)
def test_any_history_brings_each_message_out_in_one_batch(database: Any) -> None:
    @settings(suppress_health_check=list(HealthCheck), phases=set(Phase) - {Phase.explain})
    @given(history=histories, skew_ms=skews, max_waits=waits, max_attempts_of_agreement=patience)
    def holds(history: list[Step], skew_ms: int, max_waits: int, max_attempts_of_agreement: int) -> None:
        live(database, history, skew_ms, max_waits, max_attempts_of_agreement)

    holds()


# -- histories that it found -------------------------------------------------------------------------------------------

deliver, stop, late = Step("deliver", (0,)), Step("stop", (0,)), Step("cut", ("ingest", "late"))
FOUND = {
    "a message arrives while a stop is under way": [
        *[deliver] * 6,
        stop._replace(interruption=Interruption(1, "before", [deliver])),
    ],
    "a message arrives while a stop is under way, and the stop itself is never answered": [
        deliver,
        stop._replace(interruption=Interruption(1, "before", [deliver, Step("cut", ("ingest", "unanswered"))])),
    ],
    "a message arrives before a stop that its sender gave up": [
        deliver,
        late,
        stop,
        Step("mend", ("ingest",)),
        Step("wait", (9_000,)),
        deliver,
        Step("arrive"),
    ],
    "the DynamoDB lane takes a message while the Valkey lane takes another": [
        deliver._replace(interruption=Interruption(1, "before", [Step("deliver_past_valkey", (1, "swallowed"))])),
        Step("deliver_past_valkey", (0, "swallowed")),
        past,
        ends,
    ],
}


@pytest.mark.parametrize("title", FOUND)
def test_a_history_that_the_model_once_misjudged(title: str, database: Any) -> None:
    live(database, FOUND[title], 0, 3, MAX_ATTEMPTS)


# -- bugs that it finds ------------------------------------------------------------------------------------------------


class Bug(NamedTuple):
    plant: Callable[[], Any]
    history: tuple[Step, ...]
    max_attempts_of_agreement: int


BUGS: dict[str, Bug] = {}


def bug(
    title: str, *history: Step, max_attempts_of_agreement: int = MAX_ATTEMPTS
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Name a bug, and a history that comes out wrong with it."""

    def keep(plant: Callable[[], Any]) -> Callable[[], Any]:
        BUGS[title] = Bug(plant, history, max_attempts_of_agreement)
        return plant

    return keep


def execute_and(at: int, when: Literal["before", "after"], do: Do | list[Step]) -> Step:
    return Step("execute", (), Interruption(at, when, do))


def empty_windows_and(at: int, when: Literal["before", "after"], do: Do | list[Step]) -> Step:
    return Step("empty_windows", (), Interruption(at, when, do))


is_due, take_over = Step("wait", (5_000,)), Step("take_over")


@bug("the Valkey lane says nowhere what it has taken", deliver, is_due, execute, past)
def no_journal() -> Any:
    return patch.object(MessageTable, "journal", lambda *_, **__: None)


@bug(
    "the Valkey lane looks before it says what it has taken",
    deliver,
    is_due,
    execute_and(3, "before", [past, ends]),
    take_over,
)
def look_before_journal() -> Any:
    looked: dict[int, Window] = {}
    journal, window = MessageTable.journal, MessageTable.window

    def look_then_journal(table: MessageTable, conversation: str, *args: Any, **options: Any) -> None:
        looked[id(table)] = window(table, conversation)
        journal(table, conversation, *args, **options)

    def what_was_seen(table: MessageTable, conversation: str) -> Window:
        # The DynamoDB processor, which runs in between, looks for itself.
        is_agreeing = sys._getframe(1).f_code is LaneAgreement._theirs.__code__
        return (looked.pop(id(table), None) if is_agreeing else None) or window(table, conversation)

    both = ExitStack()
    both.enter_context(patch.object(MessageTable, "journal", look_then_journal))
    both.enter_context(patch.object(MessageTable, "window", what_was_seen))
    return both


@bug(
    "a window that was read before a batch was taken may be frozen",
    deliver,
    past,
    is_due,
    # Kill the run before it drops its copies, because dropped copies alone would stop the DynamoDB processor's freeze.
    empty_windows_and(4, "before", [execute_and(9, "before", "kill")]),
    take_over,
)
def no_fence() -> Any:
    return patch.object(MessageTable, "fence", MessageTable.window)


@bug(
    "the Valkey lane does not look what is frozen",
    deliver,
    past,
    is_due,
    empty_windows_and(4, "after", [execute]),
    take_over,
)
def frozen_is_overlooked() -> Any:
    fence = MessageTable.fence
    return patch.object(MessageTable, "fence", lambda *args: fence(*args)._replace(frozen=None))


@bug("the Valkey lane does not look what is out", deliver, is_due, execute_and(1, "before", [past, ends]), take_over)
def gone_is_overlooked() -> Any:
    return patch.object(MessageTable, "find", lambda *_: {})


@bug("the DynamoDB lane does not look what the other has taken", deliver, is_due, execute, past)
def journal_is_overlooked() -> Any:
    return patch.object(message_table.Contents, "journaled", frozenset())


@bug(
    "what is left to the Valkey lane is left by nobody",
    deliver,
    is_due,
    execute_and(2, "after", [past, ends]),
    take_over,
)
def left_to_nobody() -> Any:
    find = MessageTable.find

    def as_if_emitted(*args: Any) -> dict[str, str | None]:
        return dict.fromkeys(find(*args), "w-batch")

    return patch.object(MessageTable, "find", as_if_emitted)


@bug(
    "a table that does not answer once is taken for one that has nothing",
    deliver,
    past,
    ends,
    execute_and(2, "before", "fail"),
)
def no_patience() -> Any:
    def impatient(lane: LaneAgreement, conversation: str, taken: Taken) -> Agreed:
        try:
            return agree(lane, conversation, taken)
        except DynamoDbLaneUnasked:
            return Agreed(frozenset(), frozenset())

    agree = LaneAgreement.agree
    return patch.object(LaneAgreement, "agree", impatient)


@bug(
    "what is left out is decided anew at each attempt",
    deliver,
    past,
    ends,
    deliver,
    is_due,
    execute_and(7, "before", "kill"),
    Step("wait", (31_000,)),
    Step("recover"),
    execute_and(2, "before", "fail"),
    max_attempts_of_agreement=0,
)
def nothing_is_settled() -> Any:
    return patch.object(Store, "exclude_messages", lambda *_, **__: Excluded())


@bug(
    "what is known is held again",
    Step("deliver_past_valkey", (0, "swallowed")),
    ends,
    past,
    Step("deliver_past_valkey", (0, "swallowed")),
    ends,
)
def put_again() -> Any:
    put = MessageTable._put
    return patch.object(MessageTable, "_put", lambda *args, **_: put(*args))


@bug("a message that Valkey did not answer for is taken for kept", Step("deliver_past_valkey", (0, "swallowed")))
def lost_answers_are_good() -> Any:
    def buffer_message(lane: LaneWithFallback, *args: Any, **options: Any) -> Any:
        taken = lane._tried(lambda: lane._valkey_lane.buffer_message(*args, **options))
        return taken or Buffered(0, 1, start_id=None)

    return patch.object(LaneWithFallback, "buffer_message", buffer_message)


put_back, wipe, settle = execute_and(5, "before", "fail"), Step("wipe"), Step("settle")


@bug("what the other lane has taken is dropped", deliver, is_due, put_back, wipe, past, ends, settle)
def the_journal_vouches() -> Any:
    divided = DynamoDbProcessor._divided

    def drop(processor: DynamoDbProcessor, conversation: str, contents: Contents) -> Any:
        for each in contents.disputed:
            processor._table.leave_to_valkey_lane(conversation, each.name, expires_at_ms=processor._clock() + DAY_MS)
        return divided(processor, conversation, contents)[0], []

    return patch.object(DynamoDbProcessor, "_divided", drop)


@bug(
    "a copy is dropped before the batch is emitted",
    deliver,
    past,
    is_due,
    execute_and(7, "before", "fail"),
    wipe,
    ends,
    settle,
)
def copies_are_dropped_early() -> Any:
    agree = LaneAgreement.agree

    def agree_and_drop(lane: LaneAgreement, conversation: str, taken: Taken) -> Agreed:
        agreed = agree(lane, conversation, taken)
        lane.drop_copies(conversation, agreed.copies)
        return agreed

    return patch.object(LaneAgreement, "agree", agree_and_drop)


@bug("what Valkey does not know is taken for emitted", deliver, is_due, put_back, wipe, past, ends, settle)
def lost_is_taken_for_emitted() -> Any:
    return patch.object(Store, "find_message", lambda *_: Absent(known=True, batch_id=None))


@bug("what Valkey has not emitted yet is taken for emitted", deliver, is_due, put_back, past, ends, settle, wipe)
def frozen_is_taken_for_emitted() -> Any:
    find = Disputes._find

    def found(disputes: Disputes, conversation: str, message: StoredMessage) -> Any:
        answer = find(disputes, conversation, message)
        return answer if isinstance(answer, Absent) else Absent(known=True, batch_id=None)

    return patch.object(Disputes, "_find", found)


@bug("what Valkey has emitted is emitted again", deliver, is_due, execute, past, ends, settle)
def emitted_is_taken_for_lost() -> Any:
    return patch.object(Store, "find_message", lambda *_: Absent(known=False, batch_id=None))


@pytest.mark.parametrize("title", BUGS)
def test_the_model_finds(title: str, database: Any) -> None:
    plant, history, max_attempts_of_agreement = BUGS[title]
    live(database, list(history), 0, 0, max_attempts_of_agreement)
    with plant(), pytest.raises(AssertionError):
        live(database, list(history), 0, 0, max_attempts_of_agreement)
