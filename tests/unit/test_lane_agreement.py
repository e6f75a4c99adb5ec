"""A message that both lanes have is emitted by one of them, at whatever step either of them is."""

import json
from unittest.mock import patch

import pytest

from lambdas.conversation_processor import lane_agreement as emitting
from lambdas.limits import MAX_ATTEMPTS_TO_AGREE, WINDOW_LOCK_MS
from message_buffer.errors import SendFailed
from message_buffer.lanes.outcomes import Taken
from message_buffer.limits import MAX_RETRY_MS
from tests.support.engine import payload
from tests.support.two_lanes import MOST_WAITS, RULES, Step, TwoLanes, in_main, in_window, out_by_lane
from tests.support.window import CONVERSATION, Killed, failing, killed, make_message_table


@pytest.fixture
def lanes(database: object) -> TwoLanes:
    make_message_table(database)
    return TwoLanes()


def batches(lanes: TwoLanes) -> list[tuple[str, list[str]]]:
    """Return the batches as a consumer sees them that knows a batch by its id."""
    lanes.scene.batches()
    return out_by_lane(lanes)


def out(lanes: TwoLanes) -> list[str]:
    return sorted(message_id for _, ids in batches(lanes) for message_id in ids)


def fall_due(lanes: TwoLanes) -> None:
    lanes.wait(10_000)


# -- in turn -----------------------------------------------------------------------------------------------------------


def test_where_the_dynamodb_lane_never_was_a_batch_costs_three_requests_more(lanes: TwoLanes) -> None:
    in_main(lanes, "m1", "m2")
    fall_due(lanes)
    lanes.execute()
    assert batches(lanes) == [("valkey", ["m1", "m2"])]
    assert [made for made in lanes.scene.wire.made if made != "valkey"] == [
        "get_item",
        "put_item",
        "get_item",
        "put_events",
    ]


@pytest.mark.case(24)
def test_what_is_held_goes_out_first(lanes: TwoLanes) -> None:
    in_main(lanes, "m2")
    lanes.wait(1_000)
    in_window(lanes, "m1")
    lanes.wait(1_000)
    lanes.execute()
    assert batches(lanes) == []
    assert lanes.scene.telemetry.counts["Deferred"] == 1
    lanes.empty_windows()
    lanes.wait(1_000)
    lanes.execute()
    assert batches(lanes) == [("dynamodb", ["m1"]), ("valkey", ["m2"])]
    assert lanes.scene.events()[0]["flushReason"] == "main_lane"


def test_a_window_that_nobody_empties_is_not_waited_for_without_end(lanes: TwoLanes) -> None:
    in_window(lanes, "m1")
    in_main(lanes, "m2")
    for _ in range(MOST_WAITS):
        fall_due(lanes)
        lanes.execute()
        assert batches(lanes) == []
    fall_due(lanes)
    lanes.execute()
    assert batches(lanes) == [("valkey", ["m2"])]
    lanes.empty_windows()
    assert batches(lanes) == [("valkey", ["m2"]), ("dynamodb", ["m1"])]


@pytest.mark.case(24)
def test_a_message_of_both_lanes_goes_out_with_those_that_are_held(lanes: TwoLanes) -> None:
    in_main(lanes, "m1", "m3")
    in_window(lanes, "m1", "m2")
    lanes.come_to_rest()
    assert batches(lanes) == [("dynamodb", ["m1", "m2"]), ("valkey", ["m3"])]
    assert lanes.scene.telemetry.counts["LeftToDynamoDbLane"] == 1


def test_a_batch_of_which_nothing_is_left_is_done_without_an_event(lanes: TwoLanes) -> None:
    in_main(lanes, "m1")
    in_window(lanes, "m1")
    lanes.come_to_rest()
    assert batches(lanes) == [("dynamodb", ["m1"])]


def test_what_was_emitted_before_an_outage_is_not_emitted_by_the_dynamodb_lane(lanes: TwoLanes) -> None:
    in_main(lanes, "m1")
    fall_due(lanes)
    lanes.execute()
    in_window(lanes, "m1", "m2")
    lanes.let_windows_end()
    assert batches(lanes) == [("valkey", ["m1"]), ("dynamodb", ["m2"])]
    lanes.come_to_rest()
    assert batches(lanes) == [("valkey", ["m1"]), ("dynamodb", ["m2"])]
    assert lanes.scene.table.find(CONVERSATION, ["m1"]) == {"m1": "!main"}
    assert lanes.scene.is_at_rest()


