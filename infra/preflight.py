"""What a deployment needs, looked at before it starts: `.venv/bin/python -m infra.preflight --stage prod --for deploy`.

Says everything that is missing at once, each with its fix. Exits 0 if all is there, 1 if something is missing,
2 if it was called wrongly. Nothing is changed in the account, and `synth` needs none.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from infra import cli

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

    from infra.config import ConfigError, StageConfig, load_stage
    from infra.layer import LAMBDA_PYTHON, LayerError, Platform, build_layer, lambda_interpreter
except ModuleNotFoundError as missing:
    sys.exit(cli.missing_package(missing))

REQUIREMENTS = cli.ROOT / "lambdas" / "requirements.txt"
LAYERS = cli.ROOT / ".build" / "layers"

# What the stacks ask of the environment they are deployed to, and the names CDK gives to it.
BOOTSTRAP_VERSION = 6
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
LOOKUP_ROLE = "cdk-hnb659fds-lookup-role"
# "… as long as you leave at least 100 simultaneous executions unreserved": PutFunctionConcurrency.
LAMBDA_KEEPS_UNRESERVED = 100

IMPATIENT = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
SIGN_IN = "Sign in (`aws sso login`, or new keys in the environment) and name the profile in AWS_PROFILE"

Purpose = Literal["synth", "diff", "deploy", "destroy"]
Clients = Callable[[str], Any]


class Account(NamedTuple):
    id: str
    # A client for a service in the stage's region, that may read.
    client: Clients


class Missing(Exception):
    """Something without which the rest cannot even be asked; the message says how to get it."""


def problems_here(purpose: Purpose) -> Iterator[str]:
    """What is missing on this machine."""
    yield from _node()
    if purpose in {"diff", "deploy"} and lambda_interpreter() is None:
        yield (
            f"Python {LAMBDA_PYTHON} is missing: it compiles the layer, without whose byte code importing a handler "
            f"takes three times as long. Put `python{LAMBDA_PYTHON}` on the PATH, or set up with it: "
            f"`make PYTHON=/path/to/python{LAMBDA_PYTHON} setup`."
        )
    try:
        build_layer(REQUIREMENTS, platform=Platform.LAMBDA, cache=LAYERS)
    except LayerError as error:
        yield f"The layer cannot be built; a package index must be in reach. {error}"


def _node() -> Iterator[str]:
    try:
        subprocess.run([str(cli.node()), "--version"], capture_output=True, check=True, timeout=30)  # noqa: S603
    except SystemExit as missing:
        yield str(missing)
    except (OSError, subprocess.SubprocessError) as error:
        yield f"The Node that came with `make setup` does not run on this machine: {error}. Run `make clean setup`."


def identify(config: StageConfig, session: Any) -> Account:
    """The account of the credentials, or Missing."""
    partition = _partition(config.region, session)
    try:
        sts = session.client("sts", region_name=config.region, config=IMPATIENT)
        account: str = sts.get_caller_identity()["Account"]
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise Missing(f"No AWS credentials were found ({error}). {SIGN_IN}.") from error
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code in EXPIRED:
            raise Missing(f"The AWS credentials have expired. {SIGN_IN}.") from error
        raise Missing(
            f"AWS refuses the credentials ({code}). {SIGN_IN}; a region that an account has to opt in to "
            f"refuses everybody before."
        ) from error
    except (ConnectionError, HTTPClientError) as error:
        raise Missing(f"AWS is out of reach ({error}). Check network, proxy and AWS_ENDPOINT_URL.") from error
    except BotoCoreError as error:
        raise Missing(f"The AWS credentials cannot be used ({error}). {SIGN_IN}.") from error
    if config.account not in {None, account}:
        raise Missing(
            f"The credentials are for account {account}, stage '{config.name}' belongs to {config.account}. "
            f"Use credentials of that account, or correct `account` in cdk.json."
        )
    role = f"arn:{partition}:iam::{account}:role/{LOOKUP_ROLE}-{account}-{config.region}"
    return Account(account, _reader(session, sts, role=role, region=config.region))


def _partition(region: str, session: Any) -> str:
    for partition in session.get_available_partitions():
        if region in session.get_available_regions("lambda", partition_name=partition):
            return str(partition)
    raise Missing(f"There is no region '{region}'. Correct the stage's region in cdk.json.")


def _reader(session: Any, sts: Any, *, role: str, region: str) -> Clients:
    # As CDK does: with its lookup role, which may read; a pipeline's own role may do nothing but take such roles.
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
    return lambda service: session.client(service, region_name=region, config=IMPATIENT, **keys)


def problems_there(config: StageConfig, account: Account, purpose: Purpose) -> Iterator[str]:
    """What is missing in the account."""
    checks = [bootstrap_problems]
    if purpose == "deploy":
        checks += [concurrency_problems, zone_problems, api_log_problems]
    for check in checks:
        try:
            yield from check(config, account)
        except ClientError as error:
            yield (
                f"AWS did not answer {error.operation_name} ({error.response['Error']['Code']}). Allow these "
                f"credentials that call, or to assume {LOOKUP_ROLE}-{account.id}-{config.region}."
            )
        except BotoCoreError as error:
            yield f"AWS did not answer ({error}). Try again."


def bootstrap_problems(config: StageConfig, account: Account) -> Iterator[str]:
    """Is CDK's own stack there, and new enough?"""
    ssm = account.client("ssm")
    where = f"account {account.id} in {config.region}"
    how = f"Run `make bootstrap STAGE={config.name}`, once, with credentials that may create roles."
    try:
        version = int(ssm.get_parameter(Name=BOOTSTRAP_PARAMETER)["Parameter"]["Value"])
    except ssm.exceptions.ParameterNotFound:
        yield f"CDK is not bootstrapped for {where}. {how}"
        return
    if version < BOOTSTRAP_VERSION:
        yield f"CDK's bootstrap of {where} is version {version}, {BOOTSTRAP_VERSION} is needed. {how}"


