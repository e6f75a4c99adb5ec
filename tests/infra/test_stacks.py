"""What the synthesized templates mean, stage by stage; never how CDK names things."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Match, Template

from infra.composition import compose
from infra.config import StageConfig

# One process synthesizes for all of these.
pytestmark = pytest.mark.xdist_group("synth")

ROOT = Path(__file__).parents[2]
IN_AWS = ["dev", "prod"]
EVERYWHERE = ["local", *IN_AWS]
ROLES = {"ingest", "processor", "conversation_processor", "watchdog"}
# The emulator's CloudFormation does not know these.
NOT_IN_THE_EMULATOR = {
    "AWS::EC2::NatGateway",
    "AWS::EC2::EIP",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::EC2::FlowLog",
    "AWS::ElastiCache::ServerlessCache",
    "AWS::Events::Archive",
    "AWS::CloudWatch::CompositeAlarm",
}

Resources = dict[str, Any]
Stacks = Mapping[str, Template]


@pytest.fixture(scope="session")
def synthesize(
    stage_config: Callable[..., StageConfig], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Stacks]:
    layer = tmp_path_factory.mktemp("layer")
    (layer / "python").mkdir()
    (layer / "python" / "thing.py").touch()
    made: dict[str, Stacks] = {}

    def synthesized(stage: str, **overrides: Any) -> Stacks:
        key = f"{stage} {overrides}"
        if key not in made:
            app = cdk.App(outdir=str(tmp_path_factory.mktemp("out")))
            compose(app, stage_config(stage, **overrides), source=ROOT, layer=layer)
            stacks = [child for child in app.node.children if isinstance(child, cdk.Stack)]
            made[key] = {stack.stack_name.split("-")[-1]: Template.from_stack(stack) for stack in stacks}
        return made[key]

    return synthesized


def _resources(template: Template, kind: str) -> list[Resources]:
    return [found["Properties"] for found in template.find_resources(kind).values()]


def _functions(template: Template) -> dict[str, Resources]:
    return {found["Handler"].split(".")[1]: found for found in _resources(template, "AWS::Lambda::Function")}


def test_the_local_stage_is_one_stack_the_emulator_understands(synthesize: Callable[..., Stacks]) -> None:
    stacks = synthesize("local")
    assert set(stacks) == {"Buffer"}
    kinds = {resource["Type"] for resource in stacks["Buffer"].to_json()["Resources"].values()}
    assert not kinds & NOT_IN_THE_EMULATOR
    assert not any(kind.startswith("Custom::") for kind in kinds)


@pytest.mark.parametrize("stage", IN_AWS)
def test_a_stage_in_aws_has_its_stacks_by_lifetime(stage: str, synthesize: Callable[..., Stacks]) -> None:
    assert set(synthesize(stage)) == {"Network", "Cache", "Buffer", "Operability"}


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_every_function_is_built_alike(stage: str, synthesize: Callable[..., Stacks]) -> None:
    functions = _functions(synthesize(stage)["Buffer"])
    assert set(functions) == ROLES
    for role, function in functions.items():
        assert function["Handler"] == f"lambdas.{role}.handler.handler"
        assert (function["Runtime"], function["Architectures"]) == ("python3.13", ["arm64"])
        assert function["LoggingConfig"]["LogGroup"]
        assert ("VpcConfig" in function) == (stage != "local")
    code = [str(function["Code"]) for function in functions.values()]
    assert len(set(code)) == 1, "one asset for all"


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_only_functions_that_start_each_other_in_a_loop_may(stage: str, synthesize: Callable[..., Stacks]) -> None:
    functions = _functions(synthesize(stage)["Buffer"])
    allowed = {role for role, function in functions.items() if function["RecursiveLoop"] == "Allow"}
    assert allowed == {"processor", "conversation_processor"}


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_lambda_neither_retries_nor_hoards_async_events(stage: str, synthesize: Callable[..., Stacks]) -> None:
    configs = _resources(synthesize(stage)["Buffer"], "AWS::Lambda::EventInvokeConfig")
    assert len(configs) == len(ROLES)
    assert {(each["MaximumRetryAttempts"], each["MaximumEventAgeInSeconds"]) for each in configs} == {(0, 60)}


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_each_function_is_told_what_it_needs_and_no_more(stage: str, synthesize: Callable[..., Stacks]) -> None:
    common = {"STAGE", "SHARDS", "START_MS", "VALKEY_URL"}
    common |= {f"POWERTOOLS_{name}" for name in ("SERVICE_NAME", "METRICS_NAMESPACE", "LOG_LEVEL")}
    if stage != "local":
        common |= {"VALKEY_IAM_USER", "VALKEY_CACHE_NAME"}
    own = {
        "ingest": {"EVENT_BUS_NAME", "PROCESSOR_FUNCTION", "RULES", "WEBHOOK_SECRET_ID"},
        "processor": {
            "CONVERSATION_PROCESSOR_FUNCTION",
            "LEASE_MS",
            "CLAIM_TIMEOUT_MS",
            "PROCESSOR_IDLE_MS",
            "PROCESSOR_HANDOVER_MS",
        },
        "conversation_processor": {
            "PROCESSOR_FUNCTION",
            "EVENT_BUS_NAME",
            "MAX_EVENT_BYTES",
            "OVERSIZE_BUCKET",
            "EXECUTOR_TIMEOUT_MS",
            "MAX_ATTEMPTS",
            "DEAD_LETTER_QUEUE_URL",
        },
        "watchdog": {"PROCESSOR_FUNCTION"},
    }
    for role, function in _functions(synthesize(stage)["Buffer"]).items():
        assert set(function["Environment"]["Variables"]) == common | own[role]


def test_the_watchdog_comes_twice_a_minute(synthesize: Callable[..., Stacks]) -> None:
    buffer = synthesize("prod")["Buffer"]
    (rule,) = _resources(buffer, "AWS::Events::Rule")
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    targets = {target["Arn"]["Fn::GetAtt"][0].rstrip("0123456789ABCDEF") for target in rule["Targets"]}
    assert targets == {"Watchdog", "WatchdogEcho"}
    watchdog = _functions(buffer)["watchdog"]
    (echo,) = [queue for queue in _resources(buffer, "AWS::SQS::Queue") if queue.get("DelaySeconds")]
    assert echo["DelaySeconds"] == 30
    assert echo["VisibilityTimeout"] >= 6 * watchdog["Timeout"]
    buffer.resource_count_is("AWS::Lambda::EventSourceMapping", 1)


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_an_executor_ends_before_its_claim_does(stage: str, synthesize: Callable[..., Stacks]) -> None:
    functions = _functions(synthesize(stage)["Buffer"])
    claim_ms = int(functions["processor"]["Environment"]["Variables"]["CLAIM_TIMEOUT_MS"])
    assert functions["conversation_processor"]["Timeout"] * 1_000 < claim_ms


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_what_is_kept_is_encrypted_and_private(stage: str, synthesize: Callable[..., Stacks]) -> None:
    buffer = synthesize(stage)["Buffer"]
    for queue in _resources(buffer, "AWS::SQS::Queue"):
        assert queue["SqsManagedSseEnabled"] is True
    refuse_plain = {"Effect": "Deny", "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
    for kind in ("AWS::SQS::QueuePolicy", "AWS::S3::BucketPolicy"):
        statements = Match.array_with([Match.object_like(refuse_plain)])
        buffer.all_resources_properties(kind, {"PolicyDocument": {"Statement": statements}})
    (bucket,) = _resources(buffer, "AWS::S3::Bucket")
    assert all(bucket["PublicAccessBlockConfiguration"].values())
    assert bucket["BucketEncryption"]


def test_prod_keeps_its_data_when_a_stack_goes(synthesize: Callable[..., Stacks]) -> None:
    stacks = synthesize("prod")
    kept = {
        "Buffer": [
            "AWS::S3::Bucket",
            "AWS::SQS::Queue",
            "AWS::SecretsManager::Secret",
            "AWS::Logs::LogGroup",
        ],
        "Cache": ["AWS::ElastiCache::ServerlessCache", "AWS::KMS::Key"],
    }
    for stack, kinds in kept.items():
        for kind in kinds:
            stacks[stack].all_resources(kind, {"DeletionPolicy": "Retain"})


@pytest.mark.parametrize("stage", IN_AWS)
def test_the_cache_is_entered_with_iam_and_has_no_billed_minimum(stage: str, synthesize: Callable[..., Stacks]) -> None:
    template = synthesize(stage)["Cache"]
    (cache,) = _resources(template, "AWS::ElastiCache::ServerlessCache")
    assert (cache["Engine"], cache["MajorEngineVersion"]) == ("valkey", "8")
    assert cache["KmsKeyId"]
    assert cache["UserGroupId"]
    assert not any("Minimum" in limit for limit in cache["CacheUsageLimits"].values())
    (user,) = _resources(template, "AWS::ElastiCache::User")
    assert user["AuthenticationMode"] == {"Type": "iam"}
    assert user["UserId"] == user["UserName"] == user["UserName"].lower()
    assert "+@all" not in user["AccessString"]


@pytest.mark.parametrize("stage", IN_AWS)
def test_every_function_may_connect_to_this_cache_only(stage: str, synthesize: Callable[..., Stacks]) -> None:
    statements = [
        statement
        for policy in _resources(synthesize(stage)["Buffer"], "AWS::IAM::Policy")
        for statement in policy["PolicyDocument"]["Statement"]
        if statement["Action"] == "elasticache:Connect"
    ]
    assert len(statements) == len(ROLES)
    for statement in statements:
        assert len(statement["Resource"]) == 2
        assert "*" not in statement["Resource"]


@pytest.mark.parametrize("egress", ["nat", "endpoints"])
def test_only_the_functions_reach_the_cache(egress: str, synthesize: Callable[..., Stacks]) -> None:
    network = synthesize("prod", network={"egress": egress})["Network"]
    into_cache = [
        rule
        for rule in _resources(network, "AWS::EC2::SecurityGroupIngress")
        if rule["FromPort"] == 6379 and rule["SourceSecurityGroupId"]
    ]
    assert len(into_cache) == 1
    network.resource_count_is("AWS::EC2::NatGateway", 2 if egress == "nat" else 0)
    gateways = [each for each in _resources(network, "AWS::EC2::VPCEndpoint") if each["VpcEndpointType"] == "Gateway"]
    assert len(gateways) == 2


def test_the_code_asset_is_two_folders_of_source(stage_config: Callable[..., StageConfig], tmp_path: Path) -> None:
    source, layer = tmp_path / "source", tmp_path / "layer"
    for name in (
        "lambdas/ingest/handler.py",
        "lambdas/ingest/__pycache__/handler.pyc",
        "lambdas/requirements.txt",
        "lua/buffer_message.lua",
        "lua/README.md",
        "infra/config.py",
        "tests/lambdas/test_ingest.py",
        "secret.env",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    layer.mkdir()
    (layer / "thing.py").touch()
    app = cdk.App(outdir=str(tmp_path / "out"))
    compose(app, stage_config("local"), source=source, layer=layer)
    app.synth()
    (asset,) = [path for path in (tmp_path / "out").glob("asset.*") if (path / "lambdas").exists()]
    files = {str(path.relative_to(asset)) for path in asset.rglob("*") if path.is_file()}
    assert files == {"lambdas/ingest/handler.py", "lua/buffer_message.lua"}


def test_the_app_refuses_an_unknown_stage_in_one_sentence(tmp_path: Path) -> None:
    environment = {**os.environ, "CDK_CONTEXT_JSON": '{"stages": {"dev": {}}, "stage": "moon"}'}
    run = subprocess.run(
        [sys.executable, str(ROOT / "app.py")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert run.stderr.strip() == "Unknown stage 'moon'. Valid stages: dev."
