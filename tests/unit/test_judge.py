"""The judge of the local stage's tests: a request that was answered with an error may have taken effect."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pytest

from bufferctl.events import Arrival
from local.webhooks import Answer
from message_buffer.clock import system_clock
from tests.support.judge import Talk, judge
from tests.support.local_stage import LocalStage
from tests.unit.test_event_schema import message, whole

CONVERSATION = "default/generic/shop/c1"


class StageOfAnswers:
    """Answers each message with the next of these answers; these batches are on the bus."""

    def __init__(self, answers: Iterable[Answer], arrivals: Sequence[Arrival]) -> None:
        self.webhooks, self.inbox = self, self
        self.arrivals = arrivals
        self._answers = iter(answers)

    def post(self, _platform: str, _body: Any) -> Answer:
        return next(self._answers)

    def wait_until(self, condition: Callable[[Sequence[Arrival]], bool], *, timeout_seconds: float) -> bool:
        del timeout_seconds
        return condition(self.arrivals)

    def wait_until_settled(self, *_conversations: str, timeout_seconds: float) -> None:
        """Hold nothing."""


def answer(status: int, *, due_at_ms: int | None = None) -> Answer:
    state = {"conversations": {CONVERSATION: {"dueAt": due_at_ms, "count": 0}}}
    return Answer(status, json.dumps(state).encode(), "application/json")


def batch(batch_id: str, *message_ids: str, at_ms: int) -> Arrival:
    messages = [message() | {"id": each} for each in message_ids]
    detail = whole() | {"batchId": batch_id, "messages": messages, "messageCount": len(messages)}
    event: Any = {"source": "message-buffer", "detail-type": "messages.batch.ready", "detail": detail}
    return Arrival(event, at_ms)


def judged(answers: Iterable[Answer], arrivals: Sequence[Arrival], *message_ids: str) -> None:
    talk = Talk(cast(LocalStage, StageOfAnswers(answers, arrivals)))
    for message_id in message_ids:
        talk.say(message_id)
    judge([talk], within_ms=1_000)


def test_a_message_that_came_out_before_its_repeat_was_answered_is_not_late() -> None:
    now_ms = system_clock()
    judged([answer(503), answer(200)], [batch("b-1", "m1", at_ms=now_ms)], "m1", "m1")


def test_a_message_that_comes_out_long_after_its_repeat_was_answered_is_late() -> None:
    at_ms = system_clock() + 60_000
    with pytest.raises(AssertionError, match="ms after it was due"):
        judged([answer(503), answer(200)], [batch("b-1", "m1", at_ms=at_ms)], "m1", "m1")


def test_a_message_that_was_never_answered_may_come_out() -> None:
    now_ms = system_clock()
    both = [answer(503), answer(200, due_at_ms=now_ms)]
    judged(both, [batch("b-1", "m1", "m2", at_ms=now_ms)], "m1", "m2")
    judged(both, [batch("b-1", "m2", at_ms=now_ms)], "m1", "m2")


def test_a_message_that_was_never_answered_comes_out_once() -> None:
    now_ms = system_clock()
    arrivals = [batch("b-1", "m1", "m2", at_ms=now_ms), batch("b-2", "m1", "m3", at_ms=now_ms)]
    answers = [answer(503), *[answer(200, due_at_ms=now_ms)] * 2]
    with pytest.raises(AssertionError, match="two batches"):
        judged(answers, arrivals, "m1", "m2", "m3")


def test_a_message_that_was_refused_does_not_come_out() -> None:
    now_ms = system_clock()
    both = [answer(400), answer(200, due_at_ms=now_ms)]
    with pytest.raises(AssertionError, match="each message in one batch"):
        judged(both, [batch("b-1", "m1", "m2", at_ms=now_ms)], "m1", "m2")
