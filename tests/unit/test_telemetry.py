"""Log lines and metrics as they are written."""

import json
import re
from itertools import count
from typing import Any

import pytest

from message_buffer.errors import StoreUnavailable
from message_buffer.limits import MAX_METRICS_AGE_MS
from message_buffer.settings import LogSettings
from message_buffer.telemetry import MAY_WAIT, Telemetry
from tests.support.engine import ManualClock

# Powertools keeps a logger for each service, and with it the standard output that a test captured.
_services = count()


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Telemetry:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", f"service-{next(_services)}")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "MessageBuffer")
    return Telemetry()


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_decision_is_one_line_of_json(telemetry: Telemetry, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.info("emitted", conversation="c", attempt=2)
    (line,) = written(capsys)
    assert (line["message"], line["conversation"], line["attempt"]) == ("emitted", "c", 2)


def test_an_unforeseen_error_is_told_by_type_and_place_without_its_words(
    telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        json.loads("what a customer wrote")
    except ValueError as error:
        telemetry.crash("failed", error)
    (line,) = written(capsys)
    assert line["error"] == "JSONDecodeError"
    assert line["place"].startswith("json.decoder:")
    assert "customer" not in str(line)


def test_our_own_errors_are_told_in_their_words(telemetry: Telemetry, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.crash("failed", StoreUnavailable("Valkey cannot be reached"))
    assert written(capsys)[0]["reason"] == "Valkey cannot be reached"


def test_metrics_are_written_when_flushed_and_only_then(
    telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.flush()
    telemetry.count("Messages", 3)
    telemetry.measure_ms("WaitMs", 1_500)
    telemetry.measure_ms("LatenessMs", -1)
    assert written(capsys) == []
    telemetry.flush()
    telemetry.flush()
    (line,) = written(capsys)
    assert (line["Messages"], line["WaitMs"], line["LatenessMs"]) == ([3.0], [1_500.0], [0.0])
    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "MessageBuffer"


def test_more_values_than_a_line_may_hold_are_written_in_several(
    telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(250):
        telemetry.measure_ms("LatenessMs", 1)
    telemetry.flush()
    assert sum(len(line["LatenessMs"]) for line in written(capsys)) == 250


def test_a_reason_is_a_dimension_of_its_own_metric(telemetry: Telemetry, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.count("Batches")
    telemetry.count_by("FlushReasons", reason="silence")
    telemetry.flush()
    by_reason, plain = written(capsys)
    assert by_reason["reason"] == "silence"
    assert sorted(by_reason["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0]) == ["reason", "service"]
    assert plain["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["service"]]


@pytest.mark.parametrize(
    ("level", "said"), [("DEBUG", 4), ("INFO", 3), ("WARNING", 2), ("ERROR", 1), (None, 3)], ids=str
)
def test_the_stages_level_holds_even_if_lambda_has_a_lower_one(
    level: str | None,
    said: int,
    telemetry: Telemetry,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Lambda sets this in a stage that logs a share of its conversations.
    monkeypatch.setenv("AWS_LAMBDA_LOG_LEVEL", "DEBUG" if level == "DEBUG" else "INFO")
    telemetry = Telemetry(LogSettings(level=level))
    telemetry.crash("failed", StoreUnavailable("gone"))
    telemetry.warn("refused for now")
    telemetry.info("taken over")
    telemetry.debug("webhook")
    assert len(written(capsys)) == said


def test_lambda_can_read_the_level_of_a_line_because_its_time_is_of_rfc_3339(
    telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.warn("refused for now")
    (line,) = written(capsys)
    assert line["level"] == "WARNING"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", line["timestamp"])


# -- ids -------------------------------------------------------------------------------------------

NUMBER = "acme/whatsapp/106540352242922/491701234567"


@pytest.fixture
def hashing(telemetry: Telemetry) -> Telemetry:
    return Telemetry(LogSettings("a key of a stage"))


def test_a_stage_may_log_hashes_of_ids_that_an_operator_can_compute(
    hashing: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    hashing.info("emitted", conversation=NUMBER, batch="a-batch", reason="silence", attempt=2)
    hashing.warn("rules skipped", layer=f"conversation:{NUMBER}")
    hashing.warn("rules skipped", layer="tenant:acme")
    hashing.debug("webhook", conversations=[NUMBER, NUMBER])
    try:
        raise StoreUnavailable("gone")
    except StoreUnavailable as error:
        hashing.crash("failed", error, conversation=NUMBER)
    lines = written(capsys)
    assert NUMBER not in json.dumps(lines)
    logged = hashing.logged_id(NUMBER)
    emitted, of_conversation, of_tenant, failed = lines
    assert (emitted["conversation"], emitted["batch"]) == (logged, hashing.logged_id("a-batch"))
    assert (emitted["reason"], emitted["attempt"], failed["conversation"]) == ("silence", 2, logged)
    assert of_conversation["layer"] == f"conversation:{logged}"
    assert of_tenant["layer"] == "tenant:acme"


def test_another_key_makes_other_hashes_and_none_makes_none(telemetry: Telemetry, hashing: Telemetry) -> None:
    assert telemetry.logged_id(NUMBER) == NUMBER
    assert len({hashing.logged_id(NUMBER), Telemetry(LogSettings("another")).logged_id(NUMBER), NUMBER}) == 3
    assert hashing.logged_id(NUMBER) == Telemetry(LogSettings("a key of a stage")).logged_id(NUMBER)


# -- a share of the conversations ------------------------------------------------------------------


class Sampling:
    """The telemetry of two functions of a stage that logs a share of its conversations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float, *followed: str) -> None:
        monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "MessageBuffer")
        self.clock, self.chance = ManualClock(), 1.0
        self.functions = []
        for _ in range(2):
            monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", f"service-{next(_services)}")
            settings = LogSettings(share=share, followed=tuple(followed))
            telemetry = Telemetry(settings, clock=self.clock, chance=lambda: self.chance)
            telemetry.info("made")  # Powertools reads the service's name with the first line
            self.functions.append(telemetry)


NAMES = [f"default/whatsapp/106540352242922/{number}" for number in range(1_000)]


def test_a_conversation_has_all_of_its_lines_in_all_functions_or_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest, processor = Sampling(monkeypatch, 0.1).functions
    written(capsys)
    for name in NAMES:
        ingest.sampled("buffered", conversations=[name])
        processor.sampled("emitted", conversation=name)
    lines = written(capsys)
    buffered = {line["conversations"][0] for line in lines if line["message"] == "buffered"}
    emitted = {line["conversation"] for line in lines if line["message"] == "emitted"}
    assert buffered == emitted
    assert 70 < len(emitted) < 130, "about the share"


def test_warnings_errors_and_other_lines_are_always_logged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry, _ = Sampling(monkeypatch, 0).functions
    written(capsys)
    telemetry.warn("emit failed", conversation=NAMES[0])
    telemetry.crash("failed", StoreUnavailable("Valkey cannot be reached"), conversation=NAMES[0])
    telemetry.info("processor left", shard=0)
    assert [line["message"] for line in written(capsys)] == ["emit failed", "failed", "processor left"]


def test_a_followed_conversation_is_logged_whole_and_with_those_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest, processor = Sampling(monkeypatch, 0, NAMES[3]).functions
    written(capsys)
    ingest.sampled("buffered", conversations=NAMES[2:5])
    ingest.sampled("buffered", conversations=NAMES[5:8])
    processor.sampled("emitted", conversation=NAMES[3])
    assert [(line["message"], line.get("conversations")) for line in written(capsys)] == [
        ("buffered", NAMES[2:5]),
        ("emitted", None),
    ]


def test_ordinary_metrics_wait_until_ten_seconds_after_the_last_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Sampling(monkeypatch, 0.01)
    telemetry = scene.functions[0]

    def run() -> list[dict[str, Any]]:
        telemetry.count("Messages")
        telemetry.count_by("IgnoredKinds", reason="status")
        telemetry.flush_soon()
        return written(capsys)

    written(capsys)
    assert len(run()) == 2, "the first run of an instance"
    scene.clock.advance(MAX_METRICS_AGE_MS - 1)
    assert run() == []
    scene.clock.advance(1)
    by_reason, plain = run()
    assert (by_reason["IgnoredKinds"], plain["Messages"]) == ([2.0], [1.0, 1.0])
    assert run() == []
    scene.clock.advance(-60_000)
    assert len(run()) == 2, "the clock was set back"


def test_a_metric_that_an_alarm_may_need_is_written_at_once_with_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Sampling(monkeypatch, 0.01).functions[0]
    telemetry.flush()
    telemetry.count("Messages")
    telemetry.flush_soon()
    written(capsys)
    telemetry.count("Crashes")
    telemetry.flush_soon()
    (line,) = written(capsys)
    assert (line["Messages"], line["Crashes"]) == ([1.0], [1.0])
    telemetry.count_by("ProcessorExits", reason="lost")
    telemetry.flush_soon()
    assert len(written(capsys)) == 1


def test_a_stage_that_logs_all_writes_its_metrics_after_each_run(
    telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        telemetry.count("Messages")
        telemetry.flush_soon()
    assert len(written(capsys)) == 2
    assert "Messages" in MAY_WAIT
