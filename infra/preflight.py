"""Check what a deployment needs before it starts: `.venv/bin/python -m infra.preflight --stage prod --for deploy`.

The command prints everything that is missing, each with its fix. It exits with 0 if nothing is missing, with 1 if
something is, and with 2 if its arguments are wrong. It changes nothing in the account. `--for synth` needs no account.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Literal, NamedTuple, get_args

from . import cli

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    from .layer import LAMBDA_PYTHON, LayerError, LayerPlatform, build_layer, lambda_interpreter
    from .settings_and_defaults import STACKS, ConfigError, StageConfig, load_stage, without_profile
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

REQUIREMENTS = cli.ROOT / "lambdas" / "requirements.txt"
LAYERS = cli.ROOT / ".build" / "layers"

# CDK's bootstrap: the version that the stacks require, the parameter that contains the deployed version, and the role
# for lookups.
MIN_BOOTSTRAP_VERSION = 6
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
LOOKUP_ROLE = "cdk-hnb659fds-lookup-role"
# Lambda requires that this many executions of an account remain unreserved (see PutFunctionConcurrency).
MIN_UNRESERVED_EXECUTIONS = 100

# This many are enough to run a processor, its successor, the watchdog, and some webhooks and batches at the same time.
# Preflight makes many calls while a person waits, so each call must fail quickly.
CLIENT_CONFIG = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
# The services whose interface endpoints are in the network of a stage without NAT gateways.
ENDPOINT_SERVICES = ("events", "lambda", "sqs", "secretsmanager")
TRACING_SERVICE = "xray"

# For a stack that is in one of these states, the paragraph of docs/deploy.md that helps.
ADVISED = {"UPDATE_ROLLBACK_FAILED": "roll-back", "DELETE_FAILED": "remove-a-stage"}

Purpose = Literal["synth", "bootstrap", "diff", "deploy", "destroy"]
Clients = Callable[[str], Any]


class StageAccount(NamedTuple):
    id: str
    client: Clients
    """Makes a client with which to read from a service in the stage's region."""


class Advice(str):
    """A sentence about something that does not prevent the command."""


class Missing(Exception):
    """Raised if an unmet requirement prevents the other checks. The exception's text says how to meet it."""


def problems_here(purpose: Purpose) -> Iterator[str]:
    """Yield what is missing on this machine."""
    if purpose in {"synth", "diff", "deploy"} and lambda_interpreter() is None:
        missing = (
            f"Python {LAMBDA_PYTHON} is missing. It compiles the layer, which is not deployed without byte code, since "
            f"importing a handler would take three times as long. Make `python{LAMBDA_PYTHON} --version` work, or set "
            f"up with it: `make PYTHON=/path/to/python{LAMBDA_PYTHON} setup`."
        )
        yield Advice(missing) if purpose == "synth" else missing
    try:
        build_layer(REQUIREMENTS, platform=LayerPlatform.LAMBDA, cache=LAYERS)
    except LayerError as error:
        yield f"The layer cannot be built; pip must be able to reach a package index. {error}"


def identify(config: StageConfig, session: Any) -> StageAccount:
    """Return the account of the credentials, or raise Missing."""
    try:
        sts = session.client("sts", region_name=config.region, config=CLIENT_CONFIG)
        caller = sts.get_caller_identity()
    except (ClientError, BotoCoreError) as error:
        raise Missing(
            f"The AWS credentials do not work in {config.region}: {error}. Sign in (`aws sso login`, or new keys in "
            f"the environment) and name the profile in AWS_PROFILE. Check the stage's region, which some "
            f"accounts must first enable, the network, and AWS_ENDPOINT_URL."
        ) from error
    account: str = caller["Account"]
    if config.account not in {None, account}:
        raise Missing(
            f"The credentials are for account {account}, but stage '{config.name}' belongs to {config.account}. "
            f"Use credentials of that account, or correct `account` in cdk.json."
        )
    partition = caller["Arn"].split(":")[1]
    role = f"arn:{partition}:iam::{account}:role/{LOOKUP_ROLE}-{account}-{config.region}"
    return StageAccount(account, _reader(session, sts, role=role, region=config.region))


