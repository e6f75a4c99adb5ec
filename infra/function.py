"""The one Lambda construct, from which every function of this product is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct, IConstruct

from message_buffer.settings import LogSettings, to_variables

from .settings_and_defaults import ConfigError, Role, StageConfig, WarmRole

# ONLY_SOURCE excludes everything except these folders, which form the one code asset that all functions share.
ROOMS = ("message_buffer", "lambdas", "lua")
# Only consumers outside of the stage import `marks.py`.
FOR_CONSUMERS = "/message_buffer/consumer/marks.py"
ONLY_SOURCE = ["/*", *(f"!/{room}" for room in ROOMS), "/lambdas/requirements.*", FOR_CONSUMERS, "__pycache__", "*.md"]

# The alias's name, for functions that have one.
ALIAS = "live"

# Lambda's limit for the names and values of a function's variables together.
MAX_VARIABLES_BYTES = 4_096
# The assumed size of a value that is known only after the deployment. The longest such value is a queue's URL, which
# has about this size in a stage with the longest name.
BYTES_OF_AN_UNKNOWN_VALUE = 120

# The permissions that Lambda requires of a role before it places the function in a network.
NETWORK_ACTIONS = [
    "ec2:CreateNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DeleteNetworkInterface",
    "ec2:AssignPrivateIpAddresses",
    "ec2:UnassignPrivateIpAddresses",
]

# CloudFormation would replace a function whose logical id changes, so this one keeps its old id.
CONSTRUCT_IDS = {"dynamodb_processor": "WindowProcessor"}


@dataclass(frozen=True)
class Placement:
    """The part of the network in which the functions run."""

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection
    security_group: ec2.ISecurityGroup


@dataclass(frozen=True)
class Runtime:
    """The properties that all functions of a stage share."""

    config: StageConfig
    code: lambda_.Code
    layer: lambda_.ILayerVersion
    log: LogSettings
    placement: Placement | None
    """None for functions outside of any network."""


class Function(lambda_.Function):
    """A function whose code is in the package `lambdas.<role>`."""

    def __init__(  # noqa: PLR0913 - the callers decide each of them
        self,
        scope: Construct,
        role: Role,
        *,
        runtime: Runtime,
        timeout: cdk.Duration,
        settings: tuple[Any, ...],
        name: str | None = None,
        in_a_loop: bool = False,
        failures: sqs.IQueue | None = None,
        retries: int = 0,
        has_url: bool = False,
    ) -> None:
        """Create the function. `settings` is an object of its class in `message_buffer/settings.py`.

        Pass `in_a_loop` to turn off Lambda's loop detection, if functions or queues invoke this function in a loop on
        purpose. Lambda repeats a failed asynchronous invocation `retries` times, after one and two minutes. Then the
        queue `failures` receives Lambda's record of the invocation.
        """
        construct_id = CONSTRUCT_IDS.get(role) or "".join(word.capitalize() for word in role.split("_"))
        config, placement = runtime.config, runtime.placement
        log_group = make_log_group(scope, f"{construct_id}Logs", config)
        variables = {
            "POWERTOOLS_SERVICE_NAME": role,
            "POWERTOOLS_METRICS_NAMESPACE": f"MessageBuffer/{config.name}",
            **to_variables(settings),
        }
        _check_size(role, cdk.Stack.of(scope).resolve(variables))
        asynchronous: dict[str, Any] = {
            # Lambda would retry only after a minute, and a pass of the watchdog starts another run earlier. Without
            # retries Lambda sends the record of a failed run to `failures` at once, not after the retries.
            "retry_attempts": retries,
            # Lambda accepts no lower value. It drops a start that has waited longer. That does no harm, because the
            # watchdog has started another run by then.
            "max_event_age": cdk.Duration.hours(6) if retries else cdk.Duration.seconds(60),
            "on_failure": destinations.SqsDestination(failures) if failures else None,
        }
        super().__init__(
            scope,
            construct_id,
            function_name=name,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=lambda_.Architecture.ARM_64,
            handler=f"lambdas.{role}.handler.handler",
            code=runtime.code,
            layers=[runtime.layer],
            memory_size=config.memory[role],
            timeout=timeout,
            environment=variables,
            role=_execution_role(scope, f"{construct_id}Role", log_group=log_group, in_network=placement is not None),
            log_group=log_group,
            tracing=lambda_.Tracing.ACTIVE if config.tracing else lambda_.Tracing.DISABLED,
            reserved_concurrent_executions=config.concurrency.get(role),
            **asynchronous,
            recursive_loop=lambda_.RecursiveLoop.ALLOW if in_a_loop else lambda_.RecursiveLoop.TERMINATE,
            vpc=placement.vpc if placement else None,
            vpc_subnets=placement.subnets if placement else None,
            security_groups=[placement.security_group] if placement else None,
        )
        self.calls_valkey = "REDIS_URL" in variables
        self.is_in_network = placement is not None
        self.entrance: lambda_.IFunction = self
        """The API and other functions invoke this: the alias of a published version, or the function."""
        warm = config.warmth.get(cast("WarmRole", role))
        # A function with its own address always has an alias. Otherwise a change of `warmth` would change the address.
        if has_url or warm:
            self.entrance = lambda_.Alias(
                self,
                "Live",
                alias_name=ALIAS,
                version=self.current_version,
                provisioned_concurrent_executions=warm,
                **asynchronous,
            )
        suppress_finding(
            self,
            "AwsSolutions-L1",
            "Python 3.13 is supported until 2029. The layer's wheels are locked, built and tested for it.",
        )
        # Let cfn-lint accept that CDK adds a dependency on the role, although the function already refers to the role.
        _resource(self).add_metadata("cfn-lint", {"config": {"ignore_checks": ["W3005"]}})
        if config.tracing:
            assert self.role
            suppress_finding(
                self.role.node.find_child("DefaultPolicy"),
                "AwsSolutions-IAM5[Resource::*]",
                "X-Ray has no resource that a policy could name for sending trace segments.",
            )

    def depend_on_role_of(self, other: Function) -> None:
        """Let CloudFormation create this function after the role of `other`, and delete it before that role."""
        assert other.role is not None
        _resource(self).add_resource_dependency(_resource(other.role))


def _check_size(role: str, variables: Mapping[str, Any]) -> None:
    """Raise ConfigError, with the settings to shorten, if Lambda would refuse the variables."""
    if (size := sum(len(name) + _bytes_of(value) for name, value in variables.items())) > MAX_VARIABLES_BYTES:
        raise ConfigError(
            f"The environment variables of the function {role} would have {size:,} bytes, but Lambda accepts"
            f" {MAX_VARIABLES_BYTES:,}. Shorten in cdk.json: `rules`, `queues` or `responder.instructions`."
        )


def _bytes_of(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_bytes_of, value["Fn::Join"][1])) if "Fn::Join" in value else BYTES_OF_AN_UNKNOWN_VALUE
    return len(str(value).encode())


def _execution_role(scope: Construct, construct_id: str, *, log_group: logs.ILogGroup, in_network: bool) -> iam.Role:
    """Return a role with the permissions of AWS's managed policies for Lambda, limited to this log group."""
    statements = [
        iam.PolicyStatement(actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log_group.log_group_arn])
    ]
    if in_network:
        # Lambda itself must call these actions, but the function's code may not. Only calls by the code contain this
        # ARN.
        by_code = {"Null": {"lambda:SourceFunctionArn": "false"}}
        statements += [
            iam.PolicyStatement(actions=NETWORK_ACTIONS, resources=["*"]),
            iam.PolicyStatement(effect=iam.Effect.DENY, actions=NETWORK_ACTIONS, resources=["*"], conditions=by_code),
        ]
    role = iam.Role(
        scope,
        construct_id,
        assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
        inline_policies={"Execution": iam.PolicyDocument(statements=statements)},
    )
    if in_network:
        suppress_finding(
            _resource(role),
            "AwsSolutions-IAM5[Resource::*]",
            "Lambda requires these permissions on all resources, because the network interfaces do not exist yet.",
        )
    return role


