"""Removes a stage, or stacks that it no longer needs: `.venv/bin/python -m infra.removal --stage dev [--left-over]`.

The command first lists what it will delete and keep, and what AWS will continue to bill, and asks for agreement. It may
be interrupted and run again at any time.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from . import cli

try:
    from botocore.exceptions import BotoCoreError, ClientError, WaiterError

    from .preflight import NEVER_DEPLOYED, Clients, Stuck, existing_stacks, identify
    from .settings_and_defaults import ConfigError, StageConfig, load_stage
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

POLL_SECONDS = 10
# Lambda deletes its network interfaces up to 40 minutes after the last function has left the network.
MAX_DELETION_SECONDS = 45 * 60
Say = Callable[[str], object]
CACHE = "AWS::ElastiCache::ServerlessCache"


class StackResource(NamedTuple):
    kind: str
    id: str
    policy: str | None
    """The deletion policy. The templates give one to all resources that contain data."""

    @property
    def kept(self) -> bool:
        return bool(self.policy and self.policy.startswith("Retain"))


class Stack(NamedTuple):
    name: str
    id: str
    status: str
    protected: bool
    resources: Sequence[StackResource]

    def deletes(self, kind: str) -> list[str]:
        """Return the ids of the resources of a kind that AWS deletes with the stack."""
        return [resource.id for resource in self.resources if resource.kind == kind and not resource.kept]


class Removal:
    """Finds the stacks of a stage, and deletes them."""

    def __init__(self, config: StageConfig, *, client: Clients, say: Say = print) -> None:
        self._config, self._client, self._say = config, client, say
        self._cloudformation = client("cloudformation")

    def existing(self) -> list[Stack]:
        """Return the stacks of the stage that exist in the account, in the order in which they can be deleted."""
        found = [
            Stack(
                each["StackName"],
                each["StackId"],
                each["StackStatus"],
                # A stack that was never deployed contains nothing worth the protection.
                each.get("EnableTerminationProtection", False) and each["StackStatus"] not in NEVER_DEPLOYED,
                list(self._resources_of(each)),
            )
            for _, each in existing_stacks(self._config, self._cloudformation)
        ]
        return found[::-1]

    def left_over(self) -> list[Stack]:
        """Return the stacks that the settings have turned off, and those whose first deployment failed."""
        own = {self._config.name_of_stack(word) for word in self._config.stacks}
        return [stack for stack in self.existing() if stack.name not in own or stack.status in NEVER_DEPLOYED]

    def deletable(self, stacks: Sequence[Stack]) -> list[Stack]:
        """Return `stacks`. If the network contains a cache that will be kept, leave out the network, and print why."""
        cache = f"message-buffer-{self._config.name}"
        networks = [stack for stack in stacks if stack.deletes("AWS::EC2::VPC")]
        if not networks or any(cache in stack.deletes(CACHE) for stack in stacks):
            return list(stacks)
        elasticache = self._client("elasticache")
        try:
            elasticache.describe_serverless_caches(ServerlessCacheName=cache)
        except elasticache.exceptions.ServerlessCacheNotFoundFault:
            return list(stacks)
        for network in networks:
            self._say(
                f"The stack {network.name} stays, with what AWS bills for it, because the cache {cache}, which AWS "
                f"keeps, is in its network. To remove it as well, delete the cache, and run this again: "
                f"`aws elasticache delete-serverless-cache --serverless-cache-name {cache} --final-snapshot-name "
                f"{cache}-last`."
            )
        return [stack for stack in stacks if stack not in networks]

    def explain(self, stacks: Sequence[Stack]) -> None:
        """Print what the deletion of `stacks` deletes and keeps, and what AWS will continue to bill.

        Raise Stuck if a stack is protected.
        """
        if names := [stack.name for stack in stacks if stack.protected]:
            raise Stuck(
                f"Protected: {', '.join(names)}. Set termination_protection to false for stage '{self._config.name}' "
                f"in cdk.json and deploy it first. For a stack that the stage no longer has, run `aws cloudformation "
                f"update-termination-protection --no-enable-termination-protection --stack-name <stack>`."
            )
        for stack in stacks:
            self._say(f"Delete the stack {stack.name} ({stack.status}), with all data in what it does not keep:")
            for resource in stack.resources:
                if resource.policy:
                    self._say(f"  {'keep  ' if resource.kept else 'delete'} {resource.kind} {resource.id}")
        if any(resource.kept for stack in stacks for resource in stack.resources):
            self._say(
                "AWS bills what is kept: stored data, at least 100 MB in a cache, and each key and secret. To delete "
                'it, deploy the stage once with "removal_policy": "destroy" before you remove it. Delete a key by hand '
                "when no snapshot needs it."
            )

    def delete(self, stacks: Sequence[Stack]) -> None:
        """Delete the stacks one after the other. Raise Stuck if AWS does not delete one."""
        for stack in stacks:
            self._say(f"Deleting {stack.name} …")
            if stack.status in NEVER_DEPLOYED:
                self._cloudformation.update_termination_protection(
                    StackName=stack.name, EnableTerminationProtection=False
                )
            for bucket in stack.deletes("AWS::S3::Bucket"):
                self._empty(bucket)
            for network in stack.deletes("AWS::EC2::VPC"):
                self._free(network)
            self._cloudformation.delete_stack(StackName=stack.name)
            try:
                # Ask by the id, because AWS does not find a deleted stack by its name.
                self._cloudformation.get_waiter("stack_delete_complete").wait(
                    StackName=stack.id,
                    WaiterConfig={"Delay": POLL_SECONDS, "MaxAttempts": MAX_DELETION_SECONDS // POLL_SECONDS},
                )
            except WaiterError as error:
                (found,) = error.last_response.get("Stacks", [{}])
                reason = found.get("StackStatusReason", error)
                raise Stuck(
                    f"AWS did not delete {stack.name}: {reason} Remove the cause, then run this again."
                ) from error

    def _resources_of(self, stack: dict[str, Any]) -> Iterator[StackResource]:
        # In this state the stack has no template, because its first change set was never executed.
        if stack["StackStatus"] == "REVIEW_IN_PROGRESS":
            return
        template = self._cloudformation.get_template(StackName=stack["StackName"])["TemplateBody"]["Resources"]
        pages = self._cloudformation.get_paginator("list_stack_resources").paginate(StackName=stack["StackName"])
        for found in (each for page in pages for each in page["StackResourceSummaries"]):
            if found["ResourceStatus"] != "DELETE_COMPLETE" and found.get("PhysicalResourceId"):
                policy = template.get(found["LogicalResourceId"], {}).get("DeletionPolicy")
                yield StackResource(found["ResourceType"], found["PhysicalResourceId"], policy)

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

    def _free(self, network: str) -> None:
        """Wait until Lambda has left the network, because AWS deletes no network that is in use.

        Lambda deletes its network interfaces some time after the last function has left. It cannot delete an
        interface once the functions' roles are deleted, so delete unused interfaces here.
        """
        ec2 = self._client("ec2")
        deadline = time.monotonic() + MAX_DELETION_SECONDS
        wanted = {"vpc-id": network, "description": "AWS Lambda VPC ENI*"}
        filters = [{"Name": name, "Values": [value]} for name, value in wanted.items()]
        while found := ec2.describe_network_interfaces(Filters=filters)["NetworkInterfaces"]:
            for interface in found:
                if interface["Status"] == "available":
                    try:
                        ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
                    except ClientError as error:
                        # Lambda may delete it, or use it again, at any moment.
                        expected = {"InvalidNetworkInterfaceID.NotFound", "InvalidParameterValue"}
                        if error.response["Error"]["Code"] not in expected:
                            raise
            if time.monotonic() > deadline:
                names = ", ".join(each["NetworkInterfaceId"] for each in found)
                raise Stuck(
                    f"Lambda still uses the network: {names}. It may do so for 40 minutes after the last function. Run "
                    f"this again later; until then AWS bills the NAT gateways."
                )
            self._say(f"Waiting until Lambda has left the network ({len(found)} network interfaces) …")
            time.sleep(POLL_SECONDS)


def main(given: Sequence[str] | None = None, *, ask: Say = input, say: Say = print) -> int:
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m infra.removal", description=__doc__)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--left-over", action="store_true", help="only stacks that are turned off or never deployed")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    arguments = parser.parse_args(given)
    try:
        if arguments.stage == cli.LOCAL:
            raise Stuck(cli.LOCAL_IS_NOT_IN_AWS)
        config = load_stage(cli.context()["stages"], stage=arguments.stage)
        removal = Removal(config, client=identify(config), say=say)
        stacks = removal.deletable(removal.left_over() if arguments.left_over else removal.existing())
        if not stacks:
            say("Nothing is left to remove.")
            return 0
        removal.explain(stacks)
        question = f"Waiting messages will be lost. Type the stage's name to delete this ({config.name}): "
        if not arguments.yes and ask(question) != config.name:
            say("Nothing was deleted.")
            return 1
        removal.delete(stacks)
        say("Deleted. CDK's own stack, CDKToolkit, remains, because other applications may use it.")
        return 0
    except (ConfigError, Stuck) as error:
        sys.stderr.write(f"{error}\n")
    except (ClientError, BotoCoreError) as error:
        sys.stderr.write(f"AWS refused or did not answer: {error}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
