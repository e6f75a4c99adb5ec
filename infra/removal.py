"""Removes a stage, or stacks that it no longer needs: `.venv/bin/python -m infra.removal --stage dev [--left-over]`.

The command first lists what it will delete and keep, and what AWS will continue to bill, and asks for agreement. It may
be interrupted and run again at any time. `--left-over` removes only stacks that the settings turned off, and stacks
whose first deployment failed.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
# In these states the first deployment of a stack has failed or not begun, so the stack was never used.
NEVER_DEPLOYED = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS"}
CACHE, KEY = "AWS::ElastiCache::ServerlessCache", "AWS::KMS::Key"
# The kinds of resources that AWS bills even if they are unused, with the reason for the bill.
BILLED = {
    "AWS::DynamoDB::Table": "storage and backups",
    CACHE: "storage, at least 100 MB",
    "AWS::Events::Archive": "storage",
    KEY: "each month",
    "AWS::Logs::LogGroup": "storage",
    "AWS::S3::Bucket": "storage",
    "AWS::SecretsManager::Secret": "each month",
}
# The description that Lambda gives to the network interfaces of functions.
LAMBDA_INTERFACE = "AWS Lambda VPC ENI"

Say = Callable[[str], None]


class Stuck(Exception):
    """Raised if a stack is not deleted. The exception's text says why, and what to do."""


class StackResource(NamedTuple):
    kind: str
    id: str
    """The physical id."""
    kept: bool
    snapshot: bool
    """AWS makes a final snapshot before it deletes the resource."""

    def __str__(self) -> str:
        return f"{self.kind.removeprefix('AWS::')} {self.id}"


class Stack(NamedTuple):
    """A stack of the stage in the account."""

    name: str
    id: str
    status: str
    protected: bool
    resources: Sequence[StackResource]

    @property
    def was_deployed(self) -> bool:
        return self.status not in NEVER_DEPLOYED

    def deletes(self, kind: str) -> list[str]:
        """Return the ids of the resources of a kind that AWS deletes with the stack."""
        return [resource.id for resource in self.resources if resource.kind == kind and not resource.kept]


