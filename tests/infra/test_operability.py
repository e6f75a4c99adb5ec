"""Alarms and dashboards: whom they notify, of what, by which metrics, and which runbook entry they name."""

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aws_cdk.assertions import Template

from infra.function import ROOMS
from lambdas.processor.service import Exit

pytestmark = pytest.mark.xdist_group("synth")

ROOT = Path(__file__).parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
ROLES = {"ingest", "processor", "conversation_processor", "watchdog", "dynamodb_processor", "admin", "gate"}
RESPONDER: dict[str, Any] = {"responder": {}}
CANARY: dict[str, Any] = {"canary": True}
BY_SNS: dict[str, Any] = {"end_user_messaging_topic": "arn:aws:sns:us-east-1:111122223333:whatsapp"}
ALONE = {"lane": "dynamodb"}
PUBLIC: dict[str, Any] = {"network": {"egress": "none"}}
QUERY = r'SELECT SUM\((\w+)\) FROM SCHEMA\("([\w/]+)", service\)'
PARTS = ("**First command.**", "**Repair.**")
HTTP, REST, OWN_URL = {"kind": "http"}, {"kind": "rest"}, {"kind": "url"}

Properties = dict[str, Any]


class Told(NamedTuple):
    """A metric of our own, as alarms, widgets or functions call it."""

    name: str
    service: str
    dimensions: frozenset[str] = frozenset({"service"})


def _all(template: Template, kind: str) -> list[Properties]:
    return [each.get("Properties", {}) for each in template.find_resources(kind).values()]


def _alarms(template: Template) -> dict[str, Properties]:
    found = _all(template, "AWS::CloudWatch::Alarm")
    alarms = {each["AlarmName"].split("-", 3)[3]: each for each in found}
    assert len(alarms) == len(found)
    return alarms


def _metric(alarm: Properties) -> Properties:
    """Return the one metric that an alarm without a formula watches."""
    (query,) = alarm["Metrics"]
    stat: Properties = query["MetricStat"]
    return {**stat["Metric"], "Period": stat["Period"], "Stat": stat["Stat"]}


def _widgets(template: Template) -> list[Properties]:
    (dashboard,) = _all(template, "AWS::CloudWatch::Dashboard")
    _, parts = dashboard["DashboardBody"]["Fn::Join"]
    body = json.loads("".join(part if isinstance(part, str) else "somewhere" for part in parts))
    widgets: list[Properties] = body["widgets"]
    return widgets


def _widget(template: Template, title: str) -> Properties:
    (found,) = [each["properties"] for each in _widgets(template) if each["properties"].get("title") == title]
    return dict(found)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _paragraphs() -> dict[str, str]:
    """Return the runbook's text for each alarm, by anchor."""
    (section,) = re.findall(r"^## Alarms\n(.*?)(?=^## )", RUNBOOK, re.DOTALL | re.MULTILINE)
    _, *blocks = re.split(r"^### ", section, flags=re.MULTILINE)
    return {_anchor(block.splitlines()[0]): block for block in blocks}


