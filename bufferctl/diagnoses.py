"""The diagnoses, which are functions that each yield findings about one thing that may be wrong with a stage.

They read logs, alarms and limits; `cdk drift` says what was changed by hand. A finding says what is wrong and what to
do, which is the advice of the table of symptoms where the table has one. A diagnosis that cannot read something raises
Unreadable, and the other diagnoses continue.
"""

import json
import re
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from bufferctl.facts import LOOK_BACK_MINUTES, LogLine, StageFacts, Unreadable
from bufferctl.formatting import moment
from infra.symptoms import BY_NAME, EMITTERS, RUNBOOK, SYMPTOMS, Source, Symptom, without_links
from message_buffer.limits import DEAD_LETTER_RETENTION_DAYS, MAX_OVERDUE_MS

# The watchdog logs twice a minute, the sweep once a minute, and the canary every five minutes. Whichever of them logs
# nothing for this time does not run.
MAX_SILENCE_MINUTES = 11
# Report a platform's refused webhooks if there are more than MAX, because every public address receives some forgeries.
# If the stage accepted no webhook of that platform, report them if there are at least MIN.
MAX_REFUSED_WEBHOOKS, MIN_REFUSED_WEBHOOKS = 100, 3
MAX_REASON_CHARACTERS = 90
MAX_API_ANSWER_SECONDS = 20
MAX_SHARE_OF_A_QUOTA = 0.8
# The lines that a function logs for each pass, and for work that went well.
PASSES = {"watchdog": "shard checked", "dynamodb_processor": "swept"}
DOES_WELL = PASSES | {"conversation_processor": "emitted", "dynamodb_processor": "emitted", "canary": "canary is well"}
# New accounts may run only 10 functions at once. A quota below this is too small for a burst.
MIN_CONCURRENCY = 100


class Severity(IntEnum):
    """How bad a finding is. The worst findings are printed first."""

    BROKEN = 0
    """Users notice."""
    FAILING = 1
    """Something fails, but the stage repairs it, or users have not noticed it yet."""
    ADVICE = 2


class Finding(NamedTuple):
    severity: Severity
    what: str
    do: str


Diagnosis = Callable[[StageFacts], Iterator[Finding]]
BROKEN, FAILING, ADVICE = Severity.BROKEN, Severity.FAILING, Severity.ADVICE
# Texts by which to recognize Lambda's log lines about uncaught errors, and about runs that Lambda ended.
UNCAUGHT = ("Task timed out", "Runtime exited", "Runtime.ImportModuleError", "Traceback")
# A pattern for Lambda's report of a failed run, if the functions write logs in JSON.
FAILED_REPORT = '{ $.type = "platform.report" && $.record.status != "success" }'
ERROR_PATTERNS = ('{ $.level = "ERROR" }', *(f'"{sign}"' for sign in UNCAUGHT), FAILED_REPORT)


def found(severity: Severity, what: str, symptom: str | Symptom) -> Finding:
    """Return a finding with the advice of the symptom."""
    known = BY_NAME[symptom] if isinstance(symptom, str) else symptom
    return Finding(severity, what, f"{without_links(known.do)} ({known.runbook})")


def stacks(facts: StageFacts) -> Iterator[Finding]:
    deploy = "make up" if facts.is_local else f"make deploy STAGE={facts.name}"
    again = f"Run `{deploy}`; docs/deploy.md#roll-back says what else helps."
    if "Buffer" not in facts.stacks:
        yield Finding(BROKEN, f"The stack MessageBuffer-{facts.name}-Buffer does not exist in this account.", again)
    for stack in facts.stacks.values():
        state, name = stack["StackStatus"], stack["StackName"]
        reason = f": {stack['StackStatusReason']}" if stack.get("StackStatusReason") else ""
        if state.endswith("_IN_PROGRESS"):
            yield Finding(ADVICE, f"The stack {name} is being changed ({state}).", "Wait until it has ended.")
        elif state == "UPDATE_ROLLBACK_COMPLETE":
            yield Finding(FAILING, f"The last deployment of {name} failed and was rolled back{reason}.", again)
        elif "FAILED" in state or "ROLLBACK" in state or state == "DELETE_COMPLETE":
            yield Finding(BROKEN, f"The stack {name} is in the state {state}{reason}.", again)


