"""The DynamoDB lane waits for silence: when a window is due, and which triggers see to it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas.dynamodb_processor import service as dynamodb_processor
from lambdas.dynamodb_processor.service import SECOND_SWEEP_DELAY_MS
from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.lanes.dynamodb.items import WINDOW
from message_buffer.lanes.dynamodb.window import Note
from message_buffer.limits import (
    HOUR_MS,
    MAX_TRIGGER_DELAY_MS,
    MAX_TRIGGER_HIDDEN_MS,
    MINUTE_MS,
    SECOND_MS,
    WINDOW_GRACE_MS,
)
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.rules.timing import Timing
from tests.support.engine import payload
from tests.support.window import (
    AMPLE,
    CONVERSATION,
    WindowScene,
    failing,
    settle,
)

RULES = Rules(silence_ms=2_000, typing_inference_ms=0, max_wait_ms=20_000)


def send(window: WindowScene, message_id: str, timing: Timing = RULES.timing) -> int:
    outcome = window.lane.buffer_message(CONVERSATION, message_id, payload=payload(message_id), timing=timing)
    assert isinstance(outcome, o.MessageBuffered | o.MessageDuplicate)
    assert outcome.due_at_ms is not None
    return outcome.due_at_ms


def due_in(window: WindowScene) -> int:
    """Return how long the window still waits, as its item says."""
    return window.table.windows.read(CONVERSATION).due.due_at_ms - window.clock()


# -- the rules --------------------------------------------------------------------------------------------------


def test_a_message_that_makes_the_window_due_earlier_sends_a_trigger(window: WindowScene) -> None:
    """Send a text after a voice note, which alone would wait for its transcript."""
    voice = RULES.timing_of(is_pending=True)
    assert send(window, "m1", voice) == window.clock() + 15_000
    window.pass_time(4_000)
    assert send(window, "m2") == window.clock() + 2_000
    window.pass_time(3_000)
    assert window.batches() == [["m1", "m2"]]


def test_only_a_press_into_an_open_window_costs_a_second_write(window: WindowScene) -> None:
    slow = Rules(pressed_silence_ms=1_000).timing_of(is_pressed=True)
    for message_id, timing, writes in (("m1", slow, 1), ("m2", RULES.timing, 1), ("m3", slow, 2)):
        window.wire.made.clear()
        send(window, message_id, timing)
        assert window.wire.made.count("update_item") == writes
        assert "get_item" not in window.wire.made


def test_a_press_that_another_message_overtakes_keeps_its_wait_too(window: WindowScene) -> None:
    send(window, "m1")
    window.clock.advance(500)
    pressed = RULES.timing_of(is_pressed=True)
    with window.wire.at("update_item", lambda: send(window, "m2"), nth=2):
        assert send(window, "m3", pressed) == window.clock() + 1 + 2_000
    assert due_in(window) == 2_001


def test_a_press_that_others_keep_overtaking_is_to_come_again_and_leaves_with_them(window: WindowScene) -> None:
    send(window, "m0")
    pressed, numbers, before = RULES.timing_of(is_pressed=True), iter(range(1, 99)), window.wire.before

    def overtake(request: str) -> None:
        if request == "update_item":
            window.wire.before = before
            send(window, f"m{next(numbers)}")
            window.wire.before = overtake

    window.wire.before = overtake
    with pytest.raises(StoreUnavailable):
        send(window, "p", pressed)
    window.wire.before = before
    due_at_ms = window.table.windows.read(CONVERSATION).due.due_at_ms
    assert send(window, "p", pressed) == due_at_ms
    window.pass_time(4_000)
    (batch,) = window.batches()
    assert "p" in batch


def test_a_flush_while_a_batch_is_emitted_hastens_what_waits_behind_it(window: WindowScene) -> None:
    def send_and_flush() -> None:
        send(window, "m2")
        window.lane.flush_buffer(CONVERSATION)

    send(window, "m1")
    with window.wire.at("put_events", send_and_flush, after=True):
        window.pass_time(2_000)
    window.pass_time(1_000)
    assert window.batches() == [["m1"], ["m2"]]
    assert window.events()[1]["flushReason"] == "flush"


def test_a_flush_reaches_what_a_batch_had_no_room_for_even_on_hold(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_processor, "MAX_MESSAGES_IN_A_BATCH", 2)

    def hold_and_flush() -> None:
        window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=3_600_000)
        window.lane.flush_buffer(CONVERSATION)

    send(window, "m1")
    send(window, "m2")
    send(window, "m3")
    with window.wire.at("put_events", hold_and_flush, after=True):
        window.pass_time(60_000)
    assert window.batches() == [["m1", "m2"], ["m3"]]


def test_a_message_that_comes_while_typing_is_written_counts_alone(window: WindowScene) -> None:
    send(window, "m1")
    window.clock.advance(1_000)
    with window.wire.at("update_item", lambda: send(window, "m2")):
        extended = window.lane.extend_wait(CONVERSATION, extend_ms=9_000, max_wait_ms=20_000)
    assert isinstance(extended, o.BufferUnmoved)
    assert due_in(window) <= 2_001


@pytest.mark.parametrize(
    ("lag_ms", "due_ms"), [(500, 2_000), (MINUTE_MS, 2_000), (MINUTE_MS + 1, 2_000 - MINUTE_MS - 1)]
)
def test_a_host_whose_clock_lags_does_not_turn_time_back(window: WindowScene, lag_ms: int, due_ms: int) -> None:
    send(window, "m1")
    at_ms = window.clock()
    window.clock.advance(-lag_ms)
    outcome = window.new_lane().buffer_message(CONVERSATION, "m2", payload=payload("m2"), timing=RULES.timing)
    window.clock.advance(lag_ms)
    assert isinstance(outcome, o.MessageBuffered)
    assert outcome.due_at_ms == at_ms + due_ms == window.table.windows.read(CONVERSATION).due.due_at_ms


def test_messages_that_keep_coming_while_the_window_is_read_do_not_keep_it_from_leaving(window: WindowScene) -> None:
    send(window, "m0")
    window.clock.advance(2_000)
    numbers = iter(range(1, 99))
    before = window.wire.before

    def talk(request: str) -> None:
        if request == "query":
            window.wire.before = before
            send(window, f"m{next(numbers)}")
            window.wire.before = talk

    after = window.wire.after
    window.wire.after = lambda request: talk(request) if request == "query" else None
    window.run()
    window.wire.after = after
    window.wire.before = before
    assert len(window.batches()) == 1
    settle(window)
    came = [each for batch in window.batches() for each in batch]
    assert came == [f"m{number}" for number in range(next(numbers))]


# -- the item ---------------------------------------------------------------------------------------------------

LEARNED = RULES.timing._replace(learned="0200001000" + "01500" * 10)
timings = st.sampled_from([RULES.timing, RULES.timing_of(is_pending=True), RULES.timing_of(is_pressed=True), LEARNED])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(deliveries=st.lists(st.tuples(timings, st.booleans(), st.integers(-500, 5_000)), min_size=1, max_size=6))
def test_the_window_that_ingest_reckons_is_the_one_that_the_table_has(
    window: WindowScene, deliveries: list[tuple[Timing, bool, int]]
) -> None:
    name, at_ms = f"default/generic/shop/c{window.clock.advance(1)}", window.clock()
    for number, (timing, is_new, gap_ms) in enumerate(deliveries):
        at_ms += gap_ms
        note = Note(at_ms, timing, is_new=is_new, id=f"{number}", size=5_000 if gap_ms % 2 else 10)
        seen = window.table.windows.read(name) if note.is_pressed and note.is_new else None
        computed = note.in_window(seen).computed if seen else None
        done, before = window.table.windows.note(name, note, seen=seen, computed=computed)
        assert done
        assert note.in_window(before) == window.table.windows.read(name)
        if not before.is_open:
            assert window.table.windows.read(name).listed_at_ms <= window.table.windows.read(name).due.due_at_ms


def test_the_index_key_does_not_move_with_the_messages(window: WindowScene) -> None:
    send(window, "m1")
    listed_at_ms = window.table.windows.read(CONVERSATION).listed_at_ms
    for number in range(2, 9):
        window.clock.advance(1_000)
        send(window, f"m{number}")
    assert window.table.windows.read(CONVERSATION).listed_at_ms == listed_at_ms
    window.pass_time(3_000)
    assert len(window.batches()) == 1


def test_rules_of_a_later_version_are_read_without_their_new_fields(window: WindowScene) -> None:
    send(window, "m1")
    window.table.client.update_item(
        TableName="holding", Key={"conversation": {"S": CONVERSATION}, "item": {"S": WINDOW}},
        UpdateExpression="SET #t = :t", ExpressionAttributeNames={"#t": "timing"},
        ExpressionAttributeValues={":t": {"S": '[7000,0,20000,20,1,"",null,"silenceMs","","a new field"]'}},
    )  # fmt: skip
    assert due_in(window) == 7_000


# -- triggers ---------------------------------------------------------------------------------------------------


def test_a_burst_costs_one_trigger_and_few_requests(window: WindowScene) -> None:
    """Send the benchmark's burst: three fragments, half a second apart, with the default rules."""
    for number in range(3):
        window.lane.buffer_message(CONVERSATION, f"m{number}", payload=payload(f"m{number}"), timing=Rules().timing)
        window.pass_time(500, step_ms=500)
    window.pass_time(6_000)
    assert window.batches() == [["m0", "m1", "m2"]]
    sent, hidden = window.wire.made.count("send_message"), window.wire.made.count("change_message_visibility")
    assert sent == 1
    assert 2 * hidden <= 4, "each rest is one request, and one more to receive the trigger again"


