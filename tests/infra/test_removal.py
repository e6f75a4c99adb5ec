"""`make destroy` and `make prune` print what they will do, delete the right stacks, and stop at a problem."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, WaiterError
from moto import mock_aws

from infra import removal
from infra.preflight import Stuck
from infra.removal import POLL_SECONDS, Removal, Stack
from infra.settings_and_defaults import STACKS, load_stage

REGION = "us-east-1"
NAME = "MessageBuffer-dev"
KEPT = "RetainExceptOnCreate"


class CloudFormation:
    """Plays the operations of CloudFormation that a removal calls. Like AWS, it deletes no bucket that has objects."""

    def __init__(self) -> None:
        self.stacks: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.reason: str | None = None
        """The reason why CloudFormation deletes no stack. None means that it deletes them."""

    def deploy(self, word: str, *, state: str = "CREATE_COMPLETE", **resources: tuple[str, str, str]) -> None:
        """Create a stack with these resources: logical id -> kind, physical id, deletion policy."""
        name = f"{NAME}-{word}"
        self.stacks[name] = {"status": state, "protected": False, "resources": resources}

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803 - AWS's name
        name = StackName.removeprefix("id of ")
        if name not in self.stacks:
            if StackName in self.deleted:
                return {"Stacks": [{"StackStatus": "DELETE_COMPLETE"}]}
            raise ClientError({"Error": {"Code": "ValidationError", "Message": "does not exist"}}, "DescribeStacks")
        stack = self.stacks[name]
        found = {
            "StackName": name,
            "StackId": f"id of {name}",
            "StackStatus": stack["status"],
            "StackStatusReason": self.reason,
        }
        return {"Stacks": [{**found, "EnableTerminationProtection": stack["protected"]}]}

    def get_template(self, *, StackName: str) -> dict[str, Any]:  # noqa: N803
        resources = self.stacks[StackName]["resources"]
        return {"TemplateBody": {"Resources": {name: {"DeletionPolicy": each[2]} for name, each in resources.items()}}}

    def get_waiter(self, _state: str) -> Any:
        return self

    def wait(self, *, StackName: str, WaiterConfig: dict[str, int]) -> None:  # noqa: N803
        assert WaiterConfig["Delay"] * WaiterConfig["MaxAttempts"] >= 40 * 60
        found = self.describe_stacks(StackName=StackName)
        if found["Stacks"][0]["StackStatus"] != "DELETE_COMPLETE":
            raise WaiterError(name="stack_delete_complete", reason="it failed", last_response=found)

    def get_paginator(self, _operation: str) -> Any:
        return self

    def paginate(self, *, StackName: str) -> list[dict[str, Any]]:  # noqa: N803
        return [
            {
                "StackResourceSummaries": [
                    {
                        "LogicalResourceId": logical_id,
                        "ResourceType": kind,
                        "PhysicalResourceId": identifier,
                        "ResourceStatus": "CREATE_COMPLETE",
                    }
                ]
            }
            for logical_id, (kind, identifier, _) in self.stacks[StackName]["resources"].items()
        ]

    def update_termination_protection(self, *, StackName: str, EnableTerminationProtection: bool) -> None:  # noqa: N803
        self.stacks[StackName]["protected"] = EnableTerminationProtection

    def delete_stack(self, *, StackName: str) -> None:  # noqa: N803
        stack = self.stacks[StackName]
        assert not stack["protected"]
        buckets = [identifier for kind, identifier, _ in stack["resources"].values() if kind == "AWS::S3::Bucket"]
        full = [bucket for bucket in buckets if aws("s3").list_objects_v2(Bucket=bucket)["KeyCount"]]
        if self.reason or full:
            stack["status"] = "DELETE_FAILED"
            return
        self.deleted.append(f"id of {StackName}")
        del self.stacks[StackName]


class Interfaces:
    """Plays EC2's list of Lambda's network interfaces. Each request returns the next answer, a list of their states."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.deleted: list[str] = []

    def describe_network_interfaces(self, *, Filters: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        assert {"Name": "vpc-id", "Values": ["vpc-1"]} in Filters
        assert {"Name": "description", "Values": ["AWS Lambda VPC ENI*"]} in Filters
        states = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {
            "NetworkInterfaces": [{"NetworkInterfaceId": f"eni-{n}", "Status": each} for n, each in enumerate(states)]
        }

    def delete_network_interface(self, *, NetworkInterfaceId: str) -> None:  # noqa: N803
        self.deleted.append(NetworkInterfaceId)


class Caches:
    """Plays ElastiCache: the serverless caches that exist."""

    class exceptions:  # noqa: N801 - AWS's name
        class ServerlessCacheNotFoundFault(Exception):
            pass

    def __init__(self, *names: str) -> None:
        self._names = names

    def describe_serverless_caches(self, *, ServerlessCacheName: str) -> dict[str, Any]:  # noqa: N803
        if ServerlessCacheName in self._names:
            return {"ServerlessCaches": [{}]}
        raise self.exceptions.ServerlessCacheNotFoundFault


NETWORK = ("AWS::EC2::VPC", "vpc-1", "Delete")
BUCKET = ("AWS::S3::Bucket", "dev-oversize", "Delete")
CACHE = ("AWS::ElastiCache::ServerlessCache", "message-buffer-dev", "Delete")
KEY = ("AWS::KMS::Key", "key-1", "Delete")
TABLE = ("AWS::DynamoDB::Table", "dev-rules", KEPT)


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudFormation]:
    """Yield a fake CloudFormation. The command's clients reach it, the fake EC2, or else moto."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    cloudformation, interfaces = CloudFormation(), Interfaces([])

    clients = {"cloudformation": cloudformation, "ec2": interfaces, "elasticache": Caches()}
    with mock_aws():
        monkeypatch.setattr(removal, "identify", lambda _: lambda service: clients.get(service) or aws(service))
        yield cloudformation


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def make(said: list[str], account: CloudFormation) -> Callable[..., Removal]:
    def made(interfaces: Interfaces | None = None, caches: Caches | None = None, **overrides: Any) -> Removal:
        clients = {
            "cloudformation": account,
            "ec2": interfaces or Interfaces([]),
            "elasticache": caches or Caches(),
        }
        config = load_stage({"dev": overrides}, stage="dev")
        return Removal(config, client=lambda name: clients.get(name) or aws(name), say=said.append)

    return made


def aws(service: str) -> Any:
    return boto3.client(service, region_name=REGION)


def names(stacks: Sequence[Stack]) -> list[str]:
    return [stack.name for stack in stacks]


def test_all_stacks_of_the_stage_go_in_the_order_of_their_needs(
    make: Callable[..., Removal], account: CloudFormation
) -> None:
    for word in STACKS:
        account.deploy(word)
    account.deploy("2-Buffer")
    found = make().existing()
    assert names(found) == [f"{NAME}-{word}" for word in reversed(STACKS)]
    make().delete(found)
    assert account.deleted == [f"id of {NAME}-{word}" for word in reversed(STACKS)]
    assert account.stacks.keys() == {f"{NAME}-2-Buffer"}, "the stack of the stage dev-2"


def test_what_goes_what_stays_and_what_costs_is_said_before(
    make: Callable[..., Removal], account: CloudFormation, said: list[str]
) -> None:
    account.deploy("Buffer", Oversize=BUCKET, Rules=TABLE, Triggers=("AWS::SQS::Queue", "dev-triggers", KEPT))
    make().explain(make().existing())
    text = "\n".join(said)
    assert f"Delete the stack {NAME}-Buffer (CREATE_COMPLETE), with all data" in text
    assert "  delete AWS::S3::Bucket dev-oversize\n" in text
    assert "  keep   AWS::DynamoDB::Table dev-rules\n" in text
    assert "  keep   AWS::SQS::Queue dev-triggers\n" in text
    assert "AWS bills what is kept" in text
    assert '"removal_policy": "destroy"' in text


def test_a_bucket_is_emptied_before_its_stack_goes(make: Callable[..., Removal], account: CloudFormation) -> None:
    account.deploy("Buffer", Oversize=BUCKET)
    aws("s3").create_bucket(Bucket="dev-oversize")
    for number in range(3):
        aws("s3").put_object(Bucket="dev-oversize", Key=f"batches/{number}", Body=b"{}")
    make().delete(make().existing())
    assert account.stacks == {}


def test_a_retained_bucket_keeps_its_objects(make: Callable[..., Removal], account: CloudFormation) -> None:
    account.deploy("Buffer", Oversize=(*BUCKET[:2], KEPT))
    aws("s3").create_bucket(Bucket="dev-oversize")
    aws("s3").put_object(Bucket="dev-oversize", Key="batches/1", Body=b"{}")
    with pytest.raises(Stuck):  # The fake CloudFormation ignores the deletion policy, so the full bucket stops it.
        make().delete(make().existing())
    assert aws("s3").list_objects_v2(Bucket="dev-oversize")["KeyCount"] == 1


def test_only_what_the_settings_turned_off_is_left_over(make: Callable[..., Removal], account: CloudFormation) -> None:
    for word in STACKS:
        account.deploy(word)
    assert names(make().left_over()) == [f"{NAME}-PublicCache"]
    assert names(make(network={"egress": "none"}).left_over()) == [f"{NAME}-Cache", f"{NAME}-Network"]
    everything = [f"{NAME}-PublicCache", f"{NAME}-Cache", f"{NAME}-Network"]
    assert names(make(lane="dynamodb").left_over()) == everything


@pytest.mark.parametrize("state", ["ROLLBACK_COMPLETE", "ROLLBACK_FAILED"])
def test_a_stack_that_never_got_deployed_is_left_over_and_its_protection_is_no_obstacle(
    state: str, make: Callable[..., Removal], account: CloudFormation
) -> None:
    account.deploy("Buffer", state=state)
    account.deploy("Cache")
    for stack in account.stacks.values():
        stack["protected"] = True
    found = make().left_over()
    assert names(found) == [f"{NAME}-Buffer"]
    make().explain(found)
    make().delete(found)
    assert account.stacks.keys() == {f"{NAME}-Cache"}


def test_lambda_leaves_the_network_before_it_is_deleted(
    make: Callable[..., Removal], account: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.deploy("Network", Vpc=NETWORK)
    interfaces = Interfaces(["in-use", "in-use"], ["available", "in-use"], ["in-use"], [])
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    found = make(interfaces)
    found.delete(found.existing())
    assert interfaces.deleted == ["eni-0"], "Lambda cannot delete it without the functions' roles"
    assert slept == [POLL_SECONDS] * 3
    assert account.stacks == {}


def test_a_network_that_lambda_does_not_leave_is_said_with_its_costs(
    make: Callable[..., Removal], account: CloudFormation, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.deploy("Network", Vpc=NETWORK)
    monkeypatch.setattr(removal, "MAX_DELETION_SECONDS", -1)
    found = make(Interfaces(["in-use"]))
    with pytest.raises(Stuck, match=r"eni-0\. .*until then AWS bills the NAT gateways"):
        found.delete(found.existing())
    assert account.stacks.keys() == {f"{NAME}-Network"}


@pytest.mark.parametrize("has_its_stack", [True, False])
def test_a_kept_cache_keeps_its_network_and_the_command_that_ends_it_is_said(
    has_its_stack: bool, make: Callable[..., Removal], account: CloudFormation, said: list[str]
) -> None:
    """Ensure that a removal that was interrupted, or repeated, does not try the network either."""
    account.deploy("Network", Vpc=NETWORK)
    if has_its_stack:
        account.deploy("Cache", Cache=(*CACHE[:2], KEPT))
    account.deploy("Buffer")
    found = make(caches=Caches("message-buffer-dev", "message-buffer-dev-2", "public-buffer-dev"))
    stacks = found.deletable(found.existing())
    assert names(stacks) == [f"{NAME}-{word}" for word in (["Buffer", "Cache"] if has_its_stack else ["Buffer"])]
    (sentence,) = said
    assert sentence.startswith(f"The stack {NAME}-Network stays, with what AWS bills for it, because the cache")
    assert "aws elasticache delete-serverless-cache --serverless-cache-name message-buffer-dev --final-snap" in sentence


# -- the command -------------------------------------------------------------------------------------------------


def run(*arguments: str, answer: str = "", said: list[str]) -> int:
    return removal.main(["--stage", "dev", *arguments], ask=lambda _question: answer, say=said.append)


@pytest.mark.parametrize(("answer", "left"), [("dev", 0), ("y", 1), ("", 1)])
def test_only_the_name_of_the_stage_is_a_yes(answer: str, left: int, said: list[str], account: CloudFormation) -> None:
    account.deploy("Buffer")
    assert run(answer=answer, said=said) == left
    assert len(account.stacks) == left


def test_a_protected_stage_is_refused_with_the_way_out(
    said: list[str], account: CloudFormation, capsys: pytest.CaptureFixture[str]
) -> None:
    account.deploy("Buffer")
    account.stacks[f"{NAME}-Buffer"]["protected"] = True
    assert run("--yes", said=said) == 1
    assert "Set termination_protection to false for stage 'dev'" in capsys.readouterr().err
    assert len(account.stacks) == 1
