"""A forget in the DynamoDB lane: what is in the table before, between and after its requests."""

import pytest

from message_buffer.errors import SendFailed, StoreUnavailable
from message_buffer.lanes import outcomes as o
from message_buffer.limits import MAX_WINDOW_TRIES
from tests.support.engine import payload
from tests.support.window import AMPLE, CONVERSATION, RULES, WindowScene, due, failing, lock, settle

STEPS = ["update_item", "query", "query", "batch_write_item", "delete_item", "update_item"]
LONGER_THAN_A_LOCK_MS = 40_000


def forget(window: WindowScene) -> o.ConversationForgotten:
    return window.lane.forget_conversation(CONVERSATION)


def items(window: WindowScene) -> list[str]:
    answer = window.table.client.scan(TableName=window.table.messages.name)
    return sorted(item["item"]["S"] for item in answer["Items"])


def test_nothing_is_left(window: WindowScene) -> None:
    due(window, "m1")
    window.run()
    window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=1_000)
    window.send("m2")
    assert forget(window) == o.ConversationForgotten(window.clock(), 1, 0, None)
    assert items(window) == []


@pytest.mark.parametrize("step", range(1, len(STEPS)))
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
    assert items(window) == []
    settle(window)
    assert window.batches() == [["m1"]]


def test_these_are_the_steps(window: WindowScene) -> None:
    window.send("m1")
    window.wire.made.clear()
    forget(window)
    assert window.wire.made == STEPS


def test_a_hold_that_comes_before_the_window_is_gone_is_erased_by_the_forget_and_not_unseen(
    window: WindowScene,
) -> None:
    def hold() -> None:
        window.lane.hold_buffer(CONVERSATION, holder="people", cause="operator", hold_ms=60_000)

    window.send("m1")
    window.wire.made.clear()
    with window.wire.at("delete_item", hold):
        forget(window)
    assert window.wire.made.count("delete_item") == 2, "it is erased knowingly"
    assert items(window) == []


@pytest.mark.parametrize("step", range(1, len(STEPS)))
def test_a_message_that_comes_during_a_forget_is_erased_or_leaves_and_is_never_stuck(
    window: WindowScene, step: int
) -> None:
    window.send("m1")
    with window.wire.at_step(step, lambda: window.send("m2"), after=True):
        forgotten = forget(window)
    settle(window)
    is_erased = step < len(STEPS) - 1
    assert window.batches() == ([] if is_erased else [["m2"]])
    assert (forgotten.waiting, items(window) == []) == (2 if is_erased else 1, is_erased)


def test_if_messages_keep_coming_a_forget_says_so(window: WindowScene) -> None:
    window.send("m0")
    names = iter(f"m{number}" for number in range(1, 100))

    def before(request: str) -> None:
        if request == "delete_item":
            window.send(next(names))

    window.wire.before = before
    with pytest.raises(StoreUnavailable, match="messages keep arriving"):
        forget(window)
    assert window.wire.made.count("delete_item") == MAX_WINDOW_TRIES
    assert not window.table.windows.read(CONVERSATION).lock.owner


@pytest.mark.parametrize("is_erased", [True, False])
def test_a_message_that_is_stored_before_and_noted_after_a_forget_leaves_no_open_window(
    window: WindowScene, *, is_erased: bool
) -> None:
    with window.wire.at_step(1, lambda: forget(window), after=is_erased):
        window.send("m1")
    settle(window)
    assert window.batches() == ([] if is_erased else [["m1"]])


RUN = ["get_item", "update_item", "query", "update_item", "put_events", "batch_write_item", "update_item"]


# The run stops after this many requests. It has checked its lock just before it leaves the tombstones.
@pytest.mark.parametrize("step", range(1, len(RUN)))
@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_was_stopped_for_longer_than_its_lock_makes_nothing_anew(
    window: WindowScene, step: int, *, again: bool
) -> None:
    def stopped() -> None:
        window.clock.advance(LONGER_THAN_A_LOCK_MS)
        forget(window)
        assert items(window) == []
        if again:
            window.send("m1")

    due(window, "m1")
    trigger = window.triggers.receive()
    assert trigger is not None
    with window.wire.at_step(step, stopped, after=True):
        window.new_processor().process(trigger, AMPLE)
    assert items(window) == (["!", "m#m1"] if again else [])
    settle(window)


def test_while_the_processor_empties_the_window_a_forget_says_so(window: WindowScene) -> None:
    window.send("m1")
    now_ms = window.clock()
    window.table.windows.acquire_to_drop(CONVERSATION, "processor", now_ms=now_ms, until_ms=now_ms + 30_000)
    with pytest.raises(StoreUnavailable, match="try again"):
        forget(window)


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


def send_ahead(window: WindowScene, message_id: str, *, ahead_ms: int) -> None:
    """Buffer a message through a host whose clock is ahead by `ahead_ms`."""
    window.clock.advance(ahead_ms)
    window.new_lane().buffer_message(CONVERSATION, message_id, payload=payload(message_id), timing=RULES.timing)
    window.clock.advance(-ahead_ms)


def test_it_says_when_the_last_message_arrived(window: WindowScene) -> None:
    """Consumers drop batches up to this time, and no newer ones."""
    assert forget(window).last_at_ms is None
    window.send("m1")
    send_ahead(window, "m2", ahead_ms=50_000)
    arrived_at_ms = window.clock() + 50_000
    window.lane.flush_buffer(CONVERSATION)
    window.run()
    due(window, "m3")
    window.run()
    assert window.batches() == [["m1", "m2"], ["m3"]]
    assert forget(window).last_at_ms == arrived_at_ms


def test_a_batch_of_a_clock_far_ahead_does_not_count(window: WindowScene) -> None:
    window.send("m1")
    arrived_at_ms = window.clock()
    send_ahead(window, "m2", ahead_ms=3_600_000)
    assert forget(window).last_at_ms == arrived_at_ms