def _reader(session: Any, sts: Any, *, role: str, region: str) -> Clients:
    # Read with CDK's lookup role, as CDK does, because a pipeline's own role may have no other permission than to
    # assume CDK's roles. If the lookup role is not available, read with the caller's credentials.
    keys: dict[str, str] = {}
    try:
        taken = sts.assume_role(RoleArn=role, RoleSessionName="preflight")["Credentials"]
    except (ClientError, BotoCoreError):
        pass
    else:
        keys = {
            "aws_access_key_id": taken["AccessKeyId"],
            "aws_secret_access_key": taken["SecretAccessKey"],
            "aws_session_token": taken["SessionToken"],
        }
    return lambda service: session.client(service, region_name=region, config=CLIENT_CONFIG, **keys)


def problems_there(config: StageConfig, account: StageAccount, purpose: Purpose) -> Iterator[str]:
    """Yield what is missing in the account."""
    checks = [] if purpose == "bootstrap" else [bootstrap_problems]
    if purpose == "deploy":
        checks += [stack_problems, concurrency_problems, zone_problems, quota_problems, api_log_problems, model_advice]
    for check in checks:
        try:
            yield from check(config, account)
        except ClientError as error:
            yield (
                f"AWS refused {error.operation_name} ({error.response['Error']['Code']}). Allow these credentials to "
                f"make that call, or to assume {LOOKUP_ROLE}-{account.id}-{config.region}."
            )
        except BotoCoreError as error:
            yield f"AWS did not answer ({error}). Try again."


def bootstrap_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem if CDK's own stack is missing or too old."""
    ssm = account.client("ssm")
    where = f"account {account.id} in {config.region}"
    how = f"Run `make bootstrap STAGE={config.name}`, once, with credentials that may create roles."
    try:
        version = int(ssm.get_parameter(Name=BOOTSTRAP_PARAMETER)["Parameter"]["Value"])
    except ssm.exceptions.ParameterNotFound:
        yield f"CDK is not bootstrapped for {where}. {how}"
        return
    if version < MIN_BOOTSTRAP_VERSION:
        yield f"CDK's bootstrap of {where} has version {version}, but {MIN_BOOTSTRAP_VERSION} is needed. {how}"


def concurrency_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem if the functions reserve more than the account has left."""
    limit = account.client("lambda").get_account_settings()["AccountLimit"]
    reserved = config.concurrency.reserved
    wanted = sum(instances for role, instances in reserved.items() if role in config.roles)
    # If a function has reserved concurrency, its provisioned instances are a part of that, so do not count them again.
    wanted += sum(
        instances for role, instances in config.warmth.items() if role in config.roles and role not in reserved
    )
    if not wanted:
        return
    # Add the concurrency that the stage's deployed functions have reserved, because this deployment can use it again.
    client = account.client("lambda")
    free = limit["UnreservedConcurrentExecutions"] + sum(
        client.get_function_concurrency(FunctionName=arn).get("ReservedConcurrentExecutions", 0)
        for arn in _deployed(config, account, "lambda:function")
    )
    available = max(0, free - MIN_UNRESERVED_EXECUTIONS)
    if wanted > available:
        yield (
            f"Stage '{config.name}' reserves {wanted} concurrent executions, but {available} are left to reserve: the "
            f"account has {limit['ConcurrentExecutions']} in {config.region}, others reserve "
            f"{limit['ConcurrentExecutions'] - free}, and Lambda keeps {MIN_UNRESERVED_EXECUTIONS} unreserved. Lower "
            f"the stage's `concurrency` in cdk.json, or ask for more (Service Quotas, Lambda, Concurrent executions)."
        )


def _deployed(config: StageConfig, account: StageAccount, kind: str) -> list[str]:
    """Return the ARNs of the stage's resources of a kind."""
    tags = [{"Key": key, "Values": [value]} for key, value in stage_tags(config).items()]
    pages = account.client("resourcegroupstaggingapi").get_paginator("get_resources")
    found = pages.paginate(TagFilters=tags, ResourceTypeFilters=[kind])
    return [each["ResourceARN"] for page in found for each in page["ResourceTagMappingList"]]


