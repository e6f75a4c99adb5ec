"""The emulator enforces IAM as AWS does: a function may do only what its own role allows."""

import json
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from bufferctl import sessions
from tests.support.judge import Talk, judge
from tests.support.local_stage import LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]


@pytest.mark.smoke
def test_who_has_no_policy_is_refused(stage: LocalStage) -> None:
    iam = stage.outputs.client("iam")
    iam.create_user(UserName="intruder")
    try:
        key = iam.create_access_key(UserName="intruder")["AccessKey"]
        intruder = sessions.emulator_session(key["AccessKeyId"], key["SecretAccessKey"]).client(
            "sqs", endpoint_url=stage.outputs.AwsEndpointUrl, region_name=stage.outputs.Region
        )
        with pytest.raises(ClientError, match="AccessDenied"):
            intruder.receive_message(QueueUrl=stage.outputs.DeadLetterQueueUrl)
    finally:
        iam.delete_access_key(UserName="intruder", AccessKeyId=key["AccessKeyId"])
        iam.delete_user(UserName="intruder")


def test_a_permission_taken_away_delays_a_batch_and_given_back_releases_it(stage: LocalStage) -> None:
    talk, since_ms = Talk(stage), int(time.time() * 1_000)
    with stage.denied("conversation_processor", "events:PutEvents"):
        talk.insist()
        deadline = time.monotonic() + 20
        while not (refusals := refused(stage, talk, since_ms=since_ms)):
            assert time.monotonic() < deadline, "the conversation processor was not refused"
            time.sleep(0.05)
    assert refusals[0]["reason"] == "put event: AccessDeniedException"
    (arrival,) = judge([talk], within_ms=10_000)
    assert arrival.batch["attempt"] > 1


def refused(stage: LocalStage, talk: Talk, *, since_ms: int) -> list[dict[str, Any]]:
    lines = [line for line in stage.log("conversation_processor", since_ms=since_ms) if '"emit failed"' in line]
    return [line for line in map(json.loads, lines) if line["conversation"] == talk.conversation_id]
