"""The judge of the local stage's tests: a request that was answered with an error may have taken effect."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pytest

from bufferctl.events import ArrivedEvent
from message_buffer.clock import system_clock
from tests.support.judge import AcrossLanes, Talk, judge, judge_lanes
from tests.support.local_stage import LocalStage
from tests.unit.test_event_schema import message, whole
from tools.local.webhooks import StageResponse

CONVERSATION = "default/generic/shop/c1"


class StageOfAnswers:
    """Answers each message with the next of these answers; these batches are on the bus."""

    def __init__(self, answers: Iterable[StageResponse], arrivals: Sequence[ArrivedEvent]) -> None:
        self.webhooks, self.inbox = self, self
        self.arrivals = arrivals
        self._answers = iter(answers)

    def post(self, _platform: str, _body: Any) -> StageResponse:
        return next(self._answers)

    def wait_until(self, condition: Callable[[Sequence[ArrivedEvent]], bool], *, timeout_seconds: float) -> bool:
        del timeout_seconds
        return condition(self.arrivals)

    def wait_until_settled(self, *_conversations: str, timeout_seconds: float) -> None:
        """Hold nothing."""


def answer(status: int, *, due_at_ms: int | None = None) -> StageResponse:
    state = {"conversations": {CONVERSATION: {"dueAt": due_at_ms, "count": 0}}}
    return StageResponse(status, json.dumps(state).encode(), "application/json")


def batch(batch_id: str, *message_ids: str, at_ms: int = 0, lane: str = "valkey") -> ArrivedEvent:
    messages = [message() | {"id": each} for each in message_ids]
    detail = whole() | {"batchId": batch_id, "messages": messages, "messageCount": len(messages), "lane": lane}
    event: Any = {"source": "message-buffer", "detail-type": "messages.batch.ready", "detail": detail}
    return ArrivedEvent(event, at_ms)


def judged(answers: Iterable[StageResponse], arrivals: Sequence[ArrivedEvent], *message_ids: str) -> None:
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


# -- across an outage --------------------------------------------------------------------------------------------------


def across(arrivals: Sequence[ArrivedEvent], *message_ids: str, **allowed: Any) -> AcrossLanes:
    """Send these messages, each accepted at once, and judge these batches."""
    answers = [answer(200, due_at_ms=0)] * len(message_ids)
    talk = Talk(cast(LocalStage, StageOfAnswers(answers, arrivals)))
    for message_id in message_ids:
        talk.say(message_id)
    return judge_lanes([talk], **{"openings": 0, **allowed})


BOTH = [batch("b-1", "m1", "m2"), batch("w-1", "m1", lane="dynamodb")]


def test_a_message_in_both_lanes_needs_an_instance_that_turned_to_the_fallback() -> None:
    assert across(BOTH, "m1", "m2", openings=1).doubled == {"m1"}
    with pytest.raises(AssertionError, match="1 messages in both lanes, after 0 openings"):
        across(BOTH, "m1", "m2")


def test_each_turn_to_the_fallback_explains_one_message_in_both_lanes() -> None:
    two = [batch("b-1", "m1", "m2"), batch("w-1", "m1", "m2", lane="dynamodb")]
    assert across(two, "m1", "m2", openings=2).doubled == {"m1", "m2"}
    with pytest.raises(AssertionError, match="2 messages in both lanes, after 1 openings"):
        across(two, "m1", "m2", openings=1)


def test_a_message_that_was_sent_again_may_be_in_both_lanes() -> None:
    assert across(BOTH, "m1", "m2", "m1").doubled == {"m1"}
    with pytest.raises(AssertionError, match="after 0 openings"):
        across(BOTH, "m1", "m2", "m2")


def test_a_message_is_in_one_batch_of_a_lane_whatever_happened() -> None:
    with pytest.raises(AssertionError, match="two batches of the valkey lane"):
        across([batch("b-1", "m1"), batch("b-2", "m1")], "m1", "m1", openings=5)


def test_only_a_wiped_valkey_loses_a_message() -> None:
    assert across([batch("b-1", "m2")], "m1", "m2", perhaps_lost={"m1"}).lost == {"m1"}
    with pytest.raises(AssertionError, match="lost"):
        across([batch("b-1", "m2")], "m1", "m2", openings=5)


def test_the_order_is_judged_within_each_lane() -> None:
    assert across([batch("b-1", "m1", "m3"), batch("w-1", "m2", lane="dynamodb")], "m1", "m2", "m3").doubled == set()
    with pytest.raises(AssertionError, match="in order in the valkey lane"):
        across([batch("b-1", "m2"), batch("b-2", "m1")], "m1", "m2")