class Removal:
    """Finds the stacks of a stage, and deletes them."""

    def __init__(self, config: StageConfig, *, client: Callable[[str], Any], say: Say = print) -> None:
        self._config, self._client, self._say = config, client, say
        self._cloudformation = client("cloudformation")
        self._cache = f"message-buffer-{config.name}"

    def existing(self) -> list[Stack]:
        """Return the stacks of the stage that exist in the account, in the order in which they can be deleted."""
        return [
            stack for word in reversed(STACKS) if (stack := self._find(f"MessageBuffer-{self._config.name}-{word}"))
        ]

    def left_over(self) -> list[Stack]:
        """Return the stacks that the settings have turned off, and those whose first deployment failed."""
        own = {f"MessageBuffer-{self._config.name}-{word}" for word in self._config.stacks}
        return [stack for stack in self.existing() if stack.name not in own or not stack.was_deployed]

    def deletable(self, stacks: Sequence[Stack]) -> list[Stack]:
        """Return `stacks`. If the network contains a cache that will be kept, leave out the network, and print why."""
        network = next((stack for stack in stacks if stack.name.endswith("-Network")), None)
        if network is None or any(self._cache in stack.deletes(CACHE) for stack in stacks):
            return list(stacks)
        try:
            self._client("elasticache").describe_serverless_caches(ServerlessCacheName=self._cache)
        except ClientError as error:
            if error.response["Error"]["Code"].startswith("ServerlessCacheNotFound"):
                return list(stacks)
            raise
        self._say(
            f"The stack {network.name} stays, with what AWS bills for it, because the cache {self._cache}, which AWS "
            f"keeps, is in its network. To remove it as well, delete the cache, then run this again: `aws elasticache "
            f"delete-serverless-cache --serverless-cache-name {self._cache} --final-snapshot-name {self._cache}-last`."
        )
        return [stack for stack in stacks if stack is not network]

    def explain(self, stacks: Sequence[Stack]) -> None:
        """Print what the deletion of `stacks` deletes and keeps, and what AWS will continue to bill.

        Raise Stuck if it would delete the key of a snapshot.
        """
        for stack in stacks:
            self._say(f"Delete the stack {stack.name} ({stack.status}), with all data in what it does not keep:")
            for resource in stack.resources:
                bill = BILLED.get(resource.kind)
                if resource.kept:
                    self._say(f"  keep   {resource}, {f'and pay for {bill}' if bill else 'free while it is unused'}")
                elif bill:
                    self._say(f"  delete {resource}{', after a final snapshot' if resource.snapshot else ''}")
            if stack.name.endswith("Cache") and stack.deletes(KEY):
                self._refuse_to_lose_snapshots(stack)
        if any(resource.kept for stack in stacks for resource in stack.resources):
            self._say(
                'To delete what is kept, deploy the stage once with "removal_policy": "destroy" before you remove it. '
                "Delete a key by hand when no snapshot needs it."
            )

    def delete(self, stacks: Sequence[Stack]) -> None:
        """Delete the stacks one after the other. Raise Stuck if AWS does not delete one."""
        for stack in stacks:
            if stack.protected and not stack.was_deployed:
                self._cloudformation.update_termination_protection(
                    StackName=stack.name, EnableTerminationProtection=False
                )
            self._say(f"Deleting {stack.name} …")
            reason: str | None = None
            for _ in range(MAX_DELETION_ATTEMPTS):
                if (reason := self._try_to_delete(stack)) is None:
                    break
            if reason:
                raise Stuck(f"AWS did not delete {stack.name}: {reason} Remove the cause, then run this again.")

    def _find(self, name: str) -> Stack | None:
        try:
            (found,) = self._cloudformation.describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "ValidationError":
                return None
            raise
        status = found["StackStatus"]
        # In this state the stack has no resources, because its first change set was never executed.
        resources = () if status == "REVIEW_IN_PROGRESS" else tuple(self._resources_of(name))
        return Stack(name, found["StackId"], status, bool(found.get("EnableTerminationProtection")), resources)

    def _resources_of(self, name: str) -> Iterator[StackResource]:
        template = self._cloudformation.get_template(StackName=name)["TemplateBody"].get("Resources", {})
        pages = self._cloudformation.get_paginator("list_stack_resources").paginate(StackName=name)
        for found in (each for page in pages for each in page["StackResourceSummaries"]):
            declared = template.get(found["LogicalResourceId"], {})
            kept = declared.get("DeletionPolicy", "Delete").startswith("Retain")
            if found["ResourceStatus"] != "DELETE_COMPLETE" and found.get("PhysicalResourceId"):
                final = "FinalSnapshotName" in declared.get("Properties", {}) and not kept
                yield StackResource(found["ResourceType"], found["PhysicalResourceId"], kept, final)

    def _refuse_to_lose_snapshots(self, stack: Stack) -> None:
        for cache in stack.deletes(CACHE):
            found = self._client("elasticache").describe_serverless_cache_snapshots(ServerlessCacheName=cache)
            if names := [each["ServerlessCacheSnapshotName"] for each in found["ServerlessCacheSnapshots"]]:
                raise Stuck(
                    f"Without the key of {stack.name}, nobody could read {', '.join(names)} any more. Delete these "
                    f"snapshots, or first deploy the stage with cache.snapshot_days, by which the key stays."
                )

    def _try_to_delete(self, stack: Stack) -> str | None:
        """Return None when the stack is deleted, or the reason why AWS could not delete it."""
        for bucket in stack.deletes("AWS::S3::Bucket"):
            self._empty(bucket)
        for network in stack.deletes("AWS::EC2::VPC"):
            self._free(network, stack)
        self._cloudformation.delete_stack(StackName=stack.name)
        while True:
            # Ask by the id, because AWS does not find a deleted stack by its name.
            (found,) = self._cloudformation.describe_stacks(StackName=stack.id)["Stacks"]
            if found["StackStatus"] == "DELETE_COMPLETE":
                return None
            if found["StackStatus"] == "DELETE_FAILED":
                return str(found.get("StackStatusReason", "no reason was given."))
            time.sleep(DELETION_POLL_SECONDS)

    def _empty(self, bucket: str) -> None:
        """Delete all objects, because AWS deletes no bucket that contains any."""
        s3 = self._client("s3")
        try:
            # A request can delete all objects of a page, because S3 allows 1,000 objects in both.
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
                if keys := [{"Key": found["Key"]} for found in page.get("Contents", [])]:
                    s3.delete_objects(Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
        except s3.exceptions.NoSuchBucket:
            pass

    def _free(self, network: str, stack: Stack) -> None:
        """Wait until Lambda has left the network, because AWS deletes no network that is in use.

        Lambda deletes its network interfaces some time after the last function has left. It cannot delete an
        interface once the functions' roles are deleted, so delete unused interfaces here.
        """
        ec2 = self._client("ec2")
        deadline = time.monotonic() + MAX_INTERFACE_SECONDS
        filters = [
            {"Name": "vpc-id", "Values": [network]},
            {"Name": "description", "Values": [f"{LAMBDA_INTERFACE}*"]},
        ]
        while found := ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]:
            for interface in found:
                if interface["Status"] == "available":
                    _delete_interface(ec2, interface["NetworkInterfaceId"])
            if time.monotonic() > deadline:
                names = ", ".join(each["NetworkInterfaceId"] for each in found)
                raise Stuck(
                    f"Lambda still uses the network of {stack.name}: {names}. It may do so for 40 minutes "
                    f"after the last function. Run this again later; until then AWS bills the NAT gateways."
                )
            self._say(f"Waiting until Lambda has left the network ({len(found)} network interfaces) …")
            time.sleep(INTERFACE_POLL_SECONDS)


