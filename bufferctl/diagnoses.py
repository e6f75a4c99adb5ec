"""The diagnoses, which are functions that each yield findings about one thing that may be wrong with a stage.

A finding says what is wrong and what to do, each in a sentence. A diagnosis that cannot read something raises
Unreadable, and the other diagnoses continue.
"""

import json
import socket
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bufferctl import checkout
from bufferctl.facts import LOOK_BACK_MINUTES, Count, LogLine, Resource, StageFacts, Unreadable
from bufferctl.formatting import minute, moment
from message_buffer.json_object import Json
from message_buffer.limits import DEAD_LETTER_RETENTION_DAYS, MAX_OVERDUE_MS

# The watchdog logs twice a minute, the sweep once a minute, and the canary every five minutes. Whichever of them logs
# nothing for this time does not run.
MAX_SILENCE_MINUTES = 11
# Report a platform's refused webhooks if there are more than MAX, because every public address receives some forgeries.
# If the stage accepted no webhook of that platform, report them if there are at least MIN.
MAX_REFUSED_WEBHOOKS, MIN_REFUSED_WEBHOOKS = 100, 3
UNUSED_DAYS = 3
MAX_REASON_CHARACTERS = 90
CERTIFICATE_DAYS = 30
MAX_SKEW_SECONDS = 60
MAX_API_ANSWER_SECONDS = 20
MAX_SHARE_OF_A_QUOTA = 0.8
# New accounts may run only 10 functions at once. A quota below this is too small for a burst.
MIN_CONCURRENCY = 100
RUNBOOK = "docs/runbook.md"


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
EMITTERS = ("conversation_processor", "dynamodb_processor")
# The warnings that a function logs when work fails and is tried again, with their sections in the runbook.
FAILED_ATTEMPTS: Mapping[str, Mapping[str, str]] = {
    "ingest": {
        "processor could not be started": "processor-start-failures",
        "the DynamoDB lane stands in": "fallback-in-use",
        "rules not renewed": "rules-unreachable",
        "rules skipped": "rules-skipped",
        "aliases unreachable": "aliases-unreachable",
        "queued webhook stays": "queued-webhooks-wait",
        "webhook secrets not renewed": "webhooks-fail",
    },
    "processor": {
        "conversation processor could not be started": "conversation-processor-start-failures",
        "processor could not be started": "processor-start-failures",
        "store fails": "store-failures",
    },
    "conversation_processor": {
        "emit failed": "emission-retries",
        "store failed": "store-failures",
    },
    "dynamodb_processor": {
        "window failed": "emission-retries",
        "window not locked": "oldest-window-overdue",
    },
    "watchdog": {
        "processor could not be started": "processor-start-failures",
    },
    "responder": {
        "reply is tried again": "reply-dead-letters",
    },
}
MODEL_REFUSED = (
    "Amazon Bedrock refuses the model. In the first 15 minutes of an account's use of it, wait; otherwise allow it: "
    "docs/responder.md#turning-it-on."
)
# Texts by which to recognize Lambda's log lines about uncaught errors, and about runs that Lambda ended.
UNCAUGHT = ("Task timed out", "Runtime exited", "Runtime.ImportModuleError", "Traceback")
# A pattern for Lambda's report of a failed run, if the functions write logs in JSON.
FAILED_REPORT = '{ $.type = "platform.report" && $.record.status != "success" }'
ERROR_PATTERNS = ('{ $.level = "ERROR" }', *(f'"{sign}"' for sign in UNCAUGHT), FAILED_REPORT)


# -- the deployment --------------------------------------------------------------------------------


def stacks(facts: StageFacts) -> Iterator[Finding]:
    again = f"Run `{_deploy(facts)}`; docs/deploy.md#roll-back says what else helps."
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


def _deploy(facts: StageFacts) -> str:
    return "make up" if facts.is_local else f"make deploy STAGE={facts.name}"


def _again(facts: StageFacts, in_aws: str) -> str:
    """Return advice for a change that someone made by hand. A deployment of the same template does not undo it."""
    return "Run `make down`, then `make up`." if facts.is_local else in_aws


