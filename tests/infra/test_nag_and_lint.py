"""AWS's rules (cdk-nag) and CloudFormation's schema (cfn-lint) accept everything that a stage may choose."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Annotations, Match, Template
from cfnlint.api import lint

import app as program
from infra.composition import enforce_cdk_nag
from infra.settings_and_defaults import LOCAL

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
    "without a fallback": Variant("prod", {"fallback": False}),
    "DynamoDB lane": Variant("dev", {"lane": "dynamodb"}),
    "DynamoDB lane that keeps": Variant("prod", {"lane": "dynamodb", "tracing": True}),
    "local DynamoDB lane": Variant("local", {"lane": "dynamodb"}),
    "REST": Variant("dev", {"api": {"kind": "rest", "domain": DOMAIN}}),
    "own domain": Variant("dev", {"api": {"domain": DOMAIN}}),
    "snapshots": Variant("dev", {"warmth": {"ingest": "snap_start"}}),
    "always warm": Variant("prod", {"warmth": {"ingest": "provisioned"}}),
    "WhatsApp by SNS": Variant(
        "prod", {"end_user_messaging": {"topic_arn": TOPIC}, "warmth": {"ingest": "snap_start"}}
    ),
    "consumers": Variant(
        "dev", {"bus": {"consumer_accounts": ["444455556666"]}, "alarms": {"emails": ["a@b.example"]}}
    ),
    "responder": Variant(
        "prod",
        {"responder": {"assistant": "bedrock", "model": "us.amazon.nova-lite-v1:0"}, "tracing": True, "canary": True},
    ),
}
IN_AWS = [name for name, variant in VARIANTS.items() if variant.stage != LOCAL]
STACKS = ["Network", "Cache", "Buffer", "Responder", "Operability"]


@pytest.fixture(scope="session")
def findings(composed: Callable[..., cdk.App]) -> Callable[[Variant], list[str]]:
    """Return the findings of cdk-nag as `rule at construct`."""
    made: dict[str, list[str]] = {}

    def found(variant: Variant) -> list[str]:
        key = str(variant)
        if key not in made:
            app = composed(variant.stage, **variant.overrides)
            enforce_cdk_nag(app)
            made[key] = _violations(app)
        return made[key]

    return found


def _violations(app: cdk.App) -> list[str]:
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


@pytest.mark.parametrize("name", VARIANTS)
def test_cloudformation_would_take_every_template(name: str, synthesize: Callable[..., Mapping[str, Template]]) -> None:
    stage, overrides = VARIANTS[name]
    for template in synthesize(stage, **overrides).values():
        assert lint(json.dumps(template.to_json()), regions=["us-east-1"]) == []


def test_the_app_itself_holds_its_stage_to_the_rules(
    monkeypatch: pytest.MonkeyPatch, context: dict[str, Any], tmp_path: Path
) -> None:
    held: list[cdk.App] = []
    app = cdk.App(outdir=str(tmp_path / "out"), context={**context, "stage": "dev"})
    (tmp_path / "layer").mkdir()
    (tmp_path / "layer" / "thing.py").touch()
    monkeypatch.setattr(cdk, "App", lambda: app)
    monkeypatch.setattr(program, "build_layer", lambda *_, **__: tmp_path / "layer")
    monkeypatch.setattr(program, "enforce_cdk_nag", held.append)
    program.main()
    assert held == [app]


def test_a_stage_that_names_its_account_and_zones_looks_up_no_zones(composed: Callable[..., cdk.App]) -> None:
    zones = ["us-east-1c", "us-east-1a"]
    app = composed("dev", account="111122223333", network={"availability_zones": zones})
    folder = Path(app.synth().directory)
    assert "missing" not in json.loads((folder / "manifest.json").read_text())
    (network,) = folder.glob("*-Network.template.json")
    resources = json.loads(network.read_text())["Resources"].values()
    subnets = [each["Properties"]["AvailabilityZone"] for each in resources if each["Type"] == "AWS::EC2::Subnet"]
    assert subnets == zones * 3
