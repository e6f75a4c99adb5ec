"""Customers who write on while the answer is on its way: at each moment, under each policy.

Whatever happens, their messages are answered once, and the history holds each of them once.
"""

from collections.abc import Callable
from typing import Any

import pytest

from lambdas.responder.gate import DELIVER, DISCARD_AND_MERGE, INTERRUPT
from tests.support.responder import OPTIONS, PARTS, Tables, World

FIRST, SECOND = "Where is it?", "The blue one!"
BOTH = f"{FIRST}\n{SECOND}"
REPLY = ("assistant", "\n".join(PARTS))
WAIT_MS = OPTIONS.gate_wait_seconds * 1_000


Begin = Callable[[str], World]


@pytest.fixture
def begin(new_table: Tables) -> Begin:
    def begun(policy: str) -> World:
        world = World(new_table(), gate=policy)
        world.emit("b-1", 1, FIRST)
        return world

    return begun


def write_on(world: World) -> None:
    """Let the buffer have newer messages, which come out later."""
    world.buffer.generation = 2


def before_the_call(world: World) -> None:
    write_on(world)


def during_the_call(world: World) -> None:
    def once() -> None:
        world.assistant.while_asked = lambda: None
        write_on(world)

    world.assistant.while_asked = once


def when_the_text_is_ready(world: World) -> None:
    plan = world.table.plan

    def planned(*args: Any, **named: Any) -> None:
        plan(*args, **named)
        write_on(world)

    world.table.plan = planned  # type: ignore[method-assign]


def between_the_parts(world: World) -> None:
    world.sender.before_send = lambda text: write_on(world) if text == PARTS[0] else None


MOMENTS = [before_the_call, during_the_call, when_the_text_is_ready, between_the_parts]
EARLY = MOMENTS[:3]


def customers_words(world: World) -> list[str]:
    return [text for role, text in world.turns() if role == "user"]


def finish(world: World) -> None:
    """Emit the second batch, and deliver until the queue is empty."""
    world.emit("b-2", 2, SECOND)
    world.run()


@pytest.mark.parametrize("policy", [DELIVER, DISCARD_AND_MERGE, INTERRUPT])
@pytest.mark.parametrize("moment", MOMENTS)
def test_whatever_they_write_and_whenever_it_is_answered_and_recorded_once(
    moment: Callable[[World], None], policy: str, begin: Begin
) -> None:
    world = begin(policy)
    moment(world)
    world.deliver()
    finish(world)
    assert customers_words(world) == [FIRST, SECOND]
    assert world.turns()[-1][0] == "assistant"
    asked = " ".join(prompt.turns[-1].text for prompt in world.assistant.prompts)
    assert FIRST in asked
    assert SECOND in asked
    assert world.plan() is None
    assert not world.dead_lettered


@pytest.mark.parametrize("moment", MOMENTS)
def test_deliver_sends_whatever_was_written_meanwhile(moment: Callable[[World], None], begin: Begin) -> None:
    world = begin(DELIVER)
    moment(world)
    world.deliver()
    assert world.sender.sent == PARTS
    assert "gate" not in world.steps.names, "who always delivers asks only for holds"


@pytest.mark.parametrize("policy", [DISCARD_AND_MERGE, INTERRUPT])
@pytest.mark.parametrize("moment", EARLY)
def test_an_unsent_reply_is_discarded_and_both_batches_are_answered_as_one_turn(
    moment: Callable[[World], None], policy: str, begin: Begin
) -> None:
    world = begin(policy)
    moment(world)
    world.deliver()
    assert (world.sender.sent, len(world.queue.messages)) == ([], 1)
    finish(world)
    assert world.assistant.last_prompt == [("user", BOTH)]
    assert world.sender.sent == PARTS, "one reply"
    assert world.turns() == [("user", FIRST), ("user", SECOND), REPLY]


def test_a_reply_that_has_begun_is_finished_unless_it_may_be_interrupted(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    between_the_parts(world)
    world.deliver()
    assert world.sender.sent == PARTS
    finish(world)
    assert world.sender.sent == [*PARTS, *PARTS], "one further reply"


def test_an_interrupted_reply_ends_where_it_was_and_the_next_one_knows(begin: Begin) -> None:
    world = begin(INTERRUPT)
    between_the_parts(world)
    world.deliver()
    assert (world.sender.sent, world.queue.messages) == (PARTS[:1], [])
    finish(world)
    assert world.assistant.last_prompt == [("user", FIRST), ("assistant", PARTS[0]), ("user", SECOND)]
    assert world.sender.sent == [PARTS[0], *PARTS]
    assert world.turns() == [("user", FIRST), ("assistant", PARTS[0]), ("user", SECOND), REPLY]


@pytest.mark.parametrize("policy", [DISCARD_AND_MERGE, INTERRUPT])
@pytest.mark.parametrize("moment", EARLY)
def test_if_the_next_batch_never_comes_the_reply_goes_out_after_all(
    moment: Callable[[World], None], policy: str, begin: Begin
) -> None:
    world = begin(policy)
    moment(world)
    began_ms = world.now_ms
    world.run()
    assert world.sender.sent == PARTS
    assert world.turns() == [("user", FIRST), REPLY]
    assert WAIT_MS <= world.now_ms - began_ms <= WAIT_MS + 1_000
    assert len(world.assistant.prompts) == 1, "the reply that was written down is sent"


def test_the_pauses_of_a_closed_gate_double(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    write_on(world)
    pauses = []
    while world.queue.messages:
        before_ms = world.now_ms
        world.deliver()
        pauses.append((world.now_ms - before_ms) // 1_000)
    assert pauses == [0, 2, 4, 8, 16, 11]


def test_a_customer_who_never_stops_is_answered_all_the_same(begin: Begin) -> None:
    world, began_ms, number = begin(DISCARD_AND_MERGE), 0, 1
    began_ms = world.now_ms
    while not world.sender.sent:
        # Before each look, they have written again.
        world.buffer.generation = number + 1
        world.deliver()
        number += 1
        world.emit(f"b-{number}", number, f"and {number}")
    assert world.sender.sent == PARTS
    assert world.now_ms - began_ms <= WAIT_MS + 1_000
    assert customers_words(world) == [FIRST, *(f"and {n}" for n in range(2, number))]


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(20))
@pytest.mark.parametrize("policy", [DISCARD_AND_MERGE, INTERRUPT])
def test_a_failure_while_two_batches_are_merged_answers_neither_twice(
    policy: str, step: int, when: str, kills: bool, begin: Begin
) -> None:
    world = begin(policy)
    during_the_call(world)
    world.deliver()
    world.steps.names.clear()
    world.steps.fail_at = (step, when, kills)
    finish(world)
    assert customers_words(world) == [FIRST, SECOND]
    questions = [prompt.turns[-1].text for prompt in world.assistant.prompts]
    assert sum(SECOND in each for each in questions) <= 2, "asked again only if the answer was lost"
    assert world.sender.sent == [text for text in PARTS if text in world.sender.sent], "one reply"
    assert world.plan() is None


def test_a_gate_that_cannot_be_asked_keeps_the_reply(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    world.steps.fail_at = (7, "before", False)
    world.run()
    assert world.steps.names[7] == "gate"
    assert world.sender.sent == PARTS
    assert len(world.assistant.prompts) == 1


def test_each_lane_has_generations_of_its_own(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    world.buffer.generation = 50
    world.emit("w-1", 1, SECOND, lane="dynamodb")
    world.deliver()
    assert world.assistant.last_prompt == [("user", BOTH)]
    assert world.sender.sent == PARTS, "the newest batch's lane has nothing newer"