def version(facts: StageFacts) -> Iterator[Finding]:
    deployed, here = facts.outputs.get("Commit"), checkout.commit()
    if deployed is None or here is None:
        raise Unreadable("the deployed commit: this folder, or that of the deployment, is not a git checkout")
    if deployed != here:
        yield Finding(
            ADVICE,
            f"Commit {_short(deployed)} is deployed, and this checkout is {_short(here)}.",
            f"If this checkout should run there, run `{_deploy(facts)}`.",
        )


def functions(facts: StageFacts) -> Iterator[Finding]:
    """Find functions' settings that differ from the template. Someone has changed these by hand."""
    correct = _again(facts, "Correct it by hand, because a deployment only repairs what it changes.")
    for function in facts.of_type("AWS::Lambda::Function"):
        name = _role_of(facts, function)
        found = _read_or_none(facts, "lambda", "get_function_configuration", FunctionName=function.id)
        if found is None:
            yield Finding(
                BROKEN, f"The function {name} does not exist.", _again(facts, "Remove and deploy its stack again.")
            )
            continue
        if found.get("State") in ("Failed", "Inactive") or found.get("LastUpdateStatus") == "Failed":
            reason = found.get("StateReason") or found.get("LastUpdateStatusReason") or "Lambda gives no reason"
            yield Finding(BROKEN, f"The function {name} cannot run: {reason}.", correct)
        if changed := list(_changed(function, found)):
            what = f"The function {name} differs from its template: {', '.join(changed)}."
            yield Finding(FAILING, what, correct)
        yield from _concurrency(facts, function, name)


def _changed(function: Resource, found: Json) -> Iterator[str]:
    for property_name, unit in (("MemorySize", "MB"), ("Timeout", "s")):
        wanted, actual = function.properties.get(property_name), found.get(property_name)
        if isinstance(wanted, int | str) and str(wanted).isdigit() and int(wanted) != actual:
            yield f"{property_name} is {actual} {unit} instead of {wanted}"
    wanted = function.properties.get("Environment", {}).get("Variables", {})
    actual = found.get("Environment", {}).get("Variables", {})
    for variable, value in wanted.items():
        if variable not in actual:
            yield f"the variable {variable} is missing"
        elif isinstance(value, str) and actual[variable] != value:
            yield f"the variable {variable} was changed"


def _concurrency(facts: StageFacts, function: Resource, name: str) -> Iterator[Finding]:
    reserved = facts.read("lambda", "get_function_concurrency", FunctionName=function.id).get(
        "ReservedConcurrentExecutions"
    )
    if reserved == 0:
        yield Finding(
            BROKEN,
            f"The function {name} is stopped, because its reserved concurrency is 0.",
            f"Unless this is on purpose: `{facts.aws_cli} lambda delete-function-concurrency --function-name "
            f"{function.id}`.",
        )


def triggers(facts: StageFacts) -> Iterator[Finding]:
    """Find rules and queues that no longer start what they should."""
    for rule in facts.of_type("AWS::Events::Rule"):
        bus, _, name = rule.id.rpartition("|")
        # The emulator's id of a rule does not contain the bus. If the template names a bus for the rule, it is the
        # stage's bus.
        if not bus and rule.properties.get("EventBusName"):
            bus = facts.outputs["EventBusName"]
        place = {"Name": name, **({"EventBusName": bus} if bus else {})}
        found = _read_or_none(facts, "events", "describe_rule", **place)
        if found is None or found["State"] != "ENABLED":
            state = "does not exist" if found is None else "is disabled"
            at = f" --event-bus-name {place['EventBusName']}" if "EventBusName" in place else ""
            yield Finding(
                BROKEN,
                f"The rule {rule.logical_id}, which starts {_purpose(rule)}, {state}.",
                _again(facts, "Remove its stack and deploy it again.") if found is None else
                f"Enable it: `{facts.aws_cli} events enable-rule --name {name}{at}`.",
            )  # fmt: skip
    for mapping in facts.of_type("AWS::Lambda::EventSourceMapping"):
        found = _read_or_none(facts, "lambda", "get_event_source_mapping", UUID=mapping.id)
        state = found["State"] if found else "missing"
        if state not in ("Enabled", "Enabling", "Creating", "Updating"):
            name = found["FunctionArn"].split(":")[6] if found else ""
            role = next((role for role, function in facts.functions.items() if function == name), mapping.logical_id)
            yield Finding(
                BROKEN,
                f"The {role.replace('_', ' ')} does not receive from its queue: the mapping is {state.lower()}.",
                f"Enable it: `{facts.aws_cli} lambda update-event-source-mapping --uuid {mapping.id} --enabled`.",
            )