def test_what_the_dynamodb_lane_emitted_is_not_emitted_when_it_comes_again_by_the_valkey_lane(lanes: TwoLanes) -> None:
    in_window(lanes, "m1")
    lanes.let_windows_end()
    in_main(lanes, "m1", "m2")
    lanes.come_to_rest()
    assert batches(lanes) == [("dynamodb", ["m1"]), ("valkey", ["m2"])]


def test_what_was_deleted_while_it_was_held_does_not_come_out_of_the_valkey_lane(lanes: TwoLanes) -> None:
    in_main(lanes, "m1", "m2")
    in_window(lanes, "m1")
    lanes.scene.lane.delete_message(CONVERSATION, "m1")
    lanes.come_to_rest()
    assert batches(lanes) == [("valkey", ["m2"])]


def test_a_message_that_the_valkey_lane_took_first_stays_its_own_though_it_is_deleted_in_the_window(
    lanes: TwoLanes,
) -> None:
    in_main(lanes, "m1", "m2")
    fall_due(lanes)
    with lanes.scene.wire.at("put_events", killed, after=True):
        lanes.do(Step("execute"))
    in_window(lanes, "m1")
    lanes.scene.lane.delete_message(CONVERSATION, "m1")
    lanes.come_to_rest()
    assert batches(lanes) == [("valkey", ["m1", "m2"])]


# -- at the same time --------------------------------------------------------------------------------------------------

# With a DynamoDB lane that was used before, and with one that was not used yet.
CONVERSATION_PROCESSORS_STEPS, FIRST_STEPS = 9, 7
WINDOWS_STEPS = 6


@pytest.mark.parametrize("step", range(1, FIRST_STEPS + 1))
def test_the_window_is_emptied_between_any_two_steps_of_the_conversation_processor(lanes: TwoLanes, step: int) -> None:
    in_main(lanes, "m1", "m2")
    fall_due(lanes)

    def fall_back_and_empty() -> None:
        in_window(lanes, "m1")
        lanes.let_windows_end()

    with lanes.scene.wire.at_step(step, fall_back_and_empty):
        lanes.execute()
    lanes.come_to_rest()
    assert out(lanes) == ["m1", "m2"]


@pytest.mark.promise("P4")
@pytest.mark.parametrize("dies", [False, True])
def test_a_disputed_message_does_not_cut_off_its_author(lanes: TwoLanes, dies: bool) -> None:
    """While m1 is disputed, the batch with m2 leaves. m3 comes after the freeze, m4 before its author is silent."""
    in_window(lanes, "m1", "m2")
    lanes.scene.table.journal(CONVERSATION, "b-1", ["m1"], expires_at_ms=lanes.clock() + 60_000)
    fall_due(lanes)
    if dies:
        with lanes.scene.wire.at("batch_write_item", killed), pytest.raises(Killed):
            lanes.scene.run()
        lanes.wait(WINDOW_LOCK_MS)
        in_window(lanes, "m3")
    else:
        with lanes.scene.wire.at("put_events", lambda: in_window(lanes, "m3"), after=True):
            lanes.scene.run()
    lanes.scene.pass_time(1_500, step_ms=500)
    assert batches(lanes) == [("dynamodb", ["m2"])]
    in_window(lanes, "m4")
    lanes.scene.pass_time(1_500, step_ms=500)
    assert batches(lanes) == [("dynamodb", ["m2"])]
    lanes.scene.pass_time(3_000, step_ms=500)
    assert batches(lanes) == [("dynamodb", ["m2"]), ("dynamodb", ["m3", "m4"])]


@pytest.mark.parametrize("step", range(1, WINDOWS_STEPS + 1))
def test_the_conversation_processor_runs_between_any_two_steps_of_the_window_processor(
    lanes: TwoLanes, step: int
) -> None:
    in_main(lanes, "m1", "m2")
    in_window(lanes, "m1", "m3")
    # The conversation processor no longer waits for the window.
    for _ in range(MOST_WAITS):
        fall_due(lanes)
        lanes.execute()
    fall_due(lanes)
    with lanes.scene.wire.at_step(step, lanes.execute):
        lanes.empty_windows()
    lanes.come_to_rest()
    assert out(lanes) == ["m1", "m2", "m3"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, CONVERSATION_PROCESSORS_STEPS + 1))