def api(facts: StageFacts) -> Iterator[Finding]:
    """Send the API a request that ingest refuses. The refusal shows that both the API and ingest work."""
    if (endpoint := facts.api_endpoint) is None:
        return
    try:
        with urllib.request.urlopen(f"{endpoint}/webhook/generic", timeout=MAX_API_ANSWER_SECONDS) as response:  # noqa: S310
            answer = response.status
    except urllib.error.HTTPError as error:
        answer = error.code
    except OSError as error:
        answer = str(error)
    if not isinstance(answer, int) or answer == 404 or answer >= 500:
        yield found(BROKEN, f"The API at {endpoint} answers a request for ingest with: {answer}.", "Webhooks fail")


def secrets(facts: StageFacts) -> Iterator[Finding]:
    if (secret_id := facts.outputs.get("WebhookSecretId")) is None:
        return
    try:
        content = json.loads(facts.read("secretsmanager", "get_secret_value", SecretId=secret_id)["SecretString"])
    except ValueError:
        content = None
    if not isinstance(content, dict) or not content:
        what = "The secret of the webhooks is no JSON object with a platform, so every webhook is refused."
        yield Finding(BROKEN, what, f"Put it right: {RUNBOOK}#webhook-secrets.")


def refusals(facts: StageFacts) -> Iterator[Finding]:
    """Find platforms whose webhooks are all refused, and many forged webhooks."""
    refused, reasons = Counter[str](), dict[str, str]()
    for line in facts.said("ingest", "signature refused", minutes=LOOK_BACK_MINUTES):
        # In each minute ingest logs the first refused webhooks with their reasons. It then logs one line with the
        # number of the others.
        refused[line["platform"]] += line.get("more", 1)
        reason = line.get("reason") or reasons.get(line["platform"], "the signature is wrong")
        checked = f" It was checked for {line['url']}, which must be the URL at the platform" if "url" in line else ""
        reasons[line["platform"]] = f"{reason}{checked}"
    for platform, count in refused.items():
        pattern = f'{{ $.message = "buffered" && $.platform = "{platform}" }}'
        lines = facts.log_lines("ingest", pattern, minutes=LOOK_BACK_MINUTES)
        # The emulator does not understand the whole pattern.
        accepts = any(
            ("buffered", platform) == (each.fields.get("message"), each.fields.get("platform")) for each in lines
        )
        if count > MAX_REFUSED_WEBHOOKS or (not accepts and count >= MIN_REFUSED_WEBHOOKS):
            others = ", and none was accepted" if not accepts else ""
            what = f"{count} webhooks of {platform} were answered 401 within the hour{others}; last reason: "
            yield found(FAILING, f"{what}{reasons[platform].rstrip('.')}.", "Unauthentic webhooks")


def errors(facts: StageFacts) -> Iterator[Finding]:
    """Find errors that the functions logged, uncaught errors, and runs that Lambda ended."""
    for role in facts.functions:
        lines = [
            line for pattern in ERROR_PATTERNS for line in facts.log_lines(role, pattern, minutes=LOOK_BACK_MINUTES)
        ]
        seen = sorted({(line.at_ms, text) for line in lines if (text := _error_in(line))})
        if seen:
            at_ms, text = seen[-1]
            what = f"The {_shown(role)} failed {_times(len(seen), at_ms)}: {text}."
            yield found(FAILING, what, "Function errors")


def _error_in(line: LogLine) -> str | None:
    fields = line.fields
    if fields.get("type") == "platform.report":
        status = fields.get("record", {}).get("status")
        return None if status == "success" else f"Lambda ended a run with the status {status}"
    if fields:
        detail = ", ".join(_brief(fields[name]) for name in ("error", "reason", "place") if fields.get(name))
        return f"{fields.get('message')} ({detail})" if fields.get("level") == "ERROR" else None
    if not any(sign in line.text for sign in UNCAUGHT):
        return None
    first = line.text.splitlines()[0].removeprefix("[ERROR] ").strip().rstrip(".")
    return "an uncaught error" if first.startswith("Traceback") else first


def attempts(facts: StageFacts) -> Iterator[Finding]:
    """Find the warnings of the table of symptoms. A finding is BROKEN if the function has done no good work since."""
    for role in facts.functions:
        symptoms = {message: symptom for symptom in SYMPTOMS for message in symptom.logs.get(role, ())}
        lines = facts.said(role, *symptoms, minutes=LOOK_BACK_MINUTES) if symptoms else []
        for message, symptom in symptoms.items():
            # Leave out attempts that failed because of a bug. They have the level ERROR, so `errors` finds them.
            failed = [each for each in lines if (each["message"], each.get("level")) == (message, "WARNING")]
            if not failed:
                continue
            last_ms, reason = failed[-1]["atMs"], _brief(failed[-1].get("reason"))
            stopped = not _does_well_since(facts, role, last_ms)
            since = f", and not `{DOES_WELL[role]}` since" if stopped else ""
            what = f"The {_shown(role)} logged `{message}` {_times(len(failed), last_ms)}{since}: {reason}."
            yield found(BROKEN if stopped or symptom.name == "Webhooks fail" else FAILING, what, symptom)


