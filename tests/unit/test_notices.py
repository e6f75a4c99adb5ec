"""The watchdog ends the runs that notices report, and leaves unreadable notices to a person."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given

from lambdas.watchdog.notices import Notices, read_notice
from message_buffer.errors import InvalidInput, SendFailed, StoreUnavailable
from message_buffer.lanes.outcomes import LeaseTaken, Lost, Renewed, Taken
from message_buffer.rules.layers import Rules
from tests.support.any_json import ANYTHING, fields_of
from tests.support.engine import Engine
from tests.support.fakes import FakeFunctions, RecordedTelemetry, valkey_lane

NOW = Rules(priority="vip")
MAX_STEP_MS = 14_000
RECORD = "requestPayload requestContext responseContext responsePayload"


class FakeNoticeQueue:
    def __init__(self) -> None:
        self.hidden: list[tuple[str, int]] = []
        self.failures: list[Exception] = []

    def hide(self, receipt: str, *, for_ms: int) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.hidden.append((receipt, for_ms))


class Scene:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.store = engine, engine.store
        self.functions, self.telemetry, self.queue = FakeFunctions(), RecordedTelemetry(), FakeNoticeQueue()
        self.notices = Notices(
            valkey_lane(engine.store, self.functions, self.telemetry),
            self.queue,
            self.telemetry,
            max_step_ms=MAX_STEP_MS,
        )

    def tell(self, *payloads: Any, left: Callable[[], int] = lambda: 25_000) -> list[str]:
        """Deliver a notice for each payload, and return the ids of those that stay in the queue."""
        bodies = [payload if isinstance(payload, str) else record(payload) for payload in payloads]
        records = [
            {"messageId": f"n{nth}", "receiptHandle": f"r{nth}", "body": body} for nth, body in enumerate(bodies)
        ]
        return self.notices.handle(records, left)

    def start(self, start_id: str) -> None:
        """Buffer a message, and let a processor with this start id acquire the lease."""
        self.engine.send("c", f"m {start_id}", rules=NOW)
        self.store.acquire_lease(0, f"{start_id}.run")


def record(payload: Any, *, condition: str = "RetriesExhausted") -> str:
    return json.dumps(
        {
            "version": "1.0",
            "requestContext": {"functionArn": "arn", "condition": condition, "approximateInvokeCount": 1},
            "requestPayload": payload,
            "responseContext": {"statusCode": 200, "functionError": "Unhandled"},
            "responsePayload": {"errorType": "Runtime.ExitError", "errorMessage": "signal: killed"},
        }
    )


@pytest.fixture
def scene(fake: Engine) -> Scene:
    return Scene(fake)


def test_a_dead_processor_is_followed_at_once(scene: Scene) -> None:
    scene.start("s1")
    assert scene.tell({"shard": 0, "start": "s1"}) == []
    assert scene.functions.processors() == [0]
    assert scene.store.renew_lease(0, "s1.run") == Lost()
    assert scene.telemetry.counts["Deaths processor"] == 1
    (line,) = scene.telemetry.said("run died")
    assert (line["reason"], line["shard"]) == ("RetriesExhausted: Runtime.ExitError", 0)


def test_the_successor_is_started_under_the_id_that_it_will_die_under(scene: Scene) -> None:
    scene.start("s1")
    scene.tell({"shard": 0, "start": "s1"})
    ((_, payload),) = scene.functions.started
    scene.store.acquire_lease(0, f"{payload['start']}.run")
    scene.engine.clock.advance(20_000)
    scene.tell(payload)
    assert len(scene.functions.started) == 2


@pytest.mark.parametrize("is_taken", [False, True])
def test_the_conversation_of_a_dead_conversation_processor_is_due_again(scene: Scene, is_taken: bool) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    scene.engine.claim()
    deadline_ms = scene.engine.clock.now_ms + scene.store.settings.claim_ms
    if is_taken:
        scene.store.take_batch("c", f"{deadline_ms}.run")
    scene.engine.clock.advance(5)
    assert scene.tell({"conversation": "c", "shard": 0, "deadline": deadline_ms}) == []
    assert scene.engine.claim() == ["c"]
    assert isinstance(scene.store.take_batch("c", "another"), Taken)
    assert scene.telemetry.counts["Deaths conversation_processor"] == 1


def test_a_notice_that_comes_twice_is_done_twice_and_changes_nothing_more(scene: Scene) -> None:
    scene.start("s1")
    assert scene.tell({"shard": 0, "start": "s1"}, {"shard": 0, "start": "s1"}) == []
    assert scene.functions.processors() == [0]
    assert scene.telemetry.counts["Deaths processor"] == 1


def test_after_a_row_of_deaths_the_notice_comes_back_when_the_pause_is_over(scene: Scene) -> None:
    scene.start("s1")
    scene.tell({"shard": 0, "start": "s1"})
    ((_, second),) = scene.functions.started
    scene.store.acquire_lease(0, f"{second['start']}.run")
    assert scene.tell(second) == ["n0"]
    assert scene.queue.hidden == [("r0", 1_000)]
    assert len(scene.functions.started) == 1
    scene.engine.clock.advance(1_000)
    assert scene.tell(second) == []
    assert len(scene.functions.started) == 2


@pytest.mark.parametrize("payload", [{"shard": 0}, {"conversation": "c", "shard": 0}])
def test_a_notice_of_older_code_starts_what_is_missing(scene: Scene, payload: dict[str, Any]) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    scene.engine.clock.advance(scene.store.settings.start_ms)
    assert scene.tell(payload) == []
    assert scene.functions.processors() == [0]


UNREADABLE = [
    "", "{", "null", "[]", '"notice"', "7", "{}", '{"requestPayload": null}', "[" * 100_000,
    record({}), record({"shard": "0"}), record({"shard": True}), record({"shard": -1}), record({"shard": 1}),
    record({"redrive": {"payloads": ["words"]}}),
    record({"shard": 0, "start": 7}), record({"shard": 0, "start": ""}), record({"shard": 0, "start": "a b"}),
    record({"shard": 0, "start": "s" * 65}),
    record({"shard": 0, "conversation": 7}), record({"shard": 0, "conversation": "c", "deadline": "1"}),
    record({"shard": 0, "conversation": "c", "deadline": 1.5}),
    record({"shard": 0, "conversation": "c", "deadline": -1}),
    record({"shard": 0, "conversation": "", "deadline": 1}),
    record({"shard": 0, "conversation": "c" * 2_000, "deadline": 1}),
    record({"shard": 0, "conversation": "\ud800", "deadline": 1}),
]  # fmt: skip


@pytest.mark.parametrize("body", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_notice_that_cannot_be_read_goes_to_a_person_and_holds_up_no_other(scene: Scene, body: str) -> None:
    scene.start("s1")
    assert scene.tell(body, {"shard": 0, "start": "s1"}) == ["n0"]
    assert scene.queue.hidden == [("r0", 0)], "after a few deliveries SQS moves it to another queue"
    assert scene.functions.processors() == [0]
    assert len(scene.telemetry.said("notice unreadable")) == 1


def test_forged_notices_end_nothing(scene: Scene) -> None:
    scene.start("s1")
    assert scene.tell({"shard": 0, "start": "s"}, {"shard": 0, "start": "s1-run"}, {"shard": 0, "start": "0"}) == []
    assert isinstance(scene.store.renew_lease(0, "s1.run"), Renewed)
    assert isinstance(scene.store.acquire_lease(0, "other"), LeaseTaken)


def test_a_run_that_had_nothing_is_not_followed_and_needs_no_person(scene: Scene) -> None:
    scene.engine.send("c", "m1", rules=NOW)
    before = scene.engine.settle()
    assert scene.tell({"warm": True}) == []
    assert scene.engine.settle() == before
    assert not scene.telemetry.said("notice unreadable")


@given(
    payload=fields_of("shard conversation start deadline redrive warm") | ANYTHING,
    told=fields_of(RECORD) | ANYTHING,
)
def test_whatever_a_notice_contains_it_is_read_or_refused(payload: Any, told: Any) -> None:
    for body in (record(payload), json.dumps(told)):
        with suppress(InvalidInput):
            dead = read_notice(body, shards=3)
            assert dead is None or 0 <= dead.shard < 3


def test_logs_contain_no_text_of_an_error(scene: Scene) -> None:
    told = json.loads(record({"shard": 0, "start": "s1"}))
    told["responsePayload"] = {"errorType": "my secret words", "errorMessage": "more words"}
    told["requestContext"]["condition"] = ["words"]
    scene.tell(json.dumps(told))
    assert scene.telemetry.said("run died")[0]["reason"] == ""
    assert "words" not in str(scene.telemetry.lines)


def test_without_valkey_a_notice_stays_in_the_queue(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.start("s1")
    end = scene.store.end_processor
    fails = [StoreUnavailable("gone"), KeyError("a bug")]

    def failing(shard: int, dead_id: str) -> Any:
        if fails:
            raise fails.pop()
        return end(shard, dead_id)

    monkeypatch.setattr(scene.store, "end_processor", failing)
    payload = {"shard": 0, "start": "s1"}
    assert scene.tell(payload, payload, payload) == ["n0", "n1"]
    assert scene.queue.hidden == []
    assert scene.functions.processors() == [0]


def test_a_notice_that_cannot_be_hidden_stays_in_the_queue(scene: Scene) -> None:
    scene.queue.failures = [SendFailed("hide notice: AccessDenied")]
    assert scene.tell("not a notice") == ["n0"]
    assert scene.telemetry.said("notice not hidden")


def test_without_time_the_rest_is_delivered_again_at_once(scene: Scene) -> None:
    scene.start("s1")
    left = iter([25_000, MAX_STEP_MS - 1])
    payload = {"shard": 0, "start": "s1"}
    assert scene.tell(payload, payload, left=lambda: next(left)) == ["n1"]
    assert scene.queue.hidden == [("r1", 0)]
