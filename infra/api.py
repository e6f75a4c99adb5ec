"""The API for webhooks: an HTTP API, a REST API behind a firewall, or ingest's own address, with the same routes."""

import json
from typing import NamedTuple

import aws_cdk as cdk
from aws_cdk import aws_apigateway as apigateway
from aws_cdk import aws_apigatewayv2 as apigw
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk.aws_apigatewayv2_integrations import HttpLambdaIntegration
from constructs import Construct

from . import firewall
from .function import Function, keep_identity, make_log_group, suppress_finding
from .metrics import ApiMetrics, FunctionUrlApi
from .settings_and_defaults import LOCAL_API_ID, DomainConfig, StageConfig

ROUTES = {
    "/webhook/{platform}": ("GET", "POST"),
    "/webhook/{platform}/{door}": ("POST",),
    "/typing/{platform}": ("POST",),
}
REST_STAGE = "live"
# A burst may have as many requests as the API's steady rate admits in this time.
BURST_SECONDS = 2
# No field contains the body, headers or query, because these contain customers' messages, signatures and verify tokens.
# A line is not escaped, so it has no value that a caller may choose freely, such as the path.
ACCESS_LOG = {
    "requestId": "$context.requestId",
    "time": "$context.requestTime",
    "address": "$context.identity.sourceIp",
    "method": "$context.httpMethod",
    "route": "$context.routeKey",
    "status": "$context.status",
    "responseBytes": "$context.responseLength",
    "latencyMs": "$context.responseLatency",
    "integrationStatus": "$context.integration.status",
    "integrationLatencyMs": "$context.integration.latency",
    "error": "$context.error.responseType",
}
REST_ACCESS_LOG = ACCESS_LOG | {"route": "$context.resourcePath", "firewall": "$context.wafResponseCode"}
NO_AUTHORIZER = "Platforms cannot sign in. Each signs its webhooks, and ingest checks the signature over the raw body."


class WebhookApi(NamedTuple):
    api: ApiMetrics
    url: str
    """The base URL. The address of a platform's webhook is this URL and `/webhook/{platform}`."""
    dns_target: str | None
    """The target for the DNS record of the stage's domain; None without a domain."""


def open_webhooks(scope: Construct, *, config: StageConfig, ingest: Function) -> WebhookApi:
    """Create the stage's API, which remains the same resource unless its kind changes: platforms know its address."""
    if config.api.kind == "url":
        return _open_url(ingest)
    open_gateway = _open_rest if config.api.kind == "rest" else _open_http
    return open_gateway(scope, config=config, ingest=ingest.entrance, log_group=_access_log(scope, config))


def _open_url(ingest: Function) -> WebhookApi:
    """Give ingest an address of its own, which everyone may call. Ingest itself matches the routes."""
    url = ingest.entrance.add_function_url(auth_type=lambda_.FunctionUrlAuthType.NONE)
    keep_identity(url, "IngestUrl")
    # Leave out the slash at the end of Lambda's URL, because each route begins with one.
    host = cdk.Fn.select(2, cdk.Fn.split("/", url.url))
    return WebhookApi(FunctionUrlApi(ingest), f"https://{host}", None)


def _access_log(scope: Construct, config: StageConfig) -> logs.LogGroup:
    # An account has one log-delivery policy, of limited size. Log groups below this path need no statement in it. The
    # stack's id distinguishes this group from the retained group of an earlier stage of the same name.
    stack_id = cdk.Fn.select(2, cdk.Fn.split("/", cdk.Stack.of(scope).stack_id))
    return make_log_group(scope, "ApiAccess", config, f"/aws/vendedlogs/message-buffer/{config.name}/{stack_id}")


def _open_http(
    scope: Construct, *, config: StageConfig, ingest: lambda_.IFunction, log_group: logs.ILogGroup
) -> WebhookApi:
    domain = config.api.domain
    api = apigw.HttpApi(
        scope,
        "Api",
        api_name=f"message-buffer-{config.name}",
        create_default_stage=False,
        disable_execute_api_endpoint=domain is not None,
    )
    keep_identity(api, "Api")
    if config.is_local:
        cdk.Tags.of(api).add("ms-custom-id", LOCAL_API_ID)
    integration = HttpLambdaIntegration("Ingest", ingest)
    for path, methods in ROUTES.items():
        api.add_routes(
            path=path,
            methods=[apigw.HttpMethod[method] for method in methods],
            integration=integration,
        )
    _permit_before_integrating(api)
    stage = apigw.HttpStage(
        scope,
        "ApiStage",
        http_api=api,
        stage_name="$default",
        auto_deploy=True,
        throttle=apigw.ThrottleSettings(
            rate_limit=config.api.requests_per_second,
            burst_limit=BURST_SECONDS * config.api.requests_per_second,
        ),
    )
    resource = stage.node.default_child
    assert isinstance(resource, apigw.CfnStage)
    resource.access_log_settings = apigw.CfnStage.AccessLogSettingsProperty(
        destination_arn=apigw.LogGroupLogDestination(log_group).bind(stage).destination_arn,
        format=json.dumps(ACCESS_LOG),
    )
    suppress_finding(api, "AwsSolutions-APIG4", NO_AUTHORIZER)
    if domain is None:
        return WebhookApi(api, api.api_endpoint, None)
    return WebhookApi(api, f"https://{domain.name}", _map_domain(scope, domain, api_id=api.api_id, stage=resource.ref))


