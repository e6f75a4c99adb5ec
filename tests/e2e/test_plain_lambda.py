"""The example plain_lambda on a stage: its own stack, with its own permissions, consumes the stage's queue."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import cli
from tests.support.local_stage import LocalStage
from tests.support.stand_in import StandIn
from tools.local.deployment import Cdk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("window-stage")]


@pytest.fixture
def bedrock() -> Iterator[StandIn]:
    """Yield a server that stands for Bedrock and for the channel. All else is the stage's emulator."""
    server = StandIn()
    yield server
    server.stop()


def test_the_plain_example_answers_the_turns_of_a_stage(
    dynamodb_stage: LocalStage, bedrock: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, outputs = uuid.uuid4().hex, dynamodb_stage.outputs
    stacks = outputs.client("cloudformation").describe_stacks()["Stacks"]
    found = {each["OutputKey"]: each["OutputValue"] for stack in stacks for each in stack.get("Outputs", [])}
    context = {
        "queue": found["QueueDefaultUrl"],
        "gate": found["GateFunction"],
        "bucket": outputs.OversizeBucketName,
        "model": "a-model",
    }
    monkeypatch.setattr(cli, "app", lambda: ["--app", f"exec {sys.executable} examples/plain_lambda/app.py"])
    cdk = Cdk(endpoint_url=outputs.AwsEndpointUrl, region=outputs.Region, folder=tmp_path, instance=user)
    cdk.deploy(context=context)
    try:
        answer_three_messages(dynamodb_stage, bedrock, user)
    finally:
        # The other tests on this stage have no use for it.
        outputs.client("cloudformation").delete_stack(StackName="message-buffer-plain-lambda")


def answer_three_messages(dynamodb_stage: LocalStage, bedrock: StandIn, user: str) -> None:
    functions = dynamodb_stage.outputs.client("lambda")
    (function,) = [each for each in functions.list_functions()["Functions"] if "plain-lambda" in each["FunctionName"]]
    addresses = {"AWS_ENDPOINT_URL_BEDROCK_RUNTIME": bedrock.url, "REPLY_URL": f"{bedrock.url}/replies"}
    functions.update_function_configuration(
        FunctionName=function["FunctionName"],
        Environment={"Variables": function["Environment"]["Variables"] | addresses},
    )

    def write(*texts: str) -> None:
        for text in texts:
            body = {"account": "shop", "conversation": user, "id": uuid.uuid4().hex, "text": text}
            assert dynamodb_stage.webhooks.post("generic", body).status == 200

    def answered() -> list[str]:
        replies = [reply["text"] for reply in bedrock.replies if reply["conversation"].endswith(f"/{user}")]
        return [line for reply in replies for line in reply.removeprefix("Reply to: ").split("\n")]

    write("Hey", "I have a question")
    bedrock.wait_until(lambda: len(answered()) == 2)
    write("Order 12345")
    bedrock.wait_until(lambda: len(answered()) > 2)
    assert answered() == ["Hey", "I have a question", "Order 12345"]