def test_a_conversation_processor_that_dies_at_any_step_is_followed_by_one_that_emits_the_same(
    lanes: TwoLanes, step: int, *, after: bool
) -> None:
    in_main(lanes, "m1", "m2")
    in_window(lanes, "m1")
    lanes.let_windows_end()
    with lanes.scene.wire.at_step(step, killed, after=after):
        lanes.do(Step("execute"))
    lanes.come_to_rest()
    assert out(lanes) == ["m1", "m2"]


# -- what cannot be read, and what does not answer ---------------------------------------------------------------------


def test_what_cannot_be_read_is_a_dead_letter_with_a_fallback_too(lanes: TwoLanes) -> None:
    for message_id, poison in (
        ("m1", b"no line end"),
        ("m2", b"no line end"),
        ("m3", b"7\n{}"),
        ("m4", b'"\\ud800"\n'),
    ):
        lanes.engine.store.buffer_message(CONVERSATION, message_id, payload=poison, timing=RULES.timing)
    in_window(lanes, "m5")
    lanes.empty_windows()
    fall_due(lanes)
    lanes.empty_windows()
    lanes.execute()
    (letter,) = [json.loads(body) for body in lanes.scene.letters.bodies]
    assert letter["reason"].startswith("unreadable: ")
    assert len(letter["payloads"]) == 4
    assert lanes.engine.store.peek_conversation(CONVERSATION).state == "IDLE"