def _delete_interface(ec2: Any, interface: str) -> None:
    try:
        ec2.delete_network_interface(NetworkInterfaceId=interface)
    except ClientError as error:
        # Ignore that the interface is gone or in use, because Lambda may delete it or use it again at any moment.
        if error.response["Error"]["Code"] not in {"InvalidNetworkInterfaceID.NotFound", "InvalidParameterValue"}:
            raise


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
        stacks = removal.deletable(removal.left_over() if arguments.left_over else removal.existing())
        if not stacks:
            say("Nothing is left to remove.")
            return 0
        refuse_protected(stacks, config)
        removal.explain(stacks)
        question = f"Waiting messages will be lost. Type the stage's name to delete this ({config.name}): "
        if not arguments.yes and ask(question) != config.name:
            say("Nothing was deleted.")
            return 1
        removal.delete(stacks)
        say("Deleted. CDK's own stack, CDKToolkit, remains, because other applications may use it.")
        return 0
    except (ConfigError, Missing, Stuck) as error:
        sys.stderr.write(f"{error}\n")
    except (ClientError, BotoCoreError) as error:
        sys.stderr.write(f"AWS refused or did not answer: {error}\n")
    return 1


def refuse_protected(stacks: Sequence[Stack], config: StageConfig) -> None:
    """Raise Stuck if a stack may not be deleted yet."""
    if names := [stack.name for stack in stacks if stack.protected and stack.was_deployed]:
        raise Stuck(
            f"Protected: {', '.join(names)}. Set termination_protection to false for stage '{config.name}' in cdk.json "
            f"and deploy it first. For a stack that the stage no longer has, remove the protection with `aws "
            f"cloudformation update-termination-protection --no-enable-termination-protection --stack-name <stack>`."
        )


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m infra.removal", description=__doc__)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--left-over", action="store_true", help="only stacks that are turned off or never deployed")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(main())