def _purpose(rule: Resource) -> str:
    purposes = {"EveryMinute": "the watchdog", "SweepEveryMinute": "the sweep of the DynamoDB lane",
                "EveryFiveMinutes": "the canary", "CanaryBatches": "the canary's answer",
                "BatchesReady": "the responder"}  # fmt: skip
    return next((what for start, what in purposes.items() if rule.logical_id.startswith(start)), "a function")


def rules(facts: StageFacts) -> Iterator[Finding]:
    """Find rules of cdk.json that ingest ignores. `attempts` finds other ignored rules in the logs."""
    from message_buffer.rules.layers import problems_of_deployed  # noqa: PLC0415 - it would make --help slow

    if "ingest" not in facts.functions:
        return
    if problems := problems_of_deployed(_settings(facts, "ingest").get("rules", {})):
        yield Finding(
            FAILING,
            f"Ingest ignores the deployed rules: {'; '.join(problems)}.",
            "Correct `rules` of the stage in cdk.json, and deploy.",
        )


# -- the way in ------------------------------------------------------------------------------------


def api(facts: StageFacts) -> Iterator[Finding]:
    """Send the API a request that ingest refuses. The refusal shows that both the API and ingest work."""
    endpoint = facts.api_endpoint
    if endpoint is None:
        return
    see = f"See {RUNBOOK}#webhooks-fail."
    try:
        with urllib.request.urlopen(f"{endpoint}/webhook/generic", timeout=MAX_API_ANSWER_SECONDS) as response:  # noqa: S310
            status = response.status
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError as error:
        yield Finding(BROKEN, f"The API does not answer at {endpoint}: {error}.", see)
        return
    if status == 404 or status >= 500:
        yield Finding(BROKEN, f"The API answers {status} to a request for ingest.", see)


def domain(facts: StageFacts) -> Iterator[Finding]:
    """Check the stage's own domain name, its DNS record and its certificate."""
    target, host = facts.outputs.get("ApiDnsTarget"), urlsplit(facts.outputs.get("ApiEndpoint", "")).hostname
    if target is None or host is None:
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        yield Finding(BROKEN, f"The name {host} has no address.", f"At your DNS provider, point it at {target}.")
    found = facts.read("apigatewayv2", "get_domain_name", DomainName=host)["DomainNameConfigurations"][0]
    if found.get("DomainNameStatus") not in ("AVAILABLE", None):
        reason = found.get("DomainNameStatusMessage") or found["DomainNameStatus"]
        yield Finding(
            BROKEN, f"API Gateway does not serve {host}: {reason}.", "See docs/deploy.md#a-domain-name-of-its-own."
        )
    certificate = facts.read("acm", "describe_certificate", CertificateArn=found["CertificateArn"])["Certificate"]
    if certificate["Status"] != "ISSUED":
        yield Finding(
            BROKEN, f"The certificate of {host} is {certificate['Status']}.", "Request a new one, and set its ARN."
        )
    elif "NotAfter" in certificate:
        days = facts.days_until(certificate["NotAfter"])
        if days < CERTIFICATE_DAYS:
            renewal = certificate.get("RenewalSummary", {}).get("RenewalStatus", "not begun")
            yield Finding(
                FAILING,
                f"The certificate of {host} ends in {days} days. The status of its renewal is: {renewal}.",
                "Check whether ACM can still validate the name.",
            )


