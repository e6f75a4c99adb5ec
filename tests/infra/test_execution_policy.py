"""The policy that docs/deploy.md offers for CDK's execution role allows everything that the templates need."""

import json
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pytest
from aws_cdk.assertions import Template
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER

from infra.cli import LOCAL
from tests.infra.conftest import ROOT
from tests.infra.test_nag_and_lint import VARIANTS
from tests.support.template_rules import REGIONS, findings_of_lint, unaccepted

pytestmark = pytest.mark.xdist_group("synth")

POLICY: dict[str, Any] = json.loads((ROOT / "docs" / "execution-policy.json").read_text("utf-8"))
# IAM's quota for a managed policy, without white space.
MAX_POLICY_CHARACTERS = 6_144
# AWS's registry lists these actions for properties, or other resources, that no template has.
NOT_OURS = {
    "amplify:*",
    "apprunner:*",
    "appsync:*",
    "autoscaling:*",
    "bedrock-agentcore:*",
    "codedeploy:*",
    "cognito-idp:*",
    "elasticfilesystem:*",
    "elasticloadbalancing:*",
    "firehose:*",
    "kinesis:*",
    "payments:*",
    "s3files:*",
    "s3tables:*",
    "vpc-lattice:*",
    "vpce:*",
    "ec2:AcceptAddressTransfer",
    "ec2:*VerifiedAccess*",
    "ec2:*VpcEncryptionControl*",
    "ec2:*VpnGateway",
    "iam:*GroupPolicy",
    "iam:*UserPolicy",
    "iam:*RolePermissionsBoundary",
}
# What the registry leaves out: CloudFormation itself, services that act for the caller, and roles that they create.
BESIDES = {
    "cloudformation:DescribeStacks",
    "iam:CreateServiceLinkedRole",
    "ec2:CreateVpcEndpoint",
    "kms:CreateGrant",
    "logs:CreateLogDelivery",
    "logs:PutResourcePolicy",
}


def _handlers(kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGIONS[0], kind).schema.get("handlers", {})
    return found


def _matches(action: str, patterns: set[str]) -> bool:
    return any(fnmatchcase(action.lower(), pattern.lower()) for pattern in patterns)


def test_every_action_that_the_templates_need_is_allowed(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    kinds = {
        resource["Type"]
        for variant in VARIANTS.values()
        if variant.stage != LOCAL
        for template in synthesize(variant.stage, **variant.overrides).values()
        for resource in template.to_json()["Resources"].values()
    }
    needed = {
        action
        for kind in kinds
        for verb, handler in _handlers(kind).items()
        if verb != "list"
        for action in handler.get("permissions", [])
    }
    actions = [each["Action"] for each in POLICY["Statement"]]
    allowed = {action for each in actions for action in ([each] if isinstance(each, str) else each)}
    assert {action for action in needed | BESIDES if not _matches(action, allowed | NOT_OURS)} == set()
    assert [pattern for pattern in NOT_OURS if not any(_matches(each, {pattern}) for each in needed)] == []


def test_iam_would_accept_the_policy() -> None:
    resource = {"Type": "AWS::IAM::ManagedPolicy", "Properties": {"PolicyDocument": POLICY}}
    assert unaccepted(findings_of_lint({"Resources": {"Policy": resource}}, regions=REGIONS[:1])) == []
    assert len(json.dumps(POLICY, separators=(",", ":"))) <= MAX_POLICY_CHARACTERS
