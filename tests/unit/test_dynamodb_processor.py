"""The DynamoDB processor: batches of a window, retries, dead letters, triggers, and the heartbeat."""

import json
from contextlib import ExitStack
from threading import enumerate as enumerate_threads
from unittest.mock import patch

import pytest

from lambdas.dynamodb_processor import service
from lambdas.dynamodb_processor.service import MAX_TRIGGER_REST_MS, WINDOW_LOCK_MS
from message_buffer.aws.dynamodb import Table
from message_buffer.errors import SendFailed
from message_buffer.events.emission import Emission
from message_buffer.lanes.dynamodb.triggers import Trigger
from message_buffer.limits import (
    MAX_RETRY_MS,
    WINDOW_GRACE_MS,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.window import (
    AMPLE,
    CONVERSATION,
    MAX_ATTEMPTS,
    RULES,
    SILENCE_MS,
    WINDOW_MS,
    Killed,
    WindowScene,
    due,
    killed,
    lock,
    settle,
)


def test_more_than_one_batch_holds_goes_out_in_several_at_once(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_MESSAGES_IN_A_BATCH", 30)
    ids = [f"m{n:04}" for n in range(40)]
    for message_id in ids:
        window.send(message_id, rules=Rules(silence_ms=SILENCE_MS, max_messages=1_000))
    window.pass_time(WINDOW_MS)
    window.pass_time(1_000)
    assert window.batches() == [ids[:30], ids[30:]]
    first, rest = window.events()
    assert [event["flushReason"] for event in (first, rest)] == ["silence", "max_messages"]
    assert rest["metadata"]["previousMessageAt"] == first["metadata"]["lastMessageAt"]
    assert window.is_idle()


def test_more_than_one_batch_holds_is_not_forgotten_by_a_retry(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_MESSAGES_IN_A_BATCH", 2)
    window.bus.failures = [SendFailed("put event: Throttling")]
    for message_id in ("m1", "m2", "m3"):
        window.send(message_id)
    window.pass_time(WINDOW_MS + 5_000)
    assert window.batches() == [["m1", "m2"], ["m3"]]


def test_a_batch_has_at_most_so_many_bytes_but_always_a_message(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_BYTES_IN_A_BATCH", 300)
    for n in range(3):
        window.send(f"m{n}", text="x" * 200)
    window.pass_time(WINDOW_MS + 5_000)
    assert window.batches() == [["m0"], ["m1"], ["m2"]]


def test_counts_are_written_after_the_window_is_closed_and_only_then(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_idle: list[bool] = []
    monkeypatch.setattr(Emission, "write_counts", lambda *_: was_idle.append(window.is_idle()))
    window.bus.failures = [SendFailed("put event: Throttling")]
    window.send("m1")
    window.pass_time(2 * WINDOW_MS)
    assert window.batches() == [["m1"]]
    assert was_idle == [True], "the failed attempt wrote nothing"


def test_the_sweep_leaves_alone_what_is_not_overdue(window: WindowScene) -> None:
    window.send("m1")
    window.clock.advance(SILENCE_MS + WINDOW_GRACE_MS)
    window.processor.sweep(AMPLE)
    assert "Recovered" not in window.telemetry.counts
    assert window.telemetry.counts["Pending"] == 1
    assert window.telemetry.counts["OldestOverdueMs"] == WINDOW_GRACE_MS


def test_attempts_that_a_busy_table_ends_are_none_of_the_batch(window: WindowScene) -> None:
    window.send("m1")
    with patch.object(window.table.messages, "read", side_effect=SendFailed("read conversation: Throttling")) as read:
        window.pass_time(120_000)
    assert read.call_count > MAX_ATTEMPTS
    window.pass_time(60_000)
    assert window.letters.bodies == []
    assert [event["attempt"] for event in window.events()] == [1]


def test_an_outage_of_the_table_uses_up_at_most_the_attempt_that_it_interrupts(window: WindowScene) -> None:
    out_of_order = SendFailed("DynamoDB: ServiceUnavailable")
    window.send("m1")

    def goes_out() -> None:
        stack.enter_context(patch.object(Table, "_update", side_effect=out_of_order))
        raise SendFailed("put event: ServiceUnavailable")

    with ExitStack() as stack:
        window.bus.on_publish = goes_out
        window.pass_time(600_000)
    window.bus.on_publish = lambda: None
    window.pass_time(120_000)
    assert [event["attempt"] for event in window.events()] == [1, 2]
    assert window.is_idle()


@pytest.mark.case(30)
def test_a_batch_whose_runs_all_die_becomes_a_dead_letter(window: WindowScene) -> None:
    due(window, "m1")
    for _ in range(MAX_ATTEMPTS):
        with window.wire.at("put_events", killed), pytest.raises(Killed):
            window.run()
        window.clock.advance(WINDOW_LOCK_MS + MAX_RETRY_MS + 1)
    window.run()
    assert json.loads(window.letters.bodies[0])["reason"] == "attempts exhausted"
    assert window.is_idle()


@pytest.mark.case(30)
def test_a_batch_that_no_attempt_gets_out_becomes_a_dead_letter_with_its_messages(window: WindowScene) -> None:
    window.bus.failures = [SendFailed("put event: Throttling")] * 99
    window.send("m1")
    window.pass_time(120_000)
    (body,) = window.letters.bodies
    letter = json.loads(body)
    assert (letter["lane"], letter["attempt"], letter["conversationId"]) == ("dynamodb", MAX_ATTEMPTS, CONVERSATION)
    assert window.is_idle()
    window.bus.failures = []
    window.send("m2")
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m2"]]


def test_the_dead_letter_is_redriven_as_a_batch_of_this_lane(window: WindowScene) -> None:
    window.bus.failures = [SendFailed("put event: Throttling")] * 99
    window.send("m1")
    window.pass_time(120_000)
    window.bus.failures = []
    letter = json.loads(window.letters.bodies[0])
    emission = window.processor._emission
    assert emission.redrive(letter, AMPLE) == letter["batchId"]
    assert window.events()[0]["lane"] == "dynamodb"


def test_a_message_that_cannot_be_read_is_a_dead_letter_and_stops_nobody(window: WindowScene) -> None:
    window.lane.buffer_message(CONVERSATION, "m1", payload=b'"m1"\nnot JSON', timing=RULES.timing)
    window.pass_time(WINDOW_MS)
    assert json.loads(window.letters.bodies[0])["reason"].startswith("unreadable")
    window.send("m2")
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m2"]]


def test_a_trigger_for_nothing_is_done(window: WindowScene) -> None:
    window.triggers.send(CONVERSATION, delay_ms=0)
    assert window.run() == 1
    assert window.triggers.waiting == []


def test_a_trigger_that_comes_early_rests_until_the_window_is_over(window: WindowScene) -> None:
    window.send("m1")
    window.triggers.send(CONVERSATION, delay_ms=0)
    window.run()
    assert window.batches() == []
    assert [each.visible_at_ms for each in window.triggers.waiting] == [window.clock() + SILENCE_MS] * 2


def test_a_locked_window_sends_the_trigger_back_to_the_queue(window: WindowScene) -> None:
    window.send("m1")
    window.clock.advance(WINDOW_MS)
    until_ms = window.clock() + 20_000
    assert lock(window, "another", until_ms=until_ms).lock.owner == "another"
    window.run()
    (waiting,) = window.triggers.waiting
    assert waiting.visible_at_ms == window.clock() + MAX_TRIGGER_REST_MS
    assert window.telemetry.said("trigger returned")
    window.pass_time(25_000)
    assert window.batches() == [["m1"]]


def test_long_work_keeps_the_lock_and_the_trigger(window: WindowScene) -> None:
    processor = window.new_processor(beat_seconds=0.005)
    due(window, "m1")

    def work_long() -> None:
        beats = window.wire.made.count("change_message_visibility")
        window.clock.advance(WINDOW_LOCK_MS - 1)
        while window.wire.made.count("change_message_visibility") < beats + 2:
            pass
        assert window.table.windows.read(CONVERSATION).lock.until_ms == window.clock() + WINDOW_LOCK_MS
        assert window.triggers.waiting[0].visible_at_ms == window.clock() + WINDOW_LOCK_MS

    with window.wire.at("put_events", work_long):
        window.run(processor)
    assert window.batches() == [["m1"]]
    assert window.is_idle()


@pytest.mark.parametrize("fails", ["update_item", "change_message_visibility"])
def test_work_whose_heartbeat_fails_is_not_called_done(window: WindowScene, fails: str) -> None:
    """Fail the heartbeat: before the freeze the work stops; afterwards it does not close a window that may be
    another's.
    """
    processor = window.new_processor(beat_seconds=0.005)
    due(window, "m1")
    (waiting,) = window.triggers.waiting
    broken = False

    def fail(request: str) -> None:
        if broken and request == fails:
            raise SendFailed("ServiceUnavailable")

    def break_it() -> None:
        nonlocal broken
        broken = True
        (beating,) = [each for each in enumerate_threads() if each.name == "heartbeat"]
        beating.join(10)
        broken = False

    with window.wire.at("query", break_it, after=True):
        before = window.wire.before
        window.wire.before = fail
        done = processor.process(Trigger(CONVERSATION, waiting.trigger.receipt), AMPLE)
        window.wire.before = before
    assert not done
    assert window.events() == []
    settle(window)
    assert window.batches() == [["m1"]]
