"""Removes a stage, or stacks that it no longer needs: `.venv/bin/python -m infra.removal --stage dev [--left-over]`.

The command first lists what it will delete and keep, and what AWS will continue to bill, and asks for agreement. It may
be interrupted and run again at any time. `--left-over` removes only stacks that the settings turned off, and stacks
whose first deployment failed. `--list` only names these stacks.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import cli

try:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from .preflight import CLIENT_CONFIG, Missing, identify
    from .settings_and_defaults import STACKS, ConfigError, StageConfig, load_stage
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

DELETION_POLL_SECONDS = 5
# A function may write another object while its stack is being deleted, so the bucket is emptied again.
MAX_DELETION_ATTEMPTS = 3
# Lambda deletes its network interfaces up to 40 minutes after the last function has left the network.
MAX_INTERFACE_SECONDS = 45 * 60
INTERFACE_POLL_SECONDS = 30
# The first deployment of a stack in these states failed or was never executed, so its resources were never used.
NEVER_DEPLOYED = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS"}
# The kinds of resources that AWS bills even if they are unused, with the reason for the bill.
BILLED = {
    "AWS::DynamoDB::Table": "storage and backups",
    "AWS::ElastiCache::ServerlessCache": "storage, at least 100 MB",
    "AWS::Events::Archive": "storage",
    "AWS::KMS::Key": "each month",
    "AWS::Logs::LogGroup": "storage",
    "AWS::S3::Bucket": "storage",
    "AWS::SecretsManager::Secret": "each month",
}
# The description that Lambda gives to the network interfaces of functions.
LAMBDA_INTERFACE = "AWS Lambda VPC ENI"

Say = Callable[[str], None]


class Stuck(Exception):
    """Raised if AWS does not delete a stack. The exception's text says why, and what to do."""


class StackResource(NamedTuple):
    kind: str
    id: str
    """The physical id."""
    kept: bool
    snapshot: bool = False
    """AWS makes a final snapshot before it deletes the resource."""

    def __str__(self) -> str:
        return f"{self.kind.removeprefix('AWS::')} {self.id}"


@dataclass(frozen=True)
class Stack:
    """A stack of the stage in the account."""

    name: str
    id: str
    status: str
    protected: bool
    resources: Sequence[StackResource] = field(default_factory=tuple)

    @property
    def was_deployed(self) -> bool:
        return self.status not in NEVER_DEPLOYED

    def of_kind(self, kind: str) -> list[StackResource]:
        return [resource for resource in self.resources if resource.kind == kind]