def test_an_outage_of_the_table_delays_the_valkey_lane_and_does_not_stop_it(
    lanes: TwoLanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_main(lanes, "m1")

    monkeypatch.setattr(lanes.scene.wire, "before", table_is_away)
    lanes.conversation_processor._agreement = emitting.LaneAgreement(
        lanes.scene.table, lanes.scene.triggers, lanes.scene.telemetry, clock=lanes.clock
    )
    for _ in range(MAX_ATTEMPTS_TO_AGREE):
        lanes.wait(MAX_RETRY_MS)
        lanes.execute()
        assert batches(lanes) == []
    lanes.wait(MAX_RETRY_MS)
    lanes.execute()
    assert batches(lanes) == [("valkey", ["m1"])]
    assert lanes.scene.telemetry.counts["JournalFailures"] == 1


def table_is_away(request: str) -> None:
    if request.endswith("_item"):
        raise SendFailed("get item: ConnectTimeoutError")


def impatient(lanes: TwoLanes) -> None:
    lanes.conversation_processor._agreement = emitting.LaneAgreement(
        lanes.scene.table, lanes.scene.triggers, lanes.scene.telemetry, max_attempts_of_agreement=0, clock=lanes.clock
    )


def test_a_batch_that_left_unasked_leaves_whole_again(lanes: TwoLanes) -> None:
    in_main(lanes, "m1", "m2")
    in_window(lanes, "m1")
    lanes.empty_windows()
    fall_due(lanes)
    impatient(lanes)

    def dies_at_the_bus(request: str) -> None:
        if request == "put_events":
            raise Killed

    with (
        patch.object(lanes.scene.wire, "before", table_is_away),
        patch.object(lanes.scene.wire, "after", dies_at_the_bus),
    ):
        lanes.do(Step("execute"))
    lanes.let_windows_end()
    lanes.take_over()
    # The table was not asked, so m1 is in both lanes; but a retry under the same id has the same content.
    emitted = [
        [each["id"] for each in event["messages"]] for event in lanes.scene.events() if "w-" not in event["batchId"]
    ]
    assert emitted == [["m1", "m2"], ["m1", "m2"]]
    assert lanes.engine.store.peek_conversation(CONVERSATION).state == "IDLE"


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_batch_that_left_something_out_leaves_it_out_when_the_table_is_away(lanes: TwoLanes, dies: str) -> None:
    in_window(lanes, "m1")
    lanes.let_windows_end()
    in_main(lanes, "m1", "m2")
    fall_due(lanes)
    impatient(lanes)
    with lanes.scene.wire.at("put_events", killed, after=dies == "after"):
        lanes.do(Step("execute"))
    with patch.object(lanes.scene.wire, "before", table_is_away):
        lanes.take_over()
    assert batches(lanes) == [("dynamodb", ["m1"]), ("valkey", ["m2"])]
    assert lanes.engine.store.peek_conversation(CONVERSATION).state == "IDLE"


def test_one_request_that_fails_after_many_waits_is_made_again(lanes: TwoLanes) -> None:
    in_main(lanes, "m1")
    in_window(lanes, "m1")
    for _ in range(MOST_WAITS):
        lanes.wait(5_000)
        lanes.execute()
    lanes.wait(5_000)
    with lanes.scene.wire.at("put_item", failing()):
        lanes.execute()
    assert batches(lanes) == []
    assert "Retries" not in lanes.scene.telemetry.counts, "those are the bus's"
    lanes.come_to_rest()
    assert out(lanes) == ["m1"]


def test_a_stop_that_is_slow_to_bury_does_not_change_a_batch_that_left(lanes: TwoLanes) -> None:
    in_window(lanes, "m0")
    lanes.let_windows_end()
    in_main(lanes, "m1", "m2")
    fall_due(lanes)
    in_window(lanes, "m1")
    lanes.conversation_processor._agreement = emitting.LaneAgreement(
        lanes.scene.table, lanes.scene.triggers, lanes.scene.telemetry, max_waits=0, clock=lanes.clock
    )

    def emit_and_lose_valkey() -> None:
        with lanes.scene.wire.at("put_events", killed, after=True):
            lanes.do(Step("execute"))
        lanes.cut("ingest", "swallowed")

    with lanes.scene.wire.at("query", emit_and_lose_valkey, after=True):
        lanes.do(Step("stop", (0,)))
    lanes.mend("ingest")
    lanes.take_over()
    lanes.come_to_rest()
    assert batches(lanes) == [("dynamodb", ["m0"]), ("valkey", ["m1", "m2"])]


def test_a_stop_does_not_give_away_what_the_dynamodb_lane_has_emitted(lanes: TwoLanes) -> None:
    in_window(lanes, "m0")
    lanes.let_windows_end()
    in_main(lanes, "m1", "m2")
    fall_due(lanes)

    def fall_back_and_die_before_the_burial() -> None:
        in_window(lanes, "m1")
        lanes.wait(RULES.silence_ms)
        with lanes.scene.wire.at("put_events", killed, after=True):
            lanes.do(Step("empty_windows"))

    # The conversation processor dies before it has looked.
    with (
        lanes.scene.wire.at("put_item", fall_back_and_die_before_the_burial),
        lanes.scene.wire.at("batch_get_item", killed, after=True),
    ):
        lanes.do(Step("execute"))
    lanes.wait(31_000)
    lanes.cut("ingest", "swallowed")
    lanes.do(Step("stop", (0,)))
    lanes.mend("ingest")
    lanes.take_over()
    lanes.come_to_rest()
    assert batches(lanes) == [("dynamodb", ["m0"]), ("dynamodb", ["m1"]), ("valkey", ["m2"])]


def test_a_conversation_processor_whose_batch_was_given_to_another_decides_nothing(lanes: TwoLanes) -> None:
    in_window(lanes, "m1")
    lanes.let_windows_end()
    in_main(lanes, "m1", "m2")
    fall_due(lanes)
    with lanes.scene.wire.at("batch_get_item", lanes.take_over, after=True):
        lanes.execute()
    assert batches(lanes) == [("dynamodb", ["m1"]), ("valkey", ["m2"])]
    assert len(lanes.scene.events()) == 2, "and emits nothing"


def test_where_a_batch_has_one_attempt_a_table_that_does_not_answer_does_not_cost_it(lanes: TwoLanes) -> None:
    lane = emitting.LaneAgreement(
        lanes.scene.table, lanes.scene.triggers, lanes.scene.telemetry, max_attempts_of_agreement=0, clock=lanes.clock
    )
    taken = Taken("b-1", 1, 1, 1, 2, 3, "silence", [payload("m1")])
    with lanes.scene.wire.at("put_item", failing()):
        assert lane.agree(CONVERSATION, taken).left_out == frozenset()
