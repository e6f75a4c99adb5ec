"""The buffer stack in AWS: its routes and policies, and what it keeps."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from aws_cdk.assertions import Template

from infra import bus
from message_buffer.limits import INGEST_TIMEOUT_SECONDS

# One process synthesizes for all tests of this file.
pytestmark = pytest.mark.xdist_group("synth")

DOMAIN = {"name": "in.example.com", "certificate_arn": "arn:aws:acm:us-east-1:111122223333:certificate/one"}
TOPIC = "arn:aws:sns:us-east-1:111122223333:whatsapp"
CONSUMERS = ["444455556666", "777788889999"]
KINDS = ["http", "rest"]

Properties = dict[str, Any]
Synthesize = Callable[..., Mapping[str, Template]]


def only(template: Template, kind: str) -> Properties:
    (found,) = all_of(template, kind)
    return found


def all_of(template: Template, kind: str) -> list[Properties]:
    return [found["Properties"] for found in template.find_resources(kind).values()]


def functions(template: Template) -> dict[str, Properties]:
    return {each["Handler"].split(".")[-3]: each for each in all_of(template, "AWS::Lambda::Function")}


def several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def text(value: Any) -> str:
    """Return an ARN without CDK's hashes, with `<Name>` for what CloudFormation fills in."""
    if isinstance(value, str):
        return value
    ((intrinsic, argument),) = value.items()
    if intrinsic == "Fn::Join":
        return str(argument[0]).join(map(text, argument[1]))
    name = argument[0] if isinstance(argument, list) else argument
    return f"<{re.sub(r'[0-9A-F]{8}$', '', name)}>"


def statements(template: Template, kind: str) -> Iterator[Properties]:
    for policy in all_of(template, kind):
        document = policy.get("PolicyDocument")
        yield from document["Statement"] if document else [policy["Statement"]]


