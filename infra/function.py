"""The one Lambda construct: what every function of this product has in common."""

from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_lambda_destinations as destinations
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sqs as sqs
from constructs import Construct, IConstruct

from infra.config import StageConfig, Warmth
from infra.environment import Environment, ValkeyAccess, common

# The asset is what these patterns leave of the repository: the folders that run in Lambda.
ROOMS = ("message_buffer", "lambdas", "responder", "lua")
ONLY_SOURCE = ["/*", *(f"!/{room}" for room in ROOMS), "/lambdas/requirements.*", "__pycache__", "*.md"]

# Lambda retries nothing: its first retry comes after a minute, when the watchdog has long put right what
# a crash left, and an event older than the shortest age Lambda knows would only start what runs already.
ASYNC_RETRIES = 0
ASYNC_MAX_AGE = cdk.Duration.minutes(1)

# What Lambda asks of the role to place a function in a network, before there is anything to name.
NETWORK_ACTIONS = [
    "ec2:CreateNetworkInterface",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSubnets",
    "ec2:DeleteNetworkInterface",
    "ec2:AssignPrivateIpAddresses",
    "ec2:UnassignPrivateIpAddresses",
]

# A logical id is for ever: another one would replace the function.
CONSTRUCT_IDS = {"dynamodb_processor": "WindowProcessor"}


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
    valkey: ValkeyAccess | None
    """`None`: these functions have nothing to do with it."""
    placement: Placement | None


class Function(lambda_.Function):
    """The function whose handler is `<room>.handler.handler`; its room is `lambdas.<role>` unless another is named."""

    def __init__(  # noqa: PLR0913 - each is what its caller decides
        self,
        scope: Construct,
        role: str,
        *,
        runtime: Runtime,
        memory_mb: int,
        timeout: cdk.Duration,
        environment: Environment,
        room: str | None = None,
        name: str | None = None,
        in_a_loop: bool = False,
        undelivered: sqs.IQueue | None = None,
        warmth: Warmth | None = None,
    ) -> None:
        """`in_a_loop`: functions or queues start it round and round on purpose, so Lambda's loop guard lets it.

        `undelivered` takes the starts of it by another function that Lambda could not carry out.
        """
        construct_id = CONSTRUCT_IDS.get(role) or "".join(word.capitalize() for word in role.split("_"))
        config, placement = runtime.config, runtime.placement
        log_group = logs.LogGroup(
            scope,
            f"{construct_id}Logs",
            retention=logs.RetentionDays[config.log_retention.upper()],
            removal_policy=removal_policy(config),
        )
        keep_identity(log_group, f"{construct_id}Logs")
        super().__init__(
            scope,
            construct_id,
            function_name=name,
            runtime=lambda_.Runtime.PYTHON_3_13,
            architecture=lambda_.Architecture.ARM_64,
            handler=f"{room or f'lambdas.{role}'}.handler.handler",
            code=runtime.code,
            layers=[runtime.layer],
            memory_size=memory_mb,
            timeout=timeout,
            environment={**common(role, config=config, valkey=runtime.valkey), **environment},
            role=_execution_role(scope, f"{construct_id}Role", log_group=log_group, in_network=placement is not None),
            log_group=log_group,
            tracing=lambda_.Tracing.ACTIVE if config.tracing else lambda_.Tracing.DISABLED,
            reserved_concurrent_executions=getattr(config.concurrency, role),
            snap_start=lambda_.SnapStartConf.ON_PUBLISHED_VERSIONS if _snapped(warmth) else None,
            retry_attempts=ASYNC_RETRIES,
            max_event_age=ASYNC_MAX_AGE,
            on_failure=destinations.SqsDestination(undelivered) if undelivered else None,
            recursive_loop=lambda_.RecursiveLoop.ALLOW if in_a_loop else lambda_.RecursiveLoop.TERMINATE,
            vpc=placement.vpc if placement else None,
            vpc_subnets=placement.subnets if placement else None,
            security_groups=[placement.security_group] if placement else None,
        )
        self.entrance = _entrance(self, warmth)
        """What outsiders invoke: the warm version if there is one, else the function."""
        self._acknowledge_findings(traced=config.tracing)
        if _snapped(warmth):
            cdk.Annotations.of(self).acknowledge_warning(
                "@aws-cdk/aws-lambda:snapStartRequirePublish", "The entrance is a published version."
            )

    def allow(self, *actions: str, on: str) -> None:
        """Exactly this; CDK's own grants add what the runtime never calls."""
        self.add_to_role_policy(iam.PolicyStatement(actions=list(actions), resources=[on]))

    def _acknowledge_findings(self, *, traced: bool) -> None:
        acknowledge(
            self,
            "AwsSolutions-L1",
            "Python 3.13 is supported until 2029; the layer's wheels are locked, built and tested for it.",
        )
        # CDK makes every function depend on the whole of its role, whose ARN it refers to anyway.
        _resource(self).add_metadata("cfn-lint", {"config": {"ignore_checks": ["W3005"]}})
        if traced:
            assert self.role
            acknowledge(
                self.role.node.find_child("DefaultPolicy"),
                "AwsSolutions-IAM5[Resource::*]",
                "X-Ray has no resource to name when trace segments are sent.",
            )


def _execution_role(scope: Construct, construct_id: str, *, log_group: logs.ILogGroup, in_network: bool) -> iam.Role:
    """What AWS's managed policies for Lambda allow, for this function's own log group only."""
    statements = [
        iam.PolicyStatement(actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log_group.log_group_arn])
    ]
    if in_network:
        # The service may, the function's code may not: only its calls carry the function's ARN.
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
        acknowledge(
            _resource(role),
            "AwsSolutions-IAM5[Resource::*]",
            "Lambda requires its network interface permissions on all resources: the interfaces do not exist yet.",
        )
    return role


def _snapped(warmth: Warmth | None) -> bool:
    return warmth is not None and warmth.ingest == "snap_start"


def _entrance(function: lambda_.Function, warmth: Warmth | None) -> lambda_.IFunction:
    """SnapStart and provisioned instances belong to published versions, which an alias leads to."""
    if warmth is None or warmth.ingest == "none":
        return function
    return lambda_.Alias(
        function,
        "Live",
        alias_name="live",
        version=function.current_version,
        provisioned_concurrent_executions=warmth.provisioned_instances if warmth.ingest == "provisioned" else None,
    )


def source_code(repository: Path) -> lambda_.Code:
    """Return the one asset of all functions: the folders in ROOMS."""
    return lambda_.Code.from_asset(str(repository), exclude=ONLY_SOURCE, ignore_mode=cdk.IgnoreMode.GIT)


def removal_policy(config: StageConfig) -> cdk.RemovalPolicy:
    """What is kept is kept with its name: after a first deployment that failed, that name would be in the way."""
    keep = cdk.RemovalPolicy.RETAIN_ON_UPDATE_OR_DELETE
    return keep if config.removal_policy == "retain" else cdk.RemovalPolicy.DESTROY


def keep_identity(construct: IConstruct, logical_id: str) -> None:
    """Give what holds state a logical id that outlives refactoring: with another one it would be replaced."""
    _resource(construct).override_logical_id(logical_id)


def _resource(construct: IConstruct) -> cdk.CfnResource:
    resource = construct.node.default_child or construct
    assert isinstance(resource, cdk.CfnResource)
    return resource


def acknowledge(construct: IConstruct, finding: str, reason: str) -> None:
    """Let one finding of cdk-nag on this construct pass, for a reason."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=finding, reason=reason))
