"""AWS's rules (cdk-nag) and CloudFormation's schema (cfn-lint) accept everything that a stage may choose."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aws_cdk as cdk
import cfnlint.helpers
import pytest
from aws_cdk.assertions import Annotations, Match, Template
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER, ResourceNotFoundError

import app as program
from infra import cli
from infra.cli import LOCAL
from infra.composition import enforce_cdk_nag
from infra.settings_and_defaults import MAX_QUEUES, WITHOUT_FUNCTION_URLS
from tests.support.template_rules import (
    ACCEPTED,
    REGIONS,
    exceeded,
    findings_of_lint,
    unaccepted,
)

pytestmark = pytest.mark.xdist_group("synth")

CERTIFICATE = "arn:aws:acm:us-east-1:111122223333:certificate/00000000-0000-0000-0000-000000000000"
DOMAIN = {"name": "webhooks.example.com", "certificate_arn": CERTIFICATE}


Synthesize = Callable[..., Mapping[str, Template]]


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
    "many shards": Variant(
        "dev",
        {"shards": 4, "rules": {"platformOverrides": {"whatsapp": {"silenceMs": 3_000}}}, "platform_numbers": False},
    ),
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
    "queues": Variant(
        "prod",
        {
            "responder": {},
            "queues": {f"agent-{n}": {"agent": f"agent-{n}"} for n in range(MAX_QUEUES - 1)} | {"handoff": {}},
            "bus": {"consumer_accounts": ["444455556666"]},
        },
    ),
}
MAX_LOOK_UPS = 40
IN_AWS = [name for name, variant in VARIANTS.items() if variant.stage != LOCAL]
# The stages that most operators have. The nightly run examines the other variants, too.
FOR_EVERY_CHANGE = ("local", "dev", "prod", "DynamoDB lane")


def chosen(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters, of which most are for the nightly run."""
    marks = {name: () if name in FOR_EVERY_CHANGE else (pytest.mark.nightly,) for name in names}
    return [pytest.param(name, marks=marks[name]) for name in marks]


EACH = pytest.mark.parametrize("name", chosen(VARIANTS))
EACH_IN_AWS = pytest.mark.parametrize("name", chosen(IN_AWS))


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


@EACH_IN_AWS
def test_no_rule_is_broken_without_a_reason_and_cdk_warns_of_nothing(
    name: str, composed: Callable[..., cdk.App]
) -> None:
    stage, overrides = VARIANTS[name]
    app = composed(stage, **overrides)
    enforce_cdk_nag(app)
    assert violations(app) == []
    for stack in app.node.children:
        if isinstance(stack, cdk.Stack):
            warnings = Annotations.from_stack(stack).find_warning("*", Match.any_value())
            assert [warning.entry.data for warning in warnings] == []


@EACH
def test_cloudformation_would_take_every_template(name: str, synthesize: Synthesize) -> None:
    stage, overrides = VARIANTS[name]
    for stack, template in synthesize(stage, **overrides).items():
        found = dict(template.to_json())
        assert unaccepted(findings_of_lint(found, regions=REGIONS[:1])) == [], stack
        assert exceeded(found) == []
        # CloudFormation makes a call for each, even of the same value; 75 were throttled.
        assert json.dumps(found).count('"Fn::GetStackOutput"') <= MAX_LOOK_UPS


# -- any settings ------------------------------------------------------------------------------------------------

# Settings whose changes docs/deploy.md describes, and a few more: each name has the overrides to choose from.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "region": [{"region": region} for region in REGIONS],
    "lane": [{}, {"lane": "dynamodb"}, {"fallback": False}],
    "api": [{}, {"api": {"kind": "rest"}}, {"api": {"kind": "url"}, "concurrency": {"ingest": 20}}],
    "network": [{}, {"network": {"egress": "endpoints", "flow_logs": True}}, {"network": {"egress": "none"}}],
    "responder": [{}, {"responder": {}}, VARIANTS["responder"].overrides],
    "queues": [{}, {"queues": {"sms": {"platform": "twilio"}, "handoff": {}}}],
    "bus": [{}, {"bus": {"archive_days": 30, "consumer_accounts": ["444455556666"]}}],
    "warmth": [{}, {"warmth": {"processor": 2, "conversation_processor": 2}}],
    "shards": [{}, {"shards": 2}],
    "removal": [{"removal_policy": "retain"}, {"removal_policy": "destroy"}],
}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(24))
def test_any_combination_of_settings_is_a_stage_that_aws_takes(seed: int, composed: Callable[..., cdk.App]) -> None:
    """Draw a value of each setting. Most faults need no more than two settings, and most pairs are in a draw."""
    draw, overrides = random.Random(seed), dict[str, Any]()
    for values in SETTINGS.values():
        overrides |= draw.choice(values)
    app = composed("dev", **overrides)
    enforce_cdk_nag(app)
    assert violations(app) == [], overrides
    for file in Path(app.outdir).glob("*.template.json"):
        template = json.loads(file.read_text("utf-8"))
        assert unaccepted(findings_of_lint(template, regions=[overrides["region"]])) == [], overrides
        assert exceeded(template) == []


# -- regions -----------------------------------------------------------------------------------------------------


def test_every_region_offers_what_a_stage_has_there(synthesize: Synthesize) -> None:
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
    assert missing == {"AWS::Lambda::Url": WITHOUT_FUNCTION_URLS}


def test_a_cache_in_govcloud_has_no_key_of_ours(synthesize: Synthesize) -> None:
    template = synthesize("prod", region="us-gov-west-1")["Cache"]
    template.resource_count_is("AWS::KMS::Key", 0)
    assert "KmsKeyId" not in json.dumps(template.to_json())


def test_every_accepted_rule_still_has_a_finding(synthesize: Synthesize) -> None:
    zones = {"account": "111122223333", "network": {"availability_zones": ["us-east-1a", "us-east-1b"]}}
    found = {
        finding.partition(" ")[0]
        for template in synthesize("prod", **zones).values()
        for finding in findings_of_lint(dict(template.to_json()), regions=REGIONS[:1])
    }
    assert found == ACCEPTED.keys()


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
