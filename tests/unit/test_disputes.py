"""If both lanes have a message and Valkey may have lost its copy, a lane that still has the message emits it."""

import pytest

from lambdas.limits import MAX_DISPUTE_MS, MAX_DISPUTE_REST_MS
from message_buffer.errors import SendFailed
from message_buffer.lanes.outcomes import Absent
from message_buffer.limits import MAX_RETRY_MS
from tests.support.engine import payload
from tests.support.two_lanes import RULES, Step, TwoLanes, in_main, in_window
from tests.support.two_lanes import out_by_lane as out
from tests.support.window import CONVERSATION, failing, killed, make_message_table


@pytest.fixture
def lanes(database: object) -> TwoLanes:
    make_message_table(database)
    return TwoLanes()


def journaled_and_not_emitted(lanes: TwoLanes, *message_ids: str) -> None:
    """Let the Valkey lane take a batch, and fail to publish it."""
    in_main(lanes, *message_ids)
    lanes.wait(10_000)
    lanes.scene.bus.failures = [SendFailed("put event: Throttling")]
    lanes.execute()
    assert out(lanes) == []


def let_windows_end(lanes: TwoLanes) -> None:
    lanes.let_windows_end()
    lanes.settle()
    lanes.empty_windows()


@pytest.mark.promise("P1")
def test_a_message_that_valkey_lost_after_it_was_journaled_is_emitted_by_the_lane_that_has_it(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    lanes.wipe()
    in_window(lanes, "m1")
    let_windows_end(lanes)
    assert out(lanes) == [("dynamodb", ["m1"])]
    assert lanes.scene.is_at_rest()
    assert lanes.scene.telemetry.counts["LostInValkey"] == 1


@pytest.mark.promise("P1")
def test_a_copy_that_was_stored_before_the_batch_was_taken_is_kept_until_the_batch_is_emitted(lanes: TwoLanes) -> None:
    in_main(lanes, "m1", "m2")
    lanes.wait(10_000)
    lanes.max_waits = 0
    lanes.conversation_processor._agreement._most_waits = 0  # type: ignore[union-attr]
    in_window(lanes, "m1")
    lanes.scene.bus.failures = [SendFailed("put event: Throttling")]
    lanes.execute()
    assert lanes.scene.table.find(CONVERSATION, ["m1"]) == {"m1": None}
    lanes.wipe()
    let_windows_end(lanes)
    assert out(lanes) == [("dynamodb", ["m1"])]


def test_a_batch_that_valkey_still_has_is_emitted_by_valkey_and_drops_the_copies(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    in_window(lanes, "m1")
    lanes.let_windows_end()
    lanes.settle()
    assert lanes.scene.table.find(CONVERSATION, ["m1"]) == {"m1": None}, "the batch may yet be lost"
    lanes.execute()
    assert out(lanes) == [("valkey", ["m1"])]
    lanes.wait(MAX_DISPUTE_REST_MS)
    let_windows_end(lanes)
    assert out(lanes) == [("valkey", ["m1"])]
    assert lanes.scene.table.find(CONVERSATION, ["m1"]) == {"m1": "!main"}
    lanes.wait(MAX_DISPUTE_REST_MS)
    lanes.empty_windows()
    assert lanes.scene.is_at_rest()


def test_a_new_message_does_not_wait_for_the_dispute_about_another(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    in_window(lanes, "m1")
    for _ in range(5):
        lanes.wait(MAX_DISPUTE_REST_MS)
        lanes.empty_windows()
    in_window(lanes, "m2")
    lanes.wait(RULES.silence_ms)
    lanes.empty_windows()
    assert out(lanes) == [("dynamodb", ["m2"])]
    lanes.come_to_rest()
    assert sorted(out(lanes)) == [("dynamodb", ["m2"]), ("valkey", ["m1"])]


def test_a_dispute_does_not_cut_the_window_of_a_new_message_short(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    in_window(lanes, "m1")
    lanes.let_windows_end()
    lanes.wait(lanes.scene.table.window(CONVERSATION).due.due_at_ms - lanes.clock() - 1)
    in_window(lanes, "m2")
    lanes.wait(RULES.silence_ms - 1)
    lanes.empty_windows()
    assert out(lanes) == []
    in_window(lanes, "m3")
    for _ in range(3):
        lanes.wait(1_000)
        lanes.empty_windows()
    assert out(lanes) == [("dynamodb", ["m2", "m3"])]
    lanes.come_to_rest()
    assert sorted(out(lanes)) == [("dynamodb", ["m2", "m3"]), ("valkey", ["m1"])]


def test_a_batch_of_valkey_does_not_wait_for_a_window_that_waits_for_valkey(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    in_window(lanes, "m1")
    lanes.let_windows_end()
    lanes.execute()
    assert out(lanes) == [("valkey", ["m1"])]
    assert "Deferred" not in lanes.scene.telemetry.counts


def test_if_valkey_never_answers_the_copy_is_emitted_in_the_end(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    lanes.cut("conversation_processor", "swallowed")
    in_window(lanes, "m1")
    stored_at_ms = lanes.clock()
    while lanes.clock() < stored_at_ms + MAX_DISPUTE_MS - MAX_DISPUTE_REST_MS:
        lanes.wait(MAX_DISPUTE_REST_MS)
        lanes.empty_windows()
        lanes.do(Step("settle"))
    assert out(lanes) == []
    assert lanes.scene.telemetry.counts["DisputedMessages"] > 10
    for _ in range(3):
        lanes.wait(MAX_DISPUTE_REST_MS)
        lanes.empty_windows()
    assert out(lanes) == [("dynamodb", ["m1"])]
    assert lanes.scene.telemetry.counts["DisputesGivenUp"] == 1
    assert lanes.scene.is_at_rest()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_settlement_that_dies_at_any_step_is_followed_by_one_that_settles(
    lanes: TwoLanes, step: int, *, after: bool
) -> None:
    journaled_and_not_emitted(lanes, "m1", "m2")
    lanes.wipe()
    in_window(lanes, "m1")
    lanes.let_windows_end()
    with lanes.scene.wire.at_step(step, killed, after=after):
        lanes.do(Step("settle"))
    for _ in range(3):
        lanes.wait(MAX_DISPUTE_REST_MS)
        lanes.empty_windows()
        lanes.settle()
    assert out(lanes) == [("dynamodb", ["m1"])]
    assert lanes.scene.is_at_rest()


def test_a_table_that_fails_during_a_settlement_leaves_the_dispute_to_the_next_one(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    lanes.wipe()
    in_window(lanes, "m1")
    lanes.let_windows_end()
    with lanes.scene.wire.at("query", failing()):
        lanes.settle()
    assert lanes.scene.telemetry.said("disputes not settled")
    lanes.wait(MAX_DISPUTE_REST_MS)
    let_windows_end(lanes)
    assert out(lanes) == [("dynamodb", ["m1"])]


def test_a_processor_that_cannot_ask_valkey_asks_again(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    lanes.wipe()
    in_window(lanes, "m1")
    lanes.wait(RULES.silence_ms)
    with lanes.scene.wire.at("invoke", failing()):
        lanes.empty_windows()
    assert lanes.scene.telemetry.said("Valkey not asked")
    lanes.wait(MAX_DISPUTE_REST_MS)
    let_windows_end(lanes)
    assert out(lanes) == [("dynamodb", ["m1"])]


def test_a_message_that_comes_back_to_valkey_while_its_loss_is_settled_is_emitted_once(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    lanes.wipe()
    in_window(lanes, "m1")
    lanes.let_windows_end()

    def come_back() -> None:
        in_main(lanes, "m1")
        lanes.wait(MAX_RETRY_MS)
        lanes.execute()

    with lanes.scene.wire.at("update_item", come_back):
        lanes.settle()
    lanes.come_to_rest()
    assert [ids for _, ids in out(lanes)] == [["m1"]]


def test_a_stop_drops_a_disputed_message(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    lanes.wipe()
    in_window(lanes, "m1")
    lanes.let_windows_end()
    lanes.stop(0)
    lanes.settle()
    lanes.come_to_rest()
    assert out(lanes) == []


def test_what_was_forgotten_is_not_settled(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1")
    in_window(lanes, "m1")
    lanes.let_windows_end()
    lanes.engine.store.forget_conversation(CONVERSATION, forget_id="f", secret="k")
    lanes.scene.lane.forget_conversation(CONVERSATION, forget_id="f", secret="k")
    lanes.settle()
    in_window(lanes, "m1")
    lanes.wait(MAX_DISPUTE_REST_MS)
    let_windows_end(lanes)
    assert out(lanes) == []


def test_an_edit_of_a_disputed_message_is_published_and_changes_the_copy(lanes: TwoLanes) -> None:
    journaled_and_not_emitted(lanes, "m1", "m2")
    lanes.wipe()
    in_window(lanes, "m1", "m2")
    edited = lanes.scene.lane.edit_message(CONVERSATION, "m1", payload=payload("m1", "edited"))
    deleted = lanes.scene.lane.delete_message(CONVERSATION, "m2")
    assert edited == deleted == Absent(known=True, batch_id=None)
    let_windows_end(lanes)
    assert [event["text"] for event in lanes.scene.events()] == ["edited"]


@pytest.mark.promise("P1")
def test_a_settlement_that_is_late_does_not_make_a_frozen_batch_look_emitted(lanes: TwoLanes) -> None:
    in_main(lanes, "m1")
    lanes.wait(10_000)
    lanes.execute()
    in_window(lanes, "m1")
    lanes.let_windows_end()
    lanes.wait(MAX_DISPUTE_MS - RULES.silence_ms)
    in_window(lanes, "m2")

    def freeze_and_fail() -> None:
        lanes.scene.bus.failures = [SendFailed("put event: Throttling")]
        lanes.let_windows_end()
        window = lanes.scene.table.window(CONVERSATION)
        assert window.frozen
        assert window.frozen.names == ("m1", "m2")

    # While Valkey is slow to answer, the DynamoDB processor gives the dispute up and freezes a batch.
    with lanes.scene.wire.at("valkey", freeze_and_fail):
        lanes.settle()
    lanes.wait(MAX_RETRY_MS)
    lanes.empty_windows()
    assert out(lanes) == [("valkey", ["m1"]), ("dynamodb", ["m1", "m2"])]
    assert lanes.scene.is_at_rest()


@pytest.mark.promise("P1")
def test_a_batch_that_is_emitted_late_does_not_make_a_frozen_batch_look_emitted(lanes: TwoLanes) -> None:
    in_main(lanes, "m1")
    lanes.wait(10_000)
    lanes.conversation_processor._agreement._most_waits = 0  # type: ignore[union-attr]
    in_window(lanes, "m1")

    def lose_and_freeze() -> None:
        lanes.wipe()
        lanes.let_windows_end()
        lanes.settle()
        in_window(lanes, "m2")
        lanes.scene.bus.failures = [SendFailed("put event: Throttling")]
        lanes.let_windows_end()
        window = lanes.scene.table.window(CONVERSATION)
        assert window.frozen
        assert window.frozen.names == ("m1", "m2")

    publish = lanes.scene.bus.publish

    def publish_late(*event: str) -> None:
        lanes.scene.bus.publish = publish  # type: ignore[method-assign]
        lose_and_freeze()
        publish(*event)

    lanes.scene.bus.publish = publish_late  # type: ignore[method-assign,assignment]
    lanes.execute()
    lanes.wait(MAX_RETRY_MS)
    lanes.empty_windows()
    lanes.come_to_rest()
    assert "m2" in [message_id for _, ids in out(lanes) for message_id in ids]
    assert lanes.scene.is_at_rest()
