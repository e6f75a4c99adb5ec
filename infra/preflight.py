"""Check what a deployment needs before it starts: `.venv/bin/python -m infra.preflight --stage prod`.

The command changes nothing. It prints everything that is missing, each with its fix, and exits with 1 if anything is.
CDK itself says if it is not bootstrapped, or if a stack is in a state in which it cannot be updated.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from . import cli

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    from .layer import lambda_interpreter
    from .settings_and_defaults import STACKS, ConfigError, StageConfig, load_stage, stage_tags, without_profile
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

# In these states the first deployment of a stack has failed or not begun, so the stack was never used.
NEVER_DEPLOYED = {"ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS"}
# Lambda requires that this many executions of an account remain unreserved (see PutFunctionConcurrency).
MIN_UNRESERVED_EXECUTIONS = 100
# Preflight makes many calls while a person waits, so each call must fail quickly.
CLIENT_CONFIG = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
# The services whose interface endpoints are in the network of a stage without NAT gateways.
ENDPOINT_SERVICES = ("events", "lambda", "sqs", "secretsmanager")
TRACING_SERVICE = "xray"

Clients = Callable[[str], Any]
"""Makes a client of a service in the stage's region."""


class Advice(str):
    """A sentence about something that does not prevent the command."""


class Stuck(Exception):
    """Raised if a command cannot go on. The exception's text says why, and what to do."""


def identify(config: StageConfig) -> Clients:
    """Return AWS clients. Raise Stuck if the credentials do not work, or belong to another account than the stage."""
    try:
        session = boto3.Session()
        sts = session.client("sts", region_name=config.region, config=CLIENT_CONFIG)
        if not re.search(r"\.(amazonaws\.|api\.aws)", endpoint := sts.meta.endpoint_url):
            raise Stuck(
                f"Unset AWS_ENDPOINT_URL, or endpoint_url in your AWS configuration: it names {endpoint}, not AWS."
            )
        account = sts.get_caller_identity()["Account"]
    except (ClientError, BotoCoreError) as error:
        raise Stuck(
            f"The AWS credentials do not work in {config.region}: {error}. Sign in (`aws sso login`, or new keys in "
            f"the environment) and name the profile in AWS_PROFILE. Check the stage's region, which some accounts "
            f"must first enable, and the network."
        ) from error
    if config.account not in {None, account}:
        raise Stuck(
            f"The credentials are for account {account}, but stage '{config.name}' belongs to {config.account}. "
            f"Use credentials of that account, or correct `account` in cdk.json."
        )
    return lambda service: session.client(service, region_name=config.region, config=CLIENT_CONFIG)


