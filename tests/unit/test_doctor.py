"""`bufferctl doctor` diagnoses answers that AWS documents and that the emulator cannot give."""

import json
import re
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import NoCredentialsError, SSOTokenLoadError
from botocore.stub import ANY, Stubber

from bufferctl import diagnoses
from bufferctl.diagnoses import DIAGNOSES, Diagnosis, Severity
from bufferctl.doctor import doctor, examine
from bufferctl.errors import Unreachable, errors_of_aws
from bufferctl.facts import STACKS, StageFacts, Unreadable
from bufferctl.formatting import minute, moment
from bufferctl.stage import Account
from message_buffer.json_object import Json

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
HOST, TARGET = "hooks.example.com", "d-1.execute-api.us-east-1.amazonaws.com"
CERTIFICATE = "arn:aws:acm:us-east-1:111122223333:certificate/00000000-0000-0000-0000-000000000000"
OUTPUTS = {
    "ApiEndpoint": f"https://{HOST}",
    "ApiDnsTarget": TARGET,
    "AlarmTopicArn": "arn:aws:sns:us-east-1:111122223333:alarms",
    "EventBusName": "message-buffer-prod",
    "IngestFunction": "ingest-1",
    "IngestLogGroup": "logs-of-ingest",
    "WatchdogFunction": "watchdog-1",
    "WatchdogLogGroup": "logs-of-watchdog",
    "WebhookSecretId": "secret",
}
LAST = f"within the hour, last at {minute(NOW_MS - 120_000)}"
ALARM = "message-buffer-prod-dead-letters"
BROKEN, FAILING, ADVICE = Severity


