"""A batch that is too large for the bus is stored in the bucket, and the event says where."""

import json

import pytest

from tests.support.judge import Talk, judge_schema
from tests.support.local_stage import MAX_EVENT_BYTES, LocalStage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("stage")]


@pytest.mark.smoke
def test_a_batch_over_the_limit_is_read_from_the_bucket(stage: LocalStage) -> None:
    talk = Talk(stage)
    texts = [f"{number}" + "x" * (MAX_EVENT_BYTES // 2) for number in range(3)]
    bodies = [talk.body(text=text) for text in texts]
    talk.note(talk.stage.webhooks.post("generic", bodies), *(body["id"] for body in bodies))

    def mine(arrivals: object) -> list[dict[str, object]]:
        batches = [arrival.batch for arrival in stage.inbox.arrivals]
        return [batch for batch in batches if batch["conversationId"] == talk.conversation_id]

    assert stage.inbox.wait_until(lambda arrivals: bool(mine(arrivals)), timeout_seconds=20)
    (arrival,) = [each for each in stage.inbox.arrivals if each.batch["conversationId"] == talk.conversation_id]
    judge_schema(arrival)
    assert len(json.dumps(arrival.batch)) < MAX_EVENT_BYTES
    assert (arrival.batch["messages"], arrival.batch["text"], arrival.batch["messageCount"]) == ([], None, 3)
    reference = arrival.batch["messagesRef"]
    assert reference["bucket"] == stage.outputs.OversizeBucketName
    stored = stage.outputs.client("s3").get_object(Bucket=reference["bucket"], Key=reference["key"])["Body"].read()
    assert len(stored) == reference["bytes"]
    content = json.loads(stored)
    assert [message["id"] for message in content["messages"]] == talk.ids
    assert [message["text"] for message in content["messages"]] == texts
    assert content["text"] == "\n".join(texts)
