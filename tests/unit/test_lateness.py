"""`bufferctl why` names a cause only if a log line proves it. The lines are as a local stage and Lambda write them."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from bufferctl.errors import Unreachable
from bufferctl.facts import StageFacts
from bufferctl.lateness import explain, grade
from message_buffer.json_object import Json

DUE_MS = 1_795_181_225_000
NAME, BATCH = "default/generic/shop/ada", f"0a1b-{DUE_MS - 5_000}-1"
ROLES = ("ingest", "processor", "conversation_processor", "dynamodb_processor", "watchdog", "admin")
CAMEL = {role: "".join(word.capitalize() for word in role.split("_")) for role in ROLES}
EVENT: Json = {
    "conversationId": NAME, "batchId": BATCH, "attempt": 1, "lane": "valkey", "bufferedAt": DUE_MS + 4_000,
    "metadata": {"firstMessageAt": DUE_MS - 5_000, "waitMs": 5_000, "rule": "silenceMs", "appliedWaitMs": 5_000},
}  # fmt: skip
Line = tuple[str, int, Json | str]


def said(role: str, after_ms: int, message: str, level: str = "INFO", **fields: Any) -> Line:
    """Return a line that a function logged this long after the due time."""
    at = datetime.fromtimestamp((DUE_MS + after_ms) / 1_000, UTC).isoformat(timespec="milliseconds")
    return role, after_ms, {"level": level, "message": message, "timestamp": at, "service": role, **fields}


def emitted(after_ms: int, attempt: int = 1, role: str = "conversation_processor") -> Line:
    return said(
        role, after_ms, "emitted", conversation=NAME, batch=BATCH, attempt=attempt, rule="silenceMs",
        applied_wait_ms=5_000, wait_ms=5_000, late_ms=after_ms,
    )  # fmt: skip


def taken(after_ms: int, claimed_ms: int, attempt: int = 1, *, waited: bool = False) -> Line:
    return said(
        "conversation_processor", after_ms, "taken late", conversation=NAME, batch=BATCH, attempt=attempt,
        late_ms=after_ms, claimed_late_ms=claimed_ms, waited_for_slot=waited,
    )  # fmt: skip


def lambda_said(after_ms: int, line: Json | str) -> Line:
    return "conversation_processor", after_ms, line


def report(status: str, **metrics: float) -> Json:
    return {"time": "…", "type": "platform.report", "record": {"status": status, "metrics": metrics}}


REPORT = (
    "REPORT RequestId: 1\tDuration: 120.00 ms\tBilled Duration: 121 ms\tMemory Size: 256 MB\tMax Memory Used: 83 MB"
)
WARNING, PROCESSOR = "WARNING", "processor"


class Account:
    """Answers a stage's calls to AWS. Its logs match a pattern as inexactly as the emulator does."""

    def __init__(self, lines: list[Line], level: str = "INFO") -> None:
        self._lines, self._level = lines, level
        self.searches = 0

    def describe_stacks(self, **_: Any) -> Json:
        outputs = [{"OutputKey": f"{camel}LogGroup", "OutputValue": role} for role, camel in CAMEL.items()]
        outputs += [{"OutputKey": f"{camel}Function", "OutputValue": role} for role, camel in CAMEL.items()]
        return {"Stacks": [{"Outputs": outputs}]}

    def get_function_configuration(self, **_: Any) -> Json:
        return {"Environment": {"Variables": {"SETTINGS": json.dumps({"log": {"level": self._level}})}}}

    def filter_log_events(self, **asked: Any) -> Json:
        self.searches += 1
        pattern = asked["filterPattern"]
        events = [
            {"timestamp": DUE_MS + after_ms, "logStreamName": "s", "message": text}
            for role, after_ms, line in self._lines
            for text in [line if isinstance(line, str) else json.dumps(line)]
            if role == asked["logGroupName"] and (pattern.startswith("{") or pattern.strip('"') in text)
            if asked["startTime"] <= DUE_MS + after_ms <= asked.get("endTime", DUE_MS + after_ms)
        ]
        return {"events": events}


def why(lines: list[Line], *, event: Json | None = None, level: str = "INFO", **state: Any) -> Json:
    def ask(operation: str, **fields: Any) -> Json:
        idle = {"shard": 0, "count": 0, "batch": None, "firstAt": None, "lastAt": DUE_MS - 5_000}
        return {"logged": fields["id"]} if operation == "id.look_up" else idle | state

    account = Account(lines, level)
    facts = StageFacts("prod", lambda _: account, clock=lambda: DUE_MS + 60_000)
    return explain(facts, ask, NAME, event=event)


def kinds(found: Json) -> list[str]:
    return [cause["kind"] for cause in found["causes"]]


