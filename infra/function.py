"""The one Lambda construct: what every function of this product has in common."""

from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config import StageConfig
from infra.environment import Environment, ValkeyAccess, common

# The asset is what these patterns leave of the repository: two folders of source.
ONLY_SOURCE = ["/*", "!/lambdas", "!/lua", "/lambdas/requirements.*", "__pycache__", "*.md"]

# Lambda retries nothing: its first retry comes after a minute, when the watchdog has long put right what
# a crash left, and an event older than the shortest age Lambda knows would only start what runs already.
ASYNC_RETRIES = 0
ASYNC_MAX_AGE = cdk.Duration.minutes(1)


@dataclass(frozen=True)
class Placement:
    """Where in the network the functions run."""

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection
    security_group: ec2.ISecurityGroup


@dataclass(frozen=True)
class Runtime:
    """What all functions of a stage share."""

    config: StageConfig
    code: lambda_.Code
    layer: lambda_.ILayerVersion
    valkey: ValkeyAccess
    placement: Placement | None


class Function(lambda_.Function):
    """The function whose handler is `lambdas.<role>.handler.handler`."""

    def __init__(
        self,
        scope: Construct,
        role: str,
        *,
        runtime: Runtime,
        memory_mb: int,
        timeout: cdk.Duration,
        environment: Environment,
        name: str | None = None,
        in_a_loop: bool = False,
    ) -> None:
        """`in_a_loop`: it is started round and round on purpose, so Lambda's loop guard lets it."""
        construct_id = "".join(word.capitalize() for word in role.split("_"))
        config, placement = runtime.config, runtime.placement
        super().__init__(
            scope,
            construct_id,
            function_name=name,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=lambda_.Architecture.ARM_64,
            handler=f"lambdas.{role}.handler.handler",
            code=runtime.code,
            layers=[runtime.layer],
            memory_size=memory_mb,
            timeout=timeout,
            environment={**common(role, config=config, valkey=runtime.valkey), **environment},
            log_group=logs.LogGroup(
                scope,
                f"{construct_id}Logs",
                retention=logs.RetentionDays[config.log_retention.upper()],
                removal_policy=removal_policy(config),
            ),
            retry_attempts=ASYNC_RETRIES,
            max_event_age=ASYNC_MAX_AGE,
            recursive_loop=lambda_.RecursiveLoop.ALLOW if in_a_loop else lambda_.RecursiveLoop.TERMINATE,
            vpc=placement.vpc if placement else None,
            vpc_subnets=placement.subnets if placement else None,
            security_groups=[placement.security_group] if placement else None,
        )


def source_code(repository: Path) -> lambda_.Code:
    """`lambdas/` and `lua/`, one asset for all functions."""
    return lambda_.Code.from_asset(str(repository), exclude=ONLY_SOURCE, ignore_mode=cdk.IgnoreMode.GIT)


def removal_policy(config: StageConfig) -> cdk.RemovalPolicy:
    return cdk.RemovalPolicy.RETAIN if config.removal_policy == "retain" else cdk.RemovalPolicy.DESTROY
