"""A customer who falls silent on the local stage: the rule, the item, a pass, and the event on the bus."""

import json
import time

import pytest

from bufferctl.__main__ import main as bufferctl
from message_buffer.events.idle import IDLE
from tests.support.judge import Talk
from tests.support.local_stage import LocalStage
from tools.local.events import collect

COME_SECONDS = 40.0
PASS_SECONDS = 75.0
HALF_AN_HOUR_MS = 1_800_000


def fall_silent(stage: LocalStage) -> None:
    talk, rules = Talk(stage), json.dumps({"idleAfterMs": [HALF_AN_HOUR_MS]})
    dynamodb = stage.outputs.client("dynamodb")
    (table,) = (name for name in dynamodb.list_tables()["TableNames"] if "-Takeovers" in name)
    scope = f"conversation:default/generic/shop/{talk.name}"
    assert bufferctl(["--outputs", str(stage.stage.outputs_file), "rules", "set", scope, rules]) == 0
    time.sleep(11)  # until every instance of ingest has the rule
    with collect(stage.outputs, pattern={"source": ["message-buffer"], "detail-type": [IDLE]}) as inbox:
        talk.insist()
        talk.wait_all(timeout_seconds=COME_SECONDS)
        key = {"conversation": {"S": talk.conversation_id}}
        deadline = time.monotonic() + COME_SECONDS
        while "at" not in (item := dynamodb.get_item(TableName=table, Key=key).get("Item", {})):
            assert time.monotonic() < deadline, "the steps have not begun"
            time.sleep(0.2)
        assert int(item["at"]["N"]) == int(item["since"]["N"]) + HALF_AN_HOUR_MS
        # Half an hour passes.
        dynamodb.update_item(
            TableName=table,
            Key=key,
            UpdateExpression="SET #at = #since, #since = #since - :wait",
            ExpressionAttributeNames={"#at": "at", "#since": "since"},
            ExpressionAttributeValues={":wait": {"N": str(HALF_AN_HOUR_MS)}},
        )
        found = inbox.wait_until(
            lambda all_of: any(each.batch["conversationId"] == talk.conversation_id for each in all_of),
            timeout_seconds=PASS_SECONDS,
        )
        assert found
        (event,) = (each.batch for each in inbox.arrivals if each.batch["conversationId"] == talk.conversation_id)
    assert (event["step"], event["steps"], event["lastMessageAt"]) == (1, 1, int(item["last"]["N"]))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("stage")
def test_a_stage_tells_that_a_customer_fell_silent(stage: LocalStage) -> None:
    fall_silent(stage)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("window-stage")
def test_a_stage_with_the_dynamodb_lane_alone_tells_it_too(dynamodb_stage: LocalStage) -> None:
    fall_silent(dynamodb_stage)