def source_code(repository: Path) -> lambda_.Code:
    """Return the one asset of all functions: the folders in ROOMS."""
    return lambda_.Code.from_asset(str(repository), exclude=ONLY_SOURCE, ignore_mode=cdk.IgnoreMode.GIT)


def make_log_group(scope: Construct, construct_id: str, config: StageConfig, name: str | None = None) -> logs.LogGroup:
    log_group = logs.LogGroup(scope, construct_id, log_group_name=name, removal_policy=removal_policy(config))
    # CDK's own property takes only the names of the possible numbers of days.
    _resource(log_group).add_property_override("RetentionInDays", config.log_retention_days)
    keep_identity(log_group, construct_id)
    return log_group


def removal_policy(config: StageConfig) -> cdk.RemovalPolicy:
    """Return the removal policy of resources that contain data.

    If the first deployment fails, its resources are deleted in any case, because their names would block the next one.
    """
    keep = cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
    return keep if config.removal_policy == "retain" else cdk.RemovalPolicy.DESTROY


def keep_identity(construct: IConstruct, logical_id: str) -> None:
    """Set a fixed logical id for a resource with state, so that no refactoring makes CloudFormation replace it."""
    _resource(construct).override_logical_id(logical_id)


def _resource(construct: IConstruct) -> cdk.CfnResource:
    resource = construct.node.default_child or construct
    assert isinstance(resource, cdk.CfnResource)
    return resource


def grant(grantee: iam.IGrantable, *actions: str, on: str | Sequence[str]) -> iam.Grant:
    """Allow `grantee` exactly these actions on these resources."""
    arns = [on] if isinstance(on, str) else list(on)
    return iam.Grant.add_to_principal(grantee=grantee, actions=list(actions), resource_arns=arns)


def suppress_finding(construct: IConstruct, finding: str, reason: str) -> None:
    """Let cdk-nag ignore one finding on this construct, for the given reason."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=finding, reason=reason))