def secrets(facts: StageFacts) -> Iterator[Finding]:
    secret_id = facts.outputs.get("WebhookSecretId")
    if secret_id is None:
        return
    put = f"Put it right: {RUNBOOK}#webhook-secrets."
    found = _read_or_none(facts, "secretsmanager", "get_secret_value", SecretId=secret_id)
    try:
        content = json.loads(found["SecretString"]) if found else None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        what = "is not a JSON object" if found else "does not exist, or has no value"
        yield Finding(BROKEN, f"The secret of the webhooks {what}, so every webhook is refused.", put)
        return
    if not content:
        yield Finding(BROKEN, "No platform has a webhook secret, so every webhook is refused.", put)
    yield from _unused(facts, content)


def _unused(facts: StageFacts, content: Mapping[str, Any]) -> Iterator[Finding]:
    if facts.age_days < UNUSED_DAYS:
        return
    for platform in sorted(content.keys() - {"generic"}):
        if not _has_sent(facts, platform, minutes=UNUSED_DAYS * 1_440):
            yield Finding(
                ADVICE,
                f"{platform} has a webhook secret, but has sent nothing for {UNUSED_DAYS} days.",
                "Check in the platform's console that the webhook is still registered with this address.",
            )


def refusals(facts: StageFacts) -> Iterator[Finding]:
    """Find platforms whose webhooks are all refused, many forged webhooks, and webhooks that could not be stored."""
    refused, reasons = Counter[str](), dict[str, str]()
    for line in facts.said("ingest", "signature refused", minutes=LOOK_BACK_MINUTES):
        platform = line["platform"]
        # In each minute ingest logs the first refused webhooks with their reasons. It then logs one line with the
        # number of the others.
        refused[platform] += line.get("more", 1)
        reasons[platform] = line.get("reason") or reasons.get(platform, "the signature is wrong")
    for platform, count in refused.items():
        accepts = _has_sent(facts, platform, minutes=LOOK_BACK_MINUTES)
        if count > MAX_REFUSED_WEBHOOKS or (not accepts and count >= MIN_REFUSED_WEBHOOKS):
            others = ", and none was accepted" if not accepts else ""
            yield Finding(
                FAILING,
                f"{count} webhooks of {platform} were answered 401 within the hour{others}; last reason: "
                f"{reasons[platform].rstrip('.')}.",
                f"See {RUNBOOK}#unauthentic-webhooks.",
            )
    later: dict[str, list[int]] = {}
    for line in facts.said("ingest", "refused for now", minutes=LOOK_BACK_MINUTES):
        later.setdefault(_brief(line.get("reason")), []).append(line["atMs"])
    for reason, times in sorted(later.items(), key=lambda item: -len(item[1])):
        yield Finding(
            BROKEN,
            f"{len(times)} {'webhook was' if len(times) == 1 else 'webhooks were'} answered 503 within the hour, "
            f"last at {moment(max(times))}: {reason}.",
            f"See {RUNBOOK}#webhooks-fail.",
        )


def _has_sent(facts: StageFacts, platform: str, *, minutes: float) -> bool:
    """Return whether a webhook of the platform was accepted in the last `minutes`."""
    lines = facts.log_lines("ingest", f'{{ $.message = "buffered" && $.platform = "{platform}" }}', minutes=minutes)
    return any((line.fields.get("message"), line.fields.get("platform")) == ("buffered", platform) for line in lines)


# -- the work inside -------------------------------------------------------------------------------


def errors(facts: StageFacts) -> Iterator[Finding]:
    """Find errors that the functions logged, uncaught errors, and runs that Lambda ended."""
    for role in facts.functions:
        lines = [
            line for pattern in ERROR_PATTERNS for line in facts.log_lines(role, pattern, minutes=LOOK_BACK_MINUTES)
        ]
        seen = sorted({(line.at_ms, text) for line in lines if (text := _error_in(line))})
        if seen:
            name = role.replace("_", " ")
            yield Finding(
                FAILING,
                f"The {name} failed {_times(len(seen))} within the hour, last at {moment(seen[-1][0])}: {seen[-1][1]}.",
                f"See {RUNBOOK}#{name.replace(' ', '-')}-errors.",
            )


