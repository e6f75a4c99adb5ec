"""The assistant's tools and the conversation's episodes: each tool takes effect after the reply, whatever fails."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas.responder import handler
from lambdas.responder.batch import COMPLETED
from lambdas.responder.errors import CallBusy
from lambdas.responder.gate import MAX_REASON_CHARACTERS
from message_buffer.clock import system_clock
from message_buffer.limits import MAX_HOLD_MS
from tests.support.responder import NAME, PARTS, Tables, World, conversation_event

FOR_A_DAY = {"conversation": NAME, "holdMs": MAX_HOLD_MS}
BOTH = {"hand_off": "wants a refund", "finish_task": "asked"}
# Of a reply of two parts that uses both tools, with a gate that asks.
STEPS = [
    "acquire", "tenant_settings", "finished", "gate", "count_reply", "answer", "plan",
    "gate", "mark", "send", "mark", "gate of holds", "mark", "send", "mark",
    "mark", "call", "mark", "mark", "call", "end_episode", "mark", "publish", "finish",
]  # fmt: skip
TOOL = STEPS.index("call")


@pytest.fixture
def world(new_table: Tables) -> Callable[..., World]:
    return lambda **options: World(new_table(), **options)


def using(world: World, says: str | None = None, **uses: str) -> World:
    world.assistant.uses = uses
    world.assistant.says = world.assistant.says if says is None else says
    return world


def test_the_parts_are_sent_and_then_the_tools_are_used_on_this_conversation(world: Callable[..., World]) -> None:
    at_work = using(world(gate="discard_and_merge", tools=("hand_off", "finish_task")), **BOTH)
    at_work.emit("b-1", 1)
    at_ms = at_work.now_ms
    at_work.run()
    assert at_work.steps.names == STEPS
    assert at_work.sender.sent == PARTS
    assert at_work.buffer.handed_off == [FOR_A_DAY | {"reason": "wants a refund"}]
    assert at_work.buffer.completed == [("asked", at_ms)]
    assert at_work.turns()[1:] == [("assistant", "\n".join(PARTS))], "what a tool gets was not said to the customer"
    (event,) = at_work.events("messages.reply.sent")
    assert [part["text"] for part in event["parts"]] == PARTS
    assert [tool.name for tool in at_work.assistant.prompts[0].tools] == ["hand_off", "finish_task"]


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(TOOL - 1, len(STEPS)), ids=lambda n: f"{n}-{STEPS[n]}")
def test_whatever_step_fails_each_tool_is_used_at_least_once_and_no_part_is_sent_again(
    number: int, when: str, kills: bool, world: Callable[..., World]
) -> None:
    """Also after a crash in which the hand-off took effect, which then holds the conversation."""
    at_work = using(world(gate="discard_and_merge"), **BOTH)
    at_work.steps.fail_at = (number, when, kills)
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.sender.sent == PARTS
    assert {each["reason"] for each in at_work.buffer.handed_off} == {"wants a refund"}
    assert len(set(at_work.buffer.completed)) == 1
    assert (at_work.status(), at_work.plan(), at_work.dead_lettered) == ("reply_sent", None, [])
    assert at_work.events("messages.reply.withheld") == []
    assert at_work.telemetry.counts.get("UnconfirmedSends", 0) == 0


def test_a_reply_may_consist_of_a_tool_alone(world: Callable[..., World]) -> None:
    at_work = using(world(), says="", hand_off="x" * 2_000)
    at_work.steps.fail_at = (STEPS.index("plan") + 3, "after", True)
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.steps.names.count("call") == 2, "it was killed after the first"
    assert all(900 < len(each["reason"]) <= MAX_REASON_CHARACTERS for each in at_work.buffer.handed_off)
    assert (at_work.sender.sent, at_work.turns()) == ([], [("user", "Where is it?")])
    assert at_work.bus.published == []
    assert at_work.status() == "reply_sent"


def test_a_tool_alone_that_was_used_is_not_planned_again_with_a_newer_batch(world: Callable[..., World]) -> None:
    at_work = using(world(gate="discard_and_merge"), says="", finish_task="asked")

    def write_on(name: str) -> None:
        if name == "call":
            at_work.steps.before = lambda _name: None
            at_work.emit("b-2", 2, "And mine?")
            at_work.steps.fail_at = (len(at_work.steps.names) - 1, "after", True)

    at_work.steps.before = write_on
    at_work.emit("b-1", 1)
    at_work.run()
    assert [list(prompt.batch_ids) for prompt in at_work.assistant.prompts] == [["b-1"], ["b-2"]]


def test_a_tool_alone_is_not_used_if_the_customer_writes_on_or_people_take_over(world: Callable[..., World]) -> None:
    at_work = using(world(gate="discard_and_merge"), says="", finish_task="asked")

    def write_on() -> None:
        at_work.assistant.while_asked = lambda: None
        at_work.emit("b-2", 2, "And mine?")

    at_work.assistant.while_asked = write_on
    at_work.emit("b-1", 1)
    at_work.run()
    assert [len(prompt.batch_ids) for prompt in at_work.assistant.prompts] == [1, 2]
    assert len(at_work.buffer.completed) == 1
    at_work.assistant.while_asked = lambda: at_work.buffer.take_over(60_000)
    at_work.emit("b-3", 3)
    at_work.run()
    assert len(at_work.buffer.completed) == 1
    assert at_work.telemetry.counts["RepliesWithheld on_hold"] == 1


def test_a_reply_that_the_customer_interrupts_uses_no_tool(world: Callable[..., World]) -> None:
    at_work = using(world(gate="interrupt"), **BOTH)
    at_work.sender.before_send = lambda _text: setattr(at_work.buffer, "generation", 2)
    at_work.emit("b-1", 1)
    at_work.run()
    assert at_work.sender.sent == PARTS[:1]
    assert (at_work.buffer.handed_off, at_work.buffer.completed) == ([], [])


def test_a_gate_that_refuses_a_tool_is_called_again_without_the_text(world: Callable[..., World]) -> None:
    at_work = using(world(), hand_off="")
    refusals = [CallBusy("conversation.handoff: unavailable")] * 3

    def refuse(name: str) -> None:
        if name == "call" and refusals:
            raise refusals.pop()

    at_work.steps.before = refuse
    at_work.emit("b-1", 1)
    at_work.run()
    assert (at_work.sender.sent, at_work.buffer.handed_off) == (PARTS, [FOR_A_DAY])


# -- episodes ------------------------------------------------------------------------------------------


def said(world: World, batch_id: str, text: str) -> list[str]:
    """Return what the customer and the assistant have said, as the assistant gets it with this batch."""
    world.now_ms += 1_000
    world.emit(batch_id, int(batch_id), text)
    world.run()
    return [turn.text for turn in world.assistant.prompts[-1].turns]


def complete(world: World, at_ms: int) -> None:
    world.commands.end_episode(NAME, at_ms=at_ms)


def test_after_a_finished_task_the_history_is_empty_and_the_old_one_is_readable(world: Callable[..., World]) -> None:
    at_work = using(world(), says="Bye.", finish_task="asked")
    assert said(at_work, "1", "one") == ["one"]
    at_work.assistant.uses = {}
    assert said(at_work, "2", "two") == ["two"]
    assert said(at_work, "3", "three") == ["two", "Bye.", "three"]
    asked = {"operation": "history", "conversation": NAME, "by": "me", "texts": True}
    shown = at_work.commands.run(asked, request_id="r-1", time_left_ms=lambda: 60_000)["result"]
    assert [turn["text"] for turn in shown["turns"]] == ["one", "Bye.", "two", "Bye.", "three", "Bye."]
    assert shown["episodeFrom"] == shown["turns"][0]["at"]


def test_an_episode_ends_with_the_batch_that_the_event_names_whenever_it_comes(world: Callable[..., World]) -> None:
    at_work = using(world(), says="Yes.")
    complete(at_work, at_work.now_ms + 1_000)  # before the batch that it is about
    assert said(at_work, "1", "one") == ["one"]
    assert said(at_work, "2", "two") == ["two"]
    first_ms = at_work.now_ms
    assert said(at_work, "3", "three") == ["two", "Yes.", "three"]
    complete(at_work, first_ms)  # after the next batch
    assert said(at_work, "4", "four") == ["three", "Yes.", "four"]
    complete(at_work, first_ms - 1_000)  # late, and again
    complete(at_work, first_ms)
    assert said(at_work, "5", "five") == ["three", "Yes.", "four", "Yes.", "five"]


def test_the_next_turn_of_the_same_run_begins_the_episode(world: Callable[..., World]) -> None:
    at_work = using(world(max_question_tokens=20), says="Bye.", finish_task="asked")
    at_work.emit("1", 1, "one " * 12)
    at_work.now_ms += 1_000
    at_work.emit("2", 2, "two " * 12)
    at_work.run()
    assert [len(prompt.turns) for prompt in at_work.assistant.prompts] == [1, 1]


def test_a_turn_belongs_to_the_next_episode_if_one_of_its_batches_does(world: Callable[..., World]) -> None:
    at_work = using(world(), says="Yes.")
    at_work.emit("1", 1, "one")
    at_ms = at_work.now_ms
    said(at_work, "2", "two")
    complete(at_work, at_ms)
    assert said(at_work, "3", "three") == ["two", "Yes.", "three"]


def test_an_end_of_an_episode_restores_nothing_that_was_forgotten(world: Callable[..., World]) -> None:
    at_work = using(world())
    said(at_work, "1", "one")
    at_work.forget()
    complete(at_work, at_work.now_ms)
    record = at_work.table.read(NAME)
    assert record
    assert (list(record.turns), record.forgotten_at_ms) == ([], at_work.now_ms)
    assert said(at_work, "2", "two") == ["two"]


def test_the_event_of_the_bus_ends_an_episode(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    at_work = world()
    components: Any = SimpleNamespace(
        responder=at_work.responder, commands=at_work.commands, telemetry=at_work.telemetry, queue_urls=[]
    )
    monkeypatch.setattr(handler, "_components", lambda: components)
    at_ms = system_clock()
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
    assert handler.handler(conversation_event(COMPLETED, at_ms), context) == {}
    record = at_work.table.read(NAME)
    assert record
    assert record.episode_from_ms == at_ms
    assert len(at_work.telemetry.said("episode ended")) == 1