class Removal:
    """Finds the stacks of a stage, and deletes them."""

    def __init__(self, config: StageConfig, *, client: Callable[[str], Any], say: Say = print) -> None:
        self._config, self._client, self._say = config, client, say
        self._cloudformation = client("cloudformation")

    def existing(self) -> list[Stack]:
        """Return the stacks of the stage that exist in the account, in the order in which they can be deleted."""
        names = [f"MessageBuffer-{self._config.name}-{word}" for word in reversed(STACKS)]
        return [stack for name in names if (stack := self._find(name))]

    def left_over(self) -> list[Stack]:
        """Return the stacks that the settings have turned off, and those whose first deployment failed."""
        own = {f"MessageBuffer-{self._config.name}-{word}" for word in self._config.stacks}
        return [stack for stack in self.existing() if stack.name not in own or not stack.was_deployed]

    def explain(self, stacks: Sequence[Stack]) -> None:
        """Print what the deletion of `stacks` will delete and keep, and what AWS will continue to bill."""
        for stack in stacks:
            deleted = [resource for resource in stack.resources if not resource.kept]
            self._say(f"Delete the stack {stack.name} ({stack.status}) and its {len(deleted)} resources.")
        resources = [resource for stack in stacks for resource in stack.resources]
        kept = [resource for resource in resources if resource.kept]
        for title, found in {
            "AWS also deletes all data in": [each for each in resources if each.kind in BILLED and not each.kept],
            "AWS keeps, and bills": [each for each in kept if each.kind in BILLED],
            "AWS keeps, and does not bill while it is unused": [each for each in kept if each.kind not in BILLED],
            "AWS makes a final snapshot, and bills its storage, of": [each for each in resources if each.snapshot],
        }.items():
            if found:
                self._say(f"{title}:")
            for each in found:
                costs = BILLED.get(each.kind, "") if each.kept else ""
                self._say(f"  {each}{f' ({costs})' if costs else ''}")
        if kept:
            self._say(
                'To delete these as well, deploy the stage once with "removal_policy": "destroy" before you remove it.'
            )

    def delete(self, stacks: Sequence[Stack]) -> None:
        """Delete the stacks one after the other. Raise Stuck if AWS does not delete one."""
        for stack in stacks:
            if stack.protected and not stack.was_deployed:
                self._cloudformation.update_termination_protection(
                    StackName=stack.name, EnableTerminationProtection=False
                )
            self._say(f"Deleting {stack.name} …")
            self._delete(stack)

    def _delete(self, stack: Stack) -> None:
        reason: str | None = None
        for _ in range(MAX_DELETION_ATTEMPTS):
            reason = self._try_to_delete(stack)
            if reason is None:
                return
        raise Stuck(f"AWS did not delete {stack.name}: {reason} Remove the cause, then run this again.")

    def _find(self, name: str) -> Stack | None:
        try:
            (found,) = self._cloudformation.describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ValidationError":
                return None
            raise
        return Stack(
            name,
            found["StackId"],
            found["StackStatus"],
            bool(found.get("EnableTerminationProtection")),
            tuple(self._resources_of(name, found["StackStatus"])),
        )

    def _resources_of(self, name: str, status: str) -> Iterator[StackResource]:
        if status == "REVIEW_IN_PROGRESS":
            # The stack has no resources, because its first change set was never executed.
            return
        template = self._cloudformation.get_template(StackName=name)["TemplateBody"].get("Resources", {})
        pages = self._cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
        for found in (each for page in pages for each in page["StackResourceSummaries"]):
            declared = template.get(found["LogicalResourceId"], {})
            kept = declared.get("DeletionPolicy", "Delete").startswith("Retain")
            if found["ResourceStatus"] != "DELETE_COMPLETE" and found.get("PhysicalResourceId"):
                final = "FinalSnapshotName" in declared.get("Properties", {}) and not kept
                yield StackResource(found["ResourceType"], found["PhysicalResourceId"], kept, final)

    def _try_to_delete(self, stack: Stack) -> str | None:
        """Return None when the stack is deleted, or the reason why AWS could not delete it."""
        self._empty_buckets(stack)
        self._free_network(stack)
        self._cloudformation.delete_stack(StackName=stack.name)
        while True:
            # Ask by the id, because AWS does not find a deleted stack by its name.
            (found,) = self._cloudformation.describe_stacks(StackName=stack.id)["Stacks"]
            if found["StackStatus"] == "DELETE_COMPLETE":
                return None
            if found["StackStatus"] == "DELETE_FAILED":
                return str(found.get("StackStatusReason", "no reason was given."))
            time.sleep(DELETION_POLL_SECONDS)

    def _empty_buckets(self, stack: Stack) -> None:
        """Delete all objects, because AWS deletes no bucket that contains any."""
        s3 = self._client("s3")
        for bucket in stack.of_kind("AWS::S3::Bucket"):
            if bucket.kept:
                continue
            try:
                # S3 deletes at most as many objects in a request as it lists in a page: 1,000.
                for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket.id):
                    if keys := [{"Key": found["Key"]} for found in page.get("Contents", [])]:
                        s3.delete_objects(Bucket=bucket.id, Delete={"Objects": keys, "Quiet": True})
            except s3.exceptions.NoSuchBucket:
                continue

    def _free_network(self, stack: Stack) -> None:
        """Wait until Lambda has left the network, because AWS deletes no network that is in use.

        Lambda deletes its network interfaces some time after the last function has left. It cannot delete an
        interface once the functions' roles are deleted, so delete unused interfaces here.
        """
        ec2 = self._client("ec2")
        deadline = time.monotonic() + MAX_INTERFACE_SECONDS
        for network in stack.of_kind("AWS::EC2::VPC"):
            in_network = {"Name": "vpc-id", "Values": [network.id]}
            by_lambda = {"Name": "description", "Values": [f"{LAMBDA_INTERFACE}*"]}
            while found := ec2.describe_network_interfaces(Filters=[in_network, by_lambda])["NetworkInterfaces"]:
                unused = [each["NetworkInterfaceId"] for each in found if each["Status"] == "available"]
                for interface in unused:
                    ec2.delete_network_interface(NetworkInterfaceId=interface)
                if unused:
                    continue
                if time.monotonic() > deadline:
                    names = ", ".join(each["NetworkInterfaceId"] for each in found)
                    raise Stuck(
                        f"Lambda still uses the network of {stack.name}: {names}. It may do so for 40 minutes "
                        f"after the last function. Run this again later; until then AWS bills the NAT gateways."
                    )
                self._say(f"Waiting until Lambda has left the network ({len(found)} network interfaces) …")
                time.sleep(INTERFACE_POLL_SECONDS)


