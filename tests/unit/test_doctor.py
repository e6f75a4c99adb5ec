"""`bufferctl doctor` diagnoses answers that AWS documents and that the emulator cannot give."""

import json
from argparse import Namespace
from datetime import UTC, datetime, timedelta
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
from bufferctl.formatting import moment
from bufferctl.stage import Account
from message_buffer.json_object import Json

NOW = datetime(2026, 11, 19, 12, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
OUTPUTS = {
    "AlarmTopicArn": "arn:aws:sns:us-east-1:111122223333:alarms",
    "EventBusName": "message-buffer-prod",
    "IngestFunction": "ingest-1",
    "IngestLogGroup": "logs-of-ingest",
    "WatchdogFunction": "watchdog-1",
    "WatchdogLogGroup": "logs-of-watchdog",
    "WebhookSecretId": "secret",
}
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
    """Let metrics have counted these values in two periods."""
    results = [
        {
            "Id": f"m{place}",
            "Timestamps": [NOW, NOW - timedelta(hours=1)] if value else [],
            "Values": [1, value - 1] if value else [],
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


def test_refusals_of_both_caches_of_a_stage_that_changes_its_network_are_reported(aws: Aws) -> None:
    given = facts(aws, Cache=stack("Cache"), PublicCache=stack("PublicCache"))
    sums(aws, 3, 0, 0, 2, 0, 0)
    sums(aws, 0, 4, 0, 0, 0, 0)
    assert [what for _, what in whats(diagnoses.cache, given)] == [
        "The cache counted 3 AuthenticationFailures within the hour.",
        "The cache counted 2 KeyAuthorizationFailures within the hour.",
        "The cache counted 4 IamAuthenticationThrottling within the hour.",
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


@pytest.mark.parametrize(
    ("total", "code", "told"),
    [
        (1_000, 0, []),
        (10, 0, ["at most 10 functions at once"]),
        (1_000, 90, ["code storage is used to 90%"]),
    ],
)
def test_quotas_that_are_nearly_reached_are_reported(aws: Aws, total: int, code: int, told: list[str]) -> None:
    given = facts(aws)
    limit = {"ConcurrentExecutions": total, "UnreservedConcurrentExecutions": total, "TotalCodeSize": 100}
    answer = {"AccountLimit": limit, "AccountUsage": {"TotalCodeSize": code, "FunctionCount": 1}}
    aws.answers("lambda", "get_account_settings", answer)
    found = [what for _, what in whats(diagnoses.quotas, given)]
    assert len(found) == len(told)
    assert all(words in what for words, what in zip(told, found, strict=True))


def test_events_that_the_bus_cannot_deliver_are_reported(aws: Aws) -> None:
    given = facts(aws)
    rules = [{"Name": "agent", "State": "ENABLED"}, {"Name": "bufferctl-tail-1", "State": "ENABLED"}]
    aws.answers("events", "list_rules", {"Rules": rules}, {"EventBusName": "message-buffer-prod"})
    targets(aws, "agent", TARGET_OF_AGENT)
    sums(aws, 12)
    assert whats(diagnoses.consumers, given) == [
        (BROKEN, "The bus could not deliver 12 events of the rule agent within the hour.")
    ]


TARGET_OF_AGENT = {"Id": "queue", "Arn": "arn:aws:sqs:us-east-1:111122223333:agent"}


def targets(aws: Aws, rule: str, *found: Json) -> None:
    asked = {"Rule": rule, "EventBusName": "message-buffer-prod"}
    # The SDK's model of the response refuses an empty list, which AWS returns.
    aws.answers("events", "list_targets_by_rule", {"Targets": list(found)} if found else {}, asked)


def test_a_rule_without_a_target_is_no_consumer(aws: Aws) -> None:
    given = facts(aws)
    aws.answers("events", "list_rules", {"Rules": [{"Name": "idle", "State": "ENABLED"}]})
    targets(aws, "idle")
    nobody = "No rule with a target takes batches from the bus, and there is no queue, so nobody receives them."
    assert whats(diagnoses.consumers, given) == [(FAILING, nobody)]


QUEUES = {
    "DeadLetterQueueUrl": "https://sqs/dead",
    "QueueSmsUrl": "https://sqs/sms",
    "QueueDeadLettersSmsUrl": "https://sqs/dead-sms",
}


def with_queues(aws: Aws) -> StageFacts:
    found = [*outputs(), *({"OutputKey": name, "OutputValue": url} for name, url in QUEUES.items())]
    return facts(aws, Buffer=stack("Buffer", Outputs=found))


def test_a_queue_is_a_consumer_without_a_rule(aws: Aws) -> None:
    given = with_queues(aws)
    aws.answers("events", "list_rules", {"Rules": []})
    assert whats(diagnoses.consumers, given) == []


def test_dead_letters_of_the_stages_queues_are_counted_apart_from_those_of_the_buffer(aws: Aws) -> None:
    given = with_queues(aws)
    counts = {"ApproximateNumberOfMessages": "2", "ApproximateNumberOfMessagesNotVisible": "1"}
    for output, found in (("DeadLetterQueueUrl", dict.fromkeys(counts, "0")), ("QueueDeadLettersSmsUrl", counts)):
        asked = {"QueueUrl": QUEUES[output], "AttributeNames": list(counts)}
        aws.answers("sqs", "get_queue_attributes", {"Attributes": found}, asked)
    assert whats(diagnoses.queues, given) == [(BROKEN, "Queue dead letters: 3.")]


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
        (False, {}, BROKEN, ", and not `emitted` since"),
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


def test_a_finding_of_a_symptom_has_the_advice_of_the_runbook(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"ResponderFunction": "responder-1", "ResponderLogGroup": "logs-of-responder"}
    monkeypatch.setattr(f"{__name__}.OUTPUTS", found)
    refused = ("WARNING", "reply is tried again", 30, {"reason": "converse: AccessDeniedException"})
    aws.answers("logs", "filter_log_events", {"events": log_of(refused)})
    (finding,) = diagnoses.attempts(facts(aws))
    assert "converse: AccessDeniedException" in finding.what
    assert finding.do.endswith("(docs/runbook.md#processing-errors)")
    assert "](" not in finding.do


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


def test_webhooks_that_were_refused_are_counted_even_if_they_have_no_lines_of_their_own(aws: Aws) -> None:
    given = facts(aws)
    refused = {"message": "signature refused", "platform": "twilio"}
    said = [refused | {"reason": "No.", "url": "https://in.example/webhook/twilio"}] * 5 + [refused | {"more": 300}]
    lines = [{"timestamp": NOW_MS, "message": json.dumps(line)} for line in said]
    aws.answers("logs", "filter_log_events", {"events": lines})
    accepted = {"message": "buffered", "platform": "twilio"}
    found = [{"timestamp": NOW_MS, "message": json.dumps(accepted)}]
    aws.answers("logs", "filter_log_events", {"events": found})
    assert whats(diagnoses.refusals, given) == [
        (
            FAILING,
            (
                "305 webhooks of twilio were answered 401 within the hour; last reason: No. It was checked for"
                " https://in.example/webhook/twilio, which must be the URL at the platform."
            ),
        )
    ]


def test_webhooks_that_were_answered_503_break_the_stage(aws: Aws) -> None:
    given = facts(aws)
    reason = "read window: ResourceNotFoundException"
    refused = [("WARNING", "refused for now", age, {"reason": reason}) for age in (9, 1)]
    aws.answers("logs", "filter_log_events", {"events": log_of(*refused)})
    aws.answers("logs", "filter_log_events", {"events": []})
    last = moment(NOW_MS - 1_000)
    assert whats(diagnoses.attempts, given) == [
        (BROKEN, f"The ingest logged `refused for now` 2 times within the hour, last at {last}: {reason}.")
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
        "webhook secrets": "An error occurred (AccessDeniedException) when calling the GetSecretValue operation: no",
        "alarms": "An error occurred (AccessDenied) when calling the DescribeAlarms operation: no",
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
