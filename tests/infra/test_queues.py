"""The stage's queues: how they are made, who may use them, and what the functions are told of them."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_cdk.assertions import Template

from infra.queues import MAX_RECEIVES, VISIBILITY, camel_case
from infra.settings_and_defaults import MAX_QUEUES, ConfigError, ResponderConfig, StageConfig
from message_buffer.settings import ResponderOptions
from tests.infra.test_operability import alarms_of, metric_of
from tests.infra.test_permissions import grants, looked_up, of

pytestmark = pytest.mark.xdist_group("synth")

Synthesize = Callable[..., Mapping[str, Template]]
QUEUES: dict[str, Any] = {
    "chat": {"platform": ["messenger", "whatsapp"]}, "sms-sales": {"platform": "twilio", "agent": "vip"}, "handoff": {},
}  # fmt: skip
ACCOUNT = "444455556666"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def deployed(synthesize: Synthesize) -> Mapping[str, Template]:
    return synthesize("prod", queues=QUEUES, responder={}, bus={"consumer_accounts": [ACCOUNT]})


def test_each_queue_is_fifo_with_high_throughput_and_so_are_its_dead_letters(deployed: Mapping[str, Template]) -> None:
    queues = of(deployed["Buffer"], "AWS::SQS::Queue")
    names = {name for name in queues if name.startswith("Queue")}
    assert names == {f"Queue{dead}{name}" for dead in ("", "DeadLetters") for name in ("Chat", "SmsSales", "Handoff")}
    for name in names:
        assert queues[name]["FifoQueue"] is True
        assert "QueueName" not in queues[name], "a retained queue would block the next of its name"
        assert queues[name]["DeduplicationScope"] == "messageGroup"
        assert queues[name]["FifoThroughputLimit"] == "perMessageGroupId"
        if "DeadLetters" not in name:
            dead = {"Fn::GetAtt": [name.replace("Queue", "QueueDeadLetters"), "Arn"]}
            assert queues[name]["RedrivePolicy"] == {"deadLetterTargetArn": dead, "maxReceiveCount": MAX_RECEIVES}
    for output in ("Queue{}Url", "QueueDeadLetters{}Url"):
        deployed["Buffer"].has_output(output.format("SmsSales"), {})


def test_a_queue_hides_a_batch_for_longer_than_any_function_may_run_and_gives_up_after_the_responder() -> None:
    longest = next(
        each.le for each in ResponderConfig.model_fields["assistant_seconds"].metadata if hasattr(each, "le")
    )
    assert VISIBILITY.to_seconds() >= max(longest + 45, 900)
    assert ResponderOptions._field_defaults["max_attempts"] < MAX_RECEIVES


def test_a_stage_without_queues_and_responder_has_none(synthesize: Synthesize) -> None:
    template = synthesize("prod")["Buffer"]
    assert not [name for name in template.find_resources("AWS::SQS::Queue") if name.startswith("Queue")]


def test_those_that_emit_may_send_to_the_queues_and_the_admin_function_may_look_at_their_dead_letters(
    deployed: Mapping[str, Template],
) -> None:
    found = {
        (each.function.rstrip("0123456789ABCDEF"), each.action.removeprefix("sqs:"), name)
        for each in grants(deployed["Buffer"])
        for name in of(deployed["Buffer"], "AWS::SQS::Queue")
        if name.startswith("Queue") and f'"{name}"' in each.resource
    }
    names = ("Chat", "SmsSales", "Handoff")
    emitters = ("ConversationProcessor", "WindowProcessor")
    looks = ("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes")
    assert found == {(role, "SendMessage", f"Queue{name}") for role in emitters for name in names} | {
        ("Admin", look, f"QueueDeadLetters{name}") for look in looks for name in names
    }


def test_an_account_of_consumers_may_consume_the_queues_and_not_send(deployed: Mapping[str, Template]) -> None:
    allowed = [
        (statement["Action"], str(statement["Resource"]))
        for policy in of(deployed["Buffer"], "AWS::SQS::QueuePolicy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Effect"] == "Allow" and ACCOUNT in str(statement["Principal"])
    ]
    assert len(allowed) == len(QUEUES)
    for actions, resource in allowed:
        assert not {"sqs:SendMessage", "sqs:*"} & set(actions)
        assert "DeadLetters" not in resource


def test_the_responder_consumes_every_queue_but_that_of_people(deployed: Mapping[str, Template]) -> None:
    mappings = of(deployed["Responder"], "AWS::Lambda::EventSourceMapping").values()
    assert len(mappings) == len(QUEUES) - 1
    for each in mappings:
        assert (each["BatchSize"], each["FunctionResponseTypes"]) == (10, ["ReportBatchItemFailures"])
        assert each["ScalingConfig"] == {"MaximumConcurrency": 100}
    assert "Handoff" not in str(deployed["Responder"].to_json())
    may = {
        (each.action.removeprefix("sqs:"), *re.findall(r'"(Queue\w+)"', each.resource))
        for each in grants(looked_up(deployed)["Responder"])
        if '"Queue' in each.resource
    }
    looks = ("ReceiveMessage", "ChangeMessageVisibility", "DeleteMessage", "GetQueueAttributes")
    assert may == {(look, f"Queue{name}") for look in looks for name in ("Chat", "SmsSales")} | {
        ("SendMessage", f"QueueDeadLetters{name}") for name in ("Chat", "SmsSales")
    }


def test_the_responder_is_told_to_forget_by_lambda_three_times_and_then_an_operator(
    deployed: Mapping[str, Template],
) -> None:
    (rule,) = of(deployed["Responder"], "AWS::Events::Rule").values()
    (target,) = rule["Targets"]
    ((function, _),) = of(deployed["Responder"], "AWS::Lambda::Function").items()
    assert target["Arn"] == {"Fn::GetAtt": [function, "Arn"]}
    (invoked,) = of(deployed["Responder"], "AWS::Lambda::EventInvokeConfig").values()
    assert invoked["MaximumRetryAttempts"] == 2
    # After a throttle the function's own limit would drop the event before Lambda could repeat it.
    assert invoked["MaximumEventAgeInSeconds"] > 60 + 120
    assert "DeadLettersArn" in str(invoked["DestinationConfig"]["OnFailure"]["Destination"])


def test_each_queue_has_an_alarm_of_its_own_that_names_it(deployed: Mapping[str, Template]) -> None:
    alarms = alarms_of(deployed["Buffer"])
    for name in QUEUES:
        queue, dead_letters = alarms[f"queue-waits-{name}"], alarms[f"queue-dead-letters-{name}"]
        assert metric_of(queue)["MetricName"] == "ApproximateAgeOfOldestMessage"
        assert queue["Threshold"] == 600 + 60, "the responder's gate may keep a batch for its time"
        assert metric_of(dead_letters)["MetricName"] == "ApproximateNumberOfMessagesVisible"
        watched = [metric_of(each)["Dimensions"][0]["Value"]["Fn::GetAtt"][0] for each in (queue, dead_letters)]
        assert watched == [f"Queue{camel_case(name)}", f"QueueDeadLetters{camel_case(name)}"]


def test_only_a_stage_without_the_queue_default_has_batches_without_queue(
    deployed: Mapping[str, Template], synthesize: Synthesize
) -> None:
    def watched(template: Template) -> list[str]:
        return [name for name in alarms_of(template) if name.startswith("batches-without-queue")]

    assert len(watched(deployed["Buffer"])) == 2
    assert watched(synthesize("dev", queues={"default": {}})["Buffer"]) == []
    assert watched(synthesize("prod")["Buffer"]) == []


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"queues": {"Sms": {"platform": "twilio"}}}, "queues.Sms: a queue's name has at most 31 lower-case letters"),
        ({"queues": {"a" * 32: {"platform": "twilio"}}}, "a queue's name has at most 31 lower-case letters"),
        ({"queues": {"dead-letters-x": {"agent": "x"}}}, "does not begin with dead-letters"),
        ({"queues": {"sms": {}}}, "queues.sms needs at least one condition: platform, agent, tenant, account"),
        ({"queues": {"sms": {"platform": []}}}, "queues.sms.platform: Tuple should have at least 1 item"),
        ({"queues": {"sms": {"platform": "twillio"}}}, "unknown platform; did you mean twilio"),
        ({"queues": {"sms": {"channel": "x"}}}, "queues.sms.channel is unknown; valid there: account, agent, platform"),
        ({"queues": {"default": {"agent": "x"}}}, "queues.default has no conditions: leave them out"),
        ({"queues": {"handoff": {"agent": "x"}}}, "queues.handoff has no conditions: leave them out"),
        ({"queues": {"a-1": {"agent": "x"}, "a1": {"agent": "y"}}}, "two names differ only in their hyphens"),
        ({"queues": {"handoff": {}}, "responder": {}}, "queues needs one that the responder consumes"),
        ({"queues": {f"q{n}": {"agent": "x"} for n in range(MAX_QUEUES + 1)}}, "at most 10 items"),
        ({"queues": {}, "rules": {"queue": "sms"}}, "there is no queue 'sms'; this stage has no queues"),
        ({"responder": {}, "queues": {}, "rules": {"queue": "sms"}}, "there is no queue 'sms'; use one of default"),
        ({"rules": {"platformOverrides": {"twilio": {"queue": "sm"}}}}, "platformOverrides.twilio.queue: there is no"),
    ],
)
def test_queues_that_cannot_be_are_refused_in_a_sentence(
    overrides: dict[str, Any], sentence: str, stage_config: Callable[..., StageConfig]
) -> None:
    with pytest.raises(ConfigError) as refused:
        stage_config("prod", **overrides)
    assert sentence in str(refused.value)


def test_a_stage_with_a_responder_has_at_least_the_queue_default(stage_config: Callable[..., StageConfig]) -> None:
    assert list(stage_config("prod").effective_queues) == []
    assert list(stage_config("prod", responder={}).effective_queues) == ["default"]
    assert list(stage_config("prod", responder={}, queues=QUEUES).effective_queues) == list(QUEUES)


def test_the_queues_of_the_documents_are_settings_of_a_stage(stage_config: Callable[..., StageConfig]) -> None:
    shown = re.search(r"```json\n(\"queues\": .*?)\n```", (DOCS / "design.md").read_text(), re.DOTALL)
    assert shown
    queues = json.loads(f"{{{shown[1]}}}")["queues"]
    assert list(stage_config("dev", queues=queues).queues) == ["whatsapp", "sms", "email", "handoff", "default"]
