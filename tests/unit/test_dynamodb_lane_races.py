"""The DynamoDB lane at every step: what arrives, fails or dies there, and what its consumers see in the end.

A processor makes these requests: look, lock, read, freeze, emit, leave tombstones, close.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

import pytest

from lambdas.dynamodb_processor.service import MAX_TRIGGER_REST_MS, WINDOW_LOCK_MS
from message_buffer.errors import SendFailed
from message_buffer.lanes import outcomes as o
from message_buffer.limits import SECOND_MS
from tests.support.engine import payload
from tests.support.window import (
    AMPLE,
    CONVERSATION,
    SILENCE_MS,
    WINDOW_MS,
    Killed,
    WindowScene,
    due,
    failing,
    killed,
    settle,
)

STEPS = ["get_item", "update_item", "query", "update_item", "put_events", "batch_write_item", "update_item"]
EVERY_STEP = [(step, after) for step in range(1, len(STEPS) + 1) for after in (False, True)]
NAMES = ["check", "lock", "read", "freeze", "emit", "write_tombstones", "close"]
# When the queue delivers a dead run's trigger again, the run's lock may not have expired yet. Then the next run returns
# the trigger. The queue counts in whole seconds.
A_DEATH_MS = WINDOW_LOCK_MS + MAX_TRIGGER_REST_MS + SECOND_MS
at_every_step = pytest.mark.parametrize(
    ("step", "after"),
    EVERY_STEP,
    ids=[f"{'after' if after else 'before'}-{NAMES[step - 1]}" for step, after in EVERY_STEP],
)


def test_these_are_the_steps(window: WindowScene) -> None:
    due(window, "m1")
    window.wire.made.clear()
    window.run()
    assert window.wire.made == STEPS


def dying(window: WindowScene, step: int, *, after: bool) -> AbstractContextManager[object]:
    """Let a run die at its request number `step`, counted from 1. A shorter run does not die."""
    seen = count(1)

    def look(_request: str) -> None:
        if next(seen) == step:
            raise Killed

    return patch.object(window.wire, "after" if after else "before", look)


@pytest.mark.promise("P7")
@at_every_step
@pytest.mark.parametrize("kills", [1, 2, 3])
@pytest.mark.parametrize("messages", [1, 2])
def test_each_death_delays_a_batch_by_36_seconds_at_most(
    window: WindowScene, step: int, after: bool, kills: int, messages: int
) -> None:
    """Use no sweep. The second message comes after the first death."""
    due(window, "m1")
    deaths = 0
    while window.triggers.waiting:
        if (trigger := window.triggers.receive()) is None:
            window.clock.advance(100)
            continue
        try:
            with dying(window, step, after=after) if deaths < kills else nullcontext():
                if window.processor.process(trigger, AMPLE):
                    window.triggers.delete(trigger)
        except Killed:
            deaths += 1
            if deaths == 1 and messages == 2:
                window.send("m2")
    assert deaths
    assert window.is_idle()
    assert [each for batch in window.batches() for each in batch] == ["m1", "m2"][:messages]
    for event in window.events():
        due_at_ms = event["metadata"]["firstMessageAt"] + event["metadata"]["waitMs"]
        assert event["bufferedAt"] - due_at_ms <= deaths * A_DEATH_MS


@pytest.mark.promise("P7")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_a_death_before_the_due_time_delays_the_batch_no_longer(window: WindowScene, step: int, after: bool) -> None:
    """Kill the run as it reads the window, or as it hides the trigger again."""
    window.send("m1")
    window.clock.advance(SECOND_MS)
    due_at_ms = window.send("m2").due_at_ms
    assert due_at_ms is not None
    window.clock.advance(SILENCE_MS - SECOND_MS)
    with dying(window, step, after=after), pytest.raises(Killed):
        window.run()
    window.pass_time(A_DEATH_MS, step_ms=100)
    assert window.batches() == [["m1", "m2"]]
    assert window.events()[0]["bufferedAt"] - due_at_ms <= A_DEATH_MS


@pytest.mark.promise("P2")
def test_an_edit_that_read_before_the_batch_was_named_does_not_change_it(window: WindowScene) -> None:
    due(window, "m1")

    def emit_and_die() -> None:
        with window.wire.at("put_events", killed, after=True), pytest.raises(Killed):
            window.run(window.new_processor())

    with window.wire.at("transact_write_items", emit_and_die):
        outcome = window.lane.edit_message(CONVERSATION, "m1", payload=payload("m1", "edited"))
    settle(window)
    assert isinstance(outcome, o.MessageFrozen)
    assert [event["text"] for event in window.events()] == ["text of m1"] * 2


@pytest.mark.promise("P1")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("action", [killed, failing()])
def test_ingest_that_dies_or_fails_at_any_step_is_made_good_by_the_platform(
    window: WindowScene, step: int, after: bool, action: Callable[[], None]
) -> None:
    with window.wire.at_step(step, action, after=after), pytest.raises((Killed, SendFailed)):
        window.send("m1")
    window.clock.advance(3_000)
    window.send("m2")
    window.send("m1")
    settle(window)
    batches = window.batches()
    assert sorted(each for batch in batches for each in batch) == ["m1", "m2"]


def test_an_edit_is_kept_if_the_request_that_stored_its_message_fails(window: WindowScene) -> None:
    def edit_and_fail() -> None:
        edited = window.new_lane().edit_message(CONVERSATION, "m1", payload=payload("m1", "edited"))
        assert isinstance(edited, o.MessageEdited)
        raise SendFailed("no trigger")

    with window.wire.at("send_message", edit_and_fail), pytest.raises(SendFailed):
        window.send("m1")
    window.send("m1")
    settle(window)
    assert [event["text"] for event in window.events()] == ["edited"]


def test_a_hold_that_comes_between_two_windows_is_kept(window: WindowScene) -> None:
    due(window, "m1")
    hold = partial(window.lane.hold_buffer, CONVERSATION, holder="people", cause="operator", hold_ms=120_000)
    with window.wire.at("put_events", lambda: window.send("m2"), after=True), window.wire.at("send_message", hold):
        window.run()
    window.pass_time(119_000, sweep=True)
    assert window.batches() == [["m1"]]
    assert len(window.triggers.waiting) == 1, "the sweep does not take it for forgotten"
    window.pass_time(WINDOW_MS)
    assert window.batches() == [["m1"], ["m2"]]


def test_a_freeze_whose_first_answer_was_lost_is_known_by_its_second(window: WindowScene) -> None:
    """Freeze twice, as the SDK does if it lost the first answer: the second answer is that there is a batch."""
    due(window, "m1")
    freeze = window.table.windows.freeze

    def twice(*args: Any, **options: Any) -> bool:
        freeze(*args, **options)
        return freeze(*args, **options)

    with patch.object(window.table.windows, "freeze", twice):
        window.run()
    assert window.batches() == [["m1"]]
    assert window.is_idle()


@pytest.mark.promise("P1")
def test_a_deletion_leaves_a_message_that_the_window_has_not_counted(window: WindowScene) -> None:
    with window.wire.at("update_item", killed), pytest.raises(Killed):
        window.send("m1")  # stored, but the window does not know it
    window.send("m1")
    window.send("m2")
    assert window.lane.delete_message(CONVERSATION, "m2") == o.MessageDeleted()
    settle(window)
    assert window.batches() == [["m1"]]
