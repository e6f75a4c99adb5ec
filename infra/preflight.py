"""Check what a deployment needs before it starts: `.venv/bin/python -m infra.preflight --stage prod --for deploy`.

The command prints everything that is missing, each with its fix. It exits with 0 if nothing is missing, with 1 if
something is, and with 2 if its arguments are wrong. It changes nothing in the account. `--for synth` needs no account.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Literal, NamedTuple, get_args

from . import cli

try:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectionError,  # noqa: A004 - botocore's, which also covers its time-outs
        HTTPClientError,
        NoCredentialsError,
        PartialCredentialsError,
    )

    from .layer import LAMBDA_PYTHON, LayerError, LayerPlatform, build_layer, lambda_interpreter
    from .settings_and_defaults import STACKS, ConfigError, StageConfig, load_stage
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

REQUIREMENTS = cli.ROOT / "lambdas" / "requirements.txt"
LAYERS = cli.ROOT / ".build" / "layers"

# The version of CDK's bootstrap that the stacks require, and CDK's names for the bootstrap's parameter and role.
MIN_BOOTSTRAP_VERSION = 6
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
LOOKUP_ROLE = "cdk-hnb659fds-lookup-role"
# Lambda's documentation of PutFunctionConcurrency: at least 100 executions must remain unreserved.
MIN_UNRESERVED_EXECUTIONS = 100

# Enough for a processor and its successor, the watchdog, and some webhooks and batches at the same time.
MIN_COMFORTABLE_EXECUTIONS = 50

# Preflight makes many calls while a person waits, so each call must fail quickly.
CLIENT_CONFIG = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
# The services whose interface endpoints are in the network of a stage without NAT gateways.
ENDPOINT_SERVICES = ("events", "lambda", "sqs", "secretsmanager")
TRACING_SERVICE = "xray"

EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
SIGN_IN = "Sign in (`aws sso login`, or new keys in the environment) and name the profile in AWS_PROFILE"

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
    yield from _node()
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


def _node() -> Iterator[str]:
    try:
        subprocess.run([str(cli.node()), "--version"], capture_output=True, check=True, timeout=30)  # noqa: S603
    except SystemExit as missing:
        yield str(missing)
    except (OSError, subprocess.SubprocessError) as error:
        yield f"The Node that came with `make setup` does not run on this machine: {error}. Run `make clean setup`."


def identify(config: StageConfig, session: Any) -> StageAccount:
    """Return the account of the credentials, or raise Missing."""
    partition = _partition(config.region, session)
    try:
        sts = session.client("sts", region_name=config.region, config=CLIENT_CONFIG)
        account: str = sts.get_caller_identity()["Account"]
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Missing(f"No AWS credentials were found ({error}). {SIGN_IN}.") from error
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in EXPIRED:
            raise Missing(f"The AWS credentials have expired. {SIGN_IN}.") from error
        raise Missing(
            f"AWS refuses the credentials ({code}). {SIGN_IN}. Opt-in regions reject all credentials until the account "
            f"enables them."
        ) from error
    except (ConnectionError, HTTPClientError) as error:
        raise Missing(f"AWS cannot be reached ({error}). Check network, proxy and AWS_ENDPOINT_URL.") from error
    except BotoCoreError as error:
        raise Missing(f"The AWS credentials cannot be used ({error}). {SIGN_IN}.") from error
    if config.account not in {None, account}:
        raise Missing(
            f"The credentials are for account {account}, but stage '{config.name}' belongs to {config.account}. "
            f"Use credentials of that account, or correct `account` in cdk.json."
        )
    role = f"arn:{partition}:iam::{account}:role/{LOOKUP_ROLE}-{account}-{config.region}"
    return StageAccount(account, _reader(session, sts, role=role, region=config.region))


def _partition(region: str, session: Any) -> str:
    for partition in session.get_available_partitions():
        if region in session.get_available_regions("lambda", partition_name=partition):
            return str(partition)
    raise Missing(f"There is no region '{region}'. Correct the stage's region in cdk.json.")


def _reader(session: Any, sts: Any, *, role: str, region: str) -> Clients:
    # Read with CDK's lookup role, as CDK does, because the role of a pipeline may do nothing but assume CDK's roles.
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
        checks += [stack_problems, concurrency_problems, zone_problems, api_log_problems]
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
    """Yield a problem if the functions reserve more than the account has left, and advice if the account has little."""
    limit = account.client("lambda").get_account_settings()["AccountLimit"]
    reserved = config.concurrency.reserved
    wanted = sum(instances for role, instances in reserved.items() if role in config.roles)
    # Lambda takes provisioned instances from the reserved ones, if their function has any.
    wanted += sum(
        instances for role, instances in config.warmth.items() if role in config.roles and role not in reserved
    )
    if not wanted:
        if limit["ConcurrentExecutions"] < MIN_COMFORTABLE_EXECUTIONS:
            yield Advice(
                f"Account {account.id} may run only {limit['ConcurrentExecutions']} functions at once in "
                f"{config.region}, which is usual for new accounts. The stage works, but Lambda throttles bursts of "
                f"webhooks and batches, which then come late. Ask for 1,000 (Service Quotas, Lambda, Concurrent "
                f"executions)."
            )
        return
    free = limit["UnreservedConcurrentExecutions"] + _reserved_by(config, account)
    available = max(0, free - MIN_UNRESERVED_EXECUTIONS)
    if wanted > available:
        yield (
            f"Stage '{config.name}' reserves {wanted} concurrent executions, but {available} are left to reserve: the "
            f"account has {limit['ConcurrentExecutions']} in {config.region}, others reserve "
            f"{limit['ConcurrentExecutions'] - free}, and Lambda keeps {MIN_UNRESERVED_EXECUTIONS} unreserved. Lower "
            f"the stage's `concurrency` in cdk.json, or ask for more (Service Quotas, Lambda, Concurrent executions)."
        )


def _reserved_by(config: StageConfig, account: StageAccount) -> int:
    # If the stage is deployed already, the functions have reserved a part of this concurrency.
    tags = [{"Key": key, "Values": [value]} for key, value in stage_tags(config).items()]
    pages = account.client("resourcegroupstaggingapi").get_paginator("get_resources")
    client = account.client("lambda")
    return sum(
        client.get_function_concurrency(FunctionName=function["ResourceARN"]).get("ReservedConcurrentExecutions", 0)
        for page in pages.paginate(TagFilters=tags, ResourceTypeFilters=["lambda:function"])
        for function in page["ResourceTagMappingList"]
    )


def preset_advice(config: StageConfig) -> Iterator[str]:
    """Yield a sentence if the stage chooses no preset of rules."""
    if not config.rules.get("preset"):
        yield Advice(
            f"Stage '{config.name}' chooses no preset of rules in cdk.json, so the rules that it does not set suit one "
            "person's `assistant`, and split what `customers` write (docs/rules.md#how-to-choose)."
        )


def stage_tags(config: StageConfig) -> Mapping[str, str]:
    """Return the tags that every resource of a stage has."""
    return {"product": "message-buffer", "stage": config.name}


def zone_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem for each availability zone that cannot have the stage's network.

    The zones of a deployed network cannot change, so check everything before the first deployment.
    """
    if not config.has_network:
        return
    ec2 = account.client("ec2")
    named = list(config.network.availability_zones)
    tags = [{"Name": f"tag:{key}", "Values": [value]} for key, value in stage_tags(config).items()]
    subnets = ec2.describe_subnets(Filters=tags)["Subnets"]
    # The first zone has the lower addresses. Other zones, or another order of the same zones, would move subnets.
    by_address = sorted(subnets, key=lambda subnet: ip_network(subnet["CidrBlock"]))
    if existing := list(dict.fromkeys(subnet["AvailabilityZone"] for subnet in by_address)):
        if named and named != existing:
            yield (
                f"The network of stage '{config.name}' is in {' and '.join(existing)}, and cannot be moved. Name "
                f"these, in this order, as the stage's network.availability_zones in cdk.json, or remove the stage "
                f"first (`make destroy STAGE={config.name}`)."
            )
        return
    if not named and config.network.egress == "nat":
        return
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    names = sorted(zone["ZoneName"] for zone in zones if zone["State"] == "available")
    for zone in sorted(set(named) - set(names)):
        yield (
            f"There is no availability zone '{zone}' for account {account.id} in {config.region}. Name two of "
            f"{', '.join(names)} as the stage's network.availability_zones in cdk.json."
        )
    if config.network.egress == "endpoints":
        # CloudFormation takes the first two zones if the stage names none.
        yield from _endpoint_problems(config, ec2, zones=named or names[: config.network.zones])


