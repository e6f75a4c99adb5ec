"""AWS's rules (cdk-nag) and CloudFormation's schema (cfn-lint) accept everything that a stage may choose."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aws_cdk as cdk
import cfnlint.helpers
import pytest
from aws_cdk.assertions import Annotations, Match, Template
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError
from moto.iam.aws_managed_policies import aws_managed_policies_data

import app as program
from infra import cli
from infra.composition import enforce_cdk_nag
from infra.settings_and_defaults import LOCAL, WITHOUT_FUNCTION_URLS, WITHOUT_SCHEMAS
from tests.conftest import PROFILE
from tests.support.template_rules import (
    ACCEPTED,
    LIMITS,
    REGIONS,
    covering,
    exceeded,
    findings_of_lint,
    unaccepted,
)

pytestmark = pytest.mark.xdist_group("synth")

CERTIFICATE = "arn:aws:acm:us-east-1:111122223333:certificate/00000000-0000-0000-0000-000000000000"
DOMAIN = {"name": "webhooks.example.com", "certificate_arn": CERTIFICATE}


class Variant(NamedTuple):
    stage: str
    overrides: dict[str, Any]


TOPIC = "arn:aws:sns:us-east-1:111122223333:whatsapp"
VARIANTS = {
    "local": Variant("local", {}),
    "dev": Variant("dev", {}),
    "prod": Variant("prod", {}),
    "without NAT": Variant("prod", {"network": {"egress": "endpoints"}, "tracing": True}),
    "without a network": Variant("prod", {"network": {"egress": "none"}}),
    "without a fallback": Variant("prod", {"fallback": False}),
    "DynamoDB lane": Variant("dev", {"lane": "dynamodb"}),
    "DynamoDB lane that keeps": Variant("prod", {"lane": "dynamodb", "tracing": True}),
    "local DynamoDB lane": Variant("local", {"lane": "dynamodb"}),
    "REST": Variant("dev", {"api": {"kind": "rest", "domain": DOMAIN}}),
    "three zones": Variant(
        "prod",
        {"network": {"availability_zones": [f"us-east-1{letter}" for letter in "abc"], "nat_gateways": 3}},
    ),
    "own address": Variant("prod", {"api": {"kind": "url"}}),
    "own domain": Variant("dev", {"api": {"domain": DOMAIN}}),
    "always warm": Variant("prod", {"warmth": {"ingest": 2, "processor": 2, "conversation_processor": 2}}),
    "WhatsApp by SNS": Variant("prod", {"end_user_messaging_topic": TOPIC, "warmth": {"ingest": 2}}),
    "consumers": Variant("dev", {"bus": {"consumer_accounts": ["444455556666"]}, "alarm_emails": ["a@b.example"]}),
    "responder": Variant(
        "prod",
        {
            "responder": {"assistant": "bedrock", "model": "us.amazon.nova-lite-v1:0"},
            "tracing": True,
            "canary": True,
            "log_ids": "hashed",
        },
    ),
}
MAX_LOOK_UPS = 10
IN_AWS = [name for name, variant in VARIANTS.items() if variant.stage != LOCAL]
STACKS = ["Network", "Cache", "PublicCache", "Buffer", "Responder"]


@pytest.fixture(scope="session")
def findings(composed: Callable[..., cdk.App]) -> Callable[[Variant], list[str]]:
    """Return the findings of cdk-nag as `rule at construct`."""
    made: dict[str, list[str]] = {}

    def found(variant: Variant) -> list[str]:
        key = str(variant)
        if key not in made:
            app = composed(variant.stage, **variant.overrides)
            enforce_cdk_nag(app)
            made[key] = violations(app)
        return made[key]

    return found


def violations(app: cdk.App) -> list[str]:
    """Synthesize an app, and return the findings of its rules as `rule at construct`."""
    try:
        app.synth()
    except RuntimeError as error:
        if "ValidationFailed" not in str(error):
            raise
    else:
        return []
    report = json.loads((Path(app.outdir) / "validation-report.json").read_text())
    return [
        f"{violation['ruleName']} at {construct['constructPath']}"
        for plugin in report["pluginReports"]
        for violation in plugin["violations"]
        for construct in violation["violatingConstructs"]
    ]


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", IN_AWS)
def test_no_rule_is_broken_without_a_reason(name: str, stack: str, findings: Callable[[Variant], list[str]]) -> None:
    variant = VARIANTS[name]
    assert [each for each in findings(variant) if f" at MessageBuffer-{variant.stage}-{stack}/" in each] == []


@pytest.mark.parametrize("name", VARIANTS)
def test_cdk_warns_of_nothing(name: str, stacks_of: Callable[..., list[cdk.Stack]]) -> None:
    stage, overrides = VARIANTS[name]
    stacks = stacks_of(stage, **overrides)
    warnings = [each for stack in stacks for each in Annotations.from_stack(stack).find_warning("*", Match.any_value())]
    assert [warning.entry.data for warning in warnings] == []


@pytest.fixture(scope="session")
def to_lint(synthesize: Callable[..., Mapping[str, Template]]) -> set[str]:
    """Return the templates that have every property of all, each as `variant stack`. The nightly run lints all."""
    every = {
        f"{name} {stack}": dict(template.to_json())
        for name, (stage, overrides) in VARIANTS.items()
        for stack, template in synthesize(stage, **overrides).items()
    }
    return set(every) if PROFILE == "nightly" else covering(every)


@pytest.mark.parametrize("name", VARIANTS)
def test_cloudformation_would_take_every_template(
    name: str, synthesize: Callable[..., Mapping[str, Template]], to_lint: set[str]
) -> None:
    """Lint for one region. The nightly run lints for others, too (test_combinations.py)."""
    stage, overrides = VARIANTS[name]
    for stack, template in synthesize(stage, **overrides).items():
        if f"{name} {stack}" in to_lint:
            assert unaccepted(findings_of_lint(dict(template.to_json()), regions=REGIONS[:1])) == [], stack


@pytest.mark.parametrize("name", VARIANTS)
def test_every_template_stays_within_the_limits(
    name: str, synthesize: Callable[..., Mapping[str, Template]], record_property: Callable[[str, object], None]
) -> None:
    stage, overrides = VARIANTS[name]
    for template in synthesize(stage, **overrides).values():
        assert exceeded(dict(template.to_json()), record_property) == []


@pytest.mark.parametrize("name", VARIANTS)
def test_no_template_looks_up_more_than_ten_values(
    name: str, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    """CloudFormation makes a call for each `Fn::GetStackOutput`, even of the same value; 75 were throttled."""
    stage, overrides = VARIANTS[name]
    for template in synthesize(stage, **overrides).values():
        assert json.dumps(template.to_json()).count('"Fn::GetStackOutput"') <= MAX_LOOK_UPS


def test_every_region_offers_what_a_stage_has_there(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    kinds = {
        resource["Type"]
        for variant in VARIANTS.values()
        for template in synthesize(variant.stage, **variant.overrides).values()
        for resource in template.to_json()["Resources"].values()
    }
    missing: dict[str, set[str]] = {}
    for kind in kinds:
        for region in cfnlint.helpers.REGIONS:
            try:
                PROVIDER_SCHEMA_MANAGER.get_resource_schema(region, kind)
            except ResourceNotFoundError:
                missing.setdefault(kind, set()).add(region)
    registry = {"AWS::EventSchemas::Registry": WITHOUT_SCHEMAS, "AWS::EventSchemas::Schema": WITHOUT_SCHEMAS}
    assert missing == registry | {"AWS::Lambda::Url": WITHOUT_FUNCTION_URLS}


def test_a_region_without_a_schema_registry_gets_none(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    text = json.dumps(synthesize("dev", region="il-central-1")["Buffer"].to_json())
    assert "AWS::EventSchemas" not in text


def test_a_cache_in_govcloud_has_no_key_of_ours(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    template = synthesize("prod", region="us-gov-west-1")["Cache"]
    template.resource_count_is("AWS::KMS::Key", 0)
    assert "KmsKeyId" not in json.dumps(template.to_json())


@pytest.mark.parametrize("name", IN_AWS)
def test_cdk_uploads_the_templates_which_are_too_long_for_a_request(
    name: str, stacks_of: Callable[..., list[cdk.Stack]]
) -> None:
    stage, overrides = VARIANTS[name]
    for stack in stacks_of(stage, **overrides):
        assert isinstance(stack.synthesizer, cdk.DefaultStackSynthesizer)


def test_every_accepted_rule_still_has_a_finding(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    zones = {"account": "111122223333", "network": {"availability_zones": ["us-east-1a", "us-east-1b"]}}
    found = {
        finding.partition(" ")[0]
        for template in synthesize("prod", **zones).values()
        for finding in findings_of_lint(dict(template.to_json()), regions=REGIONS[:1])
    }
    assert found == ACCEPTED.keys()


# -- the checks find what they look for --------------------------------------------------------------------------

QUEUE = {"Type": "AWS::SQS::Queue", "DeletionPolicy": "Delete", "UpdateReplacePolicy": "Delete"}
WRITES = {"Effect": "Allow", "Action": "sqs:SendMessage", "Resource": {"Fn::GetAtt": ["Queue", "Arn"]}}


def _of_role(*statements: dict[str, Any], managed: Sequence[str] = ()) -> dict[str, Any]:
    """Return a template with a queue, and a role that has these statements."""
    trust = {"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}
    properties: dict[str, Any] = {
        "AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": [trust]},
        "Policies": [{"PolicyName": "own", "PolicyDocument": {"Version": "2012-10-17", "Statement": list(statements)}}],
    }
    if managed:
        properties["ManagedPolicyArns"] = list(managed)
    retained = {"MessageRetentionPeriod": 60, "SqsManagedSseEnabled": True}
    return {
        "Resources": {
            "Queue": {**QUEUE, "Properties": retained},
            "Role": {"Type": "AWS::IAM::Role", "Properties": properties},
        }
    }


@pytest.mark.parametrize(
    ("template", "finding"),
    [
        (_of_role({**WRITES, "Action": "sqs:SendMesage"}), "W3037 'sendmesage' is not one of"),
        (_of_role({**WRITES, "Action": "sqs2:SendMessage"}), "W3037 'sqs2' is not one of"),
        (_of_role({**WRITES, "Efect": "Allow"}), "E3510"),
        (_of_role({**WRITES, "Action": "sqs:SendMessage", "Resource": "arn:aws:s3:::bucket"}), "I3510"),
    ],
    ids=["no such action", "no such service", "no such field", "a resource of another service"],
)
def test_lint_finds_a_mistake_in_a_policy(template: dict[str, Any], finding: str) -> None:
    found = findings_of_lint(template, regions=REGIONS)
    assert [each for each in found if each.startswith(finding)], found


@pytest.mark.parametrize("limit", LIMITS)
def test_a_template_over_a_limit_is_found(limit: str) -> None:
    names = [f"A{number}" for number in range(LIMITS[limit] // 1_000 + 501)]
    long = "x" * (LIMITS[limit] + 1)
    function = {"Type": "AWS::Lambda::Function", "Properties": {"Environment": {"Variables": {"A": long}}}}
    over: dict[str, dict[str, Any]] = {
        "bytes of a template": {"Description": long},
        "resources of a stack": {"Resources": dict.fromkeys(names, QUEUE)},
        "outputs of a stack": {"Outputs": {name: {} for name in names}},
        "parameters of a stack": {"Parameters": {name: {} for name in names}},
        "bytes of a function's variables": {"Resources": {"F": function}},
        "characters of a role's own policies": _of_role({**WRITES, "Sid": long}),
    }
    assert [each for each in exceeded(over[limit], lambda *_: None) if limit in each]


# -- policies outside of the templates ---------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]
OUR_TEXTS = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/github-oidc/*.json"), *ROOT.glob("infra/**/*.py")]


def test_every_managed_policy_of_aws_that_a_page_or_a_stack_names_exists() -> None:
    named = {
        name
        for path in OUR_TEXTS
        for name in re.findall(r"arn:aws:iam::aws:policy/(?:[\w-]+/)*(\w+)", path.read_text("utf-8"))
    }
    assert named
    assert named - json.loads(aws_managed_policies_data).keys() == set()


def test_the_app_itself_holds_its_stage_to_the_rules(
    monkeypatch: pytest.MonkeyPatch, context: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held: list[cdk.App] = []
    app = cdk.App(outdir=str(tmp_path / "out"), context={**context, "stage": "dev"})
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "thing.py").touch()
    monkeypatch.setattr(cdk, "App", lambda: app)
    monkeypatch.setattr(program, "build_layer", lambda *_, **__: tmp_path / "layer")
    monkeypatch.setattr(program, "enforce_cdk_nag", held.append)
    monkeypatch.setattr(program, "lambda_interpreter", lambda: None)
    program.main()
    assert held == [app]
    assert capsys.readouterr().err == f"{cli.WITHOUT_PYTHON}\n"


def test_a_stage_that_names_its_account_and_zones_looks_up_no_zones(composed: Callable[..., cdk.App]) -> None:
    zones = ["us-east-1c", "us-east-1a"]
    app = composed("dev", account="111122223333", network={"availability_zones": zones})
    folder = Path(app.synth().directory)
    assert "missing" not in json.loads((folder / "manifest.json").read_text())
    (network,) = folder.glob("*-Network.template.json")
    resources = json.loads(network.read_text())["Resources"].values()
    subnets = [each["Properties"]["AvailabilityZone"] for each in resources if each["Type"] == "AWS::EC2::Subnet"]
    assert subnets == zones * 3
