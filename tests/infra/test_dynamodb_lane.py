"""The DynamoDB lane in the templates: what a stage gains by it, and what a stage with no other lane leaves out."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from aws_cdk.assertions import Template

from infra.dynamodb_lane import TRIGGERS_IN_A_RUN
from infra.settings_and_defaults import StageConfig

# One process synthesizes for all tests of this file.
pytestmark = pytest.mark.xdist_group("synth")

OF_THE_DYNAMODB_LANE = {"ingest", "dynamodb_processor", "admin", "gate"}
NETWORK_OR_CACHE = ("AWS::EC2::", "AWS::ElastiCache::")

Stacks = Mapping[str, Template]


def resources(stacks: Stacks) -> list[dict[str, Any]]:
    return [resource for stack in stacks.values() for resource in stack.to_json()["Resources"].values()]


def functions(stacks: Stacks) -> dict[str, dict[str, Any]]:
    found = [each["Properties"] for each in stacks["Buffer"].find_resources("AWS::Lambda::Function").values()]
    return {each["Handler"].split(".")[-3]: each for each in found}


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_alone_it_needs_neither_a_network_nor_a_cache(stage: str, synthesize: Callable[..., Stacks]) -> None:
    stacks = synthesize(stage, lane="dynamodb", tracing=True)
    assert set(stacks) == {"Buffer", "Responder"}
    kinds = {resource["Type"] for resource in resources(stacks)}
    assert not [kind for kind in kinds if kind.startswith(NETWORK_OR_CACHE)]
    assert set(functions(stacks)) == OF_THE_DYNAMODB_LANE
    for function in functions(stacks).values():
        assert "VpcConfig" not in function
        assert not [name for name in function["Environment"]["Variables"] if "VALKEY" in name or "PROCESSOR" in name]


@pytest.mark.parametrize("overrides", [{}, {"fallback": False}, {"lane": "dynamodb"}])
def test_a_stages_configuration_names_the_functions_that_it_has(
    overrides: dict[str, Any], synthesize: Callable[..., Stacks], stage_config: Callable[..., StageConfig]
) -> None:
    assert stage_config("prod", **overrides).roles == functions(synthesize("prod", **overrides)).keys()


def test_as_a_fallback_it_stands_beside_the_valkey_lane_and_outside_its_network(
    synthesize: Callable[..., Stacks],
) -> None:
    stacks = synthesize("prod")
    assert set(functions(stacks)) == OF_THE_DYNAMODB_LANE | {"processor", "conversation_processor", "watchdog"}
    placed = {role for role, function in functions(stacks).items() if "VpcConfig" in function}
    assert placed == set(functions(stacks)) - {"dynamodb_processor"}


def test_a_trigger_is_not_seen_twice_while_it_is_worked_on_and_waits_as_long_as_it_may(
    synthesize: Callable[..., Stacks],
) -> None:
    stacks = synthesize("prod")
    triggers = stacks["Buffer"].find_resources("AWS::SQS::Queue")["Triggers"]["Properties"]
    # Lambda polls no queue whose messages come back before the function's time is over.
    assert triggers["VisibilityTimeout"] == functions(stacks)["dynamodb_processor"]["Timeout"] == 30
    assert triggers["MessageRetentionPeriod"] == 14 * 86_400
    # SQS counts each rest as a receipt, and would move the trigger of a long conversation to a dead-letter queue.
    assert "RedrivePolicy" not in triggers, "no number of receipts ends a window"
    (mapping,) = [
        each["Properties"]
        for each in resources(stacks)
        if each["Type"] == "AWS::Lambda::EventSourceMapping"
        and each["Properties"]["EventSourceArn"] == {"Fn::GetAtt": ["Triggers", "Arn"]}
    ]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["BatchSize"] == TRIGGERS_IN_A_RUN
    assert "MaximumBatchingWindowInSeconds" not in mapping, "no window waits for another one to be due"


@pytest.mark.parametrize("overrides", [{}, {"lane": "dynamodb"}])
def test_lost_triggers_are_looked_for_every_minute(
    overrides: dict[str, Any], synthesize: Callable[..., Stacks]
) -> None:
    rules = synthesize("prod", **overrides)["Buffer"].find_resources("AWS::Events::Rule")
    (sweep,) = [each["Properties"] for each in rules.values() if "sweep" in str(each["Properties"]["Targets"])]
    assert sweep["ScheduleExpression"] == "rate(1 minute)"
    (target,) = sweep["Targets"]
    assert target["Input"] == '{"sweep":true}'
    assert target["Arn"]["Fn::GetAtt"][0].startswith("WindowProcessor")
    assert target["RetryPolicy"]["MaximumRetryAttempts"] == 0
