"""The handlers' own part: which errors they raise, and that they always write their metrics."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lambdas.conversation_processor import handler as conversation_processor
from lambdas.dynamodb_processor import handler as dynamodb_processor
from lambdas.processor import handler as processor
from lambdas.processor.service import Exit, Processor
from lambdas.watchdog import handler as watchdog
from message_buffer.errors import ScriptInvariantBroken, SendFailed, StoreUnavailable
from message_buffer.lanes.dynamodb.triggers import SWEEP
from message_buffer.settings import ConnectionSettings, LogSettings, ValkeySettings, WatchdogSettings, to_variables
from tests.support.engine import SETTINGS
from tests.support.fakes import FakeFunctions, RecordedTelemetry

CONTEXT = SimpleNamespace(get_remaining_time_in_millis=lambda: 900_000)


def raising(error: Exception) -> Any:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


@pytest.fixture
def telemetry() -> RecordedTelemetry:
    return RecordedTelemetry()


# -- DynamoDB processor ----------------------------------------------------------------------------


def test_a_sweep_of_the_queue_that_fails_does_not_come_again(
    monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry
) -> None:
    """In an outage of the table, there is a new one each minute, and all would be carried out at its end."""
    failing = SimpleNamespace(sweep=raising(SendFailed("list windows: Throttling")))
    monkeypatch.setattr(dynamodb_processor, "_parts", lambda: (failing, None, telemetry))
    record = {"messageId": "m", "body": json.dumps(SWEEP), "receiptHandle": "r"}
    assert dynamodb_processor.handler({"Records": [record]}, CONTEXT) == {"batchItemFailures": []}
    assert [decision for _, decision, _ in telemetry.lines] == ["sweep failed"]
    with pytest.raises(SendFailed):
        dynamodb_processor.handler({"sweep": True}, CONTEXT)


# -- conversation processor ------------------------------------------------------------------------


def conversation_processor_with(monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry, **methods: Any) -> None:
    parts = (SimpleNamespace(**methods), SimpleNamespace(**methods), telemetry)
    monkeypatch.setattr(conversation_processor, "_parts", lambda: parts)


def test_a_conversation_processor_without_valkey_ends_well_for_the_watchdog_comes(
    monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry
) -> None:
    conversation_processor_with(monkeypatch, telemetry, process=raising(StoreUnavailable("gone")))
    conversation_processor.handler({"conversation": "c", "shard": 0, "deadline": 1}, CONTEXT)
    assert telemetry.counts["StoreFailures"] == 1
    assert telemetry.flushes == 1


def test_a_bug_in_a_script_fails_the_invocation(monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry) -> None:
    conversation_processor_with(monkeypatch, telemetry, process=raising(ScriptInvariantBroken("bug")))
    with pytest.raises(ScriptInvariantBroken):
        conversation_processor.handler({"conversation": "c", "shard": 0, "deadline": 1}, CONTEXT)
    assert telemetry.flushes == 1


def test_a_warm_up_takes_no_batch_and_never_fails(
    monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry
) -> None:
    conversation_processor_with(monkeypatch, telemetry, warm_up=lambda: None)
    assert conversation_processor.handler({"warm": True}, CONTEXT) is None
    for error in (StoreUnavailable("gone"), SendFailed("connect to the event bus: TimeoutError")):
        conversation_processor_with(monkeypatch, telemetry, warm_up=raising(error))
        assert conversation_processor.handler({"warm": True}, CONTEXT) is None
    assert telemetry.counts == {}, "a failed warm-up harms no batch, so it is not counted"


def test_a_redrive_answers_the_batch_id_or_fails(monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry) -> None:
    conversation_processor_with(monkeypatch, telemetry, redrive=lambda letter, _time: letter["batchId"])
    assert conversation_processor.handler({"redrive": {"batchId": "b"}}, CONTEXT) == {"redriven": "b"}
    conversation_processor_with(monkeypatch, telemetry, redrive=raising(SendFailed("put event: Throttling")))
    with pytest.raises(SendFailed):
        conversation_processor.handler({"redrive": {}}, CONTEXT)


# -- processor -------------------------------------------------------------------------------------


@pytest.fixture
def functions() -> FakeFunctions:
    return FakeFunctions()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry, functions: FakeFunctions) -> Any:
    settings = SimpleNamespace(
        conversation_processor_function="c",
        valkey=SimpleNamespace(processor_function="p", connection=ConnectionSettings("valkey://127.0.0.1:1")),
        idle_ms=10_000,
        handover_ms=30_000,
    )
    store = SimpleNamespace(settings=SimpleNamespace(lease_ms=15_000))
    opener = SimpleNamespace(open=raising(AssertionError()), swallowed=raising(AssertionError()))
    parts = processor._ProcessorParts(settings, opener, store, functions, telemetry)  # type: ignore[arg-type]
    monkeypatch.setattr(processor, "_parts", lambda: parts)
    processor._warm_up_conversation_processor.cache_clear()

    def with_outcome(outcome: Any) -> Any:
        monkeypatch.setattr(Processor, "run", outcome)
        return processor.handler({"shard": 0, "start": "s1"}, CONTEXT)

    return with_outcome


def test_a_new_instance_of_the_processor_starts_one_of_the_conversation_processor(
    run: Any, functions: FakeFunctions
) -> None:
    for _ in range(2):
        run(lambda *_: Exit.IDLE)
    processor._warm_up_conversation_processor().join()
    assert functions.started == [("c", {"warm": True})]


def test_a_processor_that_fails_says_so_and_fails_the_invocation(run: Any, telemetry: RecordedTelemetry) -> None:
    with pytest.raises(ScriptInvariantBroken):
        run(raising(ScriptInvariantBroken("bug")))
    assert telemetry.counts["ProcessorExits error"] == 1
    assert telemetry.said("processor failed")
    assert telemetry.flushes == 1


# -- watchdog --------------------------------------------------------------------------------------


def test_what_the_store_deals_with_itself_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = ConnectionSettings("valkey://127.0.0.1:1", connect_timeout_ms=1_000, answer_timeout_ms=100)
    valkey = ValkeySettings(connection, iam=None, store=SETTINGS, processor_function="p")
    powertools = {
        "POWERTOOLS_METRICS_NAMESPACE": "MessageBuffer", "POWERTOOLS_SERVICE_NAME": "watchdog-without-valkey",
    }  # fmt: skip
    variables = to_variables(WatchdogSettings(LogSettings(), valkey))
    for name, value in (variables | powertools).items():
        monkeypatch.setenv(name, value)
    watchdog._parts.cache_clear()
    with pytest.raises(StoreUnavailable):
        watchdog.handler({}, CONTEXT)
    watchdog._parts.cache_clear()
    metrics = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (metrics["StoreRetries"], metrics["StoreFailures"]) == ([1.0], [1.0])


def test_a_pass_that_failed_fails_the_invocation_so_that_the_alarm_sees_it(
    monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry
) -> None:
    watchdog_with(monkeypatch, telemetry, run_pass=raising(StoreUnavailable("gone")))
    with pytest.raises(StoreUnavailable):
        watchdog.handler({}, CONTEXT)
    assert telemetry.flushes == 1


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), KeyError("a bug")])
def test_a_pass_of_a_queue_that_failed_does_not_let_lambda_slow_the_queue_down(
    monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry, error: Exception
) -> None:
    watchdog_with(monkeypatch, telemetry, run_pass=raising(error))
    watchdog.handler({"Records": [{"body": "{}"}]}, CONTEXT)
    assert telemetry.said("pass failed")
    assert telemetry.flushes == 1


def watchdog_with(monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry, **methods: Any) -> None:
    monkeypatch.setattr(watchdog, "_parts", lambda: (SimpleNamespace(**methods), telemetry))


@pytest.mark.parametrize("event", [{}, {"Records": [{"body": "{}"}, {"body": "no record"}]}, {"Records": None}])
def test_whatever_the_event_says_the_watchdog_makes_one_pass(
    monkeypatch: pytest.MonkeyPatch, telemetry: RecordedTelemetry, event: dict[str, Any]
) -> None:
    passes: list[int] = []
    watchdog_with(monkeypatch, telemetry, run_pass=lambda left: passes.append(left()))
    watchdog.handler(event, CONTEXT)
    assert len(passes) == telemetry.flushes == 1


def test_a_warm_up_that_is_refused_harms_nothing(
    run: Any, telemetry: RecordedTelemetry, functions: FakeFunctions
) -> None:
    functions.refusals = 1
    assert run(lambda *_: Exit.IDLE) == {"reason": "idle"}
    processor._warm_up_conversation_processor().join()
    assert functions.started == []
    assert telemetry.counts == {"ProcessorExits idle": 1}, "a refused warm-up is not counted as a failed start"
