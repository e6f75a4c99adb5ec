"""A forget in the DynamoDB lane: what is in the table before, between and after its requests."""

import json
from uuid import uuid4

import pytest

from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from tests.support.engine import payload
from tests.support.window import CONVERSATION, RULES, WINDOW_MS, WindowScene, due, failing, lock, settle

STEPS = [
    "update_item",
    "query",
    "batch_write_item",
    "query",
    "batch_write_item",
    "update_item",
    "update_item",
    "update_item",
]


def forget(window: WindowScene, forget_id: str = "") -> o.Forgotten:
    return window.lane.forget_conversation(CONVERSATION, forget_id=forget_id or uuid4().hex, secret="secret")


def items(window: WindowScene) -> list[str]:
    answer = window.table._client.scan(TableName=window.table.name)
    return sorted(item["item"]["S"] for item in answer["Items"])


def test_nothing_is_left_but_hashes_and_the_window(window: WindowScene) -> None:
    due(window, "m1")
    window.run()
    window.send("m2")
    forget(window)
    left = items(window)
    assert left[0] == "!"
    assert [each[:2] for each in left[1:]] == ["h#", "h#"]


@pytest.mark.parametrize("step", range(2, len(STEPS) + 1))
def test_a_forget_that_fails_at_any_request_can_be_repeated(window: WindowScene, step: int) -> None:
    due(window, "m1")
    window.run()
    window.send("m2")
    with (
        window.wire.at_step(step, failing("ProvisionedThroughputExceededException")),
        pytest.raises(SendFailed),
    ):
        forget(window)
    window.clock.advance(60_000)
    forget(window)
    assert not [each for each in items(window) if each.startswith("m#")]
    for message_id in ("m1", "m2"):
        assert isinstance(window.send(message_id), o.Duplicate)
    settle(window)
    assert window.batches() == [["m1"]]


def test_these_are_the_steps(window: WindowScene) -> None:
    window.send("m1")
    window.wire.made.clear()
    forget(window)
    assert window.wire.made == STEPS


@pytest.mark.parametrize("step", range(1, len(STEPS)))
def test_a_message_that_comes_during_a_forget_is_erased_or_leaves_and_is_never_stuck(
    window: WindowScene, step: int
) -> None:
    window.send("m1")
    with window.wire.at_step(step, lambda: window.send("m2"), after=True):
        forget(window)
    settle(window)
    # What came before the read was erased with the rest.
    assert window.batches() == ([] if step == 1 else [["m2"]])


def test_a_redelivery_that_the_processor_finds_first_is_erased_again(window: WindowScene) -> None:
    window.send("m1")
    forget(window)
    window.table.put_message(CONVERSATION, "m1", body=payload("m1"), arrived_at_ms=window.clock())
    window.send("m2")
    settle(window)
    assert window.batches() == [["m2"]]
    assert "m#m1" not in items(window)


def test_while_the_processor_empties_the_window_a_forget_says_so(window: WindowScene) -> None:
    window.send("m1")
    now_ms = window.clock()
    window.table.acquire_to_cancel(CONVERSATION, "processor", now_ms=now_ms, until_ms=now_ms + 30_000)
    with pytest.raises(StoreUnavailable, match="try again"):
        forget(window)


def test_a_message_that_comes_while_a_forget_works_leaves_as_a_newer_one(window: WindowScene) -> None:
    """Consumers drop a batch whose last message arrived by the time of the forget."""

    def message_arrives() -> None:
        window.send("m2")
        window.clock.advance(5)

    window.send("m1")
    with window.wire.at_step(2, message_arrives, after=True):
        forgotten = forget(window)
    settle(window)
    ((_, batch),) = window.bus.published
    assert json.loads(batch)["metadata"]["lastMessageAt"] > forgotten.at_ms


def test_a_message_of_a_host_whose_clock_lags_leaves_as_a_newer_one(window: WindowScene) -> None:
    window.send("m1")
    forgotten = forget(window)
    window.clock.advance(-20_000)
    window.new_lane().buffer_message(CONVERSATION, "m2", payload=payload("m2"), timing=RULES.timing)
    window.clock.advance(20_000)
    settle(window)
    ((_, batch),) = window.bus.published
    assert json.loads(batch)["metadata"]["lastMessageAt"] > forgotten.at_ms


def last_arrivals(window: WindowScene) -> list[int]:
    return [json.loads(detail)["metadata"]["lastMessageAt"] for _, detail in window.bus.published]


def send_ahead(window: WindowScene, message_id: str, *, ahead_ms: int) -> None:
    """Buffer a message through a host whose clock is ahead by `ahead_ms`."""
    window.clock.advance(ahead_ms)
    window.new_lane().buffer_message(CONVERSATION, message_id, payload=payload(message_id), timing=RULES.timing)
    window.clock.advance(-ahead_ms)


def test_an_emitted_batch_of_a_host_whose_clock_is_ahead_is_older_than_the_forget(window: WindowScene) -> None:
    window.send("m1")
    send_ahead(window, "m2", ahead_ms=50_000)
    window.lane.flush_buffer(CONVERSATION)
    window.run()
    due(window, "m3")
    window.run()
    assert window.batches() == [["m1", "m2"], ["m3"]]
    assert forget(window).at_ms == max(last_arrivals(window))


def test_a_second_forget_does_not_go_back_in_time(window: WindowScene) -> None:
    """Each batch must be newer than the forget before it, because consumers drop batches up to a forget's time."""
    window.send("m1")
    send_ahead(window, "m2", ahead_ms=50_000)
    first = forget(window)
    due(window, "m3")
    window.run()
    second = forget(window)
    due(window, "m4")
    window.run()
    assert window.batches() == [["m3"], ["m4"]]
    of_m3, of_m4 = last_arrivals(window)
    assert first.at_ms < of_m3 <= second.at_ms < of_m4


def test_a_batch_of_a_clock_far_ahead_does_not_move_a_forget(window: WindowScene) -> None:
    window.send("m1")
    send_ahead(window, "m2", ahead_ms=3_600_000)
    window.clock.advance(WINDOW_MS)
    window.run()
    assert forget(window).at_ms == window.clock()


def test_a_forget_that_goes_on_after_another_forget_erases_no_message(window: WindowScene) -> None:
    window.send("m1")
    forget(window, "first")
    forget(window, "other")
    window.send("m2")
    window.lane.forget_conversation(CONVERSATION, forget_id="first", secret="secret", goes_on=True)
    settle(window)
    assert window.batches() == [["m2"]]


def test_a_forget_that_has_lost_the_lock_says_so(window: WindowScene) -> None:
    def processor_takes_the_lock() -> None:
        now_ms = window.clock.advance(20_000)
        lock(window, "processor", until_ms=now_ms + 30_000)

    window.send("m1")
    with (
        window.wire.at_step(3, processor_takes_the_lock, after=True),
        pytest.raises(StoreUnavailable, match="try again"),
    ):
        forget(window)