def quota_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem for each quota that the stage's network and cache would exceed."""
    gateways = config.network.nat_gateways if config.has_network and config.network.egress == "nat" else 0
    for wanted, kind, listed, quota in (
        (config.has_network, "ec2:vpc", "vpcs", "vpc/L-F678F1CE"),
        (gateways, "ec2:elastic-ip", "addresses", "ec2/L-0263D0A3"),
        (config.has_cache, "elasticache:serverlesscache", "serverless_caches", "elasticache/L-BBCDAECC"),
    ):
        more = wanted - len(_deployed(config, account, kind)) if wanted else 0
        if more <= 0:
            continue
        service, code = quota.split("/")
        quotas = account.client("service-quotas")
        try:
            limit = quotas.get_service_quota(ServiceCode=service, QuotaCode=code)["Quota"]["Value"]
        except quotas.exceptions.NoSuchResourceException:
            continue  # AWS does not tell the value of some quotas that nobody has raised, nor of all in every region
        found = getattr(account.client(kind.partition(":")[0]), f"describe_{listed}")()
        left = max(0, int(limit) - len(found[listed.title().replace("_", "")]))
        if more > left:
            yield (
                f"Stage '{config.name}' needs {more} more {listed}, but the quota of account {account.id} in "
                f"{config.region} leaves {left}. Delete some, or ask for more (Service Quotas, {quota})."
            )