# Each cause with the lines that prove it, the other lines of that time, and a part of the sentence.
CAUSES: dict[str, tuple[list[Line], list[Line], str, str]] = {
    "a killed process of the emulator": (
        [lambda_said(900, "Worker process died")], [emitted(6_400, 2), taken(6_300, 6_000, 2)],
        "run_died", "Attempt 1 logged no result, so its run died: Worker process died.",
    ),
    "a time-out in text": (
        [lambda_said(24_000, "2026-11-20T13:00:24Z 1 Task timed out after 24.00 seconds")], [emitted(30_400, 2)],
        "run_died", "died: Task timed out after 24.00 seconds.",
    ),
    "a time-out in JSON": (
        [lambda_said(24_000, report("timeout", durationMs=24_000))],
        [emitted(30_400, 2), lambda_said(100, report("success", durationMs=9))], "run_died", "platform.report: timeout",
    ),
    "a bus that refuses": (
        [said("conversation_processor", 10, "emit failed", WARNING, conversation=NAME, batch=BATCH, attempt=1,
              retry_in_ms=3_000, reason="put event: ThrottlingException")],
        [emitted(3_200, 2), taken(3_100, 3_050, 2)],
        "emit_failed", "Attempt 1 failed, and the next had to wait 3.0 s: put event: ThrottlingException.",
    ),
    "no free slot": (
        [taken(3_000, 2_900, waited=True)], [emitted(3_050)], "no_free_slot", "so it was claimed 2.9 s later.",
    ),
    "an outage of Valkey that began before": (
        [said(PROCESSOR, 9_000, "store answers again", shard=0, away_ms=12_000)],
        [emitted(9_100), taken(9_050, 9_001), said(PROCESSOR, 9_001, "claimed", shard=0, conversations=1)],
        "valkey_away", "The processor reached Valkey again after 12.0 s.",
    ),
    "no processor": (
        [said("watchdog", 20_000, "processor started", shard=0)], [emitted(21_000), taken(20_950, 20_900)],
        "no_processor", "No processor ran for the shard, so the watchdog started one.",
    ),
    "a start that Lambda refused": (
        [said(PROCESSOR, 100, "conversation processor could not be started", WARNING, conversation=NAME,
              outcome="ClaimReturned", retry_in_ms=5_000, reason="TooManyRequestsException")],
        [emitted(5_300), taken(5_200, 5_100), said(PROCESSOR, 5_100, "claimed", shard=0, conversations=1)],
        "not_started", "Lambda did not start its run: TooManyRequestsException.",
    ),
    "a cold start in text": (
        [lambda_said(2_150, f"{REPORT}\tInit Duration: 1812.33 ms")], [emitted(2_100), taken(2_080, 20)],
        "cold_start", "2.1 s after the claim; it began after 2.0 s, because its instance was new",
    ),
    "a cold start in JSON": (
        [lambda_said(2_150, report("success", durationMs=120.0, initDurationMs=1812.33))],
        [emitted(2_100), taken(2_080, 20)], "cold_start", "and took 1.8 s to start.",
    ),
    "a trigger that was lost": (
        [said("dynamodb_processor", 30_000, "trigger sent again", WARNING, conversation=NAME)],
        [emitted(31_000, role="dynamodb_processor")], "trigger_late", "so the sweep sent another.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named_with_its_line_and_not_without_it(name: str) -> None:
    proof, others, kind, text = CAUSES[name]
    (cause,) = [each for each in why(proof + others)["causes"] if each["kind"] == kind]
    assert text in cause["text"]
    assert cause["from"]
    assert not [each for each in why(others)["causes"] if text in each["text"]]


def test_a_batch_that_is_not_late_needs_no_cause() -> None:
    found = why([emitted(900), taken(800, 700, waited=True)])
    assert (found["lateMs"], found["lateness"], found["causes"]) == (900, "on_time", [])


@pytest.mark.parametrize(
    "lines",
    [
        [emitted(3_000), taken(2_900, 2_800), said(PROCESSOR, 2_800, "claimed", shard=0, conversations=1)],
        [emitted(3_000), taken(2_900, 2_800), said(PROCESSOR, -50, "store answers again", shard=0, away_ms=9_000)],
        [emitted(3_000), taken(2_900, 2_800), said(PROCESSOR, 9_000, "store answers again", shard=0, away_ms=2_000)],
        [emitted(3_000), taken(2_900, 2_800), said("watchdog", 500, "processor started", shard=1)],
        [emitted(3_000), taken(2_900, 2_800), said("watchdog", -500, "processor started", shard=0)],
    ],
    ids=["nothing else", "an outage before", "an outage after", "another shard", "a processor that ran"],
)
def test_what_no_line_proves_is_unknown(lines: list[Line]) -> None:
    assert kinds(why(lines)) == ["unknown"]


@pytest.mark.parametrize(
    ("level", "says"), [("INFO", "old ones are deleted"), ("WARNING", "log_level hides the lines")]
)
def test_missing_lines_are_said_to_be_missing(level: str, says: str) -> None:
    """Do not conclude from missing lines that a run died, or that nothing happened."""
    failed = said("conversation_processor", 10, "emit failed", WARNING, conversation=NAME, batch=BATCH, attempt=1,
                  retry_in_ms=900, reason="the bus")  # fmt: skip
    found = why([failed], event=EVENT | {"attempt": 3}, level=level)
    assert (kinds(found), found["lateness"]) == (["emit_failed", "unknown"], "late")
    assert says in found["causes"][-1]["text"]


def test_what_waits_and_is_not_due_is_explained_by_its_rule_alone() -> None:
    hold: Json = {"count": 1, "dueAt": DUE_MS + 90_000, "rule": "hold", "appliedWaitMs": 90_000, "state": "pending"}
    found = why([emitted(5_000)], **hold)
    assert (found["state"], found["lateMs"], found["causes"]) == ("waiting", 0, [])
    assert "on hold" in found["due"]


def test_a_failed_attempt_is_named_before_the_batch_is_emitted() -> None:
    failed = said("conversation_processor", 10, "emit failed", WARNING, conversation=NAME, batch=BATCH, attempt=1,
                  retry_in_ms=900, reason="the bus")  # fmt: skip
    found = why([failed], count=0, batch={"batchId": BATCH, "attempt": 1, "count": 1}, dueAt=DUE_MS + 61_000)
    assert (found["state"], found["dueAt"], kinds(found)) == ("in_flight", None, ["emit_failed"])


def test_what_waits_too_long_is_explained_by_its_shard() -> None:
    overdue: Json = {"count": 1, "dueAt": DUE_MS, "rule": "silenceMs", "appliedWaitMs": 5_000, "state": "pending"}
    refused = said("watchdog", 20_000, "processor could not be started", WARNING, shard=0, reason="Throttled")
    found = why([refused], **overdue)
    assert (kinds(found), found["lateness"]) == (["no_processor"], "very_late")


def test_a_dead_letter_is_found_by_its_conversation_and_its_redrive_is_not_taken_for_a_slow_run() -> None:
    letter = said("conversation_processor", 9_000, "dead letter", WARNING, conversation=NAME, batch=BATCH, attempt=9,
                  reason="attempts exhausted")  # fmt: skip
    assert why([letter])["state"] == "dead"
    redriven = why([letter, emitted(50_000, 10), taken(8_900, 8_800, 9)])
    assert (redriven["lateness"], {"dead_letter", "slow_emit"} & {*kinds(redriven)}) == ("very_late", {"dead_letter"})


def test_a_run_that_was_slow_after_it_had_taken_the_batch_is_named() -> None:
    assert kinds(why([emitted(4_000), taken(300, 10)])) == ["slow_emit"]
    assert kinds(why([emitted(4_000)])) == ["slow_emit"]


def test_an_earlier_batch_does_not_explain_a_later_one() -> None:
    earlier = said("conversation_processor", 10, "emit failed", WARNING, conversation=NAME, batch="another", attempt=1,
                   retry_in_ms=900, reason="the bus")  # fmt: skip
    assert kinds(why([earlier, emitted(3_000), taken(2_900, 2_890, waited=True)])) == ["no_free_slot"]


def test_a_batch_is_found_by_its_id_alone_even_if_the_logs_have_hashes() -> None:
    hashed = [
        (role, after_ms, line | {"batch": "#b", "conversation": "#c"})
        for role, after_ms, line in [emitted(3_000), taken(2_900, 2_890, waited=True)]
        if isinstance(line, dict)
    ]
    facts = StageFacts("prod", lambda _: Account([*hashed]), clock=lambda: DUE_MS + 60_000)
    found = explain(facts, lambda _, **__: {"logged": "#b"}, BATCH)
    assert (found["batchId"], found["conversation"], kinds(found)) == (BATCH, "#c", ["no_free_slot"])


def test_a_stage_without_valkey_says_so() -> None:
    def ask(operation: str, **fields: Any) -> Json:
        if operation == "conversation.show":
            raise Unreachable("Valkey cannot be reached.")
        return {"logged": fields["id"]}

    facts = StageFacts("prod", lambda _: Account([]), clock=lambda: DUE_MS)
    assert kinds(explain(facts, ask, NAME)) == ["valkey_away"]


def test_the_grades_begin_at_one_and_ten_seconds() -> None:
    assert [grade(each) for each in (None, 0, 1_000, 1_001, 10_000, 10_001)] == [
        None, "on_time", "on_time", "late", "late", "very_late",
    ]  # fmt: skip