def test_a_trigger_is_hidden_for_a_minute_at_most_and_leaves_a_successor_for_longer_waits(window: WindowScene) -> None:
    send(window, "m1")
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=HOUR_MS)
    window.wire.made.clear()
    window.pass_time(HOUR_MS - 2_000)
    assert window.batches() == []
    sent, hidden = window.wire.made.count("send_message"), window.wire.made.count("change_message_visibility")
    assert (sent, hidden) == (HOUR_MS // MAX_TRIGGER_DELAY_MS, 0)
    window.pass_time(3_000)
    assert window.batches() == [["m1"]]
    assert window.triggers.waiting == []


def test_many_triggers_of_a_long_wait_leave_one_successor(window: WindowScene) -> None:
    send(window, "m1")
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=HOUR_MS)
    for _ in range(20):
        send(window, "m1")
    assert len(window.triggers.waiting) == 21
    for each in window.triggers.waiting:
        each.visible_at_ms = window.clock()
    window.run()
    assert len(window.triggers.waiting) == 1


@pytest.mark.parametrize("skew_ms", [-1_000, 0, 1_000])
def test_a_successor_that_comes_early_by_its_hosts_clock_goes_on(window: WindowScene, skew_ms: int) -> None:
    send(window, "m1")
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=HOUR_MS)
    window.pass_time(3_000)
    window.clock.advance(MAX_TRIGGER_DELAY_MS + skew_ms)
    for each in window.triggers.waiting:
        each.visible_at_ms = window.clock()
    window.run()
    assert len(window.triggers.waiting) == 1