@pytest.mark.parametrize("stage", ["dev", "prod"])
def test_every_alarm_tells_the_topic_when_it_fires_and_when_it_is_over(
    stage: str, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    template = synthesize(stage)["Buffer"]
    (topic,) = template.find_resources("AWS::SNS::Topic")
    for alarm in _alarms(template).values():
        assert alarm["AlarmActions"] == alarm["OKActions"] == [{"Ref": topic}]


def test_the_responders_alarms_tell_the_same_topic_by_its_name(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    stacks = synthesize("prod", **RESPONDER)
    (topic,) = _all(stacks["Buffer"], "AWS::SNS::Topic")
    alarms = _alarms(stacks["Responder"])
    assert alarms.keys() == {
        "responder-errors",
        "throttles-responder",
        "reply-dead-letters",
        "processing-errors",
        "replies-of-a-tenant",
        "unconfirmed-sends",
    }
    for alarm in alarms.values():
        assert alarm["AlarmActions"] == alarm["OKActions"]
        (told,) = alarm["AlarmActions"]
        assert told["Fn::Join"][1][-1].rpartition(":")[2] == topic["TopicName"]


def test_cloudwatch_may_publish_on_the_encrypted_topic_and_only_for_this_account(
    synthesize: Callable[..., Mapping[str, Template]],
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


def test_the_addresses_of_the_stage_are_subscribed(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    emails = ["one@example.org", "two@example.org"]
    template = synthesize("dev", alarm_emails=emails)["Buffer"]
    subscribed = [(each["Protocol"], each["Endpoint"]) for each in _all(template, "AWS::SNS::Subscription")]
    assert sorted(subscribed) == [("email", email) for email in emails]


def test_every_alarm_is_answered_by_a_paragraph_and_every_paragraph_by_an_alarm(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    paragraphs = _paragraphs()
    pointed_at = set()
    every_lane = [
        synthesize("prod", api=REST, **RESPONDER, **CANARY, **BY_SNS),
        synthesize("prod", **ALONE),
        synthesize("prod", **PUBLIC),
    ]
    templates = [stacks[name] for stacks in every_lane for name in ("Buffer", "Responder")]
    for alarm in (alarm for template in templates for alarm in _alarms(template).values()):
        match = re.fullmatch(r"\[(page|ticket)\] .+\. Runbook: docs/runbook\.md#([\w-]+)", alarm["AlarmDescription"])
        assert match, alarm["AlarmDescription"]
        pointed_at.add(match[2])
    assert pointed_at == set(paragraphs)
    for anchor, text in paragraphs.items():
        positions = [text.find(part) for part in PARTS]
        assert -1 not in positions, f"{anchor} lacks one of {PARTS}"
        assert positions == sorted(positions), anchor
        meaning = text.partition("\n")[2].partition(PARTS[0])[0]
        assert meaning.strip(), f"{anchor} does not say what its alarm means"


def test_the_runbook_asks_only_for_outputs_that_the_stacks_have(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    stacks = synthesize("prod", **RESPONDER, **CANARY, **BY_SNS)
    outputs = {name: set(stack.to_json().get("Outputs", {})) for name, stack in stacks.items()}
    asked = [(name, stack or "Buffer") for name, stack in re.findall(r"\$\(output (\w+)(?: (\w+))?\)", RUNBOOK)]
    asked += [
        (f"{name}LogGroup", "Buffer") for name in re.findall(r"(?:^|`)(?:logs|warnings) (\w+)", RUNBOOK, re.MULTILINE)
    ]
    assert asked
    assert [(name, stack) for name, stack in asked if name not in outputs[stack]] == []


@pytest.mark.parametrize("overrides", [RESPONDER | CANARY | BY_SNS, ALONE])
def test_the_stacks_look_only_at_metrics_that_the_functions_emit(
    overrides: dict[str, Any], synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    stacks = synthesize("prod", **overrides)
    emitted = set(_emitted())
    watched = [stacks[name] for name in ("Buffer", "Responder") if _all(stacks[name], "AWS::CloudWatch::Dashboard")]
    looked_at = {each for template in watched for each in _looked_at(template, namespace="MessageBuffer/prod")}
    assert looked_at
    assert looked_at <= emitted


def test_a_lost_lease_is_what_the_processor_calls_lost(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    alarm = _alarms(synthesize("prod")["Buffer"])["lease-flapping-lost"]
    assert {"Name": "reason", "Value": Exit.LOST.value} in _metric(alarm)["Dimensions"]


def test_a_fallback_in_use_is_a_ticket_and_in_the_dynamodb_lane_no_alarm(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    alarm = _alarms(synthesize("prod")["Buffer"])["fallback-in-use"]
    assert alarm["AlarmDescription"].startswith("[ticket]")
    assert (_metric(alarm)["MetricName"], alarm["Threshold"]) == ("FallbackMessages", 0)
    assert "fallback-in-use" not in _alarms(synthesize("prod", **ALONE)["Buffer"])


def test_batches_that_cannot_be_put_on_the_bus_are_told_of_in_either_lane(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    both, alone = (_alarms(synthesize("prod", **lane)["Buffer"]) for lane in ({}, ALONE))
    names = {"emission-retries", "emission-retries-dynamodb-processor"}
    assert names <= both.keys()
    assert names & alone.keys() == {"emission-retries-dynamodb-processor"}


@pytest.mark.parametrize(
    ("errors", "requests", "pages"),
    [(1, 1, False), (4, 4, False), (5, 20, True), (5, 1_000, False), (80, 1_000, True)],
)
@pytest.mark.parametrize("api", [HTTP, REST, OWN_URL])
def test_5xx_page_as_a_share_of_the_webhooks_and_never_for_a_single_one(
    api: dict[str, str], errors: int, requests: int, pages: bool, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    alarm = _alarms(synthesize("prod", api=api)["Buffer"])["webhooks-fail"]
    (expression,) = [each["Expression"] for each in alarm["Metrics"] if "Expression" in each]
    names = {"IF": lambda test, then, other: then if test else other, "errors": errors, "requests": requests}
    assert (eval(expression, names) > alarm["Threshold"]) is pages  # noqa: S307 - our own formula


@pytest.mark.parametrize("name", ["watchdog-silent", "window-sweep-silent"])
def test_silence_after_a_value_is_an_alarm_and_silence_before_the_first_is_none(
    name: str, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    alarm = _alarms(synthesize("prod")["Buffer"])[name]
    (filled,) = [each for each in alarm["Metrics"] if "Expression" in each]
    (published,) = [each for each in alarm["Metrics"] if "MetricStat" in each]
    assert filled["Expression"] == f"FILL({published['Id']}, 0)"
    assert (alarm["Threshold"], alarm["ComparisonOperator"]) == (1, "LessThanThreshold")
    assert alarm["DatapointsToAlarm"] < alarm["EvaluationPeriods"], "a value must remain that FILL can continue"


def test_no_alarm_fires_because_a_new_stage_has_published_nothing(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    stacks = synthesize("prod", **RESPONDER, **CANARY, **BY_SNS)
    alarms = [alarm for name in ("Buffer", "Responder") for alarm in _alarms(stacks[name]).values()]
    assert {alarm["TreatMissingData"] for alarm in alarms} == {"ignore", "notBreaching"}


@pytest.mark.parametrize(("name", "above_ms"), [("oldest-overdue", 60_000), ("oldest-window-overdue", 60_000)])
def test_what_is_overdue_stays_an_alarm_while_nobody_can_look(
    name: str, above_ms: int, synthesize: Callable[..., Mapping[str, Template]]
) -> None:
    alarm = _alarms(synthesize("prod")["Buffer"])[name]
    assert alarm["AlarmDescription"].startswith("[page]")
    assert (_metric(alarm)["Stat"], alarm["Threshold"]) == ("Maximum", above_ms)
    assert alarm["TreatMissingData"] == "ignore"


def test_the_cache_warns_before_the_limits_of_the_stage(synthesize: Callable[..., Mapping[str, Template]]) -> None:
    stacks = synthesize("dev", cache={"max_storage_gb": 8, "max_ecpu_per_second": 2_000})
    alarms = _alarms(stacks["Buffer"])
    assert alarms["cache-storage"]["Threshold"] == 6_000_000_000
    assert alarms["cache-requests"]["Threshold"] == 1_500 * _metric(alarms["cache-requests"])["Period"]
    for title, limit in (("Storage", 8_000_000_000), ("ECPUs", 2_000)):
        (line,) = _widget(stacks["Buffer"], title)["annotations"]["horizontal"]
        assert line["value"] == limit


def test_the_cache_is_found_under_the_name_that_serverless_caches_report(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    stacks = synthesize("prod")
    (cache,) = _all(stacks["Cache"], "AWS::ElastiCache::ServerlessCache")
    named = [
        _metric(each)["Dimensions"] for name, each in _alarms(stacks["Buffer"]).items() if name.startswith("cache-")
    ]
    assert named == [[{"Name": "clusterId", "Value": cache["ServerlessCacheName"]}]] * 7


def test_every_function_is_watched_for_errors_and_throttles(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    alarms = _alarms(synthesize("prod")["Buffer"])
    for role in ROLES:
        dashed = role.replace("_", "-")
        assert _metric(alarms[f"{dashed}-errors"])["MetricName"] == "Errors"
        # Only operators invoke admin, and they see each refusal themselves.
        if role != "admin":
            assert _metric(alarms[f"throttles-{dashed}"])["MetricName"] == "Throttles"


def test_at_an_own_address_refusals_by_lambda_page_because_they_are_no_5xx(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    at_url, at_gateway = (
        _alarms(synthesize("prod", api=kind)["Buffer"])["throttles-ingest"] for kind in (OWN_URL, HTTP)
    )
    assert _metric(at_url)["MetricName"] == "Throttles"
    assert at_url["AlarmDescription"].startswith("[page]")
    assert (at_url["Threshold"], at_url["ComparisonOperator"]) == (4, "GreaterThanThreshold")
    # There API Gateway answers 5xx instead, about which another alarm pages.
    assert at_gateway["AlarmDescription"].startswith("[ticket]")


def test_the_queues_of_end_user_messaging_are_watched_where_it_is_used(
    synthesize: Callable[..., Mapping[str, Template]],
) -> None:
    names = {
        "queued-webhooks-wait": "ApproximateAgeOfOldestMessage",
        "unreadable-webhooks": "ApproximateNumberOfMessagesVisible",
    }
    template = synthesize("prod", **BY_SNS)["Buffer"]
    watched = {name: _metric(_alarms(template)[name]) for name in names}
    assert {name: metric["MetricName"] for name, metric in watched.items()} == names
    assert len({json.dumps(metric["Dimensions"]) for metric in watched.values()}) == len(names)
    assert names.keys().isdisjoint(_alarms(synthesize("prod")["Buffer"]))


def _emitted() -> Iterator[Told]:
    """Return every literal name that a function counts or measures; those of shared code may come from any of them."""
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        room, folder = path.relative_to(ROOT).parts[:2]
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            name = call.args[0]
            if call.func.attr not in {"count", "measure_ms", "count_by"} or not isinstance(name, ast.Constant):
                continue
            own = {str(keyword.arg) for keyword in call.keywords} if call.func.attr == "count_by" else set()
            services = ROLES | set(RESPONDER) if room == "message_buffer" else {folder if room == "lambdas" else room}
            for service in services:
                yield Told(str(name.value), service, frozenset({"service", *own}))


def _looked_at(template: Template, *, namespace: str) -> Iterator[Told]:
    for alarm in _alarms(template).values():
        stats = [each["MetricStat"]["Metric"] for each in alarm["Metrics"] if "MetricStat" in each]
        for metric in stats:
            if metric["Namespace"] == namespace:
                yield _require_setting(
                    metric["MetricName"], {each["Name"]: each["Value"] for each in metric["Dimensions"]}
                )
        yield from _in_queries([each.get("Expression", "") for each in alarm["Metrics"]], namespace)
    for widget in _widgets(template):
        for line in widget["properties"].get("metrics", []):
            if line[0] == namespace:
                names = [each for each in line[2:] if isinstance(each, str)]
                yield _require_setting(line[1], dict(zip(names[::2], names[1::2], strict=True)))
            elif isinstance(line[0], dict):
                yield from _in_queries([line[0]["expression"]], namespace)


def _require_setting(name: str, dimensions: Mapping[str, str]) -> Told:
    return Told(name, dimensions["service"], frozenset(dimensions))


def _in_queries(expressions: Iterable[str], namespace: str) -> Iterator[Told]:
    for expression in expressions:
        if query := re.fullmatch(QUERY, expression):
            assert query[2] == namespace
            # The sum is about Valkey and runs over all functions except the one that does not know Valkey.
            yield from (Told(query[1], service) for service in ROLES - {"dynamodb_processor"})
        elif search := re.match(
            rf"SEARCH\('{{{namespace},([\w,]+)}} MetricName=\"(\w+)\" service=\"(\w+)\"", expression
        ):
            yield Told(search[2], search[3], frozenset(search[1].split(",")))
        else:
            assert namespace not in expression, expression
