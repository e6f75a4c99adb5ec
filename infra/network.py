"""Network stack: the VPC, and the two security groups that let functions reach the cache and nobody else."""

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.config import ZONES, StageConfig
from infra.function import Placement

# 6379 reads and writes, 6380 reads from replicas; both TLS.
CACHE_PORTS = ec2.Port.tcp_range(6379, 6380)
# What the functions call, where no NAT gateway carries it.
INTERFACE_ENDPOINTS = {
    "Events": ec2.InterfaceVpcEndpointAwsService.EVENTBRIDGE,
    "Lambda": ec2.InterfaceVpcEndpointAwsService.LAMBDA_,
    "Sqs": ec2.InterfaceVpcEndpointAwsService.SQS,
    "Secrets": ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
}


class NetworkStack(cdk.Stack):
    def __init__(self, scope: Construct, construct_id: str, *, config: StageConfig, env: cdk.Environment) -> None:
        super().__init__(scope, construct_id, env=env)
        by_nat = config.network.egress == "nat"
        zones = list(config.network.availability_zones)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            availability_zones=zones or None,
            max_azs=None if zones else ZONES,
            nat_gateways=config.network.nat_gateways if by_nat else 0,
            subnet_configuration=_subnets(by_nat=by_nat),
            gateway_endpoints={
                "S3": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.S3),
                "DynamoDb": ec2.GatewayVpcEndpointOptions(service=ec2.GatewayVpcEndpointAwsService.DYNAMODB),
            },
        )
        if not by_nat:
            for name, service in INTERFACE_ENDPOINTS.items():
                self.vpc.add_interface_endpoint(name, service=service)
        functions = ec2.SecurityGroup(
            self, "Functions", vpc=self.vpc, description="Message buffer functions", allow_all_outbound=False
        )
        functions.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(443), "AWS APIs")
        self.cache_security_group = ec2.SecurityGroup(
            self, "Cache", vpc=self.vpc, description="Message buffer cache", allow_all_outbound=False
        )
        functions.connections.allow_to(self.cache_security_group, CACHE_PORTS, "Valkey")
        self.cache_subnets = self.vpc.select_subnets(subnet_group_name="cache")
        self.placement = Placement(
            vpc=self.vpc,
            subnets=ec2.SubnetSelection(subnet_group_name="functions"),
            security_group=functions,
        )


def _subnets(*, by_nat: bool) -> list[ec2.SubnetConfiguration]:
    private = ec2.SubnetType.PRIVATE_WITH_EGRESS if by_nat else ec2.SubnetType.PRIVATE_ISOLATED
    subnets = [
        ec2.SubnetConfiguration(name="functions", subnet_type=private, cidr_mask=22),
        ec2.SubnetConfiguration(name="cache", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=26),
    ]
    if by_nat:
        subnets.append(ec2.SubnetConfiguration(name="public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=26))
    return subnets