def test_a_successor_that_cannot_be_sent_is_sent_later(window: WindowScene) -> None:
    send(window, "m1")
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=HOUR_MS)
    window.clock.advance(2_000)
    with window.wire.at("send_message", failing()):
        window.run()
    (waiting,) = window.triggers.waiting
    assert waiting.visible_at_ms == window.clock() + MAX_TRIGGER_HIDDEN_MS


def test_a_trigger_whose_rest_is_lost_comes_back_with_the_queue(window: WindowScene) -> None:
    send(window, "m1")
    window.clock.advance(1_500)
    send(window, "m2")
    window.clock.advance(500)
    with window.wire.at("change_message_visibility", failing()):
        window.run()
    window.pass_time(WINDOW_GRACE_MS + 11_000)
    assert window.batches() == [["m1", "m2"]]


# -- lost triggers ----------------------------------------------------------------------------------------------


@pytest.mark.promise("P7")
@pytest.mark.parametrize("phase_ms", range(0, 60_000, 7_000))
def test_a_lost_trigger_is_made_good_within_a_minute(window: WindowScene, phase_ms: int) -> None:
    """Sweep once a minute as EventBridge does. Each of its sweeps asks the queue for another sweep."""
    due_at_ms = 0
    for second in range(180):
        if second == 60 + phase_ms // 1_000:
            due_at_ms = send(window, "m1")
            window.triggers.waiting.clear()
        window.clock.advance(1_000)
        if window.clock() % MINUTE_MS < SECOND_MS:
            window.processor.sweep(AMPLE)
        for at_ms in [each for each in window.triggers.sweeps_at_ms if each <= window.clock()]:
            window.triggers.sweeps_at_ms.remove(at_ms)
            window.processor.sweep(AMPLE, is_second=True)
        window.run()
        if window.batches():
            break
    assert window.batches() == [["m1"]]
    assert window.clock() - due_at_ms <= WINDOW_GRACE_MS + SECOND_SWEEP_DELAY_MS + 1_000 < MINUTE_MS