def _endpoint_problems(config: StageConfig, ec2: Any, *, zones: Sequence[str]) -> Iterator[str]:
    """Yield a problem if a service has no interface endpoint in one of the zones."""
    services = [*ENDPOINT_SERVICES, *([TRACING_SERVICE] if config.tracing else [])]
    found = ec2.describe_vpc_endpoint_services(
        ServiceNames=[f"com.amazonaws.{config.region}.{service}" for service in services]
    )["ServiceDetails"]
    everywhere = sorted(set.intersection(*(set(service["AvailabilityZones"]) for service in found)))
    for service in found:
        for zone in sorted(set(zones) - set(service["AvailabilityZones"])):
            yield (
                f"{service['ServiceName']} has no interface endpoint in {zone}. Name two of {', '.join(everywhere)} as "
                f"the stage's network.availability_zones in cdk.json."
            )


def stack_problems(config: StageConfig, account: StageAccount) -> Iterator[str]:
    """Yield a problem for each stack that an earlier deployment or removal left in a state that blocks a deployment."""
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
        if undone or status in {"ROLLBACK_FAILED", "CREATE_FAILED"}:
            yield (
                f"The first deployment of {name} failed ({status}). Run `make prune STAGE={config.name}`, which "
                f"removes it, then deploy again."
            )
        elif status == "UPDATE_ROLLBACK_FAILED":
            yield (
                f"{name} could not be rolled back. Remove the cause, which `aws cloudformation describe-stack-events "
                f"--stack-name {name}` names, then run `.venv/bin/cdk rollback {name} -c stage={config.name}`."
            )
        elif status == "DELETE_FAILED":
            again = "destroy" if word in config.stacks else "prune"
            yield f"{name} is only partly deleted. Run `make {again} STAGE={config.name}` again."


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
        if purpose == "destroy" and config.termination_protection:
            yield (
                f"Stage '{stage}' is protected. To destroy it anyway, set its termination_protection to false in "
                f"cdk.json and run `make deploy STAGE={stage}` first."
            )
        if purpose in {"diff", "deploy"}:
            yield from preset_advice(config)
        if purpose != "synth":
            yield from problems_there(config, identify(config, boto3.Session()), purpose)
    except (ConfigError, Missing) as error:
        yield str(error)
    except BotoCoreError as error:
        yield f"The AWS configuration cannot be used ({error}). Check AWS_PROFILE and the files it is read from."


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
