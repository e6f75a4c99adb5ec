"""What the local stage does not show of permissions: the stages in AWS, and what AWS's services do by themselves.

The emulator enforces the roles of functions (ADR 0011), but only those of the stage `local`, and only in their calls.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from aws_cdk.assertions import Template

from infra.function import ALIAS
from tests.infra.test_buffer import several
from tests.infra.test_nag_and_lint import EACH_IN_AWS, VARIANTS

pytestmark = pytest.mark.xdist_group("synth")

Synthesize = Callable[..., Mapping[str, Template]]
REFERENCE = re.compile(r'"(?:Ref|Fn::GetAtt)": \[?"(\w+)"')
# The functions call by TLS. Only calls by a function's code have this key, and the code calls nothing of EC2.
NEVER_OURS = [{"Bool": {"aws:SecureTransport": "false"}}, {"Null": {"lambda:SourceFunctionArn": "false"}}]
POLLS = {"sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"}


class Grant(NamedTuple):
    function: str
    action: str
    resource: str
    condition: str = "null"


def statements_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("Statement", []) if "Version" in value else ()
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from statements_in(each)


def of(template: Template, kind: str) -> dict[str, dict[str, Any]]:
    return {name: each["Properties"] for name, each in template.find_resources(kind).items()}


def written(resource: Any, template: Template) -> str:
    """Return a reference as JSON. An alias counts as its function."""
    text = json.dumps(resource).replace(f':{ALIAS}"', '"')
    for alias, each in of(template, "AWS::Lambda::Alias").items():
        text = text.replace(
            json.dumps({"Ref": alias}), json.dumps({"Fn::GetAtt": [each["FunctionName"]["Ref"], "Arn"]})
        )
    return text


def looked_up(stacks: Mapping[str, Template]) -> dict[str, Template]:
    """Return the stacks with the outputs of other stacks in place of the references to them."""
    outputs = {word: template.to_json().get("Outputs", {}) for word, template in stacks.items()}

    def filled(value: Any) -> Any:
        if not isinstance(value, dict):
            return [filled(each) for each in value] if isinstance(value, list) else value
        match {key: filled(each) for key, each in value.items()}:
            case {"Fn::GetStackOutput": {"StackName": str(stack), "OutputName": name}}:
                return outputs[stack.rpartition("-")[2]][name]["Value"]
            case {"Fn::Sub": ["${arns}", {"arns": found}]}:
                return found
            case {"Fn::Split": [",", joined]}:
                return joined["Fn::Join"][1] if "Fn::Join" in joined else [joined]
            case other:
                return other

    return {word: Template.from_json(filled(template.to_json())) for word, template in stacks.items()}


def grants(template: Template) -> set[Grant]:
    """Return what the roles of the functions allow. A function has the name of its resource."""
    policies, roles = of(template, "AWS::IAM::Policy").values(), of(template, "AWS::IAM::Role")
    return {
        Grant(name, action, written(resource, template), json.dumps(statement.get("Condition")))
        for name, function in of(template, "AWS::Lambda::Function").items()
        for role in function["Role"]["Fn::GetAtt"][:1]
        for statement in statements_in(
            [*roles[role]["Policies"], *(p for p in policies if {"Ref": role} in p["Roles"])]
        )
        if statement["Effect"] == "Allow"
        for action in several(statement["Action"])
        for resource in several(statement["Resource"])
    }


@EACH_IN_AWS
def test_a_role_in_aws_allows_what_it_allows_on_the_local_stage(name: str, synthesize: Synthesize) -> None:
    stage, overrides = VARIANTS[name]
    local = looked_up(synthesize("local", **{key: value for key, value in overrides.items() if key == "lane"}))
    stacks, seen = looked_up(synthesize(stage, **overrides)), 0
    resources = {name for template in stacks.values() for name in template.to_json()["Resources"]}
    for stack, template in stacks.items():
        here = {each._replace(resource=re.sub(rf"-{stage}\b", "-local", each.resource)) for each in grants(template)}
        for each in grants(local[stack]) if stack in local else ():
            if {each.function, *REFERENCE.findall(each.resource)} <= resources:
                assert each in here
                seen += 1
    assert seen > 60


@EACH_IN_AWS
def test_nothing_in_aws_denies_a_call_of_a_function(name: str, synthesize: Synthesize) -> None:
    stage, overrides = VARIANTS[name]
    for template in synthesize(stage, **overrides).values():
        denials = [each for each in statements_in(template.to_json()["Resources"]) if each["Effect"] == "Deny"]
        assert [each for each in denials if each.get("Condition") not in NEVER_OURS] == []
        for endpoint in of(template, "AWS::EC2::VPCEndpoint").values():
            (admitted,) = endpoint["PolicyDocument"]["Statement"]
            assert (admitted["Effect"], admitted["Action"], admitted["Resource"]) == ("Allow", "*", "*")
            assert admitted["Condition"] == {"StringEquals": {"aws:PrincipalAccount": {"Ref": "AWS::AccountId"}}}


@EACH_IN_AWS
def test_lambda_may_poll_queues_and_report_failures_with_the_role_of_the_function(
    name: str, synthesize: Synthesize
) -> None:
    stage, overrides = VARIANTS[name]
    seen = 0
    for template in looked_up(synthesize(stage, **overrides)).values():
        polled = of(template, "AWS::Lambda::EventSourceMapping").values()
        failing = [
            each for each in of(template, "AWS::Lambda::EventInvokeConfig").values() if "DestinationConfig" in each
        ]
        needed = [(each, action, each["EventSourceArn"]) for each in polled for action in POLLS]
        needed += [(e, "sqs:SendMessage", e["DestinationConfig"]["OnFailure"]["Destination"]) for e in failing]
        allowed = grants(template)
        for each, action, queue in needed:
            (function,) = REFERENCE.findall(written(each["FunctionName"], template))
            assert Grant(function, action, json.dumps(queue)) in allowed
            seen += 1
    assert seen >= len(POLLS)


@EACH_IN_AWS
def test_a_rule_may_reach_its_targets_and_the_queue_of_what_did_not(name: str, synthesize: Synthesize) -> None:
    stage, overrides = VARIANTS[name]
    seen = 0
    for template in synthesize(stage, **overrides).values():
        admitted = [
            (each["FunctionName"], each["SourceArn"])
            for each in of(template, "AWS::Lambda::Permission").values()
            if each["Principal"] == "events.amazonaws.com"
        ] + [
            (each["Resource"], each["Condition"]["ArnEquals"]["aws:SourceArn"])
            for each in statements_in(of(template, "AWS::SQS::QueuePolicy"))
            if each["Effect"] == "Allow" and each["Principal"] == {"Service": "events.amazonaws.com"}
            if "sqs:SendMessage" in several(each["Action"])
        ]
        for rule, each in of(template, "AWS::Events::Rule").items():
            for target in each["Targets"]:
                for reached in (target, *filter(None, [target.get("DeadLetterConfig")])):
                    assert (reached["Arn"], {"Fn::GetAtt": [rule, "Arn"]}) in admitted
                    seen += 1
    assert seen > 0