def _error_in(line: LogLine) -> str | None:
    fields = line.fields
    if fields.get("type") == "platform.report":
        status = fields.get("record", {}).get("status")
        return None if status == "success" else f"Lambda ended a run with the status {status}"
    if fields:
        detail = ", ".join(_brief(fields[name]) for name in ("error", "reason", "place") if fields.get(name))
        return f"{fields.get('message')} ({detail})" if fields.get("level") == "ERROR" else None
    if line.text.startswith("Traceback"):
        return "an uncaught error"
    if any(sign in line.text for sign in UNCAUGHT):
        return line.text.splitlines()[0].removeprefix("[ERROR] ").strip().rstrip(".")
    return None


def attempts(facts: StageFacts) -> Iterator[Finding]:
    """Find work that failed and is tried again. The finding is BROKEN if an emitter has emitted nothing since."""
    for role in facts.functions:
        if role not in FAILED_ATTEMPTS:
            continue
        lines = facts.said(role, *FAILED_ATTEMPTS[role], minutes=LOOK_BACK_MINUTES)
        for message, anchor in FAILED_ATTEMPTS[role].items():
            # Leave out attempts that failed because of a bug. They have the level ERROR, so `errors` finds them.
            failed = [each for each in lines if (each["message"], each.get("level")) == (message, "WARNING")]
            if not failed:
                continue
            last_ms = failed[-1]["atMs"]
            emits_nothing = role in EMITTERS and _has_emitted_since(facts, role, last_ms) is False
            reason = _brief(failed[-1].get("reason"))
            yield Finding(
                BROKEN if emits_nothing else FAILING,
                f"The {role.replace('_', ' ')} logged `{message}` {_times(len(failed))} within the hour, last at "
                f"{moment(last_ms)}{', and has emitted no batch since' if emits_nothing else ''}: "
                f"{reason}.",
                MODEL_REFUSED if reason == "converse: AccessDeniedException" else f"See {RUNBOOK}#{anchor}.",
            )


def _has_emitted_since(facts: StageFacts, role: str, at_ms: int) -> bool | None:
    """Return whether the function has emitted a batch since `at_ms`, or None if its log level hides that."""
    if facts.said(role, "emitted", minutes=facts.minutes_since(at_ms)):
        return True
    return False if _logs_info(_log_settings(facts, role)) else None


def throttles(facts: StageFacts) -> Iterator[Finding]:
    names = list(facts.functions.items())
    counts = facts.counts("AWS/Lambda", [("Throttles", {"FunctionName": name}) for _, name in names])
    for (role, _), count in zip(names, counts, strict=True):
        if count:
            yield Finding(
                FAILING,
                f"Lambda throttled the {role.replace('_', ' ')} {_times(count.total)} {_within_the_hour(count)}.",
                f"See {RUNBOOK}#throttles.",
            )


def watchdog(facts: StageFacts) -> Iterator[Finding]:
    """Read from the watchdog's log whether Valkey answers, whether processors run, and what is overdue."""
    if "watchdog" not in facts.functions:
        return
    lines = [
        line
        for message in ("shard checked", "shard not checked")
        for line in facts.said("watchdog", message, minutes=MAX_SILENCE_MINUTES)
    ]
    checked = {line["shard"]: line for line in sorted(lines, key=lambda line: int(line["atMs"]))}
    if not checked and not _logs_info(_log_settings(facts, "watchdog")):
        raise Unreadable("lease, heartbeat and oldest due: the stage's log_level hides the watchdog's log lines")
    if not checked:
        _require_age(facts, "the watchdog")
        yield Finding(
            BROKEN,
            f"For {MAX_SILENCE_MINUTES} minutes the watchdog has checked no shard.",
            f"See {RUNBOOK}#watchdog-silent.",
        )
    for line in checked.values():
        if "overdue_ms" not in line:
            reason = _brief(line.get("reason"))
            what = f"The watchdog cannot check shard {line['shard']}: {reason}."
            yield Finding(BROKEN, what, f"See {RUNBOOK}#store-failures.")
            continue
        if line["overdue_ms"] <= MAX_OVERDUE_MS:
            continue
        heartbeat = line.get("heartbeat_at_ms")
        alive = f"its processor was last alive at {moment(heartbeat)}" if heartbeat else "no processor runs"
        yield Finding(
            BROKEN,
            f"In shard {line['shard']} the oldest of {line['pending']} waiting conversations has been due for "
            f"{line['overdue_ms'] / 1_000:.0f} s, and {alive}.",
            f"See {RUNBOOK}#oldest-overdue.",
        )


