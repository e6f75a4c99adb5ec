"""A stage with the DynamoDB lane alone, without Valkey: the same routes, the same event, the same commands."""

import re

import pytest

from lambdas.dynamodb_processor.service import WINDOW_LOCK_MS
from tests.e2e.test_bufferctl import Operator
from tests.support.aws_proxy import PUT_EVENTS, aws_proxy
from tests.support.judge import Talk, ids_of, judge, judge_schema
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("window-stage")]

COME_SECONDS = 40.0
# The bound of P7 for this lane.
MAX_LATE_MS = 60_000


@pytest.fixture
def talk(dynamodb_stage: LocalStage) -> Talk:
    return Talk(dynamodb_stage)


def test_fragments_of_a_window_are_one_event(talk: Talk) -> None:
    for _ in range(5):
        talk.say()
    batches = talk.wait_all(timeout_seconds=COME_SECONDS)
    # On a slow machine, the last of the messages may arrive when the batch has left.
    assert [each for batch in batches for each in batch] == talk.ids
    arrival = talk.arrivals()[0]
    judge_schema(arrival)
    assert arrival.batch["lane"] == "dynamodb"
    assert arrival.at_ms >= talk.accepted[0].due_at_ms


@pytest.mark.promise("P7")
def test_a_batch_whose_run_is_killed_leaves_within_a_minute(dynamodb_stage: LocalStage) -> None:
    """Kill one run when it has frozen its batch, which no other run can emit before its lock expires."""
    with (
        aws_proxy(dynamodb_stage.outputs.AwsEndpointUrl) as aws,
        dynamodb_stage.configured("dynamodb_processor", AWS_ENDPOINT_URL=aws.url),
    ):
        talk, held = Talk(dynamodb_stage), aws.hold(PUT_EVENTS)
        talk.insist()
        dynamodb_stage.kill_caller("dynamodb_processor", held.wait())
        held.release()
        talk.insist()
        arrivals = judge([talk], within_ms=MAX_LATE_MS, timeout_seconds=90)
    assert ids_of(arrivals[0]) == talk.ids[:1]
    assert arrivals[0].batch["attempt"] == 2
    late_ms = arrivals[0].at_ms - talk.accepted[0].due_at_ms
    assert late_ms >= WINDOW_LOCK_MS / 2, "no lock was lost, so the kill came too late to show anything"


def test_an_operator_leads_a_conversation_of_the_dynamodb_lane(
    dynamodb_stage: LocalStage, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = Operator(dynamodb_stage, capsys)
    operator.types("conversation", "hold", operator.conversation, "--for", "1h")
    operator.sends("Hey")
    shown = operator.asks("conversation", "show", operator.conversation)
    assert (shown["state"], shown["count"]) == ("pending", 1)
    assert operator.asks("status")["windows"]["open"] >= 1
    assert re.search(r"^open +1$", operator.types("status"), re.MULTILINE)
    operator.types("conversation", "resume", operator.conversation)
    assert operator.sees(timeout_seconds=COME_SECONDS).batch["lane"] == "dynamodb"
    operator.sends("again")
    operator.types("conversation", "cancel", operator.conversation, "--yes")
    assert operator.asks("conversation", "show", operator.conversation)["state"] == "idle"
    operator.types("conversation", "flush", operator.conversation, code=4)
