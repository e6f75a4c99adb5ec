"""Log lines and metrics as they are written."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest

from message_buffer.errors import StoreUnavailable
from message_buffer.settings import LogSettings
from message_buffer.telemetry import Telemetry

THREADS, VALUES = 8, 500
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


def test_threads_that_share_it_lose_no_value_and_write_no_line_twice(
    telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(_thread: int) -> None:
        telemetry.info("emitted")
        for _ in range(VALUES):
            telemetry.count("Batches")
            telemetry.count_by("FlushReasons", reason="silence")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    telemetry.flush()
    lines = written(capsys)
    assert sum(sum(line.get("Batches", [])) for line in lines) == THREADS * VALUES
    assert sum(sum(line.get("FlushReasons", [])) for line in lines) == THREADS * VALUES
    assert [line["message"] for line in lines if "message" in line] == ["emitted"] * THREADS


def test_a_reason_is_a_dimension_of_its_own_metric(telemetry: Telemetry, capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.count("Batches")
    telemetry.count_by("FlushReasons", reason="silence")
    telemetry.flush()
    by_reason, plain = written(capsys)
    assert by_reason["reason"] == "silence"
    assert sorted(by_reason["_aws"]["CloudWatchMetrics"][0]["Dimensions"][0]) == ["reason", "service"]
    assert plain["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == [["service"]]


@pytest.mark.parametrize(("level", "said"), [("INFO", 3), ("WARNING", 2), ("ERROR", 1), (None, 3)], ids=str)
def test_lines_below_the_stages_level_are_left_out(
    level: str | None, said: int, telemetry: Telemetry, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry(LogSettings(level=level))
    telemetry.crash("failed", StoreUnavailable("gone"))
    telemetry.warn("refused for now")
    telemetry.info("taken over")
    assert len(written(capsys)) == said


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
    hashing.info("buffered", conversations=[NUMBER, NUMBER])
    try:
        raise StoreUnavailable("gone")
    except StoreUnavailable as error:
        hashing.crash("failed", error, conversation=NUMBER)
    lines = written(capsys)
    assert NUMBER not in json.dumps(lines)
    logged = hashing.logged_id(NUMBER)
    emitted, of_conversation, of_tenant, buffered, failed = lines
    assert buffered["conversations"] == [logged, logged]
    assert (emitted["conversation"], emitted["batch"]) == (logged, hashing.logged_id("a-batch"))
    assert (emitted["reason"], emitted["attempt"], failed["conversation"]) == ("silence", 2, logged)
    assert of_conversation["layer"] == f"conversation:{logged}"
    assert of_tenant["layer"] == "tenant:acme"


def test_another_key_makes_other_hashes_and_none_makes_none(telemetry: Telemetry, hashing: Telemetry) -> None:
    assert telemetry.logged_id(NUMBER) == NUMBER
    assert len({hashing.logged_id(NUMBER), Telemetry(LogSettings("another")).logged_id(NUMBER), NUMBER}) == 3
    assert hashing.logged_id(NUMBER) == Telemetry(LogSettings("a key of a stage")).logged_id(NUMBER)