def sweep(facts: StageFacts) -> Iterator[Finding]:
    """Read from the sweep's log whether the DynamoDB lane's sweep works, and whether triggers are lost."""
    if "dynamodb_processor" not in facts.functions:
        return
    swept = facts.said("dynamodb_processor", "swept", minutes=MAX_SILENCE_MINUTES)
    if not swept and not _logs_info(_log_settings(facts, "dynamodb_processor")):
        raise Unreadable("the DynamoDB lane's windows: the stage's log_level hides the sweep's log lines")
    if not swept:
        _require_age(facts, "the sweep")
        yield Finding(
            BROKEN,
            f"For {MAX_SILENCE_MINUTES} minutes no sweep has looked for overdue windows of the DynamoDB lane.",
            f"See {RUNBOOK}#window-sweep-silent.",
        )
    elif swept[-1]["resent"]:
        yield Finding(
            BROKEN,
            f"{swept[-1]['resent']} windows of the DynamoDB lane have been due for over a minute.",
            f"See {RUNBOOK}#oldest-window-overdue.",
        )


def canary(facts: StageFacts) -> Iterator[Finding]:
    if "canary" not in facts.functions:
        return
    lines = facts.said("canary", "canary failed", minutes=MAX_SILENCE_MINUTES)
    well = facts.said("canary", "canary is well", minutes=MAX_SILENCE_MINUTES)
    if lines and (not well or well[-1]["atMs"] < lines[-1]["atMs"]):
        yield Finding(BROKEN, f"The canary's last run failed: {_brief(lines[-1].get('reason'))}.",
                      f"See {RUNBOOK}#canary-failed.")  # fmt: skip


# -- what was left over ----------------------------------------------------------------------------


def queues(facts: StageFacts) -> Iterator[Finding]:
    """Count dead letters. Read their reasons from the logs, because receiving would hide them from operators."""
    kinds = (
        ("DeadLetterQueueUrl", "dead letters", BROKEN, "dead-letters", EMITTERS, "dead letter"),
        ("ReplyDeadLetterQueueUrl", "batches without an answer", BROKEN, "reply-dead-letters", ("responder",),
         "reply was given up"),
    )  # fmt: skip
    for output, what, severity, anchor, roles, message in kinds:
        if output not in facts.outputs:
            continue
        attributes = facts.read(
            "sqs", "get_queue_attributes", QueueUrl=facts.outputs[output],
            AttributeNames=["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"],
        )["Attributes"]  # fmt: skip
        count = sum(map(int, attributes.values()))
        if not count:
            continue
        reasons = Counter(
            _brief(line["reason"])
            for role in roles
            for line in facts.said(role, message, minutes=DEAD_LETTER_RETENTION_DAYS * 1_440)
            if "reason" in line
        )
        because = "; ".join(f"{reason} ({times})" for reason, times in reasons.most_common(3))
        found = f"A queue has {what}: {count}{', because: ' if because else ''}{because}."
        yield Finding(severity, found, f"See {RUNBOOK}#{anchor}.")


def consumers(facts: StageFacts) -> Iterator[Finding]:
    """Find out whether a rule sends batches to a target, and whether the bus can deliver them."""
    bus = facts.outputs.get("EventBusName")
    if bus is None:
        return
    rules = [
        rule["Name"]
        for rule in facts.pages("events", "list_rules", "Rules", EventBusName=bus)
        if rule["State"] == "ENABLED" and not _is_of_a_tool(rule["Name"])
    ]
    idle = [
        name
        for name in rules
        if not facts.read("events", "list_targets_by_rule", Rule=name, EventBusName=bus).get("Targets")
    ]
    for name in idle:
        yield Finding(
            FAILING,
            f"The rule {name} has no target, so it delivers nothing.",
            "Give it a target: docs/consumer.md#rule-queue-policy. Or delete it.",
        )
    rules = [name for name in rules if name not in idle]
    if not rules:
        yield Finding(FAILING, "No rule takes batches from the bus, so nobody receives them.", "See docs/consumer.md.")
        return
    failed = facts.counts(
        "AWS/Events", [("FailedInvocations", {"EventBusName": bus, "RuleName": name}) for name in rules]
    )
    for name, count in zip(rules, failed, strict=True):
        if count:
            yield Finding(
                BROKEN,
                f"The bus could not deliver {count.total:.0f} events of the rule {name} {_within_the_hour(count)}.",
                "Let the target's policy accept the rule: docs/consumer.md#rule-queue-policy.",
            )