# -- who gets in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("overrides", [{}, {"warmth": {"ingest": 2}}], ids=str)
def test_the_api_gets_permission_for_a_new_entrance_before_it_invokes_it(
    overrides: dict[str, Any], synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    template = synthesize("prod", **overrides)["Buffer"]
    permitted = template.find_resources(
        "AWS::Lambda::Permission", {"Properties": {"Principal": "apigateway.amazonaws.com"}}
    )
    (integration,) = template.find_resources("AWS::ApiGatewayV2::Integration").values()
    assert len(permitted) == 4
    assert permitted.keys() <= set(integration["DependsOn"])


URL: dict[str, Any] = {"api": {"kind": "url"}, "concurrency": {"ingest": 20}}


def test_an_address_of_ingest_admits_everybody_as_lambda_demands_and_needs_no_gateway(synthesize: Synthesize) -> None:
    template = synthesize("dev", **URL)["Buffer"]
    kinds = {resource["Type"] for resource in template.to_json()["Resources"].values()}
    assert not [kind for kind in kinds if kind.startswith("AWS::ApiGateway")]
    ((alias_id, alias),) = template.find_resources("AWS::Lambda::Alias").items()
    url = only(template, "AWS::Lambda::Url")
    assert url["AuthType"] == "NONE"
    assert url["TargetFunctionArn"] == {"Fn::GetAtt": [alias["Properties"]["FunctionName"]["Ref"], "Arn"]}
    assert url["Qualifier"] == alias["Properties"]["Name"] == "live"
    assert "Cors" not in url
    public = {each["Action"]: each for each in all_of(template, "AWS::Lambda::Permission") if each["Principal"] == "*"}
    assert public == {
        "lambda:InvokeFunctionUrl": {
            "Action": "lambda:InvokeFunctionUrl", "FunctionName": {"Ref": alias_id}, "FunctionUrlAuthType": "NONE",
            "Principal": "*",
        },
        # Without the condition, anybody could invoke ingest with any event.
        "lambda:InvokeFunction": {
            "Action": "lambda:InvokeFunction", "FunctionName": {"Ref": alias_id}, "InvokedViaFunctionUrl": True,
            "Principal": "*",
        },
    }  # fmt: skip
    assert functions(template)["ingest"]["ReservedConcurrentExecutions"] == 20


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_no_other_setting_replaces_the_function_that_has_the_address(stage: str, synthesize: Synthesize) -> None:
    """Protect the address, which changes if the function or its alias gets another id or name."""
    found = set()
    ingest = {"ingest": 20}
    for overrides in (
        {},
        {"warmth": {"ingest": 2}},
        {"network": {"egress": "none"}},
        {"lane": "dynamodb"},
        {"fallback": False, "memory": {"ingest": 1_024}, "tracing": True},
    ):
        template = synthesize(stage, **{"api": {"kind": "url"}, "concurrency": ingest, **overrides})["Buffer"]
        ((alias_id, alias),) = template.find_resources("AWS::Lambda::Alias").items()
        ((url_id, _),) = template.find_resources("AWS::Lambda::Url").items()
        function_id = alias["Properties"]["FunctionName"]["Ref"]
        function = template.to_json()["Resources"][function_id]["Properties"]
        assert "FunctionName" not in function
        found.add((function_id, alias_id, alias["Properties"]["Name"], url_id))
    assert found == {("Ingest4069586C", "IngestLiveF0706163", "live", "IngestUrl")}
    assert "Ingest4069586C" in synthesize(stage)["Buffer"].find_resources("AWS::Lambda::Function")


def test_both_kinds_of_api_lead_the_same_requests_to_ingest(synthesize: Synthesize) -> None:
    http = synthesize("dev")["Buffer"]
    routes = {route["RouteKey"] for route in all_of(http, "AWS::ApiGatewayV2::Route")}
    assert routes == {
        "GET /webhook/{platform}",
        "POST /webhook/{platform}",
        "POST /webhook/{platform}/{door}",
        "POST /typing/{platform}",
    }
    http.all_resources_properties("AWS::ApiGatewayV2::Integration", {"PayloadFormatVersion": "2.0"})

    rest = synthesize("dev", api={"kind": "rest"})["Buffer"]
    methods = all_of(rest, "AWS::ApiGateway::Method")
    assert sorted(method["HttpMethod"] for method in methods) == ["GET", "POST", "POST", "POST"]
    assert {method["Integration"]["Type"] for method in methods} == {"AWS_PROXY"}
    paths = {resource["PathPart"] for resource in all_of(rest, "AWS::ApiGateway::Resource")}
    assert paths == {"webhook", "typing", "{platform}", "{door}"}


def test_an_http_api_lets_in_what_the_stage_says(synthesize: Synthesize) -> None:
    limits = {"requests_per_second": 70}
    stage = only(synthesize("dev", api=limits)["Buffer"], "AWS::ApiGatewayV2::Stage")
    assert stage["DefaultRouteSettings"] == {"ThrottlingRateLimit": 70, "ThrottlingBurstLimit": 140}


def test_a_rest_api_lets_in_what_the_stage_says(synthesize: Synthesize) -> None:
    limits = {"kind": "rest", "requests_per_second": 70}
    (settings,) = only(synthesize("dev", api=limits)["Buffer"], "AWS::ApiGateway::Stage")["MethodSettings"]
    assert (settings["HttpMethod"], settings["ResourcePath"]) == ("*", "/*")
    assert (settings["ThrottlingRateLimit"], settings["ThrottlingBurstLimit"]) == (70, 140)
    assert settings["DataTraceEnabled"] is False
    assert settings.get("LoggingLevel", "OFF") == "OFF"


def access_log(template: Template, kind: str) -> Properties:
    if kind == "http":
        found: Properties = only(template, "AWS::ApiGatewayV2::Stage")["AccessLogSettings"]
    else:
        found = only(template, "AWS::ApiGateway::Stage")["AccessLogSetting"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_an_access_log_says_who_and_when_but_neither_what_nor_by_which_secret(
    kind: str, synthesize: Synthesize
) -> None:
    template = synthesize("prod", api={"kind": kind})["Buffer"]
    log = access_log(template, kind)
    logged = json.loads(log["Format"])
    assert {"$context.requestId", "$context.status", "$context.identity.sourceIp"} <= set(logged.values())
    for variable in logged.values():
        assert re.fullmatch(r"\$context\.[a-zA-Z.]+", variable)
        # A line is not escaped, so a caller could forge one by a value of its own.
        said_by_callers = "body|query|header|parameter|authorize|override|apikey|path$|agent|error.message"
        assert variable == "$context.resourcePath" or not re.search(said_by_callers, variable, re.IGNORECASE)
    (group,) = [
        found
        for name, found in template.find_resources("AWS::Logs::LogGroup").items()
        if f"<{name}>" in text(log["DestinationArn"])
    ]
    assert group["Properties"]["RetentionInDays"] == 90


@pytest.mark.parametrize("kind", KINDS)
def test_a_domain_is_the_only_way_in_and_speaks_tls_1_2(kind: str, synthesize: Synthesize) -> None:
    template = synthesize("dev", api={"kind": kind, "domain": DOMAIN})["Buffer"]
    (configuration,) = only(template, "AWS::ApiGatewayV2::DomainName")["DomainNameConfigurations"]
    assert configuration["SecurityPolicy"] == "TLS_1_2"
    assert configuration["CertificateArn"] == DOMAIN["certificate_arn"]
    api_type = "AWS::ApiGatewayV2::Api" if kind == "http" else "AWS::ApiGateway::RestApi"
    ((api_name, api),) = template.find_resources(api_type).items()
    assert api["Properties"]["DisableExecuteApiEndpoint"] is True
    assert text(only(template, "AWS::ApiGatewayV2::ApiMapping")["ApiId"]) == f"<{api_name}>"
    outputs = template.to_json()["Outputs"]
    assert outputs["ApiEndpoint"]["Value"] == "https://in.example.com"
    assert outputs["ApiDnsTarget"]["Value"] == {"Fn::GetAtt": ["ApiDomain", "RegionalDomainName"]}


def test_a_rest_api_leaves_bodies_as_they_came_and_the_account_as_it_is(synthesize: Synthesize) -> None:
    template = synthesize("dev", api={"kind": "rest"})["Buffer"]
    api = only(template, "AWS::ApiGateway::RestApi")
    assert api["BinaryMediaTypes"] == ["*/*"]
    assert api["EndpointConfiguration"]["Types"] == ["REGIONAL"]
    template.resource_count_is("AWS::ApiGateway::Account", 0)


def test_the_firewall_stops_nobody_for_what_people_type(synthesize: Synthesize) -> None:
    acl = only(synthesize("dev", api={"kind": "rest"})["Buffer"], "AWS::WAFv2::WebACL")
    groups = [rule["Statement"].get("ManagedRuleGroupStatement") for rule in acl["Rules"]]
    counted = {
        override["Name"]
        for group in groups
        if group
        for override in group["RuleActionOverrides"]
        if override["ActionToUse"] == {"Count": {}}
    }
    assert counted >= {
        "SizeRestrictions_BODY", "EC2MetaDataSSRF_BODY", "GenericLFI_BODY", "GenericRFI_BODY",
        "CrossSiteScripting_BODY", "JavaDeserializationRCE_BODY", "Log4JRCE_BODY", "ReactJSRCE_BODY",
    }  # fmt: skip


@pytest.mark.parametrize(("rate", "limit"), [(500, 75_000), (1, 150)])
def test_one_address_gets_at_most_half_of_what_the_stage_lets_in(rate: int, limit: int, synthesize: Synthesize) -> None:
    api = {"kind": "rest", "requests_per_second": rate}
    (rule, *_) = only(synthesize("dev", api=api)["Buffer"], "AWS::WAFv2::WebACL")["Rules"]
    assert rule["Action"] == {"Block": {}}
    statement = rule["Statement"]["RateBasedStatement"]
    assert (statement["Limit"], statement["EvaluationWindowSec"]) == (limit, 300)


def test_the_firewall_keeps_no_samples_which_would_hold_secrets(synthesize: Synthesize) -> None:
    acl = only(synthesize("dev", api={"kind": "rest"})["Buffer"], "AWS::WAFv2::WebACL")
    for visible in [acl, *acl["Rules"]]:
        assert visible["VisibilityConfig"]["SampledRequestsEnabled"] is False


# -- who may do what -------------------------------------------------------------------------------


def allowed(template: Template, role: str) -> set[tuple[str, str]]:
    role_name = functions(template)[role]["Role"]["Fn::GetAtt"][0]
    return {
        (action, text(resource).rpartition(":")[2])
        for policy in all_of(template, "AWS::IAM::Policy")
        if {"Ref": role_name} in policy["Roles"]
        for statement in policy["PolicyDocument"]["Statement"]
        for action in several(statement["Action"])
        for resource in several(statement["Resource"])
    }


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_only_functions_that_call_valkey_may_sign_in_to_it(stage: str, synthesize: Synthesize) -> None:
    """Before, the DynamoDB processor might, which has no Valkey and is not even in its network."""
    template = synthesize(stage)["Buffer"]
    callers = {role for role, each in functions(template).items() if "REDIS_URL" in each["Environment"]["Variables"]}
    connect = {
        role
        for role in functions(template)
        if any(action == "elasticache:Connect" for action, _ in allowed(template, role))
    }
    assert connect == callers == functions(template).keys() - {"dynamodb_processor"}


@pytest.mark.parametrize("kind", ["AWS::SQS::QueuePolicy", "AWS::S3::BucketPolicy", "AWS::Events::EventBusPolicy"])
def test_nothing_is_open_to_everyone(kind: str, synthesize: Synthesize) -> None:
    overrides = {"bus": {"consumer_accounts": CONSUMERS}, "end_user_messaging_topic": TOPIC}
    found = list(statements(synthesize("prod", **overrides)["Buffer"], kind))
    assert found
    for statement in found:
        everyone = statement["Principal"] in ("*", {"AWS": "*"})
        assert statement["Effect"] == ("Deny" if everyone else "Allow")
        if "Service" in statement["Principal"]:
            assert "aws:SourceArn" in statement["Condition"]["ArnEquals"], "other accounts may use the service, too"


def test_consumers_make_rules_for_batches_only_and_touch_none_but_their_own(synthesize: Synthesize) -> None:
    template = synthesize("dev", bus={"consumer_accounts": CONSUMERS})["Buffer"]
    by_action = {
        action: statement
        for statement in statements(template, "AWS::Events::EventBusPolicy")
        for action in several(statement["Action"])
    }
    assert set(by_action) == {
        f"events:{action}"
        for action in (
            "PutRule", "DeleteRule", "DescribeRule", "EnableRule", "DisableRule",
            "PutTargets", "RemoveTargets", "ListTargetsByRule",
        )
    }  # fmt: skip
    for statement in by_action.values():
        assert [text(principal).split(":")[4] for principal in statement["Principal"]["AWS"]] == CONSUMERS
        assert text(statement["Resource"]).endswith(":rule/<Bus>/*")
        own = {"events:creatorAccount": "${aws:PrincipalAccount}"}
        assert statement["Condition"]["StringEqualsIfExists"] == own
    condition = by_action["events:PutRule"]["Condition"]
    ours = {"events:source": "message-buffer", "events:detail-type": list(bus.EVENTS)}
    assert condition["ForAllValues:StringEquals"] == ours
    assert condition["Null"] == dict.fromkeys(ours, "false")


def test_consumers_read_batches_that_were_too_large_and_no_dead_letters(synthesize: Synthesize) -> None:
    template = synthesize("dev", bus={"consumer_accounts": CONSUMERS})["Buffer"]
    (read,) = [each for each in statements(template, "AWS::S3::BucketPolicy") if each["Effect"] == "Allow"]
    assert read["Action"] == "s3:GetObject"
    assert text(read["Resource"]) == "<Oversize>/batches/*"
    assert [text(principal).split(":")[4] for principal in read["Principal"]["AWS"]] == CONSUMERS


# -- what is kept ----------------------------------------------------------------------------------


def test_no_delivery_of_a_queued_webhook_counts_towards_a_redrive(synthesize: Synthesize) -> None:
    resources = synthesize("prod", end_user_messaging_topic=TOPIC)["Buffer"].to_json()["Resources"]
    queue = resources["WhatsAppWebhooks"]["Properties"]
    assert "RedrivePolicy" not in queue
    assert queue["VisibilityTimeout"] == 6 * INGEST_TIMEOUT_SECONDS


@pytest.mark.parametrize("lane", ["valkey", "dynamodb"])
def test_customers_who_fell_silent_are_looked_for_every_minute(
    lane: str, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    buffer = synthesize("dev", lane=lane)["Buffer"]
    rules = [each["Properties"] for each in buffer.find_resources("AWS::Events::Rule").values()]
    passes = [each["ScheduleExpression"] for each in rules if "idle.pass" in str(each.get("Targets"))]
    assert passes == ["rate(1 minute)"]
