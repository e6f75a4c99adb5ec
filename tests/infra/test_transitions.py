"""CloudFormation would accept every change of a stage that docs/deploy.md describes, and lose nothing unannounced."""

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
from tests.infra.conftest import Synthesized
from tests.infra.test_nag_and_lint import DOMAIN, TOPIC
from tests.support import transitions
from tests.support.transitions import Stage, removed

# Run all tests of this file in one process, because they share synthesized templates.
pytestmark = pytest.mark.xdist_group("synth")

PAGE = Path(__file__).parents[2] / "docs" / "deploy.md"
IN_AWS = ["dev", "prod"]
ACCOUNT = transitions.PSEUDO["AWS::AccountId"]
App = Mapping[str, transitions.Template]
Deployable = Callable[..., App]

PROCESSORS = {"ProcessorLogs", "ConversationProcessorLogs", "WatchdogLogs", "WatchdogEcho", "ProcessorFailures"}
FALLBACK = {"Holding", "Triggers", "WindowProcessorLogs"}
RESPONDER = {"Conversations", "LogIdKey", "ResponderLogs", "ResponderSecrets"}
DEFAULT: dict[str, Any] = {"queues": {"default": {}}}
VIP: dict[str, Any] = {"queues": {"default": {}, "vip": {"agent": "vip"}}}


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
        Change("responder", {"responder": {}} | DEFAULT, DEFAULT, frozenset(RESPONDER)),
        Change(
            "queues",
            {"responder": {}} | VIP,
            {"responder": {}} | DEFAULT,
            frozenset({"QueueVip", "QueueDeadLettersVip"}),
        ),
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
def deployable(stacks: Callable[..., Mapping[str, Synthesized]]) -> Deployable:
    """Return the templates of a stage in the order in which CDK deploys them."""

    def ordered(stage: str, **overrides: Any) -> App:
        found = stacks(stage, **overrides)
        order = TopologicalSorter({word: each.after for word, each in found.items()}).static_order()
        return {f"MessageBuffer-{stage}-{word}": found[word].template for word in order}

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
        assert account.delete(name) == []
    assert account.deploy(after) == []


@pytest.mark.nightly
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_change_that_fails_at_any_stack_can_be_rolled_back(change: Change, deployable: Deployable) -> None:
    before, after = deployable("dev", **change.before), deployable("dev", **change.after)
    for name in after:
        account = Stage()
        account.deploy(before)
        # A responder's stack that still reads a removed queue waits for that queue to be deployed again.
        problems = [each for each in account.fail(after, name) if not re.search(r"Queue(DeadLetters)?Vip", each)]
        assert problems == []
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


def _stack(name: str, kind: str, **properties: str) -> transitions.Template:
    return {"Resources": {name: {"Type": kind, "Properties": properties, "DeletionPolicy": "Delete"}}}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            ("T", "AWS::DynamoDB::Table", "TableName", "a"),
            ("T", "AWS::DynamoDB::Table", "TableName", "b"),
            "T is replaced",
        ),
        (("A", "AWS::SQS::Queue", "QueueName", "q"), ("B", "AWS::SQS::Queue", "QueueName", "q"), "B has the name q"),
    ],
)
def test_a_mistake_within_a_stack_is_found(old: tuple[str, ...], new: tuple[str, ...], problem: str) -> None:
    account = Stage()
    before, after = (_stack(name, kind, **{key: value}) for name, kind, key, value in (old, new))
    assert account.deploy({"S": before}) == []
    (found,) = [each for each in account.deploy({"S": after}) if problem in each]
    assert found.startswith("S: AWS::")


# -- secrets -----------------------------------------------------------------------------------------------------


def test_a_secret_is_never_written_again(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    """If you change one of these values, CloudFormation overwrites the secrets that operators have entered."""
    stacks = synthesize("prod", responder={}, log_ids="hashed")
    found = {
        logical_id: {
            name: secret["Properties"][name]
            for name in ("SecretString", "GenerateSecretString")
            if name in secret["Properties"]
        }
        for template in stacks.values()
        for logical_id, secret in template.find_resources("AWS::SecretsManager::Secret").items()
    }
    generated = {"ExcludePunctuation": True, "GenerateStringKey": "generic", "SecretStringTemplate": "{}"}
    assert found == {
        "WebhookSecrets": {"GenerateSecretString": generated},
        "LogIdKey": {"GenerateSecretString": {"ExcludePunctuation": True}},
        "ResponderSecrets": {"SecretString": "{}"},
    }