def existing_stacks(config: StageConfig, cloudformation: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (last word of its name, description) of each stack of the stage, in the order of deployment."""
    for word in STACKS:
        try:
            (stack,) = cloudformation.describe_stacks(StackName=config.name_of_stack(word))["Stacks"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
        else:
            yield word, stack


def stack_problems(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield a problem for each stack that CDK cannot deploy again, and advice for each stack no longer needed."""
    for word, stack in existing_stacks(config, client("cloudformation")):
        name, status = stack["StackName"], stack["StackStatus"]
        if word not in config.stacks:
            yield Advice(
                f"{name} still exists, and AWS bills it, but stage '{config.name}' does not need it after this "
                f"deployment. `make prune STAGE={config.name}` removes it."
            )
        # CDK itself removes a stack that was rolled back completely, unless the stack is protected.
        elif status in {"ROLLBACK_FAILED", "CREATE_FAILED"} or (
            status == "ROLLBACK_COMPLETE" and stack.get("EnableTerminationProtection")
        ):
            yield f"The first deployment of {name} failed ({status}). Run `make prune STAGE={config.name}`."


def concurrency_problems(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield a problem if the functions reserve more than the account has left."""
    functions = client("lambda")
    limit = functions.get_account_settings()["AccountLimit"]
    # If a function has reserved concurrency, its provisioned instances are a part of that, so do not count them again.
    reserved = config.warmth | config.concurrency
    wanted = sum(instances for role, instances in reserved.items() if role in config.roles)
    if not wanted:
        return
    # Add the concurrency that the stage's deployed functions have reserved, because this deployment can use it again.
    left = limit["UnreservedConcurrentExecutions"] - MIN_UNRESERVED_EXECUTIONS
    for arn in _deployed(config, client, "lambda:function"):
        left += functions.get_function_concurrency(FunctionName=arn).get("ReservedConcurrentExecutions", 0)
    if wanted > left:
        yield (
            f"Stage '{config.name}' reserves {wanted} concurrent executions, but {max(0, left)} are left to reserve: "
            f"the account has {limit['ConcurrentExecutions']} in {config.region}, and Lambda keeps "
            f"{MIN_UNRESERVED_EXECUTIONS} unreserved. Lower the stage's `concurrency` in cdk.json, or ask for more "
            f"(Service Quotas, Lambda, Concurrent executions)."
        )


def _deployed(config: StageConfig, client: Clients, kind: str) -> list[str]:
    """Return the ARNs of the stage's resources of a kind."""
    tags = [{"Key": key, "Values": [value]} for key, value in stage_tags(config).items()]
    pages = client("resourcegroupstaggingapi").get_paginator("get_resources")
    found = pages.paginate(TagFilters=tags, ResourceTypeFilters=[kind])
    return [each["ResourceARN"] for page in found for each in page["ResourceTagMappingList"]]


def quota_problems(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield a problem for each quota that the stage's network and cache would exceed."""
    gateways = config.network.nat_gateways if config.has_network and config.network.egress == "nat" else 0
    quotas = client("service-quotas")
    for wanted, kind, listed, service, code in (
        (config.has_network, "ec2:vpc", "vpcs", "vpc", "L-F678F1CE"),
        (gateways, "ec2:elastic-ip", "addresses", "ec2", "L-0263D0A3"),
        (config.has_cache, "elasticache:serverlesscache", "serverless_caches", "elasticache", "L-BBCDAECC"),
    ):
        more = wanted - len(_deployed(config, client, kind)) if wanted else 0
        if more <= 0:
            continue
        try:
            limit = quotas.get_service_quota(ServiceCode=service, QuotaCode=code)["Quota"]["Value"]
        except quotas.exceptions.NoSuchResourceException:
            continue  # AWS does not tell the value of some quotas that nobody has raised, nor of all in every region
        found = getattr(client(kind.partition(":")[0]), f"describe_{listed}")()
        left = max(0, int(limit) - len(found[listed.title().replace("_", "")]))
        if more > left:
            yield (
                f"Stage '{config.name}' needs {more} more {listed}, but the account's quota in {config.region} leaves "
                f"{left}. Delete some, or ask for more (Service Quotas, {service}/{code})."
            )


def model_advice(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield advice if the account may not use the responder's model yet."""
    responder = config.responder
    if responder is None or responder.assistant != "bedrock" or responder.model.startswith("arn:"):
        return
    found = client("bedrock").get_foundation_model_availability(modelId=without_profile(responder.model))
    states = {
        "agreement": found["agreementAvailability"]["status"],
        "authorization": found["authorizationStatus"],
        "entitlement": found["entitlementAvailability"],
    }
    if lacking := [f"{name} {state}" for name, state in states.items() if state not in {"AVAILABLE", "AUTHORIZED"}]:
        yield Advice(
            f"The account may not use {responder.model} yet ({', '.join(lacking)}), so replies would fail. Ask for it "
            f"in Amazon Bedrock, and call it once; both may take 15 minutes to take effect."
        )


def zone_problems(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield a problem if the network is deployed in other zones, or if a zone lacks an endpoint for a new network."""
    if not config.has_network:
        return
    ec2 = client("ec2")
    named = list(config.network.availability_zones)
    tags = [{"Name": f"tag:{key}", "Values": [value]} for key, value in stage_tags(config).items()]
    # Subnets cannot move to other zones, so neither the zones nor their order may change. Sorted by address, the
    # subnets show the zones in the order in which they were deployed.
    subnets = sorted(ec2.describe_subnets(Filters=tags)["Subnets"], key=lambda each: ip_network(each["CidrBlock"]))
    existing = list(dict.fromkeys(subnet["AvailabilityZone"] for subnet in subnets))
    if existing and named not in ([], existing):
        yield (
            f"The network of stage '{config.name}' is in {' and '.join(existing)}, and cannot be moved. Name these, in "
            f"this order, as the stage's network.availability_zones in cdk.json, or remove the stage first (`make "
            f"destroy STAGE={config.name}`)."
        )
    if existing or config.network.egress != "endpoints":
        return
    # CloudFormation takes the first two zones if the stage names none.
    zones = ec2.describe_availability_zones(Filters=[{"Name": "state", "Values": ["available"]}])["AvailabilityZones"]
    wanted = named or sorted(zone["ZoneName"] for zone in zones)[: config.network.zones]
    services = {*ENDPOINT_SERVICES, *([TRACING_SERVICE] if config.tracing else [])}
    # In China some names begin with "cn.".
    names = [f"{prefix}com.amazonaws.{config.region}.{name}" for name in services for prefix in ("", "cn.")]
    found = ec2.describe_vpc_endpoint_services(Filters=[{"Name": "service-name", "Values": names}])["ServiceDetails"]
    offered = {each["ServiceName"].rpartition(".")[2]: set(each["AvailabilityZones"]) for each in found}
    everywhere = set.intersection(*(offered.get(name, set()) for name in services))
    for name in sorted(services):
        if lacking := sorted(set(wanted) - offered.get(name, set())):
            yield (
                f"{name} has no interface endpoint in {', '.join(lacking)}. Choose another network.egress, or name "
                f"zones with all endpoints ({', '.join(sorted(everywhere)) or 'there is none'}) as the stage's "
                f"network.availability_zones in cdk.json."
            )


def api_log_problems(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield a problem if a REST API could not write its access log, whose role is a setting of the account."""
    if config.api.kind == "rest" and not client("apigateway").get_account().get("cloudwatchRoleArn"):
        yield (
            f"API Gateway has no role for CloudWatch Logs in this account in {config.region}. Without it, a REST API "
            f"with an access log cannot be deployed. Create it once: docs/deploy.md#a-rest-api-with-a-firewall."
        )


CHECKS = (stack_problems, concurrency_problems, zone_problems, quota_problems, api_log_problems, model_advice)


def problems_there(config: StageConfig, client: Clients) -> Iterator[str]:
    """Yield what is missing in the account, and advice for each check that the credentials may not make."""
    for check in CHECKS:
        try:
            yield from check(config, client)
        except (ClientError, BotoCoreError) as error:
            yield Advice(f"The check for {check.__name__.replace('_', ' ')} ended: {error}.")


def problems(stages: Mapping[str, Any], stage: str, *, deploying: bool = True) -> Iterator[str]:
    """Yield everything that is missing, on this machine and in the account. For a command that does not deploy, check
    only the credentials."""
    if deploying and lambda_interpreter() is None:
        yield cli.WITHOUT_PYTHON
    try:
        config = load_stage(stages, stage=stage)
        client = identify(config)
        if deploying:
            yield from problems_there(config, client)
    except (ConfigError, Stuck) as error:
        yield str(error)


def main(given: Sequence[str] | None = None) -> int:
    """Print everything that is missing to stderr. Return 1 if something is missing, otherwise 0."""
    parser = argparse.ArgumentParser(prog=".venv/bin/python -m infra.preflight", description=__doc__)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--credentials", action="store_true", help="check only the credentials")
    asked = parser.parse_args(given)
    everything = list(problems(cli.context()["stages"], asked.stage, deploying=not asked.credentials))
    sys.stderr.write("".join(f"Good to know: {sentence}\n" for sentence in everything if isinstance(sentence, Advice)))
    found = [f"  - {sentence}\n" for sentence in everything if not isinstance(sentence, Advice)]
    if found:
        sys.stderr.write(f"Not ready for stage '{asked.stage}':\n{''.join(found)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