def _is_of_a_tool(rule: str) -> bool:
    return rule.startswith(("bufferctl-", "tap-")) or "CanaryBatches" in rule


def cache(facts: StageFacts) -> Iterator[Finding]:
    # A stage whose network is being changed has both caches for a while.
    caches = {"Cache": f"message-buffer-{facts.name}", "PublicCache": f"public-buffer-{facts.name}"}
    for stack, cache_name in caches.items():
        if stack in facts.stacks:
            yield from _refusals_of_cache(facts, cache_name)


def _refusals_of_cache(facts: StageFacts, cache_name: str) -> Iterator[Finding]:
    names = {
        "AuthenticationFailures": "refused sign-ins",
        "IamAuthenticationThrottling": "throttled sign-ins",
        "CommandAuthorizationFailures": "refused commands",
        "KeyAuthorizationFailures": "refused keys",
        "ThrottledCmds": "throttled requests",
        "Evictions": "evicted keys",
    }
    named = {"clusterId": cache_name}
    counts = facts.counts("AWS/ElastiCache", [(name, named) for name in names])
    for what, count in zip(names.values(), counts, strict=True):
        if count:
            yield Finding(
                FAILING,
                f"Valkey counted {count.total:.0f} {what} {_within_the_hour(count)}.",
                f"See {RUNBOOK}#store-failures.",
            )


# -- alarms and the account ------------------------------------------------------------------------


def alarms(facts: StageFacts) -> Iterator[Finding]:
    prefix = f"message-buffer-{facts.name}-"
    for alarm in facts.pages("cloudwatch", "describe_alarms", "MetricAlarms", AlarmNamePrefix=prefix):
        says = str(alarm.get("AlarmDescription", "")).partition(" Runbook: ")
        if alarm["StateValue"] == "ALARM":
            severity = BROKEN if says[0].startswith("[page]") else FAILING
            name, sentence = alarm["AlarmName"].removeprefix(prefix), says[0].partition("] ")[2]
            yield Finding(severity, f"Alarm {name}: {sentence}", f"See {says[2] or RUNBOOK}.")
        if not alarm.get("ActionsEnabled", True):
            yield Finding(
                FAILING,
                f"The alarm {alarm['AlarmName']} notifies nobody, because its actions are disabled.",
                f"Run `{facts.aws_cli} cloudwatch enable-alarm-actions --alarm-names {alarm['AlarmName']}`.",
            )