def _does_well_since(facts: StageFacts, role: str, at_ms: int) -> bool:
    """Return whether the function has logged good work since `at_ms`, or cannot log it."""
    if role not in DOES_WELL or facts.said(role, DOES_WELL[role], minutes=facts.minutes_since(at_ms)):
        return True
    return not facts.logs_info(role)


def passes(facts: StageFacts) -> Iterator[Finding]:
    """Read from the logs whether the passes of the watchdog and of the sweep are made, and what is overdue."""
    for role, message in PASSES.items():
        if role not in facts.functions:
            continue
        lines = facts.said(role, message, minutes=MAX_SILENCE_MINUTES)
        if not lines and not facts.logs_info(role):
            raise Unreadable(f"the passes of the {_shown(role)}: the stage's log_level hides them")
        if not lines and facts.age_minutes < MAX_SILENCE_MINUTES:
            young = f"which is normal in a stage that is younger than {MAX_SILENCE_MINUTES} minutes"
            raise Unreadable(f"the {_shown(role)} has logged nothing yet, {young}")
        if not lines:
            what = f"For {MAX_SILENCE_MINUTES} minutes the {_shown(role)} has logged no `{message}`."
            yield found(BROKEN, what, "Sweeps silent")
        for shard, line in {line["shard"]: line for line in lines if "shard" in line}.items():
            if line["overdue_ms"] > MAX_OVERDUE_MS:
                heartbeat, seconds = line.get("heartbeat_at_ms"), line["overdue_ms"] / 1_000
                alive = f"its processor was last alive at {moment(heartbeat)}" if heartbeat else "no processor runs"
                what = f"In shard {shard} the oldest of {line['pending']} waiting conversations has been due for "
                yield found(BROKEN, f"{what}{seconds:.0f} s, and {alive}.", "Oldest overdue")


def queues(facts: StageFacts) -> Iterator[Finding]:
    """Count dead letters. Read their reasons from the logs, because receiving would hide them from operators."""
    kinds = (
        ("DeadLetterQueueUrl", "Dead letters", EMITTERS, "dead letter"),
        ("QueueDeadLetters.*Url", "Queue dead letters", ("responder",), "reply was given up"),
    )
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    for outputs, symptom, roles, message in kinds:
        attributes = [
            facts.read("sqs", "get_queue_attributes", QueueUrl=url, AttributeNames=names)["Attributes"]
            for output, url in facts.outputs.items()
            if re.fullmatch(outputs, output)
        ]
        if count := sum(int(value) for each in attributes for value in each.values()):
            reasons = Counter(
                _brief(line["reason"])
                for role in roles
                for line in facts.said(role, message, minutes=DEAD_LETTER_RETENTION_DAYS * 1_440)
                if "reason" in line
            )
            because = "; ".join(f"{reason} ({times})" for reason, times in reasons.most_common(3))
            stated = f"{symptom}: {count}{', because: ' if because else ''}{because}."
            yield found(BROKEN, stated, symptom)


def consumers(facts: StageFacts) -> Iterator[Finding]:
    """Find out whether a queue, or a rule with a target, gets the batches, and whether the bus can deliver them."""
    if (bus := facts.outputs.get("EventBusName")) is None:
        return
    rules = [
        rule["Name"]
        for rule in facts.pages("events", "list_rules", "Rules", EventBusName=bus)
        # Rules of bufferctl, of the console and of the canary are no consumers.
        if rule["State"] == "ENABLED" and not re.match("bufferctl-|tap-|.*CanaryBatches", rule["Name"])
        if facts.read("events", "list_targets_by_rule", Rule=rule["Name"], EventBusName=bus).get("Targets")
    ]
    if not rules:
        if not any(re.fullmatch("Queue.*Url", output) for output in facts.outputs):
            what = "No rule with a target takes batches from the bus, and there is no queue, so nobody receives them."
            yield Finding(FAILING, what, "See docs/consumer.md.")
        return
    failed = [("FailedInvocations", {"EventBusName": bus, "RuleName": name}) for name in rules]
    for name, count in zip(rules, facts.totals("AWS/Events", failed), strict=True):
        if count:
            what = f"The bus could not deliver {count:.0f} events of the rule {name} within the hour."
            accept = "Let the target's policy accept the rule: docs/consumer.md#rule-queue-policy."
            yield Finding(BROKEN, what, accept)