def test_a_sweep_asks_for_one_more_and_that_one_for_none(window: WindowScene) -> None:
    window.processor.sweep(AMPLE)
    assert window.triggers.sweeps_at_ms == [window.clock() + SECOND_SWEEP_DELAY_MS]
    window.processor.sweep(AMPLE, is_second=True)
    assert len(window.triggers.sweeps_at_ms) == 1


def test_the_sweep_asks_the_window_and_not_the_index(window: WindowScene) -> None:
    """Read the window, because the index lists a long conversation under the due time of its first message."""
    rules = Rules(silence_ms=30_000, typing_inference_ms=0, max_wait_ms=600_000)
    send(window, "m1", rules.timing)
    for number in range(2, 6):
        window.pass_time(20_000)
        send(window, f"m{number}", rules.timing)
    assert window.table.windows.read(CONVERSATION).listed_at_ms < window.clock() - WINDOW_GRACE_MS
    window.processor.sweep(AMPLE)
    assert "Recovered" not in window.telemetry.counts
    assert window.telemetry.counts["OldestOverdueMs"] == 0
    assert window.table.windows.read(CONVERSATION).listed_at_ms == window.clock() + 30_000, (
        "later sweeps need not read it"
    )
    assert window.lane.open_windows(limit=1)[0][1] == window.clock() + 30_000


def test_a_sweep_lists_no_window_later_than_a_message_that_comes_meanwhile_wants(window: WindowScene) -> None:
    send(window, "m1", RULES.timing_of(is_pending=True))
    window.table.windows.list_later(
        CONVERSATION, window=window.table.windows.read(CONVERSATION), at_ms=window.clock() - WINDOW_GRACE_MS - 1
    )
    with window.wire.at("get_item", lambda: send(window, "m2"), after=True):
        window.processor.sweep(AMPLE)
    seen = window.table.windows.read(CONVERSATION)
    assert seen.listed_at_ms <= seen.due.due_at_ms


def test_windows_on_hold_do_not_hide_an_overdue_one_from_the_sweep(
    window: WindowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lambdas.dynamodb_processor.service.MAX_WINDOWS_IN_A_SWEEP", 2)
    for number in range(3):
        name = f"default/generic/shop/held{number}"
        window.lane.buffer_message(name, "m", payload=payload("m"), timing=RULES.timing)
        window.lane.hold_buffer(name, holder="people", cause="operator", hold_ms=HOUR_MS)
    window.clock.advance(1_000)
    send(window, "m1")
    window.triggers.waiting.clear()
    window.clock.advance(MINUTE_MS)
    for _ in range(2):
        window.processor.sweep(AMPLE)
    window.run()
    assert window.batches() == [["m1"]]


def test_a_resume_that_dies_half_way_lets_the_sweep_find_the_window(window: WindowScene) -> None:
    send(window, "m1")
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=HOUR_MS)
    window.pass_time(MINUTE_MS)
    with window.wire.at("send_message", failing()), pytest.raises(SendFailed):
        window.lane.resume_buffer(CONVERSATION)
    window.clock.advance(WINDOW_GRACE_MS + 1)
    window.processor.sweep(AMPLE)
    window.run()
    assert window.batches() == [["m1"]]


# -- a run that is late -------------------------------------------------------------------------------------------


def test_a_run_that_looked_at_the_last_window_does_not_lock_the_next(window: WindowScene) -> None:
    send(window, "m1")
    window.clock.advance(2_000)
    (waiting,) = window.triggers.waiting
    window.triggers.send(CONVERSATION, delay_ms=0)

    def another_empties_it_and_a_message_comes() -> None:
        assert window.new_processor().process(window.triggers.waiting[1].trigger, AMPLE)
        window.clock.advance(500)
        send(window, "m2")

    with window.wire.at("get_item", another_empties_it_and_a_message_comes, after=True):
        window.processor.process(waiting.trigger, AMPLE)
    assert window.batches() == [["m1"]], "m2 waits for its silence"