def model_advice(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield advice if the account may not use the responder's model yet."""
    responder = config.responder
    if responder is None or responder.assistant != "bedrock" or responder.model.startswith("arn:"):
        return
    found = account.client("bedrock").get_foundation_model_availability(modelId=without_profile(responder.model))
    states = {
        "agreement": found["agreementAvailability"]["status"],
        "authorization": found["authorizationStatus"],
        "entitlement": found["entitlementAvailability"],
    }
    if lacking := [f"{name} {state}" for name, state in states.items() if state not in {"AVAILABLE", "AUTHORIZED"}]:
        yield Advice(
            f"Account {account.id} may not use {responder.model} yet ({', '.join(lacking)}), so replies would fail. "
            f"Ask for it in Amazon Bedrock, and call it once; both may take 15 minutes to take effect."
        )


def preset_advice(config: StageConfig) -> Iterator[str]:
    """Yield a sentence if the stage chooses no preset of rules."""
    if not config.rules.get("preset"):
        yield Advice(
            f"Stage '{config.name}' chooses no preset of rules in cdk.json. The defaults are for one person's "
            "`assistant`; with them, what `customers` write is often split (docs/rules.md#how-to-choose)."
        )


def stage_tags(config: StageConfig) -> Mapping[str, str]:
    """Return the tags that every resource of a stage has."""
    return {"product": "message-buffer", "stage": config.name}


def zone_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem if the network is deployed in other zones, or if a zone lacks an endpoint for a new network."""
    if not config.has_network:
        return
    ec2 = account.client("ec2")
    named = list(config.network.availability_zones)
    tags = [{"Name": f"tag:{key}", "Values": [value]} for key, value in stage_tags(config).items()]
    subnets = ec2.describe_subnets(Filters=tags)["Subnets"]
    # Subnets cannot move to other zones, so neither the zones nor their order may change. Sorted by address, the
    # subnets show the zones in the order in which they were deployed.
    by_address = sorted(subnets, key=lambda subnet: ip_network(subnet["CidrBlock"]))
    if existing := list(dict.fromkeys(subnet["AvailabilityZone"] for subnet in by_address)):
        if named and named != existing:
            yield (
                f"The network of stage '{config.name}' is in {' and '.join(existing)}, and cannot be moved. Name "
                f"these, in this order, as the stage's network.availability_zones in cdk.json, or remove the stage "
                f"first (`make destroy STAGE={config.name}`)."
            )
        return
    if config.network.egress == "endpoints":
        zones = ec2.describe_availability_zones(Filters=[{"Name": "state", "Values": ["available"]}])
        # CloudFormation takes the first two zones if the stage names none.
        names = sorted(zone["ZoneName"] for zone in zones["AvailabilityZones"])
        yield from _endpoint_problems(config, ec2, zones=named or names[: config.network.zones])


def _endpoint_problems(config: StageConfig, ec2: Any, *, zones: Sequence[str]) -> Iterator[str]:
    """Yield a problem if a service has no interface endpoint in the region, or in one of the zones."""
    services = [*ENDPOINT_SERVICES, *([TRACING_SERVICE] if config.tracing else [])]
    # In China some names begin with "cn.".
    names = [f"{prefix}com.amazonaws.{config.region}.{name}" for name in services for prefix in ("", "cn.")]
    found = ec2.describe_vpc_endpoint_services(Filters=[{"Name": "service-name", "Values": names}])["ServiceDetails"]
    if lacking := sorted(set(services) - {service["ServiceName"].rpartition(".")[2] for service in found}):
        yield f"{config.region} has no interface endpoints for {', '.join(lacking)}. Choose another network.egress."
        return
    everywhere = sorted(set.intersection(*(set(service["AvailabilityZones"]) for service in found)))
    for service in found:
        for zone in sorted(set(zones) - set(service["AvailabilityZones"])):
            yield (
                f"{service['ServiceName']} has no interface endpoint in {zone}. Name two of {', '.join(everywhere)} as "
                f"the stage's network.availability_zones in cdk.json."
            )


def stack_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem for each stack whose state blocks a deployment, and advice for each stack no longer needed."""
    cloudformation = account.client("cloudformation")
    for word in STACKS:
        name = f"MessageBuffer-{config.name}-{word}"
        try:
            (stack,) = cloudformation.describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            continue
        status = stack["StackStatus"]
        # CDK itself removes a stack that was rolled back completely, unless the stack is protected.
        undone = status == "ROLLBACK_COMPLETE" and stack.get("EnableTerminationProtection")
        if word not in config.stacks:
            yield Advice(
                f"{name} still exists, and AWS bills it, but stage '{config.name}' does not need it after this "
                f"deployment. `make prune STAGE={config.name}` removes it."
            )
        elif undone or status in {"ROLLBACK_FAILED", "CREATE_FAILED"}:
            yield f"The first deployment of {name} failed ({status}). Run `make prune STAGE={config.name}`."
        elif status in {"UPDATE_ROLLBACK_FAILED", "DELETE_FAILED"}:
            yield f"{name} is in the state {status}. See docs/deploy.md#{ADVISED[status]}."


def api_log_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem if a REST API could not write its access log.

    The role that writes the log is a setting of the account, so no stack of ours sets it.
    """
    if config.api.kind != "rest":
        return
    if account.client("apigateway").get_account().get("cloudwatchRoleArn"):
        return
    yield (
        f"API Gateway has no role for CloudWatch Logs in account {account.id} in {config.region}. Without it, a "
        f"REST API with an access log cannot be deployed. Create it once: docs/deploy.md#a-rest-api-with-a-firewall."
    )


def problems(stages: Mapping[str, Any], stage: str, purpose: Purpose) -> Iterator[str]:
    """Yield everything that is missing, on this machine and in the account."""
    yield from problems_here(purpose)
    try:
        config = load_stage(stages, stage=stage)
        if purpose in {"diff", "deploy"}:
            yield from preset_advice(config)
        if purpose != "synth":
            yield from problems_there(config, identify(config, boto3.Session()), purpose)
    except (ConfigError, Missing) as error:
        yield str(error)
    except BotoCoreError as error:
        yield f"The AWS configuration cannot be used ({error}). Check AWS_PROFILE and the AWS configuration files."


def main(given: Sequence[str] | None = None) -> int:
    """Print everything that is missing to stderr. Return 1 if something is missing, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m infra.preflight", description="What is missing for a deployment?"
    )
    parser.add_argument("--stage", required=True)
    parser.add_argument("--for", dest="purpose", required=True, choices=get_args(Purpose))
    arguments = parser.parse_args(given)
    everything = list(problems(cli.context()["stages"], arguments.stage, arguments.purpose))
    sys.stderr.write("".join(f"Good to know: {sentence}\n" for sentence in everything if isinstance(sentence, Advice)))
    found = [sentence for sentence in everything if not isinstance(sentence, Advice)]
    if found:
        sentences = "".join(f"  - {sentence}\n" for sentence in found)
        what = f"stage '{arguments.stage}'" if arguments.stage else "a stage"
        sys.stderr.write(f"Not ready to {arguments.purpose} {what}:\n{sentences}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
