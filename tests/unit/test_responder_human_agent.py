"""A human agent takes over at any moment of a reply: no part is sent whose check began during the takeover."""

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lambdas.responder.gate import DELIVER, DISCARD_AND_MERGE, INTERRUPT
from message_buffer.errors import SendFailed
from tests.support.responder import PARTS, Killed, Tables, World, hold

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/messages.reply.withheld.json").read_text())
POLICIES = [DELIVER, DISCARD_AND_MERGE, INTERRUPT]
LOOKS = ("gate", "gate of holds")
QUESTION = "Where is it?"
MOST_STEPS = 24
HOUR_MS = 3_600_000


class Person:
    """Takes over before one step and gives back before another, and judges each part that is sent."""

    def __init__(self, world: World, *, begins: int, ends: int | None, for_ms: int) -> None:
        self._world = world
        self._begins, self._ends, self._for_ms = begins, ends, for_ms
        self._step = -1
        self._may_send = False
        world.steps.before = self._before

    def _before(self, name: str) -> None:
        self._step += 1
        if self._step == self._begins:
            self._world.buffer.take_over(self._for_ms)
        if self._step == self._ends:
            self._world.buffer.others = None
        if name in LOOKS:
            held = self._world.buffer.others
            self._may_send = held is None or (held["until"] is not None and held["until"] <= self._world.now_ms)
        elif name == "send":
            assert self._may_send, "a part was sent without a check, or whose check began during the takeover"
            self._may_send = False


failures = st.tuples(st.integers(0, MOST_STEPS), st.sampled_from(["before", "after"]), st.booleans())


@pytest.mark.timeout(300)
@given(
    policy=st.sampled_from(POLICIES),
    begins=st.integers(0, MOST_STEPS),
    lasts_steps=st.none() | st.integers(1, MOST_STEPS),
    for_ms=st.sampled_from([1, 20_000, HOUR_MS]),
    fails=st.none() | failures,
    writes_on=st.none() | st.integers(0, 5),
    comes_again=st.booleans(),
)
@settings(max_examples=settings().max_examples // 5)
@example(policy=DELIVER, begins=7, lasts_steps=None, for_ms=HOUR_MS, fails=None, writes_on=None, comes_again=False)
def test_no_part_is_sent_whose_look_at_the_hold_began_during_a_takeover(
    policy: str, begins: int, lasts_steps: int | None, for_ms: int,
    fails: tuple[int, str, bool] | None, writes_on: int | None, comes_again: bool, new_table: Tables,
) -> None:  # fmt: skip
    world = World(new_table(), gate=policy)
    Person(world, begins=begins, ends=None if lasts_steps is None else begins + lasts_steps, for_ms=for_ms)
    world.steps.fail_at = fails
    world.emit("b-1", 1, QUESTION)
    if comes_again:
        world.emit("b-1", 1, QUESTION)
    if writes_on is not None:
        for _ in range(writes_on):
            if world.queue.messages:
                world.deliver()
        world.emit("b-2", 2, "The blue one!")
    world.run()
    assert world.plan() is None
    assert not world.dead_lettered
    words = " ".join(text for role, text in world.turns() if role == "user")
    assert words.count(QUESTION) == 1, "the customer's words stay in the history"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("cause", ["answer", "operator", "handoff"])
def test_the_rest_of_a_reply_is_withheld_and_the_event_says_who_holds(
    cause: str, policy: str, new_table: Tables
) -> None:
    world = World(new_table(), gate=policy)
    world.emit("b-1", 1, QUESTION)
    world.sender.before_send = lambda _text: world.buffer.take_over(HOUR_MS, cause=cause)
    world.run()
    assert world.sender.sent == PARTS[:1]
    (event,) = world.events("messages.reply.withheld")
    jsonschema.validate(event, SCHEMA)
    assert event["reason"] == "on_hold"
    (sent,) = world.events("messages.reply.sent")
    assert sent["parts"] == [{"text": PARTS[0], "messageId": "sent-1"}]
    assert event["hold"] == {"holder": "people", "cause": cause, "until": world.now_ms + HOUR_MS}
    assert world.turns() == [("user", QUESTION), ("assistant", PARTS[0])]


def test_a_run_that_ends_after_it_published_that_a_reply_is_withheld_lets_no_later_run_send_it(
    new_table: Tables,
) -> None:
    world = World(new_table())
    world.emit("b-1", 1, QUESTION)
    world.buffer.take_over(7_000)

    def kill(name: str) -> None:
        if name == "finish":
            world.steps.before = lambda _name: None
            raise Killed

    world.steps.before = kill
    world.deliver()
    assert len(world.bus.published) == 1
    world.now_ms += HOUR_MS
    world.run()
    assert (world.sender.sent, world.status()) == ([], "reply_withheld")
    first, again = world.bus.published
    assert first == again
    assert world.turns() == [("user", QUESTION)]


def test_the_assistant_is_not_asked_while_somebody_else_holds(new_table: Tables) -> None:
    world = World(new_table())
    world.buffer.others = hold("consumers", "another-agent", world.now_ms + HOUR_MS)
    world.emit("b-1", 1, QUESTION)
    world.run()
    assert (world.assistant.prompts, world.sender.sent) == ([], [])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_reply_whose_hold_cannot_be_read_waits_and_is_given_up_in_the_end(policy: str, new_table: Tables) -> None:
    world = World(new_table(), gate=policy, max_attempts=4)
    away = [True]

    def fail_a_check(name: str) -> None:
        if name in LOOKS and away[0]:
            raise SendFailed("the gate is away")

    world.steps.before = fail_a_check
    world.emit("b-1", 1, QUESTION)
    world.run()
    assert (world.sender.sent, [reason for _, reason in world.dead_lettered]) == ([], ["the gate is away"])
    away[0] = False
    world.emit("b-1", 1, QUESTION)
    world.run()
    assert world.sender.sent == PARTS, "moved back, it is answered"


def test_no_batch_of_a_turn_is_answered_again_if_the_rest_of_its_reply_is_withheld(new_table: Tables) -> None:
    world = World(new_table(), gate=DISCARD_AND_MERGE)
    world.emit("b-1", 1, QUESTION)
    world.emit("b-2", 2, "The blue one!")
    world.sender.before_send = lambda _text: world.buffer.take_over(7_000)
    world.run()
    world.now_ms += HOUR_MS
    world.emit("b-1", 1, QUESTION)
    world.run()
    assert world.sender.sent == PARTS[:1]
    assert world.turns() == [("user", QUESTION), ("user", "The blue one!"), ("assistant", PARTS[0])]
    assert [each["batchId"] for each in world.events("messages.reply.withheld")] == ["b-1", "b-2"]


@pytest.mark.parametrize("until_ms", [None, 2_000_000_000_000])
def test_a_hand_off_is_obeyed_like_a_hold(until_ms: int | None, new_table: Tables) -> None:
    world = World(new_table())
    world.buffer.others = hold("handoff", "operator", until_ms)
    world.emit("b-1", 1, QUESTION)
    world.run()
    assert (world.assistant.prompts, world.sender.sent) == ([], [])
    ((_, detail),) = world.bus.published
    jsonschema.validate(json.loads(detail), SCHEMA)
    assert json.loads(detail)["hold"] == {"holder": "handoff", "cause": "operator", "until": until_ms}
