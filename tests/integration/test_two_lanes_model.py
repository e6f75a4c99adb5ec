"""Random histories of a stage with a fallback: every message comes out, in one batch, or in one batch of each lane.

Only a message to which Valkey's answer was lost, or which was delivered again, may come out of both lanes. The same
judgement finds each bug below.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from message_buffer.lanes.circuit_breaker import CircuitBreaker
from message_buffer.lanes.dynamodb.messages import Messages
from message_buffer.lanes.fallback import LaneWithFallback
from message_buffer.lanes.outcomes import MessageBuffered
from tests.support.two_lanes import INGESTERS, Interruption, Step, TwoLanes
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
    st.builds(lambda name, i: Step(name, (i,)), st.sampled_from(["hand_off", "hand_off", "hand_back"]), ingesters),
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
    [Step(name) for name in ("execute", "execute", "empty_windows", "let_windows_end", "take_over")]
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
    st.permutations([Step("wipe"), past, ends]),
    st.lists(undisturbed | disturbed, max_size=4),
)
histories = st.one_of(anything, collisions, collisions, losses).map(lambda steps: [Step("deliver", (0,)), *steps])
skews = st.sampled_from([0, 0, 1_000, -1_000])


def live(database: Any, history: list[Step], skew_ms: int = 0) -> int:
    """Return how many messages came out of both lanes."""
    make_message_table(database)
    world = TwoLanes(skew_ms)
    for step in history:
        world.do(step)
    world.become_idle()
    return world.judge()


@pytest.mark.case(24)
@pytest.mark.promise("P1", "P2")
@pytest.mark.timeout(600)
def test_any_history_brings_each_message_out_and_doubles_only_what_it_may(
    database: Any,
) -> None:
    @settings(suppress_health_check=list(HealthCheck), phases=set(Phase) - {Phase.explain})
    @given(history=histories, skew_ms=skews)
    def holds(history: list[Step], skew_ms: int) -> None:
        live(database, history, skew_ms)

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
    live(database, FOUND[title])


# -- how many messages come out twice ----------------------------------------------------------------------------------

outage, is_due = Step("cut", ("ingest", "unanswered")), Step("wait", (5_000,))
DOUBLED = {
    "Valkey answers": ([deliver, is_due, execute, deliver], 0),
    "Valkey's answer to one message is lost, and then it is away for a minute": ([outage, *[deliver, is_due] * 12], 1),
    "Valkey is silent, and carries the requests out afterwards": ([late, *[deliver, is_due] * 12, Step("arrive")], 1),
    "Valkey gets no request": ([Step("cut", ("ingest", "swallowed")), *[deliver, is_due] * 12], 0),
    "two instances of ingest lose an answer each": ([outage, *[deliver, Step("deliver", (1,))] * 6], 2),
    "two outages": ([outage, deliver, Step("mend", ("ingest",)), is_due, deliver, outage, deliver, deliver], 2),
    "a platform delivers a message again across an outage": ([deliver, is_due, execute, past, past], 1),
}


@pytest.mark.promise("P2", "P10")
@pytest.mark.parametrize("title", DOUBLED)
def test_as_many_messages_come_out_twice_as_answers_were_lost(title: str, database: Any) -> None:
    history, doubled = DOUBLED[title]
    assert live(database, history) == doubled


# -- bugs that it finds ------------------------------------------------------------------------------------------------


class Bug(NamedTuple):
    plant: Callable[[], Any]
    history: tuple[Step, ...]


BUGS: dict[str, Bug] = {}


def bug(title: str, *history: Step) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Name a bug, and a history that comes out wrong with it."""

    def keep(plant: Callable[[], Any]) -> Callable[[], Any]:
        BUGS[title] = Bug(plant, history)
        return plant

    return keep


@bug(
    "the DynamoDB lane stores a message again that it has emitted",
    Step("deliver_past_valkey", (0, "swallowed")),
    ends,
    past,
    Step("deliver_past_valkey", (0, "swallowed")),
    ends,
)
def put_again() -> Any:
    put = Messages._put
    return patch.object(Messages, "_put", lambda *args, **_: put(*args))


@bug("a message is taken for stored though Valkey did not answer", Step("deliver_past_valkey", (0, "swallowed")))
def lost_answers_are_good() -> Any:
    def buffer_message(lane: LaneWithFallback, conversation: str, *args: Any, **options: Any) -> Any:
        call = partial(lane._valkey_lane.buffer_message, conversation, *args, **options)
        return lane._tried(conversation, call) or MessageBuffered(0, 1, "silenceMs", start_id=None)

    return patch.object(LaneWithFallback, "buffer_message", buffer_message)


@bug("a message that Valkey has stored is stored in the table, too", deliver)
def both_lanes_take_it() -> Any:
    def buffer_message(lane: LaneWithFallback, *args: Any, charge: Any = None, **options: Any) -> Any:
        lane._valkey_lane.buffer_message(*args, charge=charge, **options)
        return lane._dynamodb_lane.buffer_message(*args, **options)

    return patch.object(LaneWithFallback, "buffer_message", buffer_message)


@bug("a hand-off is in one lane only", Step("hand_off", (0,)), deliver, past)
def one_lane_is_handed_off() -> Any:
    def hold_buffer(lane: LaneWithFallback, *args: Any, **options: Any) -> Any:
        return lane._valkey_lane.hold_buffer(*args, **options)

    return patch.object(LaneWithFallback, "hold_buffer", hold_buffer)


@bug("a customer's message tries whether Valkey answers again", outage, deliver, is_due, deliver)
def no_probe() -> Any:
    return patch.object(CircuitBreaker, "is_open", property(lambda _: False))


@pytest.mark.nightly
@pytest.mark.parametrize("title", BUGS)
def test_the_model_finds(title: str, database: Any) -> None:
    plant, history = BUGS[title]
    live(database, list(history))
    with plant(), pytest.raises(AssertionError):
        live(database, list(history))
