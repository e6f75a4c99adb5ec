"""Customers who write on while the answer is on its way: at each moment, under each policy.

Whatever happens, their messages are answered once, and the history holds each of them once.
"""

from collections.abc import Callable
from typing import Any

import pytest

from lambdas.responder.conversations_table import ConversationsTable
from lambdas.responder.gate import DELIVER, DISCARD_AND_MERGE, INTERRUPT, MAX_PARKED_BATCHES
from message_buffer.aws import clients as aws
from tests.support.responder import OPTIONS, PARTS, Tables, World

FIRST, SECOND = "Where is it?", "The blue one!"
BOTH = f"{FIRST}\n{SECOND}"


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
    """Emit the second batch, and process all deliveries."""
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
    assert world.is_free()
    assert world.parked() == []
    assert not world.dead_lettered


@pytest.mark.parametrize("moment", MOMENTS)
def test_deliver_sends_whatever_was_written_meanwhile(moment: Callable[[World], None], begin: Begin) -> None:
    world = begin(DELIVER)
    moment(world)
    world.deliver()
    assert world.sender.sent == PARTS
    assert "newest_generation" not in world.steps.names, "who always delivers asks only for holds"


@pytest.mark.parametrize("policy", [DISCARD_AND_MERGE, INTERRUPT])
@pytest.mark.parametrize("moment", EARLY)
def test_an_unsent_reply_is_discarded_and_both_batches_are_answered_together(
    moment: Callable[[World], None], policy: str, begin: Begin
) -> None:
    world = begin(policy)
    moment(world)
    world.deliver()
    assert (world.sender.sent, world.status(), world.is_free()) == ([], "reply_parked", True)
    finish(world)
    assert world.assistant.last_prompt == [("user", BOTH)]
    assert world.sender.sent == PARTS, "one reply"
    assert world.turns() == [("user", FIRST), ("user", SECOND), ("assistant", "\n".join(PARTS))]


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
    assert world.sender.sent == PARTS[:1]
    finish(world)
    assert world.assistant.last_prompt == [("user", FIRST), ("assistant", PARTS[0]), ("user", SECOND)]
    assert world.sender.sent == [PARTS[0], *PARTS]
    assert world.turns() == [
        ("user", FIRST), ("assistant", PARTS[0]), ("user", SECOND), ("assistant", "\n".join(PARTS)),
    ]  # fmt: skip


@pytest.mark.parametrize("policy", [DISCARD_AND_MERGE, INTERRUPT])
@pytest.mark.parametrize("moment", MOMENTS)
def test_if_the_next_batch_never_comes_the_reply_goes_out_after_all(
    moment: Callable[[World], None], policy: str, begin: Begin
) -> None:
    world = begin(policy)
    moment(world)
    began_ms = world.now_ms
    world.run()
    assert world.sender.sent == PARTS
    assert world.turns() == [("user", FIRST), ("assistant", "\n".join(PARTS))]
    assert world.now_ms - began_ms <= 40_000, "after a bounded time"
    assert world.is_free()


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", range(20))
@pytest.mark.parametrize("policy", [DISCARD_AND_MERGE, INTERRUPT])
def test_a_failure_while_two_batches_are_merged_answers_neither_twice(
    policy: str, step: int, when: str, kills: bool, begin: Begin
) -> None:
    world = begin(policy)
    between_the_parts(world) if policy == INTERRUPT else during_the_call(world)
    world.deliver()
    assert world.status() == "reply_parked"
    world.steps.names.clear()
    world.steps.fail_at = (step, when, kills)
    finish(world)
    assert customers_words(world) == [FIRST, SECOND]
    questions = [prompt.turns[-1].text for prompt in world.assistant.prompts]
    assert sum(SECOND in each for each in questions) <= 2, "asked again only if the answer was lost"
    for part in PARTS:
        assert world.sender.sent.count(part) <= 2
    if policy == DISCARD_AND_MERGE:
        assert len(world.sender.sent) <= len(PARTS), "one reply"
    assert world.is_free()
    assert world.parked() == []