def cache(facts: StageFacts) -> Iterator[Finding]:
    # A stage whose network is being changed has both caches for a while.
    caches = {"Cache": f"message-buffer-{facts.name}", "PublicCache": f"public-buffer-{facts.name}"}
    symptom = BY_NAME["Cache refusals"]
    names = [metric.name for metric in symptom.metrics if metric.source is Source.CACHE]
    for cluster in (name for stack, name in caches.items() if stack in facts.stacks):
        totals = facts.totals("AWS/ElastiCache", [(name, {"clusterId": cluster}) for name in names])
        for name, count in zip(names, totals, strict=True):
            if count:
                yield found(FAILING, f"The cache counted {count:.0f} {name} within the hour.", symptom)


def alarms(facts: StageFacts) -> Iterator[Finding]:
    prefix = f"message-buffer-{facts.name}-"
    for alarm in facts.pages("cloudwatch", "describe_alarms", "MetricAlarms", AlarmNamePrefix=prefix):
        name, says = alarm["AlarmName"], str(alarm.get("AlarmDescription", "")).partition(" Runbook: ")
        if alarm["StateValue"] == "ALARM":
            severity = BROKEN if says[0].startswith("[page]") else FAILING
            what = f"Alarm {name.removeprefix(prefix)}: {says[0].partition('] ')[2]}"
            known = next((each for each in SYMPTOMS if each.runbook == says[2]), None)
            yield found(severity, what, known) if known else Finding(severity, what, f"See {says[2] or RUNBOOK}.")
        if not alarm.get("ActionsEnabled", True):
            run = f"Run `{facts.aws_cli} cloudwatch enable-alarm-actions --alarm-names {name}`."
            yield Finding(FAILING, f"The alarm {name} notifies nobody, because its actions are disabled.", run)


def subscribers(facts: StageFacts) -> Iterator[Finding]:
    topic = facts.outputs.get("AlarmTopicArn")
    if topic is None:
        return
    subscribed = list(facts.pages("sns", "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic))
    for each in subscribed:
        if each["SubscriptionArn"] == "PendingConfirmation":
            confirm = "Confirm it by the link in AWS's mail, or subscribe the address again."
            yield Finding(FAILING, f"{each['Endpoint']} has not confirmed the subscription to the alarms.", confirm)
    if not subscribed:
        yield Finding(FAILING, "Nobody receives the alarms.", "Set alarm_emails in cdk.json, and deploy.")


def quotas(facts: StageFacts) -> Iterator[Finding]:
    """Check the account's quotas of concurrency and code storage."""
    response = facts.read("lambda", "get_account_settings")
    limit, usage = response["AccountLimit"], response["AccountUsage"]
    total = limit["ConcurrentExecutions"]
    if total < MIN_CONCURRENCY:
        what = f"Lambda runs at most {total} functions at once in this account; a burst of webhooks needs more."
        yield Finding(FAILING, what, f"Ask for more: {RUNBOOK}#raising-limits.")
    if usage["TotalCodeSize"] >= MAX_SHARE_OF_A_QUOTA * limit["TotalCodeSize"]:
        share = usage["TotalCodeSize"] / limit["TotalCodeSize"]
        delete = "Delete old versions of functions and layers."
        yield Finding(FAILING, f"Lambda's code storage is used to {share:.0%}.", delete)


DIAGNOSES: Mapping[str, Diagnosis] = {
    "stacks": stacks,
    "API": api,
    "webhook secrets": secrets,
    "refused webhooks": refusals,
    "errors": errors,
    "failed attempts": attempts,
    "passes": passes,
    "dead letters": queues,
    "consumers": consumers,
    "cache": cache,
    "alarms": alarms,
    "subscribers of alarms": subscribers,
    "quotas": quotas,
}


def _shown(role: str) -> str:
    return role.replace("_", " ")


def _times(count: int, last_ms: int) -> str:
    return f"{'once' if count == 1 else f'{count} times'} within the hour, last at {moment(last_ms)}"


def _brief(reason: object) -> str:
    """Return the beginning of a reason, which may quote another program's long text."""
    text = str(reason or "no reason is logged").rstrip(".")
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}…"
