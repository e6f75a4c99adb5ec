"""Network stack: the VPC, and security groups that let only the functions connect to the cache."""

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from .cache import CachePlacement
from .function import Placement, keep_identity, make_log_group, suppress_finding
from .settings_and_defaults import StageConfig
from .stack import StageStack

HTTPS = ec2.Port.tcp(443)
# A client reads and writes at port 6379, and reads from replicas at port 6380. Both ports use TLS.
CACHE_PORTS = ec2.Port.tcp_range(6379, 6380)
# The functions call these services. A stage without a NAT gateway needs an endpoint for each. Logs need none, because
# Lambda itself sends them.
INTERFACE_ENDPOINTS = {
    "Events": ec2.InterfaceVpcEndpointAwsService.EVENTBRIDGE,
    "Lambda": ec2.InterfaceVpcEndpointAwsService.LAMBDA_,
    "Sqs": ec2.InterfaceVpcEndpointAwsService.SQS,
    "Secrets": ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER,
}


class NetworkStack(StageStack):
    """The network of the Valkey lane's functions and the cache."""

    def __init__(self, scope: Construct, config: StageConfig) -> None:
        self._zones = list(config.network.availability_zones)
        super().__init__(scope, "Network", config=config)
        by_nat = config.network.egress == "nat"
        self.vpc = self._make_vpc(config, by_nat=by_nat)
        self._log_flows(config)
        functions = self._make_security_group("Functions", "Message buffer functions")
        # Allow any address, because CDK needs credentials to look up the addresses (prefix lists) of S3 and DynamoDB.
        # Without NAT the only routes lead to the VPC, S3 and DynamoDB.
        functions.add_egress_rule(ec2.Peer.any_ipv4(), HTTPS, "AWS APIs")
        if not by_nat:
            self._add_interface_endpoints(config, functions)
        cache = self._make_security_group("Cache", "Message buffer cache")
        functions.connections.allow_to(cache, CACHE_PORTS, "Valkey")
        self.cache_placement = CachePlacement(self.vpc.select_subnets(subnet_group_name="cache"), cache)
        self.placement = Placement(
            vpc=self.vpc,
            subnets=ec2.SubnetSelection(subnet_group_name="functions"),
            security_group=functions,
        )

    @property
    def availability_zones(self) -> list[str]:
        """Return the zones that the stage names, so that CDK does not look zones up in the stage's account."""
        return self._zones or super().availability_zones

    def _make_vpc(self, config: StageConfig, *, by_nat: bool) -> ec2.Vpc:
        vpc = ec2.Vpc(
            self,
            "Vpc",
            max_azs=config.network.zones,
            nat_gateways=config.network.nat_gateways if by_nat else 0,
            subnet_configuration=_subnets(by_nat=by_nat),
            # To restrict the default group, CDK would add a Lambda function that may change security groups. The group
            # is unused, so it may stay open.
            restrict_default_security_group=False,
        )
        keep_identity(vpc, "Vpc")
        if self._zones:
            suppress_finding(vpc, "CloudFormation-Validate::W3010", "The stage names its zones in cdk.json.")
        gateways = {"S3": ec2.GatewayVpcEndpointAwsService.S3, "DynamoDb": ec2.GatewayVpcEndpointAwsService.DYNAMODB}
        for name, service in gateways.items():
            vpc.add_gateway_endpoint(name, service=service).add_to_policy(self._only_this_account())
        return vpc

    def _add_interface_endpoints(self, config: StageConfig, functions: ec2.SecurityGroup) -> None:
        group = self._make_security_group("Endpoints", "Message buffer interface endpoints")
        functions.connections.allow_to(group, HTTPS, "AWS APIs")
        services = dict(INTERFACE_ENDPOINTS)
        if config.tracing:
            services["XRay"] = ec2.InterfaceVpcEndpointAwsService.XRAY
        for name, service in services.items():
            endpoint = self.vpc.add_interface_endpoint(
                name,
                service=service,
                subnets=ec2.SubnetSelection(subnet_group_name="functions"),
                security_groups=[group],
                # CDK's own rule would admit every address of the VPC.
                open=False,
            )
            endpoint.add_to_policy(self._only_this_account())

    def _only_this_account(self) -> iam.PolicyStatement:
        """Return a policy by which an endpoint accepts only this account's credentials. Roles limit the actions."""
        return iam.PolicyStatement(
            actions=["*"],
            resources=["*"],
            principals=[iam.AnyPrincipal()],
            conditions={"StringEquals": {"aws:PrincipalAccount": self.account}},
        )

    def _make_security_group(self, construct_id: str, description: str) -> ec2.SecurityGroup:
        group = ec2.SecurityGroup(self, construct_id, vpc=self.vpc, description=description, allow_all_outbound=False)
        # Other stacks import the group. If its id changed, neither this stack nor the importing ones could be updated.
        keep_identity(group, f"{construct_id}SecurityGroup")
        return group

    def _log_flows(self, config: StageConfig) -> None:
        if not config.network.flow_logs:
            suppress_finding(
                self.vpc, "AwsSolutions-VPC7", "The stage has flow logs switched off, because AWS bills them by volume."
            )
            return
        flows = make_log_group(self, "FlowLogs", config)
        self.vpc.add_flow_log("Flows", destination=ec2.FlowLogDestination.to_cloud_watch_logs(flows))


def _subnets(*, by_nat: bool) -> list[ec2.SubnetConfiguration]:
    private = ec2.SubnetType.PRIVATE_WITH_EGRESS if by_nat else ec2.SubnetType.PRIVATE_ISOLATED
    subnets = [
        ec2.SubnetConfiguration(name="functions", subnet_type=private, cidr_mask=22),
        ec2.SubnetConfiguration(name="cache", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=26),
        # Keep this subnet at the end, because CDK assigns addresses in this order. So the other subnets keep their
        # addresses if a stage adds or removes NAT gateways. Only these are in it, with their own public addresses.
        ec2.SubnetConfiguration(
            name="public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=26, map_public_ip_on_launch=False
        ),
    ]
    return subnets if by_nat else subnets[:-1]
