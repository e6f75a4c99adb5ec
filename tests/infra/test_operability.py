"""Alarms, dashboards and the runbook are made from the table of symptoms, which names only what the functions tell."""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aws_cdk.assertions import Template

from infra.function import ROOMS
from infra.symptoms import BY_NAME, GRAPHS, SYMPTOMS, Source
from lambdas.processor.service import Exit
from tools.runbook import PAGE, page

pytestmark = pytest.mark.xdist_group("synth")

ROOT = Path(__file__).parents[2]
RUNBOOK = PAGE.read_text("utf-8")
RESPONDER: dict[str, Any] = {"responder": {}}
BY_SNS: dict[str, Any] = {"end_user_messaging_topic": "arn:aws:sns:us-east-1:111122223333:whatsapp"}
FULL: dict[str, Any] = {"canary": True, **RESPONDER, **BY_SNS}
ALONE = {"lane": "dynamodb"}
PUBLIC: dict[str, Any] = {"network": {"egress": "none"}}
HTTP, REST, OWN_URL = {"kind": "http"}, {"kind": "rest"}, {"kind": "url"}
METRICS = [metric for each in (*SYMPTOMS, *GRAPHS) for metric in each.metrics]

Properties = dict[str, Any]
Synthesize = Callable[..., Mapping[str, Template]]


def _all(template: Template, kind: str) -> list[Properties]:
    return [each.get("Properties", {}) for each in template.find_resources(kind).values()]


def alarms_of(*templates: Template) -> dict[str, Properties]:
    """Return alarms by their names after the stage's. The names are unique in an account."""
    found = [alarm for template in templates for alarm in _all(template, "AWS::CloudWatch::Alarm")]
    alarms = {each["AlarmName"].split("-", 3)[3]: each for each in found}
    assert len(alarms) == len(found)
    return alarms


def metric_of(alarm: Properties) -> Properties:
    """Return the one metric that an alarm without a formula watches."""
    (query,) = alarm["Metrics"]
    stat: Properties = query["MetricStat"]
    return {**stat["Metric"], "Period": stat["Period"], "Stat": stat["Stat"]}


def _graphs(template: Template) -> dict[str, Properties]:
    (dashboard,) = _all(template, "AWS::CloudWatch::Dashboard")
    _, parts = dashboard["DashboardBody"]["Fn::Join"]
    body = json.loads("".join(part if isinstance(part, str) else "somewhere" for part in parts))
    return {each["properties"]["title"]: each["properties"] for each in body["widgets"] if each["type"] == "metric"}


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_every_alarm_tells_the_topic_when_it_fires_and_when_it_is_over(stage: str, synthesize: Synthesize) -> None:
    template = synthesize(stage)["Buffer"]
    (topic,) = template.find_resources("AWS::SNS::Topic")
    for alarm in alarms_of(template).values():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": topic}]


def test_the_responders_alarms_tell_the_same_topic_by_its_name(
    synthesize: Synthesize,
) -> None:
    stacks = synthesize("prod", **RESPONDER)
    (topic,) = _all(stacks["Buffer"], "AWS::SNS::Topic")
    alarms = alarms_of(stacks["Responder"])
    for alarm in alarms.values():
        assert alarm["AlarmActions"] == alarm["OKActions"]
        (notified,) = alarm["AlarmActions"]
        assert notified["Fn::Join"][1][-1].rpartition(":")[2] == topic["TopicName"]