class Aws:
    """Makes clients that return the responses that a test has prepared. An unexpected call fails."""

    def __init__(self) -> None:
        self._stubbers: dict[str, Stubber] = {}

    def client(self, service: str) -> Any:
        return self._stubber(service).client

    def answers(self, service: str, operation: str, answer: Json, expected: Json | None = None) -> None:
        self._stubber(service).add_response(operation, answer, expected)

    def refuses(self, service: str, operation: str, code: str) -> None:
        self._stubber(service).add_client_error(operation, code, "no", http_status_code=403)

    def _stubber(self, service: str) -> Stubber:
        if service not in self._stubbers:
            made = boto3.client(service, "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
            self._stubbers[service] = Stubber(made)
            self._stubbers[service].activate()
        return self._stubbers[service]

    def all_were_asked(self) -> None:
        for stubber in self._stubbers.values():
            stubber.assert_no_pending_responses()


@pytest.fixture
def aws() -> Aws:
    return Aws()


def stack(last: str, status: str = "UPDATE_COMPLETE", **more: Any) -> Json:
    name = f"MessageBuffer-prod-{last}"
    return {"StackName": name, "StackStatus": status, "CreationTime": NOW - timedelta(days=30), **more}


def facts(aws: Aws, **stacks: Json) -> StageFacts:
    """Return the facts of a stage with these stacks; the others do not exist."""
    described = {"Buffer": stack("Buffer", Outputs=outputs()), **stacks}
    for last in STACKS:
        if last in described:
            headers = {"HTTPHeaders": {"date": "Thu, 19 Nov 2026 12:00:00 GMT"}}
            answer = {"Stacks": [described[last]], "ResponseMetadata": headers}
            aws.answers("cloudformation", "describe_stacks", answer, {"StackName": ANY})
        else:
            aws.refuses("cloudformation", "describe_stacks", "ValidationError")
    return StageFacts("prod", aws.client, clock=lambda: NOW_MS)


def outputs() -> list[Json]:
    return [{"OutputKey": name, "OutputValue": value} for name, value in OUTPUTS.items()]


def sums(aws: Aws, *values: float) -> None:
    """Let metrics have counted these values: the first one of each value two minutes ago, the others before."""
    results = [
        {
            "Id": f"m{place}",
            "Timestamps": [NOW, NOW - timedelta(minutes=2), NOW - timedelta(minutes=9)] if value else [],
            "Values": [0, 1, value - 1] if value else [],
        }
        for place, value in enumerate(values)
    ]
    aws.answers("cloudwatch", "get_metric_data", {"MetricDataResults": results})


def whats(diagnosis: Diagnosis, given: StageFacts) -> list[tuple[Severity, str]]:
    return [(each.severity, each.what) for each in diagnosis(given)]


@pytest.mark.parametrize(
    ("state", "severity", "says"),
    [
        ("ROLLBACK_COMPLETE", BROKEN, "is in the state ROLLBACK_COMPLETE: no zone"),
        ("UPDATE_ROLLBACK_FAILED", BROKEN, "is in the state UPDATE_ROLLBACK_FAILED: no zone"),
        ("UPDATE_ROLLBACK_COMPLETE", FAILING, "failed and was rolled back: no zone"),
        ("UPDATE_IN_PROGRESS", ADVICE, "is being changed"),
        ("UPDATE_ROLLBACK_IN_PROGRESS", ADVICE, "is being changed"),
    ],
)
def test_the_state_of_a_stack_is_reported_with_its_reason(aws: Aws, state: str, severity: Severity, says: str) -> None:
    cache = stack("Cache", state, StackStatusReason="no zone")
    ((found, what),) = whats(diagnoses.stacks, facts(aws, Cache=cache))
    assert found is severity
    assert "MessageBuffer-prod-Cache" in what
    assert says in what


def test_throttles_are_reported_by_function(aws: Aws) -> None:
    given = facts(aws)
    sums(aws, 7, 0)
    assert whats(diagnoses.throttles, given) == [(FAILING, f"Lambda throttled the ingest 7 times {LAST}.")]


def test_sign_in_failures_of_the_cache_are_reported(aws: Aws) -> None:
    given = facts(aws, Cache=stack("Cache"))
    sums(aws, 3, 0, 0, 2, 0, 0)
    assert [what for _, what in whats(diagnoses.cache, given)] == [
        f"Valkey counted 3 refused sign-ins {LAST}.",
        f"Valkey counted 2 refused keys {LAST}.",
    ]


def test_both_caches_of_a_stage_that_changes_its_network_are_looked_at(aws: Aws) -> None:
    given = facts(aws, Cache=stack("Cache"), PublicCache=stack("PublicCache"))
    sums(aws, 1, 0, 0, 0, 0, 0)
    sums(aws, 0, 4, 0, 0, 0, 0)
    assert [what for _, what in whats(diagnoses.cache, given)] == [
        f"Valkey counted 1 refused sign-ins {LAST}.",
        f"Valkey counted 4 throttled sign-ins {LAST}.",
    ]


def test_an_address_that_never_confirmed_is_reported(aws: Aws) -> None:
    subscriptions = [
        {"Endpoint": "a@example.org", "SubscriptionArn": "PendingConfirmation", "Protocol": "email"},
        {"Endpoint": "b@example.org", "SubscriptionArn": "arn:aws:sns:…:1", "Protocol": "email"},
    ]
    given = facts(aws)
    aws.answers("sns", "list_subscriptions_by_topic", {"Subscriptions": subscriptions})
    assert whats(diagnoses.subscribers, given) == [
        (FAILING, "a@example.org has not confirmed the subscription to the alarms.")
    ]


def test_a_topic_without_subscribers_is_reported(aws: Aws) -> None:
    given = facts(aws)
    aws.answers("sns", "list_subscriptions_by_topic", {"Subscriptions": []})
    assert whats(diagnoses.subscribers, given) == [(FAILING, "Nobody receives the alarms.")]


@pytest.mark.parametrize(
    ("state", "actions", "told"),
    [
        ("ALARM", True, [(BROKEN, "Alarm dead-letters: Some batches wait.")]),
        ("OK", False, [(FAILING, f"The alarm {ALARM} notifies nobody, because its actions are disabled.")]),
        ("OK", True, []),
    ],
)  # fmt: skip
def test_alarms_that_fire_or_notify_nobody_are_reported(aws: Aws, state: str, actions: bool, told: Any) -> None:
    alarm = {
        "AlarmName": ALARM, "StateValue": state, "ActionsEnabled": actions,
        "AlarmDescription": "[page] Some batches wait. Runbook: docs/runbook.md#dead-letters",
    }  # fmt: skip
    given = facts(aws)
    aws.answers("cloudwatch", "describe_alarms", {"MetricAlarms": [alarm]}, {"AlarmNamePrefix": "message-buffer-prod-"})
    assert whats(diagnoses.alarms, given) == told


def a_domain(aws: Aws, monkeypatch: pytest.MonkeyPatch, *, status: str = "AVAILABLE") -> StageFacts:
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    given = facts(aws)
    configuration = {"CertificateArn": CERTIFICATE, "DomainNameStatus": status, "DomainNameStatusMessage": "wait"}
    aws.answers("apigatewayv2", "get_domain_name", {"DomainName": HOST, "DomainNameConfigurations": [configuration]})
    return given


@pytest.mark.parametrize(
    ("certificate", "told"),
    [
        ({"Status": "ISSUED", "NotAfter": NOW + timedelta(days=200)}, []),
        ({"Status": "EXPIRED"}, [(BROKEN, f"The certificate of {HOST} is EXPIRED.")]),
        (
            {
                "Status": "ISSUED", "NotAfter": NOW + timedelta(days=9),
                "RenewalSummary": {
                    "RenewalStatus": "PENDING_VALIDATION", "DomainValidationOptions": [{"DomainName": HOST}],
                    "UpdatedAt": NOW,
                },
            },
            [(FAILING, f"The certificate of {HOST} ends in 9 days. The status of its renewal is: PENDING_VALIDATION.")],
        ),
    ],
)  # fmt: skip
def test_a_certificate_that_ends_or_is_not_valid_is_reported(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, certificate: Json, told: Any
) -> None:
    given = a_domain(aws, monkeypatch)
    aws.answers("acm", "describe_certificate", {"Certificate": certificate}, {"CertificateArn": CERTIFICATE})
    assert whats(diagnoses.domain, given) == told


def test_a_domain_without_an_address_is_reported(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    given = a_domain(aws, monkeypatch, status="UPDATING")
    aws.answers("acm", "describe_certificate", {"Certificate": {"Status": "ISSUED"}})

    def unknown(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert [what for _, what in whats(diagnoses.domain, given)] == [
        f"The name {HOST} has no address.",
        f"API Gateway does not serve {HOST}: wait.",
    ]


def resources(aws: Aws, *found: tuple[str, str, str], properties: Json | None = None) -> None:
    """Let the stack have resources, each with its type, logical id and physical id."""
    template = {"Resources": {name: {"Type": kind, "Properties": properties or {}} for kind, name, _ in found}}
    aws.answers("cloudformation", "get_template", {"TemplateBody": json.dumps(template)})
    listed = [
        {
            "LogicalResourceId": name, "PhysicalResourceId": physical_id, "ResourceType": kind,
            "LastUpdatedTimestamp": NOW, "ResourceStatus": "CREATE_COMPLETE",
        }
        for kind, name, physical_id in found
    ]  # fmt: skip
    aws.answers("cloudformation", "list_stack_resources", {"StackResourceSummaries": listed})


def test_a_rule_of_the_stages_bus_is_looked_for_on_that_bus(aws: Aws) -> None:
    given = facts(aws)
    resources(aws, ("AWS::Events::Rule", "CanaryBatches1", "message-buffer-prod|canary"))
    asked = {"Name": "canary", "EventBusName": "message-buffer-prod"}
    aws.answers("events", "describe_rule", {"State": "DISABLED"}, asked)
    ((finding,)) = list(diagnoses.triggers(given))
    assert finding.do == "Enable it: `aws events enable-rule --name canary --event-bus-name message-buffer-prod`."


@pytest.mark.parametrize("bus", ["message-buffer-prod", {"Ref": "Bus"}], ids=["by its name", "by a reference"])
def test_a_rule_whose_id_lacks_its_bus_is_looked_for_on_the_stages_bus(bus: object, aws: Aws) -> None:
    """Reproduce a defect: the emulator's ids lack the bus, so doctor called the rule of a working responder missing."""
    given = facts(aws)
    resources(aws, ("AWS::Events::Rule", "BatchesReady1", "batches"), properties={"EventBusName": bus})
    asked = {"Name": "batches", "EventBusName": "message-buffer-prod"}
    aws.answers("events", "describe_rule", {"State": "ENABLED"}, asked)
    assert list(diagnoses.triggers(given)) == []


def of_lambda(aws: Aws, *, total: int, free: int, functions: int, used: float, code: int = 0) -> StageFacts:
    given = facts(aws)
    limit = {"ConcurrentExecutions": total, "UnreservedConcurrentExecutions": free, "TotalCodeSize": 100}
    answer = {"AccountLimit": limit, "AccountUsage": {"TotalCodeSize": code, "FunctionCount": 1}}
    aws.answers("lambda", "get_account_settings", answer)
    used_at_once = {"Id": "m0", "Timestamps": [NOW], "Values": [used]}
    aws.answers("cloudwatch", "get_metric_data", {"MetricDataResults": [used_at_once]})
    resources(aws, *(("AWS::Lambda::Function", f"F{number}", f"F{number}") for number in range(functions)))
    return given


@pytest.mark.parametrize(
    ("account", "told"),
    [
        ({"total": 1_000, "free": 800, "functions": 8, "used": 10}, []),
        ({"total": 10, "free": 10, "functions": 8, "used": 1}, ["at most 10 functions at once"]),
        ({"total": 1_000, "free": 4, "functions": 8, "used": 1}, ["8 functions of the stage share 4 unreserved"]),
        ({"total": 1_000, "free": 100, "functions": 8, "used": 900}, ["900 of 1000 functions ran at once"]),
        ({"total": 1_000, "free": 100, "functions": 8, "used": 1, "code": 90}, ["code storage is used to 90%"]),
    ],
)
def test_quotas_that_are_nearly_reached_are_reported(aws: Aws, account: Any, told: list[str]) -> None:
    found = [what for _, what in whats(diagnoses.quotas, of_lambda(aws, **account))]
    assert len(found) == len(told)
    assert all(words in what for words, what in zip(told, found, strict=True))


def test_events_that_the_bus_cannot_deliver_are_reported(aws: Aws) -> None:
    given = facts(aws)
    rules = [{"Name": "agent", "State": "ENABLED"}, {"Name": "bufferctl-tail-1", "State": "ENABLED"}]
    aws.answers("events", "list_rules", {"Rules": rules}, {"EventBusName": "message-buffer-prod"})
    targets(aws, "agent", TARGET_OF_AGENT)
    sums(aws, 12)
    assert whats(diagnoses.consumers, given) == [
        (BROKEN, f"The bus could not deliver 12 events of the rule agent {LAST}.")
    ]


TARGET_OF_AGENT = {"Id": "queue", "Arn": "arn:aws:sqs:us-east-1:111122223333:agent"}


def targets(aws: Aws, rule: str, *found: Json) -> None:
    asked = {"Rule": rule, "EventBusName": "message-buffer-prod"}
    # The SDK's model of the response refuses an empty list, which AWS returns.
    aws.answers("events", "list_targets_by_rule", {"Targets": list(found)} if found else {}, asked)


def test_a_rule_without_a_target_is_named_and_is_no_consumer(aws: Aws) -> None:
    given = facts(aws)
    rules = [{"Name": "agent", "State": "ENABLED"}, {"Name": "idle", "State": "ENABLED"}]
    aws.answers("events", "list_rules", {"Rules": rules})
    targets(aws, "agent", TARGET_OF_AGENT)
    targets(aws, "idle")
    sums(aws, 0)
    idle = (FAILING, "The rule idle has no target, so it delivers nothing.")
    assert whats(diagnoses.consumers, given) == [idle]
    aws.answers("events", "list_rules", {"Rules": rules[1:]})
    targets(aws, "idle")
    nobody = (FAILING, "No rule takes batches from the bus, so nobody receives them.")
    assert whats(diagnoses.consumers, given) == [idle, nobody]


# -- failed attempts -------------------------------------------------------------------------------


def log_of(*lines: tuple[str, str, int, Json]) -> list[Json]:
    """Return events of a log for lines with this level, message, age in seconds and further fields."""
    return [
        {
            "timestamp": NOW_MS - 1_000 * age_seconds,
            "message": json.dumps({"level": level, "message": message, **fields}),
        }
        for level, message, age_seconds, fields in lines
    ]


def of_emitter(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> StageFacts:
    found = {"ConversationProcessorFunction": "emitter-1", "ConversationProcessorLogGroup": "logs-of-emitter"}
    monkeypatch.setattr(f"{__name__}.OUTPUTS", found)
    return facts(aws)


def settings(**given: Any) -> Json:
    """Return a function's configuration with these settings."""
    return {"Environment": {"Variables": {"SETTINGS": json.dumps(given)}}}


FAILED_EMISSIONS = [
    ("WARNING", "emit failed", 90, {"reason": "publish batch: InternalFailure"}),
    ("ERROR", "emit failed", 80, {"error": "ValueError"}),
    ("WARNING", "emit failed", 30, {"reason": "publish batch: AccessDeniedException"}),
    ("WARNING", "batch rests", 20, {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("emitted", "log", "severity", "since"),
    [
        (False, {}, BROKEN, ", and has emitted no batch since"),
        (True, None, FAILING, ""),
        (False, {"level": "WARNING"}, FAILING, ""),
    ],
    ids=["nothing emitted", "emitted since", "no INFO is logged"],
)
def test_failed_emissions_are_counted_with_the_last_reason_and_time(
    aws: Aws, monkeypatch: pytest.MonkeyPatch,
    emitted: bool, log: Json | None, severity: Severity, since: str,
) -> None:  # fmt: skip
    given = of_emitter(aws, monkeypatch)
    aws.answers("logs", "filter_log_events", {"events": log_of(*FAILED_EMISSIONS)})
    later = {"logGroupName": "logs-of-emitter", "startTime": NOW_MS - 30_000, "filterPattern": '"emitted"'}
    aws.answers(
        "logs", "filter_log_events", {"events": log_of(*[("INFO", "emitted", 10, {})] if emitted else [])}, later
    )
    # The settings are read only if they matter, so each answer must be asked for.
    if log is not None:
        aws.answers("lambda", "get_function_configuration", settings(log=log))
    counted, last = "The conversation processor logged `emit failed` 2 times within the hour", moment(NOW_MS - 30_000)
    assert whats(diagnoses.attempts, given) == [
        (severity, f"{counted}, last at {last}{since}: publish batch: AccessDeniedException.")
    ]
    aws.all_were_asked()


def test_a_model_that_bedrock_refuses_is_named_with_what_to_do(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"ResponderFunction": "responder-1", "ResponderLogGroup": "logs-of-responder"}
    monkeypatch.setattr(f"{__name__}.OUTPUTS", found)
    refused = ("WARNING", "reply is tried again", 30, {"reason": "converse: AccessDeniedException"})
    aws.answers("logs", "filter_log_events", {"events": log_of(refused)})
    (finding,) = diagnoses.attempts(facts(aws))
    assert "converse: AccessDeniedException" in finding.what
    assert "docs/responder.md#turning-it-on" in finding.do


def test_each_failed_attempt_is_a_warning_that_its_function_logs_and_a_section_of_the_runbook() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text("utf-8")
    anchors = {heading.lower().replace(" ", "-") for heading in re.findall("^#+ (.+)$", runbook, re.MULTILINE)}
    logged = (ROOT / "docs/observability.md").read_text("utf-8")
    code = "".join(
        path.read_text("utf-8") for room in ("lambdas", "message_buffer") for path in (ROOT / room).rglob("*.py")
    )
    for messages in diagnoses.FAILED_ATTEMPTS.values():
        for message, anchor in messages.items():
            assert anchor in anchors
            assert re.search(rf'(warn|failed|_log_failure)\(\s*"{message}"', code), message
            assert f"- `{message}` WARNING" in logged


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ({"preset": "customers"}, None),
        ({"silenceMs": 60_000}, "silenceMs: 60000 is not below maxWaitMs (30000)"),
        ({"silence": 5}, "silence: unknown field"),
    ],
)
def test_deployed_rules_that_ingest_ignores_are_reported(aws: Aws, rules: Json, problem: str | None) -> None:
    given = facts(aws)
    aws.answers("lambda", "get_function_configuration", settings(rules=rules))
    found = whats(diagnoses.rules, given)
    assert [severity for severity, _ in found] == ([FAILING] if problem else [])
    assert all(what.startswith(f"Ingest ignores the deployed rules: {problem}") for _, what in found)


# -- advice ----------------------------------------------------------------------------------------


def test_advice_names_the_stages_own_account_and_region(aws: Aws) -> None:
    facts(aws)
    cli = "AWS_ACCESS_KEY_ID=test aws --endpoint-url http://127.0.0.1:1"
    given = StageFacts("prod", aws.client, clock=lambda: NOW_MS, aws_cli=cli)
    resources(aws, ("AWS::Events::Rule", "CanaryBatches1", "message-buffer-prod|canary"))
    aws.answers("events", "describe_rule", {"State": "DISABLED"})
    ((finding,)) = list(diagnoses.triggers(given))
    assert finding.do.startswith(f"Enable it: `{cli} events enable-rule --name canary")


@pytest.mark.parametrize(("name", "advice"), [("local", "`make down`, then `make up`"), ("prod", "by hand")])
def test_advice_against_a_change_by_hand_is_no_deployment_which_would_change_nothing(
    aws: Aws, name: str, advice: str
) -> None:
    facts(aws)
    given = StageFacts(name, aws.client, clock=lambda: NOW_MS)
    resources(aws, ("AWS::Lambda::Function", "Gate1", "gate-1"), properties={"Timeout": 15})
    aws.answers("lambda", "get_function_configuration", {"Timeout": 3})
    aws.answers("lambda", "get_function_concurrency", {})
    ((finding,)) = list(diagnoses.functions(given))
    assert advice in finding.do


@pytest.mark.parametrize("error", [NoCredentialsError(), SSOTokenLoadError(error_msg="it has expired")])
def test_without_credentials_doctor_says_only_how_to_sign_in(error: Exception) -> None:
    def client(_: str) -> Any:
        raise error

    with pytest.raises(Unreachable, match=r"AWS cannot be reached: .*\. Sign in"), errors_of_aws():
        doctor(Account(client), Namespace(stage="prod", json=False))


def test_with_credentials_that_have_expired_doctor_says_only_how_to_sign_in(aws: Aws) -> None:
    aws.refuses("cloudformation", "describe_stacks", "ExpiredToken")
    with pytest.raises(Unreachable, match=r"AWS refuses the credentials: no\. Sign in"), errors_of_aws():
        doctor(Account(aws.client), Namespace(stage="prod", json=False))


def test_a_platform_that_has_sent_nothing_for_days_is_reported(aws: Aws) -> None:
    given = facts(aws)
    aws.answers("secretsmanager", "get_secret_value", {"SecretString": '{"generic": "x", "twilio": {"secret": "y"}}'})
    aws.answers("logs", "filter_log_events", {"events": []})
    aws.answers("lambda", "get_function_configuration", settings())
    assert whats(diagnoses.secrets, given) == [
        (ADVICE, "twilio has a webhook secret, but has sent nothing for 3 days.")
    ]


def test_webhooks_that_were_refused_are_counted_even_if_they_have_no_lines_of_their_own(aws: Aws) -> None:
    given = facts(aws)
    refused = {"message": "signature refused", "platform": "twilio"}
    said = [refused | {"reason": "No."}] * 5 + [refused | {"more": 300}]
    lines = [{"timestamp": NOW_MS, "message": json.dumps(line)} for line in said]
    aws.answers("logs", "filter_log_events", {"events": lines})
    accepted = {"message": "buffered", "platform": "twilio"}
    found = [{"timestamp": NOW_MS, "message": json.dumps(accepted)}]
    aws.answers("logs", "filter_log_events", {"events": found})
    aws.answers("logs", "filter_log_events", {"events": []})
    assert whats(diagnoses.refusals, given) == [
        (FAILING, "305 webhooks of twilio were answered 401 within the hour; last reason: No.")
    ]


def test_webhooks_that_were_answered_503_are_counted_by_reason_with_the_last_time(aws: Aws) -> None:
    given = facts(aws)
    refused = {"message": "refused for now", "reason": "read window: ResourceNotFoundException"}
    last = moment(NOW_MS - 1_000)
    lines = [{"timestamp": at_ms, "message": json.dumps(refused)} for at_ms in (NOW_MS - 9_000, NOW_MS - 1_000)]
    aws.answers("logs", "filter_log_events", {"events": []})
    aws.answers("logs", "filter_log_events", {"events": lines})
    assert whats(diagnoses.refusals, given) == [
        (BROKEN, f"2 webhooks were answered 503 within the hour, last at {last}: {refused['reason']}.")
    ]


@pytest.mark.parametrize(("status", "count"), [("timeout", 1), ("success", 0)])
def test_a_run_that_lambda_ended_is_found_in_logs_of_json(aws: Aws, status: str, count: int) -> None:
    given = facts(aws)
    assert list(given.functions) == ["ingest", "watchdog"]
    report = {"time": "2026-11-19T12:00:00Z", "type": "platform.report", "record": {"status": status}}
    for _ in range(2):
        for pattern in diagnoses.ERROR_PATTERNS:
            found = [{"timestamp": NOW_MS, "message": json.dumps(report)}] if "platform.report" in pattern else []
            aws.answers("logs", "filter_log_events", {"events": found})
    assert sum(
        f"Lambda ended a run with the status {status}" in what for _, what in whats(diagnoses.errors, given)
    ) == (2 * count)


def test_logs_that_are_too_long_to_read_are_named_instead_of_judged(aws: Aws) -> None:
    given = facts(aws)
    for _ in range(20):
        aws.answers("logs", "filter_log_events", {"events": [], "nextToken": "more"})
    with pytest.raises(Unreadable, match="the logs of ingest: too many lines"):
        list(diagnoses.refusals(given))


def test_what_these_credentials_may_not_read_is_named_and_the_rest_is_diagnosed(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    subset = {name: DIAGNOSES[name] for name in ("stacks", "webhook secrets", "alarms", "subscribers of alarms")}
    monkeypatch.setattr("bufferctl.doctor.DIAGNOSES", subset)
    given = facts(aws)
    aws.refuses("secretsmanager", "get_secret_value", "AccessDeniedException")
    aws.refuses("cloudwatch", "describe_alarms", "AccessDenied")
    aws.answers("sns", "list_subscriptions_by_topic", {"Subscriptions": []})
    report = examine(given)
    assert report.unread == {
        "webhook secrets": "secretsmanager:GetSecretValue: these credentials lack the permission",
        "alarms": "cloudwatch:DescribeAlarms: these credentials lack the permission",
    }
    assert [each.severity for each in report.findings] == [FAILING]
    aws.all_were_asked()


def test_a_report_of_which_nothing_could_be_read_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreadable(_: StageFacts) -> Any:
        raise Unreadable("no credentials")

    monkeypatch.setattr("bufferctl.doctor.DIAGNOSES", {"one": unreadable, "two": unreadable})
    with pytest.raises(Unreachable, match="Nothing could be read"):
        doctor(Account(lambda service: None), Namespace(stage="prod", json=False))
    assert capsys.readouterr().out == "Not diagnosed:\n  one, two: no credentials\n"