def concurrency_problems(config: StageConfig, account: Account) -> Iterator[str]:
    """Does what the functions reserve leave the account what Lambda keeps for all others?"""
    wanted = sum(instances for role, instances in config.concurrency if instances and role in config.roles)
    if config.warmth.ingest == "provisioned" and config.concurrency.ingest is None:
        wanted += config.warmth.provisioned_instances
    if not wanted:
        return
    limit = account.client("lambda").get_account_settings()["AccountLimit"]
    free = limit["UnreservedConcurrentExecutions"] + _reserved_by(config, account)
    available = max(0, free - LAMBDA_KEEPS_UNRESERVED)
    if wanted > available:
        yield (
            f"Stage '{config.name}' reserves {wanted} concurrent executions, but {available} are left to reserve: the "
            f"account has {limit['ConcurrentExecutions']} in {config.region}, others reserve "
            f"{limit['ConcurrentExecutions'] - free}, and Lambda keeps {LAMBDA_KEEPS_UNRESERVED} unreserved. Lower "
            f"the stage's `concurrency` in cdk.json, or ask for more (Service Quotas, Lambda, Concurrent executions)."
        )


def _reserved_by(config: StageConfig, account: Account) -> int:
    # Deployed before, the stage holds already what it asks for again.
    tags = [{"Key": key, "Values": [value]} for key, value in stage_tags(config).items()]
    pages = account.client("resourcegroupstaggingapi").get_paginator("get_resources")
    client = account.client("lambda")
    return sum(
        client.get_function_concurrency(FunctionName=function["ResourceARN"]).get("ReservedConcurrentExecutions", 0)
        for page in pages.paginate(TagFilters=tags, ResourceTypeFilters=["lambda:function"])
        for function in page["ResourceTagMappingList"]
    )


def stage_tags(config: StageConfig) -> Mapping[str, str]:
    """What everything of a stage is tagged with."""
    return {"product": "message-buffer", "stage": config.name}


def zone_problems(config: StageConfig, account: Account) -> Iterator[str]:
    """Are the availability zones there that the stage names?"""
    if not config.has_valkey_lane or not config.network.availability_zones:
        return
    zones = account.client("ec2").describe_availability_zones()["AvailabilityZones"]
    names = sorted(zone["ZoneName"] for zone in zones if zone["State"] == "available")
    for zone in sorted(set(config.network.availability_zones) - set(names)):
        yield (
            f"There is no availability zone '{zone}' for account {account.id} in {config.region}. Name two of "
            f"{', '.join(names)} as the stage's network.availability_zones in cdk.json."
        )


def api_log_problems(config: StageConfig, account: Account) -> Iterator[str]:
    """May a REST API write its access log? That is a setting of the account, and nobody's stack should own it."""
    if config.api.kind != "rest" or account.client("apigateway").get_account().get("cloudwatchRoleArn"):
        return
    yield (
        f"API Gateway has no role for CloudWatch Logs in account {account.id} in {config.region}; without one, no REST "
        f"API that logs is deployed. Give it one, once: docs/deploy.md#a-rest-api-with-a-firewall."
    )


def problems(stages: Mapping[str, Any], stage: str, purpose: Purpose) -> Iterator[str]:
    """Everything that is missing, here and in the account."""
    yield from problems_here(purpose)
    try:
        config = load_stage(stages, stage=stage)
        if purpose == "destroy" and config.termination_protection:
            yield (
                f"Stage '{stage}' is protected. To destroy it all the same, set its termination_protection to false "
                f"in cdk.json and run `make deploy STAGE={stage}` first."
            )
        if purpose != "synth":
            yield from problems_there(config, identify(config, boto3.Session()), purpose)
    except (ConfigError, Missing) as error:
        yield str(error)
    except BotoCoreError as error:
        yield f"The AWS configuration cannot be used ({error}). Check AWS_PROFILE and the files it is read from."


def main(given: Sequence[str] | None = None) -> int:
    """Say on stderr what is missing, and return 1 if anything is."""
    parser = argparse.ArgumentParser(
        prog=".venv/bin/python -m infra.preflight", description="What is missing for a deployment?"
    )
    parser.add_argument("--stage", required=True)
    parser.add_argument("--for", dest="purpose", required=True, choices=("synth", "diff", "deploy", "destroy"))
    arguments = parser.parse_args(given)
    found = list(problems(cli.context()["stages"], arguments.stage, arguments.purpose))
    if found:
        sentences = "".join(f"  - {sentence}\n" for sentence in found)
        what = f"stage '{arguments.stage}'" if arguments.stage else "a stage"
        sys.stderr.write(f"Not ready to {arguments.purpose} {what}:\n{sentences}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
