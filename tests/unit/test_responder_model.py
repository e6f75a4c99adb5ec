"""The responder at random: kills and errors at each step, a second run beside one that sleeps, customers who write on.

Whatever happens: no part is sent twice, each batch is answered once, the history has their words in order, each reply's
tool is used, and each part is published.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lambdas.responder.gate import DELIVER, DISCARD_AND_MERGE, INTERRUPT
from message_buffer.json_object import Json
from tests.support.responder import HIDDEN_MS, NAME, Tables, World

MAX_STEP = 30

failures = st.tuples(st.just("fail"), st.integers(0, MAX_STEP), st.sampled_from(["before", "after"]), st.booleans())
sleeps = st.tuples(st.just("sleep"), st.integers(0, MAX_STEP))
actions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["emit", "emit again", "write on", "deliver"])),
        failures,
        sleeps,
        st.tuples(st.just("SQS fails"), st.integers(1, 3)),
    ),
    max_size=14,
)


class Model:
    def __init__(self, world: World) -> None:
        self.world = world
        self.emitted: list[str] = []
        self.slept = False
        numbers = count(1)

        def say() -> None:
            number = next(numbers)
            world.assistant.says = f"A{number:03} 1 it left now.\nA{number:03} 2 it comes now."
            world.assistant.uses = {"finish_task": f"A{number:03}"}

        world.assistant.while_asked = say

    def emit(self) -> None:
        batch_id = f"b-{len(self.emitted):02}"
        self.emitted.append(batch_id)
        self.world.emit(batch_id, len(self.emitted), f"word {batch_id}")

    def act(self, name: str, *arguments: Any) -> None:
        world = self.world
        match name:
            case "emit":
                self.emit()
            case "emit again" if self.emitted:
                world.emit(self.emitted[-1], len(self.emitted), f"word {self.emitted[-1]}")
            case "write on":
                world.buffer.generation += 1
            case "deliver":
                self.deliver()
            case "fail":
                step, when, kills = arguments
                world.steps.fail_at = (len(world.steps.names) + step, when, kills)
                self.deliver()
                world.steps.fail_at = None
            case "sleep":
                world.steps.before = self._sleep_at(len(world.steps.names) + arguments[0])
                self.deliver()
                world.steps.before = lambda _name: None
            case "SQS fails":
                world.sqs.failures = arguments[0]
                self.deliver()
                world.sqs.failures = 0

    def _sleep_at(self, step: int) -> Callable[[str], None]:
        """Let the run sleep before a step for so long that a second run gets its entries and finishes."""

        def oversleep(_name: str) -> None:
            if len(self.world.steps.names) > step:
                self.world.steps.before = lambda _name: None
                self.slept = True
                self.world.now_ms += HIDDEN_MS + 1
                self.deliver()

        return oversleep

    def deliver(self) -> None:
        if self.world.queue.messages:
            self.world.deliver()

    def check(self, policy: str) -> None:
        world = self.world
        sent, record = world.sender.sent, world.table.read(NAME)
        assert len(sent) == len(set(sent)), "a part was sent twice"
        assert self.slept or sent == sorted(sent), "parts were sent out of order"
        turns = record.turns if record else []
        assert [turn.batch_id for turn in turns if turn.role == "user"] == self.emitted, "not once each, in order"
        answers = {text[:4] for text in sent}
        asked = [list(prompt.batch_ids) for prompt in world.assistant.prompts]
        assert all(each == sorted(each) for each in asked), "the newest is not the last"
        for batch_id in self.emitted:
            used = [n for n, each in enumerate(asked, 1) if batch_id in each and f"A{n:03}" in answers]
            assert len(used) <= 1, f"{batch_id} was answered twice"
        # Only an interrupt leaves a reply without its tool.
        used_by = {summary for summary, _ in world.buffer.completed}
        assert used_by <= answers if policy == INTERRUPT else used_by == answers
        assert (record.episode_from_ms if record else 0) == max((at for _, at in world.buffer.completed), default=0)
        told: dict[tuple[str, int], Json] = {}
        for event in world.events("messages.reply.sent"):
            assert told.setdefault((event["replyId"], event["at"]), event) == event, "a repeat is not equal"
        published = [part["text"] for event in told.values() for part in event["parts"]]
        assert len(published) == len(set(published)), "a part is in two events"
        assert set(sent) <= set(published), "a part was sent, but not published"
        assert world.plan() is None
        assert not world.dead_lettered


@pytest.mark.timeout(600)
@given(policy=st.sampled_from([DELIVER, DISCARD_AND_MERGE, INTERRUPT]), script=actions)
@example(policy=DELIVER, script=[("emit",), ("deliver",), ("emit again",), ("emit",), ("emit again",)])
@example(policy=DELIVER, script=[("emit",), ("fail", 15, "after", True), ("emit",), ("deliver",)])
@example(policy=DELIVER, script=[("emit",), ("fail", 16, "after", True), ("emit",), ("deliver",)])
@example(policy=DELIVER, script=[("emit",), ("fail", 6, "after", True), ("emit",), ("deliver",)])
@example(policy=DISCARD_AND_MERGE, script=[("emit",), ("fail", 10, "after", True), ("emit",), ("sleep", 3)])
@example(policy=INTERRUPT, script=[("emit",), ("sleep", 6), ("emit",), ("sleep", 10), ("write on",)])
def test_each_batch_is_answered_once_and_no_part_is_sent_twice(
    policy: str, script: list[tuple[Any, ...]], new_table: Tables
) -> None:
    world = World(new_table(), gate=policy, max_attempts=1_000, max_replies_an_hour=1_000)
    model = Model(world)
    for name, *arguments in script:
        model.act(name, *arguments)
    world.run()
    model.check(policy)
