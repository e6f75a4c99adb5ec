"""The meaning of the synthesized templates, stage by stage; never how CDK names things."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Match, Template

from infra.settings_and_defaults import ConfigError, StageConfig
from tests.infra.test_environment_contract import settings_of

# One process synthesizes for all tests of this file.
pytestmark = pytest.mark.xdist_group("synth")

IN_AWS = ["dev", "prod"]
EVERYWHERE = ["local", *IN_AWS]
ROLES = {"ingest", "processor", "conversation_processor", "watchdog", "dynamodb_processor", "admin", "gate"}
# Its function knows no Valkey, and so needs no network.
IN_THE_NETWORK = ROLES - {"dynamodb_processor"}

# Not "Retain": that would also keep what a first deployment made before it failed, and its names with it.
KEPT = "RetainExceptOnCreate"

Resources = dict[str, Any]
Stacks = Mapping[str, Template]


def _resources(template: Template, kind: str) -> list[Resources]:
    return [found["Properties"] for found in template.find_resources(kind).values()]


def _statements(template: Template) -> list[Resources]:
    """Return the permissions of all roles."""
    documents = [policy["PolicyDocument"] for policy in _resources(template, "AWS::IAM::Policy")]
    for role in _resources(template, "AWS::IAM::Role"):
        assert "ManagedPolicyArns" not in role, "AWS's own policies name no resource"
        documents += [policy["PolicyDocument"] for policy in role.get("Policies", [])]
    return [statement for document in documents for statement in document["Statement"]]


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _functions(template: Template) -> dict[str, Resources]:
    return {found["Handler"].split(".")[-3]: found for found in _resources(template, "AWS::Lambda::Function")}


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_every_function_is_built_alike(stage: str, synthesize: Callable[..., Stacks]) -> None:
    functions = _functions(synthesize(stage)["Buffer"])
    assert set(functions) == ROLES
    for role, function in functions.items():
        assert function["Handler"] == f"lambdas.{role}.handler.handler"
        assert (function["Runtime"], function["Architectures"]) == ("python3.13", ["arm64"])
        assert function["LoggingConfig"]["LogGroup"]
        assert ("VpcConfig" in function) == (stage != "local" and role in IN_THE_NETWORK)
    code = [str(function["Code"]) for function in functions.values()]
    assert len(set(code)) == 1, "one asset for all"


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_only_functions_that_start_each_other_in_a_loop_may(stage: str, synthesize: Callable[..., Stacks]) -> None:
    functions = _functions(synthesize(stage)["Buffer"])
    allowed = {role for role, function in functions.items() if function["RecursiveLoop"] == "Allow"}
    assert allowed == {"processor", "conversation_processor", "watchdog", "dynamodb_processor"}


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_lambda_neither_retries_nor_hoards_async_events(stage: str, synthesize: Callable[..., Stacks]) -> None:
    configs = _resources(synthesize(stage)["Buffer"], "AWS::Lambda::EventInvokeConfig")
    assert len(configs) == len(ROLES)
    assert {(each["MaximumRetryAttempts"], each["MaximumEventAgeInSeconds"]) for each in configs} == {(0, 60)}


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_only_a_failed_processor_starts_a_pass_when_its_lease_has_ended(
    stage: str, synthesize: Callable[..., Stacks], stage_config: Callable[..., StageConfig]
) -> None:
    buffer = synthesize(stage)["Buffer"]
    functions = buffer.find_resources("AWS::Lambda::Function")
    recorded = {
        functions[config["FunctionName"]["Ref"]]["Properties"]["Handler"]: config["DestinationConfig"]
        for config in _resources(buffer, "AWS::Lambda::EventInvokeConfig")
        if "DestinationConfig" in config
    }
    destination = {"Destination": {"Fn::GetAtt": ["ProcessorFailures", "Arn"]}}
    assert recorded == {"lambdas.processor.handler.handler": {"OnFailure": destination}}
    queue = buffer.find_resources("AWS::SQS::Queue")["ProcessorFailures"]["Properties"]
    assert queue["DelaySeconds"] * 1_000 == stage_config(stage).timings.lease_ms + 1_000
    consumers = [
        mapping["FunctionName"]["Ref"]
        for mapping in _resources(buffer, "AWS::Lambda::EventSourceMapping")
        if mapping["EventSourceArn"] == destination["Destination"]
    ]
    assert [functions[name]["Properties"]["Handler"] for name in consumers] == ["lambdas.watchdog.handler.handler"]


def test_warm_processors_are_started_and_their_failures_recorded_by_alias(synthesize: Callable[..., Stacks]) -> None:
    """A start without the alias would use an instance that is not provisioned, and be refused by the roles."""
    buffer = synthesize("dev", warmth={"processor": 2, "conversation_processor": 2})["Buffer"]
    functions = _functions(buffer)
    variables = functions["processor"]["Environment"]["Variables"]
    assert variables["PROCESSOR_FUNCTION_NAME"] == "message-buffer-dev-processor:live"
    assert ":live" in json.dumps(variables["CONVERSATION_PROCESSOR_FUNCTION_NAME"])
    assert functions["processor"]["FunctionName"] == "message-buffer-dev-processor"
    invoked = [
        json.dumps(each["Resource"]) for each in _statements(buffer) if each["Action"] == "lambda:InvokeFunction"
    ]
    assert any(":function:message-buffer-dev-processor:live" in each for each in invoked)
    assert not any(':function:message-buffer-dev-processor"' in each for each in invoked)
    configs = _resources(buffer, "AWS::Lambda::EventInvokeConfig")
    (by_alias,) = [each for each in configs if each["Qualifier"] != "$LATEST" and "DestinationConfig" in each]
    (of_function,) = [each for each in configs if each["Qualifier"] == "$LATEST" and "DestinationConfig" in each]
    assert "ProcessorLive" in json.dumps(by_alias["Qualifier"])
    assert by_alias["DestinationConfig"] == of_function["DestinationConfig"]
    assert (by_alias["MaximumRetryAttempts"], by_alias["MaximumEventAgeInSeconds"]) == (0, 60)


@pytest.mark.parametrize("stage", IN_AWS)
def test_a_functions_own_code_may_not_touch_the_network(stage: str, synthesize: Callable[..., Stacks]) -> None:
    of_network = [
        statement
        for statement in _statements(synthesize(stage)["Buffer"])
        if "ec2:CreateNetworkInterface" in statement["Action"]
    ]
    allowed, denied = (
        [statement for statement in of_network if statement["Effect"] == effect] for effect in ("Allow", "Deny")
    )
    assert len(allowed) == len(denied) == len(IN_THE_NETWORK)
    for allow, deny in zip(allowed, denied, strict=True):
        assert set(_several(deny["Action"])) >= set(_several(allow["Action"]))
        assert deny["Condition"] == {"Null": {"lambda:SourceFunctionArn": "false"}}


def test_the_stages_tags_are_on_its_resources_and_not_on_those_of_another_stack_of_the_app(
    composed: Callable[..., cdk.App],
) -> None:
    app = composed("dev")
    theirs = cdk.Stack(app, "Theirs")
    cdk.aws_sqs.CfnQueue(theirs, "Queue")
    assert "Tags" not in str(Template.from_stack(theirs).to_json())
    tags = [{"Key": "product", "Value": "message-buffer"}, {"Key": "stage", "Value": "dev"}]
    (ours,) = [stack for stack in app.node.children if stack.node.id.endswith("-Buffer")]
    assert isinstance(ours, cdk.Stack)
    assert all(each["Tags"] == tags for each in _resources(Template.from_stack(ours), "AWS::SQS::Queue"))


def test_the_watchdog_comes_twice_a_minute(synthesize: Callable[..., Stacks]) -> None:
    buffer = synthesize("prod")["Buffer"]
    (rule,) = [each for each in _resources(buffer, "AWS::Events::Rule") if len(each["Targets"]) == 2]
    assert rule["ScheduleExpression"] == "rate(1 minute)"
    targets = {target["Arn"]["Fn::GetAtt"][0].rstrip("0123456789ABCDEF") for target in rule["Targets"]}
    assert targets == {"Watchdog", "WatchdogEcho"}
    watchdog = _functions(buffer)["watchdog"]
    (echo,) = [queue for queue in _resources(buffer, "AWS::SQS::Queue") if queue.get("DelaySeconds") == 30]
    assert echo["VisibilityTimeout"] >= 6 * watchdog["Timeout"]
    ((echo_name, _),) = buffer.find_resources("AWS::SQS::Queue", {"Properties": {"DelaySeconds": 30}}).items()
    polled = [each["EventSourceArn"]["Fn::GetAtt"][0] for each in _resources(buffer, "AWS::Lambda::EventSourceMapping")]
    assert polled.count(echo_name) == 1


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_what_is_kept_is_encrypted_and_private(stage: str, synthesize: Callable[..., Stacks]) -> None:
    buffer = synthesize(stage)["Buffer"]
    for queue in _resources(buffer, "AWS::SQS::Queue"):
        assert queue["SqsManagedSseEnabled"] is True
    refuse_plain = {"Effect": "Deny", "Condition": {"Bool": {"aws:SecureTransport": "false"}}}
    # The emulator enforces policies, and has no TLS.
    for kind in () if stage == "local" else ("AWS::SQS::QueuePolicy", "AWS::S3::BucketPolicy"):
        statements = Match.array_with([Match.object_like(refuse_plain)])
        buffer.all_resources_properties(kind, {"PolicyDocument": {"Statement": statements}})
    (bucket,) = _resources(buffer, "AWS::S3::Bucket")
    assert all(bucket["PublicAccessBlockConfiguration"].values())
    assert bucket["BucketEncryption"]
    assert "VersioningConfiguration" not in bucket, "an erased object would stay"


@pytest.mark.parametrize(("stage", "protected"), [("dev", set()), ("prod", {"Network", "Cache", "Buffer"})])
def test_stacks_that_hold_something_refuse_to_be_deleted(
    stage: str, protected: set[str], composed: Callable[..., cdk.App]
) -> None:
    stacks = [child for child in composed(stage).node.children if isinstance(child, cdk.Stack)]
    assert {stack.stack_name.split("-")[-1] for stack in stacks if stack.termination_protection} == protected


def test_what_holds_state_keeps_its_logical_id(synthesize: Callable[..., Stacks]) -> None:
    """Change none of these names: CloudFormation would make an empty resource under the new one.

    This is the only place where logical ids are asserted; whatever else is renamed is merely replaced.
    """
    queues = {"DeadLetters", "ProcessorFailures", "WatchdogEcho", "Triggers"}
    functions = ("Ingest", "Processor", "ConversationProcessor", "Watchdog", "WindowProcessor", "Admin", "Gate")
    logs = {"ApiAccess", *(f"{name}Logs" for name in functions)}
    retained = {
        "Network": {"FlowLogs"},
        "Cache": {"Cache", "User", "Users", "Key"},
        "Buffer": {
            "Bus",
            "BusArchive",
            "Oversize",
            "Rules",
            "Aliases",
            "Takeovers",
            "Tuning",
            "Holding",
            "WebhookSecrets",
            *queues,
            *logs,
        },
    }
    # Others depend on these: platforms on the API's address, stacks on what they import.
    known = {"Network": {"Vpc", "FunctionsSecurityGroup", "CacheSecurityGroup"}, "Cache": set(), "Buffer": {"Api"}}
    stacks = synthesize("prod")
    for stack, names in retained.items():
        resources = stacks[stack].to_json()["Resources"]
        kept = {name: each for name, each in resources.items() if each.get("DeletionPolicy") == KEPT}
        assert kept.keys() == names
        assert {each["UpdateReplacePolicy"] for each in kept.values()} == {"Retain"}
        assert known[stack] <= resources.keys()


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
    (group,) = _resources(template, "AWS::ElastiCache::UserGroup")
    assert len(group["UserIds"]) == 1, "nobody else, and no user named default"


def test_no_role_in_the_network_is_deleted_before_the_last_function_there(synthesize: Callable[..., Stacks]) -> None:
    """Without such a role, Lambda could not delete the network interfaces that the functions share."""
    functions = synthesize("prod")["Buffer"].find_resources("AWS::Lambda::Function").values()
    placed = [function for function in functions if "VpcConfig" in function["Properties"]]
    roles = {function["Properties"]["Role"]["Fn::GetAtt"][0] for function in placed}
    assert len(roles) == len(IN_THE_NETWORK)
    assert all(roles <= set(function["DependsOn"]) for function in placed)


EGRESS = pytest.mark.parametrize("egress", ["nat", "endpoints"])


@EGRESS
def test_only_the_functions_reach_the_cache(egress: str, synthesize: Callable[..., Stacks]) -> None:
    network = synthesize("prod", network={"egress": egress})["Network"]
    entered = {
        rule["GroupId"]["Fn::GetAtt"][0]: rule
        for rule in _resources(network, "AWS::EC2::SecurityGroupIngress")
        if rule["SourceSecurityGroupId"] == {"Fn::GetAtt": ["FunctionsSecurityGroup", "GroupId"]}
    }
    network.resource_count_is("AWS::EC2::SecurityGroupIngress", len(entered))
    assert entered.keys() == {"CacheSecurityGroup"} | ({"EndpointsSecurityGroup"} if egress == "endpoints" else set())
    cache = entered["CacheSecurityGroup"]
    assert (cache["IpProtocol"], cache["FromPort"], cache["ToPort"]) == ("tcp", 6379, 6380)
    for group in _resources(network, "AWS::EC2::SecurityGroup"):
        assert "SecurityGroupIngress" not in group, "nobody enters by address"


@pytest.mark.parametrize(("egress", "gateways"), [("nat", 2), ("endpoints", 0)])
def test_without_nat_there_is_no_way_to_the_internet(
    egress: str, gateways: int, synthesize: Callable[..., Stacks]
) -> None:
    network = synthesize("prod", network={"egress": egress})["Network"]
    network.resource_count_is("AWS::EC2::NatGateway", gateways)
    network.resource_count_is("AWS::EC2::InternetGateway", min(gateways, 1))
    for subnet in _resources(network, "AWS::EC2::Subnet"):
        assert subnet["MapPublicIpOnLaunch"] is False


@pytest.mark.parametrize(
    ("overrides", "interfaces"),
    [
        ({"egress": "nat"}, set()),
        ({"egress": "endpoints"}, {"events", "lambda", "sqs", "secretsmanager"}),
    ],
)
@pytest.mark.parametrize("tracing", [False, True])
def test_endpoints_are_those_the_functions_use_and_serve_this_account_only(
    overrides: dict[str, str], interfaces: set[str], tracing: bool, synthesize: Callable[..., Stacks]
) -> None:
    network = synthesize("prod", network=overrides, tracing=tracing)["Network"]
    endpoints = _resources(network, "AWS::EC2::VPCEndpoint")
    by_kind: dict[str, list[Resources]] = {"Gateway": [], "Interface": []}
    for endpoint in endpoints:
        by_kind[endpoint["VpcEndpointType"]].append(endpoint)
        (statement,) = endpoint["PolicyDocument"]["Statement"]
        assert statement["Condition"] == {"StringEquals": {"aws:PrincipalAccount": {"Ref": "AWS::AccountId"}}}
    assert len(by_kind["Gateway"]) == 2
    traced = {"xray"} if tracing and interfaces else set()
    assert {each["ServiceName"].split(".")[-1] for each in by_kind["Interface"]} == interfaces | traced
    for endpoint in by_kind["Interface"]:
        assert endpoint["SecurityGroupIds"] == [{"Fn::GetAtt": ["EndpointsSecurityGroup", "GroupId"]}]


WITHOUT_NETWORK: dict[str, Any] = {"network": {"egress": "none"}}


def test_a_public_cache_admits_only_its_iam_user_and_is_of_the_version_that_may_be_public(
    synthesize: Callable[..., Stacks],
) -> None:
    template = synthesize("prod", **WITHOUT_NETWORK)["PublicCache"]
    (cache,) = _resources(template, "AWS::ElastiCache::ServerlessCache")
    assert (cache["ConnectionType"], cache["Engine"], cache["MajorEngineVersion"]) == ("public", "valkey", "9")
    assert not {"SubnetIds", "SecurityGroupIds"} & cache.keys()
    assert cache["KmsKeyId"]
    (group,) = _resources(template, "AWS::ElastiCache::UserGroup")
    ((user_id, user),) = template.find_resources("AWS::ElastiCache::User").items()
    assert (cache["UserGroupId"], group["UserIds"]) == ({"Ref": "Users"}, [{"Ref": user_id}])
    assert user["Properties"]["AuthenticationMode"] == {"Type": "iam"}
    (inside,) = _resources(synthesize("prod")["Cache"], "AWS::ElastiCache::User")
    assert user["Properties"]["AccessString"] == inside["AccessString"]


def test_the_functions_sign_in_to_the_public_cache_by_its_own_name(synthesize: Callable[..., Stacks]) -> None:
    stacks = synthesize("prod", **WITHOUT_NETWORK)
    (cache,) = _resources(stacks["PublicCache"], "AWS::ElastiCache::ServerlessCache")
    signing_in = [
        settings_of(function).valkey.iam
        for role, function in _functions(stacks["Buffer"]).items()
        if role in IN_THE_NETWORK
    ]
    assert {(iam.cache_name, iam.user) for iam in signing_in} == {(cache["ServerlessCacheName"],) * 2}
    connecting = [each for each in _statements(stacks["Buffer"]) if each["Action"] == "elasticache:Connect"]
    assert len(connecting) == len(IN_THE_NETWORK)
    assert all("PublicCache" in json.dumps(each["Resource"]) for each in connecting)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"rules": {"stopWords": [f"{n}-{'x' * 37}" for n in range(10, 50)]}}, ""),
        (
            {"rules": {word: [f"{n}-{word:x<37}" for n in range(10, 60)] for word in ("stopWords", "flushWords")}},
            r"function ingest would have [56],.* Shorten in cdk.json: `rules`, `queues` or",
        ),
        (
            {"responder": {"instructions": "Be kind. " * 400}},
            r"function responder would have [45],.* or `responder.instructions`.",
        ),
    ],
)
def test_variables_that_lambda_would_refuse_are_refused_with_the_setting(
    overrides: dict[str, Any], sentence: str, composed: Callable[..., cdk.App]
) -> None:
    if not sentence:
        composed("dev", **overrides)
        return
    with pytest.raises(ConfigError, match=sentence):
        composed("dev", **overrides)