def protected(stacks: Sequence[Stack]) -> list[str]:
    """Return the names of the stacks that are protected from deletion."""
    return [stack.name for stack in stacks if stack.protected and stack.was_deployed]


def main(given: Sequence[str] | None = None, *, ask: Callable[[str], str] = input, say: Say = print) -> int:
    arguments = _parse(given)
    if arguments.stage == cli.LOCAL:
        sys.stderr.write(cli.LOCAL_IS_NOT_IN_AWS)
        return 1
    try:
        config = load_stage(cli.context()["stages"], stage=arguments.stage)
        session = boto3.Session()
        identify(config, session)
        removal = Removal(
            config,
            client=lambda service: session.client(service, region_name=config.region, config=CLIENT_CONFIG),
            say=say,
        )
        stacks = removal.left_over() if arguments.left_over or arguments.list else removal.existing()
        if arguments.list:
            for stack in stacks:
                why = f"stage '{config.name}' no longer has it" if stack.was_deployed else "it never got deployed"
                say(f"{stack.name} still exists, but {why}.")
            if stacks:
                say(f"AWS continues to bill what such stacks contain. `make prune STAGE={config.name}` removes them.")
            return 0
        return _remove(removal, stacks, stage=config.name, agreed=arguments.yes, ask=ask, say=say)
    except (ConfigError, Missing, Stuck) as error:
        sys.stderr.write(f"{error}\n")
    except (ClientError, BotoCoreError) as error:
        sys.stderr.write(f"AWS refused or did not answer: {error}\n")
    return 1


def _remove(
    removal: Removal, stacks: Sequence[Stack], *, stage: str, agreed: bool, ask: Callable[[str], str], say: Say
) -> int:
    if not stacks:
        say("Nothing is left to remove.")
        return 0
    if names := protected(stacks):
        raise Stuck(
            f"Protected: {', '.join(names)}. Set termination_protection to false for stage '{stage}' in cdk.json and "
            f"deploy it first. For a stack that the stage no longer has, remove the protection with `aws "
            f"cloudformation update-termination-protection --no-enable-termination-protection --stack-name <stack>`."
        )
    removal.explain(stacks)
    if not agreed and ask(f"Waiting messages will be lost. Type the stage's name to delete this ({stage}): ") != stage:
        say("Nothing was deleted.")
        return 1
    removal.delete(stacks)
    say("Deleted. CDK's own stack, CDKToolkit, remains, because other applications may use it.")
    return 0


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m infra.removal", description=__doc__)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--left-over", action="store_true", help="only stacks that are turned off or never deployed")
    parser.add_argument("--list", action="store_true", help="only name what is left over")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
