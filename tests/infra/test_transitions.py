"""CloudFormation would accept every change of a stage that docs/deploy.md describes, and lose nothing unannounced."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from infra.settings_and_defaults import STACKS, StageConfig
from tests.infra.test_nag_and_lint import DOMAIN, TOPIC, VARIANTS
from tests.support import transitions
from tests.support.transitions import Stage, fed_by_weak_references, removed, weak_references

# Run all tests of this file in one process, because they share synthesized templates.
pytestmark = pytest.mark.xdist_group("synth")

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
IN_AWS = ["dev", "prod"]
ACCOUNT = transitions.PSEUDO["AWS::AccountId"]
App = Mapping[str, transitions.Template]
Deployable = Callable[..., App]

PROCESSORS = {"ProcessorLogs", "ConversationProcessorLogs", "WatchdogLogs", "WatchdogEcho", "ProcessorFailures"}
FALLBACK = {"Holding", "Triggers", "WindowProcessorLogs"}
RESPONDER = {"Batches", "Conversations", "LogIdKey", "ReplyDeadLetters", "ResponderLogs", "ResponderSecrets"}


@dataclass(frozen=True)
class Change:
    """A change of settings, and the stateful resources that it removes from their stacks."""

    setting: str
    before: dict[str, Any]
    after: dict[str, Any]
    removes: frozenset[str] = frozenset()
    leaves: tuple[str, ...] = ()
    """The stacks that the stage no longer has, in the order of deployment."""

    def __str__(self) -> str:
        return f"{self.setting} from {self.before} to {self.after}"


# Only a stage that limits ingest may have an address of ingest.
TO_URL: dict[str, Any] = {"concurrency": {"ingest": 20}}


def _changes() -> list[Change]:
    zones = {"account": ACCOUNT, "network": {"availability_zones": list(transitions.ZONES[:2])}}
    there = [
        Change("lane", {}, {"lane": "dynamodb"}, frozenset(PROCESSORS), ("Network", "Cache")),
        Change("fallback", {}, {"fallback": False}, frozenset(FALLBACK)),
        Change("responder", {"responder": {}}, {}, frozenset(RESPONDER)),
        Change("api.kind", {}, {"api": {"kind": "rest"}}),
        Change("api.kind", {"api": {"domain": DOMAIN}}, {"api": {"kind": "rest", "domain": DOMAIN}}),
        Change("api.kind", TO_URL, TO_URL | {"api": {"kind": "url"}}, frozenset({"ApiAccess"})),
        Change(
            "api.kind",
            TO_URL | {"warmth": {"ingest": 2}},
            TO_URL | {"api": {"kind": "url"}},
            frozenset({"ApiAccess"}),
        ),
        Change("api.domain", {}, {"api": {"domain": DOMAIN}}),
        Change("network.egress", {"network": {"egress": "nat"}}, {"network": {"egress": "endpoints"}}),
        Change("network.egress", {}, {"network": {"egress": "none"}}, leaves=("Network", "Cache")),
        Change("network.nat_gateways", {"network": {"nat_gateways": 1}}, {"network": {"nat_gateways": 2}}),
        Change(
            "network.flow_logs",
            {"network": {"flow_logs": True}},
            {"network": {"flow_logs": False}},
            frozenset({"FlowLogs"}),
        ),
        Change("warmth", {}, {"warmth": {"ingest": 2}}),
        Change(
            "end_user_messaging_topic",
            {"end_user_messaging_topic": TOPIC},
            {},
            frozenset({"WhatsAppWebhooks", "UnreadableWebhooks"}),
        ),
        Change("warmth", {"warmth": {"ingest": 2}}, {"warmth": {"processor": 2, "conversation_processor": 2}}),
        Change(
            "bus.archive_days", {"bus": {"archive_days": 30}}, {"bus": {"archive_days": 0}}, frozenset({"BusArchive"})
        ),
        Change("bus.consumer_accounts", {}, {"bus": {"consumer_accounts": ["444455556666"]}}),
        Change("cache.snapshot_days", {"cache": {"snapshot_days": 0}}, {"cache": {"snapshot_days": 7}}),
        Change("log_ids", {"log_ids": "hashed"}, {"log_ids": "plain"}, frozenset({"LogIdKey"})),
        Change("log_ids", {"log_ids": "hashed", "responder": {}}, {"log_ids": "plain", "responder": {}}),
        Change("shards", {}, {"shards": 2}),
        Change("tracing", {}, {"tracing": True}),
        Change("account", {}, zones),
        Change("removal_policy", {"removal_policy": "retain"}, {"removal_policy": "destroy"}),
        Change("termination_protection", {"termination_protection": True}, {"termination_protection": False}),
    ]
    back = [Change(each.setting, each.after, each.before, leaves=_left_on_the_way_back(each)) for each in there]
    return [change for pair in zip(there, back, strict=True) for change in pair]


def _left_on_the_way_back(change: Change) -> tuple[str, ...]:
    """Return the stack of a public cache, if the change is to one."""
    return ("PublicCache",) if change.after.get("network", {}).get("egress") == "none" else ()


CHANGES = _changes()


@pytest.fixture(scope="module")
def deployable(
    synthesize: Callable[..., Mapping[str, Template]], stacks_of: Callable[..., list[cdk.Stack]]
) -> Deployable:
    """Return the templates of a stage in the order in which CDK deploys them."""

    def ordered(stage: str, **overrides: Any) -> App:
        templates = synthesize(stage, **overrides)
        stacks = stacks_of(stage, **overrides)
        after = {stack.stack_name: {other.stack_name for other in stack.dependencies} for stack in stacks}
        return {
            name: dict(templates[name.split("-")[-1]].to_json()) for name in TopologicalSorter(after).static_order()
        }

    return ordered


def _words(names: list[str]) -> tuple[str, ...]:
    return tuple(sorted((name.split("-")[-1] for name in names), key=STACKS.index))


@pytest.mark.parametrize(
    ("stage", "change"),
    # The stage only decides whether removed resources are kept, so other changes need one stage.
    [(stage, change) for change in CHANGES for stage in (IN_AWS if change.removes else ["dev"])],
    ids=str,
)
def test_a_documented_change_is_one_deployment(stage: str, change: Change, deployable: Deployable) -> None:
    account = Stage()
    before, after = deployable(stage, **change.before), deployable(stage, **change.after)
    assert account.deploy(before) == []
    assert account.deploy(after) == [], "CloudFormation refuses it, or loses something"
    assert _words(account.left_over(after)) == change.leaves
    fate = "kept" if stage == "prod" else "deleted"
    assert removed(before, after) == {f"{name} {fate}" for name in change.removes}
    for name in reversed(account.left_over(after)):
        problems = account.delete(name)
        if stage == "prod" and name.endswith("-Network"):
            assert all(each.endswith("is in use by a retained resource") for each in problems)
            assert problems, "test_removal.py shows that `make prune` leaves this stack out"
        else:
            assert problems == []
    assert account.deploy(after) == []


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_that_fails_at_any_stack_can_be_rolled_back(change: Change, deployable: Deployable) -> None:
    before, after = deployable("dev", **change.before), deployable("dev", **change.after)
    for name in after:
        account = Stage()
        account.deploy(before)
        assert account.fail(after, name) == []
        assert account.deploy(before) == [], "the last good tag cannot be deployed"


@pytest.mark.parametrize("stage", IN_AWS)
def test_all_stacks_can_be_deleted_in_the_order_of_make_destroy(stage: str, deployable: Deployable) -> None:
    deletes = {"removal_policy": "destroy"}
    account = Stage()
    account.deploy(deployable(stage, responder={}, **deletes))
    account.deploy(deployable(stage, network={"egress": "none"}, responder={}, **deletes))
    account.deploy(deployable(stage, responder={}, **deletes))
    assert _words(list(account.stacks)) == STACKS
    names = [f"MessageBuffer-{stage}-{word}" for word in STACKS]
    assert account.delete(names[0]), "the network cannot be deleted before the stacks that use it"
    account.deploy(deployable(stage, responder={}, **deletes))
    assert [problem for name in reversed(names) for problem in account.delete(name)] == []


def test_while_a_stage_leaves_its_network_both_caches_exist_under_their_own_names(deployable: Deployable) -> None:
    """Ensure that a stage that was changed too early can be changed back, and finds its waiting messages."""
    account = Stage()
    before, after = deployable("prod"), deployable("prod", network={"egress": "none"})
    account.deploy(before)
    assert account.deploy(after) == []
    caches = [
        resource["Properties"]["ServerlessCacheName"]
        for template in account.stacks.values()
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::ElastiCache::ServerlessCache"
    ]
    assert sorted(caches) == ["message-buffer-prod", "public-buffer-prod"]
    assert account.deploy(before) == []


def test_a_retained_cache_keeps_its_names_from_the_next_one(deployable: Deployable) -> None:
    """Operators must delete a retained cache by hand before they deploy another, as docs/deploy.md says."""
    account = Stage()
    for overrides in ({}, {"lane": "dynamodb"}):
        account.deploy(deployable("prod", **overrides))
    assert account.delete("MessageBuffer-prod-Cache") == []
    refused = Stage(dict(account.stacks), set(account.retained)).deploy(deployable("prod"))
    assert len(refused) == len({"cache", "user", "group"})
    assert all(problem.endswith("of a retained resource") for problem in refused)
    account.retained = {(kind, name) for kind, name in account.retained if "ElastiCache" not in kind}
    assert account.deploy(deployable("prod")) == []


@pytest.mark.parametrize("zones", [transitions.ZONES[1:], transitions.ZONES[1::-1]], ids=["others", "other order"])
def test_an_existing_network_cannot_move_to_another_zone(zones: tuple[str, ...], deployable: Deployable) -> None:
    """Preflight refuses this change, which test_preflight.py tests."""
    account = Stage()
    account.deploy(deployable("dev"))
    problems = account.deploy(deployable("dev", account=ACCOUNT, network={"availability_zones": list(zones)}))
    subnets = [problem for problem in problems if "has the addresses of" in problem]
    assert len(subnets) == len(("functions", "cache", "public")) * 2


def test_the_page_has_a_row_for_every_change() -> None:
    section = PAGE.read_text().partition("\n## Change a stage\n")[2].partition("\n## ")[0]
    verdicts = {
        setting: verdict.strip()
        for settings, verdict in re.findall(r"^\| (`.+`) \| (.+) \|$", section, re.MULTILINE)
        for setting in re.findall(r"`([\w.]+)`", settings)
    }
    works = {setting for setting, verdict in verdicts.items() if verdict.startswith("yes")}
    assert works == {change.setting for change in CHANGES}
    assert verdicts.keys() - works == {"network.availability_zones"}
    assert verdicts["network.availability_zones"].startswith("no")
    for change in CHANGES:
        assert ("make prune" in verdicts[change.setting]) >= bool(change.leaves)
        assert ("delet" in verdicts[change.setting]) >= bool(change.removes)


# -- how stacks refer to each other ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, variant in VARIANTS.items() if variant.stage != "local"])
def test_no_property_that_replaces_its_resource_is_read_from_another_stack(name: str, deployable: Deployable) -> None:
    stage, overrides = VARIANTS[name]
    assert [
        found for template in deployable(stage, **overrides).values() for found in fed_by_weak_references(template)
    ] == []


def test_the_value_of_a_secret_is_not_read_by_a_weak_reference(deployable: Deployable) -> None:
    """No page of AWS says that CloudFormation resolves one inside of the other."""
    variables = deployable("prod", responder={}, log_ids="hashed")["MessageBuffer-prod-Responder"]["Resources"]
    joined = [json.dumps(value) for key, value in transitions.intrinsics(variables) if key == "Fn::Join"]
    secrets = [each for each in joined if "{{resolve:" in each]
    assert secrets
    for each in secrets:
        value = each.partition("{{resolve:")[2].partition("}}")[0]
        assert "Fn::ImportValue" in value
        assert "Fn::GetStackOutput" not in value


@pytest.mark.parametrize("overrides", [{}, {"responder": {}}, {"lane": "dynamodb"}], ids=str)
def test_a_stack_is_deployed_after_those_whose_outputs_it_reads(
    overrides: dict[str, Any], stacks_of: Callable[..., list[cdk.Stack]], deployable: Deployable
) -> None:
    templates, stacks = deployable("dev", **overrides), stacks_of("dev", **overrides)
    stage = cdk.Stage.of(stacks[0])
    assert stage
    stage.synth()  # finds the dependencies
    for stack in stacks:
        read = {name for name, _ in weak_references(templates[stack.stack_name])}
        assert read <= {other.stack_name for other in stack.dependencies}


def test_the_settings_name_the_stacks_of_the_app(
    stage_config: Callable[..., StageConfig], stacks_of: Callable[..., list[cdk.Stack]]
) -> None:
    stages: list[tuple[str, dict[str, Any]]] = [
        ("local", {}),
        ("dev", {}),
        ("prod", {"responder": {}}),
        ("dev", {"lane": "dynamodb"}),
    ]
    for stage, overrides in [*stages, ("dev", {"network": {"egress": "none"}})]:
        found = _words([stack.stack_name for stack in stacks_of(stage, **overrides)])
        assert stage_config(stage, **overrides).stacks == found


# -- the comparison itself: it finds each mistake ----------------------------------------------------------------


def _stack(outputs: dict[str, Any] | None = None, **resources: tuple[str, dict[str, Any]]) -> transitions.Template:
    return {
        "Resources": {
            name: {"Type": kind, "Properties": properties, "DeletionPolicy": "Delete"}
            for name, (kind, properties) in resources.items()
        },
        "Outputs": outputs or {},
    }


TABLE, QUEUE, SUBNET, SECRET = (
    "AWS::DynamoDB::Table",
    "AWS::SQS::Queue",
    "AWS::EC2::Subnet",
    "AWS::SecretsManager::Secret",
)
VPC = "AWS::EC2::VPC"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (_stack(T=(TABLE, {"TableName": "a"})), _stack(T=(TABLE, {"TableName": "b"})), f"{TABLE} T is replaced"),
        (
            _stack(A=(QUEUE, {"QueueName": "q"})),
            _stack(B=(QUEUE, {"QueueName": "q"})),
            f"{QUEUE} B has the name q of a resource of S",
        ),
        (
            _stack(
                V=(VPC, {"CidrBlock": "10.0.0.0/16"}), N=(SUBNET, {"VpcId": {"Ref": "V"}, "CidrBlock": "10.0.0.0/24"})
            ),
            _stack(
                V=(VPC, {"CidrBlock": "10.0.0.0/15"}), N=(SUBNET, {"VpcId": {"Ref": "V"}, "CidrBlock": "10.0.0.0/24"})
            ),
            "subnet N has the addresses of N",
        ),
        (
            _stack(A=(SUBNET, {"CidrBlock": "10.0.0.0/24"})),
            _stack(B=(SUBNET, {"CidrBlock": "10.0.0.0/25"})),
            "subnet B has the addresses of A",
        ),
        (
            _stack(S=(SECRET, {"SecretString": "{}"})),
            _stack(S=(SECRET, {"SecretString": "{ }"})),
            "secret S is overwritten, because SecretString changes",
        ),
    ],
)
def test_a_mistake_within_a_stack_is_found(old: transitions.Template, new: transitions.Template, problem: str) -> None:
    account = Stage()
    assert account.deploy({"S": old}) == []
    assert f"S: {problem}" in account.deploy({"S": new})


def test_mistakes_between_stacks_are_found() -> None:
    account = Stage()
    output = {"Name": {"Value": {"Ref": "Q"}}}
    reader = _stack(
        F=("AWS::Lambda::Function", {"Name": {"Fn::GetStackOutput": {"StackName": "S", "OutputName": "Name"}}})
    )
    assert account.deploy({"R": reader}) == ["R: output Name of S does not exist"]
    assert account.deploy({"S": _stack(output, Q=(QUEUE, {"QueueName": "a"})), "R": reader}) == []
    assert "S: R would not notice that output Name has another value" in account.deploy(
        {"S": _stack(output, Q=(QUEUE, {"QueueName": "b"}))}
    )


# -- secrets -----------------------------------------------------------------------------------------------------


def test_a_secret_is_never_written_again(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    """If you change one of these values, CloudFormation overwrites the secrets that operators have entered."""
    stacks = synthesize("prod", responder={}, log_ids="hashed")
    found = {
        logical_id: {
            name: secret["Properties"][name] for name in transitions.FIRST_VALUES if name in secret["Properties"]
        }
        for template in stacks.values()
        for logical_id, secret in template.find_resources(SECRET).items()
    }
    generated = {"ExcludePunctuation": True, "GenerateStringKey": "generic", "SecretStringTemplate": "{}"}
    assert found == {
        "WebhookSecrets": {"GenerateSecretString": generated},
        "LogIdKey": {"GenerateSecretString": {"ExcludePunctuation": True}},
        "ResponderSecrets": {"SecretString": "{}"},
    }