def test_a_batch_that_comes_after_a_newer_one_was_answered_waits_for_nothing(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    late = world.queue.pop()
    world.emit("b-2", 2, SECOND)
    world.run()
    world.queue.append(late)
    world.deliver()
    assert not world.queue
    assert customers_words(world) == [SECOND, FIRST]


def test_a_customer_who_never_stops_is_answered_all_the_same(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    for number in range(1, MAX_PARKED_BATCHES + 2):
        if number > 1:
            world.emit(f"b-{number}", number, f"and {number}")
        world.queue = [each for each in world.queue if f'"b-{number}"' in each.body]
        world.buffer.generation = number + 1
        world.deliver()
    assert world.sender.sent == PARTS
    assert len(customers_words(world)) == MAX_PARKED_BATCHES + 1


def test_a_gate_that_cannot_be_asked_keeps_the_reply(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    world.steps.fail_at = (7, "before", False)
    world.run()
    assert world.steps.names[7] == "newest_generation"
    assert world.sender.sent == PARTS
    assert len(world.assistant.prompts) == 1


def test_each_lane_has_a_gate_of_its_own(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    world.queue.clear()
    world.emit("b-50", 50, FIRST)
    world.run()
    world.emit("w-1", 1, SECOND, lane="dynamodb")
    world.buffer.window_generation = 2
    world.deliver()
    assert world.status() == "reply_parked", "what the other lane counted does not open this one's gate"
    world.emit("b-51", 51, "Hello?")
    world.queue = [each for each in world.queue if "b-51" in each.body] + world.queue[:-1]
    world.deliver()
    assert [each.batch_id for each in world.parked()] == ["w-1"], "it waits for its own lane"
    world.emit("w-2", 2, "And?", lane="dynamodb")
    world.run()
    assert world.assistant.last_prompt[-1] == ("user", f"{SECOND}\nAnd?")
    assert customers_words(world) == [FIRST, "Hello?", SECOND, "And?"]


def test_a_merged_batch_is_answered_by_itself_if_the_other_one_is_given_up(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    before_the_call(world)
    world.deliver()

    def refuse(_text: str) -> None:
        raise world.steps._error("send", False, done=False)

    world.sender.before_send = refuse
    world.emit("b-2", 2, SECOND)
    world.queue = [each._replace(receives=12) if "b-2" in each.body else each for each in world.queue]
    world.deliver()
    assert [reason for _, reason in world.dead_lettered] == ["made to fail"]
    world.sender.before_send = lambda _text: None
    world.run()
    assert world.sender.sent == PARTS
    assert world.turns() == [("user", FIRST), ("assistant", "\n".join(PARTS))]


def test_a_planned_reply_does_not_finish_a_batch_that_its_prompt_did_not_contain(begin: Begin) -> None:
    world = begin(DISCARD_AND_MERGE)
    late = world.queue.pop()
    world.emit("b-2", 2, SECOND)

    def write_once_more() -> None:
        world.buffer.generation = 3

    world.assistant.while_asked = write_once_more
    world.deliver()
    world.queue.append(late)
    world.queue.sort(key=lambda each: "b-2" in each.body)
    world.deliver()
    assert [each.batch_id for each in world.parked()] == ["b-2", "b-1"]
    world.run()
    assert [prompt.turns[-1].text for prompt in world.assistant.prompts] == [SECOND, FIRST]
    assert customers_words(world) == [SECOND, FIRST]
    assert world.sender.sent == [*PARTS, *PARTS]


def test_a_batch_whose_parking_was_written_twice_still_waits(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    class Repeating:
        """Makes each update twice, as the client does after a lost answer. AWS carries out a transaction once."""

        def __getattr__(self, name: str) -> Any:
            call = getattr(aws.client("dynamodb"), name)
            if name != "update_item":
                return call

            def twice(**request: Any) -> Any:
                call(**request)
                return call(**request)

            return twice

    world = begin(DISCARD_AND_MERGE)
    write_on(world)
    monkeypatch.setattr(ConversationsTable, "_client", Repeating())
    world.deliver()
    assert [each.batch_id for each in world.parked()] == ["b-1"]
    assert world.queue[0].at_ms == world.now_ms + 1_000 * OPTIONS.gate_wait_seconds