def _permit_before_integrating(api: apigw.HttpApi) -> None:
    """Let CloudFormation grant API Gateway the permission to invoke ingest before it points the API at ingest.

    A deployment that changes the API's kind or the warmth may point the API at another target: the function or its
    alias. Without this order, the API would answer 500 until CloudFormation grants the new permission.
    """
    found = api.node.find_all()
    permissions = [each for each in found if isinstance(each, lambda_.CfnPermission)]
    for integration in (each for each in found if isinstance(each, apigw.CfnIntegration)):
        for permission in permissions:
            integration.add_resource_dependency(permission)


def _open_rest(
    scope: Construct, *, config: StageConfig, ingest: lambda_.IFunction, log_group: logs.ILogGroup
) -> WebhookApi:
    domain = config.api.domain
    api = apigateway.RestApi(
        scope,
        "RestApi",
        rest_api_name=f"message-buffer-{config.name}",
        endpoint_configuration=apigateway.EndpointConfiguration(types=[apigateway.EndpointType.REGIONAL]),
        disable_execute_api_endpoint=domain is not None,
        # Signatures are made over the original bytes, so API Gateway must not convert any body to text.
        binary_media_types=["*/*"],
        # All REST APIs of an account write their logs with one role. A single stage must not change this setting of the
        # account.
        cloud_watch_role=False,
        deploy_options=apigateway.StageOptions(
            stage_name=REST_STAGE,
            throttling_rate_limit=config.api.requests_per_second,
            throttling_burst_limit=BURST_SECONDS * config.api.requests_per_second,
            access_log_destination=apigateway.LogGroupLogDestination(log_group),
            access_log_format=apigateway.AccessLogFormat.custom(json.dumps(REST_ACCESS_LOG)),
        ),
    )
    keep_identity(api, "RestApi")
    # Remove CDK's own output, because it names the default endpoint even if that endpoint is disabled.
    api.node.try_remove_child("Endpoint")
    for path, methods in ROUTES.items():
        resource = api.root.resource_for_path(path)
        for method in methods:
            resource.add_method(method, apigateway.LambdaIntegration(ingest, allow_test_invoke=False))
    stage = api.deployment_stage
    firewall.protect(scope, stage.stage_arn, config=config)
    for finding, reason in {
        "APIG4": NO_AUTHORIZER,
        "COG4": NO_AUTHORIZER,
        "APIG2": "Each platform has a format of its own, which ingest checks after the signature.",
        "APIG6": "Execution logs contain the parameters of requests, among them verify tokens. Access logs do not.",
    }.items():
        suppress_finding(api, f"AwsSolutions-{finding}", reason)
    if domain is None:
        stack = cdk.Stack.of(api)
        host = f"{api.rest_api_id}.execute-api.{stack.region}.{stack.url_suffix}"
        return WebhookApi(api, f"https://{host}/{REST_STAGE}", None)
    return WebhookApi(
        api, f"https://{domain.name}", _map_domain(scope, domain, api_id=api.rest_api_id, stage=stage.stage_name)
    )


def _map_domain(scope: Construct, domain: DomainConfig, *, api_id: str, stage: str) -> str:
    """Create the domain, and return the target for its DNS record.

    HTTP and REST API share this construct, so a stage that changes from one to the other keeps the target.
    """
    name = apigw.DomainName(
        scope,
        "ApiDomain",
        domain_name=domain.name,
        certificate=acm.Certificate.from_certificate_arn(scope, "Certificate", domain.certificate_arn),
        security_policy=apigw.SecurityPolicy.TLS_1_2,
    )
    keep_identity(name, "ApiDomain")
    apigw.CfnApiMapping(scope, "ApiMapping", api_id=api_id, domain_name=name.name, stage=stage)
    return name.regional_domain_name