def subscribers(facts: StageFacts) -> Iterator[Finding]:
    topic = facts.outputs.get("AlarmTopicArn")
    if topic is None:
        return
    found = list(facts.pages("sns", "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic))
    for each in found:
        if each["SubscriptionArn"] == "PendingConfirmation":
            yield Finding(
                FAILING,
                f"{each['Endpoint']} has not confirmed the subscription to the alarms.",
                "Confirm it by the link in AWS's mail, or subscribe the address again.",
            )
    if not found:
        yield Finding(FAILING, "Nobody receives the alarms.", "Set alarm_emails in cdk.json, and deploy.")


def quotas(facts: StageFacts) -> Iterator[Finding]:
    """Compare the account's quotas of concurrency and code storage with what is used and what the stage may need."""
    response = facts.read("lambda", "get_account_settings")
    limit, usage = response["AccountLimit"], response["AccountUsage"]
    total, free = limit["ConcurrentExecutions"], limit["UnreservedConcurrentExecutions"]
    ask = "Ask for more: Service Quotas, Lambda, Concurrent executions."
    if total < MIN_CONCURRENCY:
        yield Finding(
            FAILING,
            f"Lambda runs at most {total} functions at once in this account; a burst of webhooks needs more.",
            ask,
        )
    used = facts.maximum("AWS/Lambda", ("ConcurrentExecutions", {}), hours=24)
    if used >= MAX_SHARE_OF_A_QUOTA * total:
        yield Finding(FAILING, f"In the last day, up to {used:.0f} of {total} functions ran at once.", ask)
    stage_functions = facts.of_type("AWS::Lambda::Function")
    sharing = sum("ReservedConcurrentExecutions" not in function.properties for function in stage_functions)
    if total >= MIN_CONCURRENCY and free < sharing:
        what = f"{sharing} functions of the stage share {free} unreserved concurrent executions."
        yield Finding(FAILING, what, ask)
    if usage["TotalCodeSize"] >= MAX_SHARE_OF_A_QUOTA * limit["TotalCodeSize"]:
        yield Finding(
            FAILING,
            f"Lambda's code storage is used to {usage['TotalCodeSize'] / limit['TotalCodeSize']:.0%}.",
            "Delete old versions of functions and layers.",
        )


def clock(facts: StageFacts) -> Iterator[Finding]:
    ahead = facts.skew_seconds
    if abs(ahead) > MAX_SKEW_SECONDS:
        direction = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            FAILING,
            f"The clock of this machine is {abs(ahead):.0f} s {direction} AWS's.",
            "Correct the clock. AWS and the webhooks refuse signatures that are five minutes off.",
        )


DIAGNOSES: Mapping[str, Diagnosis] = {
    "stacks": stacks,
    "version": version,
    "functions": functions,
    "triggers": triggers,
    "rules": rules,
    "API": api,
    "domain": domain,
    "webhook secrets": secrets,
    "refused webhooks": refusals,
    "errors": errors,
    "failed attempts": attempts,
    "throttles": throttles,
    "Valkey lane": watchdog,
    "DynamoDB lane": sweep,
    "canary": canary,
    "dead letters": queues,
    "consumers": consumers,
    "Valkey": cache,
    "alarms": alarms,
    "subscribers of alarms": subscribers,
    "quotas": quotas,
    "clock": clock,
}


# -- helpers of the diagnoses ------------------------------------------------------------------------


def _read_or_none(facts: StageFacts, service: str, operation: str, **arguments: Any) -> Json | None:
    """Return the response, or None if the resource does not exist."""
    from botocore.exceptions import ClientError  # noqa: PLC0415 - it would make --help slow

    try:
        return facts.read(service, operation, **arguments)
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            return None
        raise


def _times(count: float) -> str:
    return "once" if count == 1 else f"{count:.0f} times"


def _within_the_hour(count: Count) -> str:
    return f"within the hour, last at {minute(count.last_at_ms)}"


def _brief(reason: object) -> str:
    """Return the beginning of a reason, which may quote another program's long text."""
    text = str(reason or "no reason is logged").rstrip(".")
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}…"


def _require_age(facts: StageFacts, who: str) -> None:
    """Raise Unreadable if the stage is so young that `who` need not have logged anything yet."""
    if facts.age_days * 1_440 < MAX_SILENCE_MINUTES:
        raise Unreadable(
            f"{who} has logged nothing yet, which is normal in a stage that is younger than {MAX_SILENCE_MINUTES} "
            "minutes"
        )


def _logs_info(settings: Json) -> bool:
    return settings.get("level") in ("INFO", "DEBUG", None)


def _log_settings(facts: StageFacts, role: str) -> Json:
    """Return a function's log settings that differ from the defaults, or an empty object if they cannot be read."""
    log: Json = _settings(facts, role).get("log", {})
    return log


def _settings(facts: StageFacts, role: str) -> Json:
    """Return a function's settings, or an empty object if they cannot be read."""
    found = _read_or_none(facts, "lambda", "get_function_configuration", FunctionName=facts.functions[role])
    settings: Json = json.loads((found or {}).get("Environment", {}).get("Variables", {}).get("SETTINGS", "{}"))
    return settings


def _role_of(facts: StageFacts, function: Resource) -> str:
    return next((role for role, name in facts.functions.items() if name == function.id), function.logical_id)


def _short(commit: str) -> str:
    return commit[:12] + (checkout.CHANGED if commit.endswith(checkout.CHANGED) else "")