def test_cloudwatch_may_publish_on_the_encrypted_topic_and_only_for_this_account(
    synthesize: Synthesize,
) -> None:
    template = synthesize("prod")["Buffer"]
    ((key_id, key),) = template.find_resources("AWS::KMS::Key").items()
    (topic,) = _all(template, "AWS::SNS::Topic")
    assert topic["KmsMasterKeyId"] == {"Fn::GetAtt": [key_id, "Arn"]}
    assert key["Properties"]["EnableKeyRotation"] is True
    may_use = [
        (statement["Action"], statement.get("Condition"))
        for statement in key["Properties"]["KeyPolicy"]["Statement"]
        if statement["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    ]
    of_this_account = {"StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}}
    assert may_use == [(["kms:Decrypt", "kms:GenerateDataKey*"], of_this_account)]
    (policy,) = _all(template, "AWS::SNS::TopicPolicy")
    statements = {each["Effect"]: each for each in policy["PolicyDocument"]["Statement"]}
    assert statements["Allow"]["Principal"] == {"Service": "cloudwatch.amazonaws.com"}
    assert statements["Allow"]["Condition"] == of_this_account
    assert statements["Deny"]["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_the_addresses_of_the_stage_are_subscribed(synthesize: Synthesize) -> None:
    emails = ["one@example.org", "two@example.org"]
    template = synthesize("dev", alarm_emails=emails)["Buffer"]
    subscribed = [(each["Protocol"], each["Endpoint"]) for each in _all(template, "AWS::SNS::Subscription")]
    assert sorted(subscribed) == [("email", email) for email in emails]


def test_every_symptom_is_an_alarm_or_a_graph_in_some_stage_with_the_tables_words(synthesize: Synthesize) -> None:
    stages = [synthesize("prod", api=REST, **FULL), synthesize("prod", **ALONE), synthesize("prod", **PUBLIC)]
    stages.append(synthesize("prod", queues={"sms": {"platform": "twilio"}}))
    alarms, graphs = set[tuple[str, ...]](), set[str]()
    for stacks in stages:
        for alarm in alarms_of(stacks["Buffer"], stacks["Responder"]).values():
            alarms.add(tuple(re.split(r"\[|\] | Runbook: ", alarm["AlarmDescription"])[1:]))
        for name in ("Buffer", "Responder") if _all(stacks["Responder"], "AWS::CloudWatch::Dashboard") else ("Buffer",):
            graphs |= _graphs(stacks[name]).keys()
    assert {(wakes, anchor) for wakes, _, anchor in alarms} == {
        (each.wakes, each.runbook) for each in SYMPTOMS if each.wakes != "nobody"
    }
    assert not any("](" in says for _, says, _ in alarms)
    assert graphs == {each.name for each in SYMPTOMS} | {each.title for each in GRAPHS}


def test_each_metric_of_the_table_is_told_by_its_function_and_each_that_is_told_is_in_the_table() -> None:
    own = {(metric.name, metric.of) for metric in METRICS if metric.source is Source.OWN}
    summed = {metric.name for metric in METRICS if metric.source is Source.VALKEY}
    told = set(_told("count", "count_all", "count_by", "measure_ms"))
    assert [each for each in own if each not in told and (each[0], "") not in told] == []
    assert {name for name, _ in told} == {name for name, _ in own} | summed


def test_each_warning_that_the_doctor_counts_is_one_of_its_function() -> None:
    told = set(_told("warn", "failed"))
    counted = {(line, role) for symptom in SYMPTOMS for role, lines in symptom.logs.items() for line in lines}
    assert [each for each in counted if each not in told and (each[0], "") not in told] == []


def test_a_metric_by_reason_is_counted_by_it() -> None:
    by_reason = {name for name, _ in _told("count_by")}
    assert {metric.name for metric in METRICS if metric.reason} == by_reason
    assert Exit.LOST.value in BY_NAME["Processor exits"].means


def test_the_runbook_has_the_table_of_symptoms() -> None:
    assert page(RUNBOOK) == RUNBOOK, "docs/runbook.md is out of date: run `.venv/bin/python -m tools.runbook`"


def test_the_runbook_asks_only_for_outputs_that_the_stacks_have(synthesize: Synthesize) -> None:
    stacks = synthesize("prod", **FULL)
    outputs = {name: set(stack.to_json().get("Outputs", {})) for name, stack in stacks.items()}
    asked = [(name, stack or "Buffer") for name, stack in re.findall(r"\$\(output\s+(\w+)(?: (\w+))?\)", RUNBOOK)]
    asked += [
        (f"{name}LogGroup", "Buffer") for name in re.findall(r"(?:^|`)(?:logs|warnings) (\w+)", RUNBOOK, re.MULTILINE)
    ]
    assert asked
    assert [(name, stack) for name, stack in asked if name not in outputs[stack]] == []


@pytest.mark.parametrize(
    ("errors", "requests", "pages"),
    [(1, 1, False), (4, 4, False), (5, 20, True), (5, 1_000, False), (80, 1_000, True)],
)
@pytest.mark.parametrize("api", [HTTP, REST, OWN_URL])
def test_5xx_page_as_a_share_of_the_webhooks_and_never_for_a_single_one(
    api: dict[str, str], errors: int, requests: int, pages: bool, synthesize: Synthesize
) -> None:
    alarm = alarms_of(synthesize("prod", api=api)["Buffer"])["webhooks-fail"]
    (expression,) = [each["Expression"] for each in alarm["Metrics"] if "IF(" in each.get("Expression", "")]
    names = {"IF": lambda test, then, other: then if test else other, "errors": errors, "requests": requests}
    assert (eval(expression, names) > alarm["Threshold"]) is pages  # noqa: S307 - our own formula


def test_at_an_own_address_webhooks_that_lambda_throttles_fail_though_they_are_no_5xx(synthesize: Synthesize) -> None:
    alarm = alarms_of(synthesize("prod", api=OWN_URL)["Buffer"])["webhooks-fail"]
    (errors,) = [each["Expression"] for each in alarm["Metrics"] if each["Id"] == "errors"]
    summed = {
        each["Id"]: each["MetricStat"]["Metric"]["MetricName"] for each in alarm["Metrics"] if each["Id"] in errors
    }
    assert sorted(summed.values()) == ["Throttles", "Url5xxCount"]


@pytest.mark.parametrize("name", ["sweeps-silent-watchdog", "sweeps-silent-dynamodb-processor"])
def test_silence_after_a_value_is_an_alarm_and_silence_before_the_first_is_none(
    name: str, synthesize: Synthesize
) -> None:
    alarm = alarms_of(synthesize("prod")["Buffer"])[name]
    (filled,) = [each for each in alarm["Metrics"] if "Expression" in each]
    (published,) = [each for each in alarm["Metrics"] if "MetricStat" in each]
    assert filled["Expression"] == f"FILL({published['Id']}, 0)"
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (1, "LessThanThreshold")
    assert alarm["DatapointsToAlarm"] < alarm["EvaluationPeriods"], "a value must remain that FILL can continue"


def test_no_alarm_fires_because_a_new_stage_has_published_nothing(synthesize: Synthesize) -> None:
    stacks = synthesize("prod", **FULL)
    missing = {alarm["TreatMissingData"] for alarm in alarms_of(stacks["Buffer"], stacks["Responder"]).values()}
    assert missing == {"ignore", "notBreaching"}


@pytest.mark.parametrize("name", ["oldest-overdue-watchdog", "oldest-overdue-dynamodb-processor"])
def test_what_is_overdue_stays_an_alarm_while_nobody_can_look(name: str, synthesize: Synthesize) -> None:
    alarm = alarms_of(synthesize("prod")["Buffer"])[name]
    assert alarm["AlarmDescription"].startswith("[page]")
    assert (metric_of(alarm)["Stat"], alarm["Threshold"]) == ("Maximum", 60_000)
    assert alarm["TreatMissingData"] == "ignore"


def test_the_cache_warns_before_the_limits_of_the_stage(synthesize: Synthesize) -> None:
    stacks = synthesize("dev", cache={"max_storage_gb": 8, "max_ecpu_per_second": 2_000})
    (cache,) = _all(stacks["Cache"], "AWS::ElastiCache::ServerlessCache")
    alarm = alarms_of(stacks["Buffer"])["cache-storage"]
    assert alarm["Threshold"] == 6_000_000_000
    # A serverless cache reports under this dimension.
    assert metric_of(alarm)["Dimensions"] == [{"Name": "clusterId", "Value": cache["ServerlessCacheName"]}]
    (line,) = _graphs(stacks["Buffer"])["Cache storage"]["annotations"]["horizontal"]
    assert line["value"] == 6_000_000_000


@pytest.mark.parametrize(("name", "metric"), [("function-errors", "Errors"), ("throttles", "Throttles")])
def test_every_function_is_watched_for_errors_and_throttles(name: str, metric: str, synthesize: Synthesize) -> None:
    stacks = synthesize("prod", **FULL)
    watched = [each for each in alarms_of(stacks["Buffer"])[name]["Metrics"] if "MetricStat" in each]
    assert {each["MetricStat"]["Metric"]["MetricName"] for each in watched} == {metric}
    named = {json.dumps(each["MetricStat"]["Metric"]["Dimensions"]) for each in watched}
    functions = [output for output in stacks["Buffer"].to_json()["Outputs"] if output.endswith("Function")]
    assert len(named) == len(functions)
    assert metric_of(alarms_of(stacks["Responder"])[f"{name}-responder"])["MetricName"] == metric


def _told(*ways: str) -> Iterator[tuple[str, str]]:
    """Return each literal name that a function logs or counts, with the function, or "" for shared code."""
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        room, folder = path.relative_to(ROOT).parts[:2]
        service = folder if room == "lambdas" and not folder.endswith(".py") else ""
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            first = call.args[0]
            for name in first.keys if isinstance(first, ast.Dict) else [first]:
                telemetry = ast.unparse(call.func.value).endswith(("telemetry", "unauthenticated"))
                if telemetry and call.func.attr in ways and isinstance(name, ast.Constant):
                    yield str(name.value), service
