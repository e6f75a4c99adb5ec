"""One test for each way the engine was once broken by somebody who tried."""

import pytest

from message_buffer.errors import InvalidInput
from message_buffer.lanes.outcomes import (
    AlreadyCancelled,
    Buffered,
    Claimed,
    Duplicate,
    OnHold,
    Released,
    Taken,
)
from message_buffer.rules.layers import Rules
from tests.support.engine import SETTINGS, Engine

PATIENT = Rules(silence_ms=200_000, max_wait_ms=400_000, typing_inference_ms=0)


def test_a_cancel_repeated_after_its_answer_was_lost_spares_what_came_since(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.store.cancel_buffer("c", cancel_id="the message that said stop")
    engine.send("c", "m2")
    assert isinstance(engine.store.cancel_buffer("c", cancel_id="the message that said stop"), AlreadyCancelled)
    assert engine.store.peek_conversation("c").count == 1


def test_a_claim_of_more_than_a_reply_can_hold_is_cut_not_lost(engine: Engine) -> None:
    for number in range(1200):
        engine.send(f"c{number}", "m", rules=Rules(priority="vip"))
    engine.work()
    first = engine.store.claim_due(0, engine.processor, limit=4500)
    second = engine.store.claim_due(0, engine.processor, limit=4500)
    assert isinstance(first, Claimed)
    assert isinstance(second, Claimed)
    assert (len(first.conversations), len(second.conversations)) == (1000, 200)


def test_a_batch_is_cut_whatever_the_settings_say(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch=9000))
    for number in range(1001):
        engine.send("c", f"m{number}", rules=Rules(priority="vip"))
    assert engine.claim() == ["c"]
    taken = engine.store.take_batch("c", "t")
    assert isinstance(taken, Taken)
    assert len(taken.payloads) == 1000


def test_distant_conversations_do_not_hide_an_overdue_one_from_the_watchdog(engine: Engine) -> None:
    for number in range(3):  # they look due in pending; later messages have moved them far away
        engine.send(f"patient{number}", "m1", rules=Rules(silence_ms=1000, max_wait_ms=400_000))
        engine.send(f"patient{number}", "m2", rules=PATIENT)
    engine.clock.advance(2000)
    urgent = engine.send("urgent", "m1")
    engine.clock.advance(60_000)
    health = engine.store.recover_expired(0, limit=3)
    assert health.start_processor
    assert health.oldest_due_at_ms is not None
    assert health.oldest_due_at_ms <= urgent.due_at_ms  # type: ignore[operator]


def test_ids_of_messages_that_wait_behind_a_stuck_batch_are_kept(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    engine.store.take_batch("c", "t")
    engine.send("c", "m2")
    engine.clock.advance(SETTINGS.seen_ms + 1)
    engine.store.complete_batch("c", "t")
    assert isinstance(engine.send("c", "m2"), Duplicate)


def test_a_reservation_made_by_a_clock_far_ahead_blocks_nobody(engine: Engine) -> None:
    engine.work()
    engine.clock.advance(60_000)
    assert engine.send("c", "m1").start_processor
    engine.clock.advance(-60_000)
    engine.store.acquire_lease(0, "other")
    engine.clock.advance(1)
    engine.store.hand_over(0, engine.processor)
    engine.clock.advance(20_000)
    assert engine.store.recover_expired(0).start_processor


@pytest.mark.parametrize("wrong", [1500.5, 0, -1, 10**13, True])
def test_times_that_would_not_fit_into_the_buffer_are_refused(engine: Engine, wrong: float) -> None:
    engine.send("c", "m1")
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.extend_wait("c", extend_ms=wrong, max_wait_ms=30_000)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.extend_wait("c", extend_ms=100, max_wait_ms=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="whole number"):
        engine.store.hold_buffer("c", hold_ms=wrong)  # type: ignore[arg-type]


def test_a_hold_that_takes_a_conversation_back_sees_to_its_processor(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    assert isinstance(engine.store.leave_if_idle(0, engine.processor), Released)
    assert engine.store.hold_buffer("c", hold_ms=20_000) == OnHold(engine.clock.now_ms + 20_000, start_processor=True)


def test_one_message_of_a_host_an_hour_ahead_does_not_delay_the_next_ones(engine: Engine) -> None:
    engine.clock.advance(3_600_000)
    engine.send("c", "m1")
    engine.clock.advance(-3_600_000)
    outcome = engine.send("c", "m2", rules=Rules(silence_ms=1000, typing_inference_ms=0))
    assert isinstance(outcome, Buffered)
    assert outcome.due_at_ms == engine.clock.now_ms + 1000


def test_a_processor_that_came_may_be_followed_by_another_start(engine: Engine) -> None:
    assert engine.send("c", "m1").start_processor
    engine.work()
    engine.store.hand_over(0, engine.processor)
    engine.store.acquire_lease(0, "successor")
    engine.clock.advance(engine.store.settings.lease_ms + 1)
    assert engine.send("c", "m2").start_processor


def test_a_renewal_leaves_the_planned_wake_alone(engine: Engine) -> None:
    engine.work()
    engine.store.claim_due(0, engine.processor)
    planned = engine.keys()["{b0}:open"].pairs[b""][13:]
    engine.store.renew_lease(0, engine.processor)
    assert engine.keys()["{b0}:open"].pairs[b""][13:] == planned


def test_a_cancel_remembers_the_last_arrival(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.store.cancel_buffer("c")
    assert engine.store.peek_conversation("c").last_at_ms == engine.clock.now_ms


def test_a_conversation_that_is_never_idle_forgets_old_ids_all_the_same(engine: Engine) -> None:
    engine.send("c", "old")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    engine.store.take_batch("c", "t1")
    engine.clock.advance(SETTINGS.seen_ms + 60_002)
    engine.send("c", "new")
    engine.store.complete_batch("c", "t1")
    assert isinstance(engine.send("c", "new"), Duplicate)
    assert isinstance(engine.send("c", "old"), Buffered)


def test_a_batch_is_cut_before_it_is_more_than_a_conversation_processor_can_carry(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch_bytes=2_500))
    for number in range(5):
        engine.send("c", f"m{number}", "x" * 1000, rules=Rules(priority="vip"))
    sizes, generations = [], []
    for run in range(3):
        assert engine.claim() == ["c"]
        taken = engine.store.take_batch("c", f"t{run}")
        assert isinstance(taken, Taken)
        sizes.append(len(taken.payloads))
        generations.append(taken.generation)
        engine.store.complete_batch("c", f"t{run}")
    assert sizes == [2, 2, 1]
    assert generations == sorted(set(generations))
    assert engine.claim() == []


def test_one_message_above_the_limit_of_bytes_is_a_batch_of_its_own(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch_bytes=10))
    engine.send("c", "m1", rules=Rules(priority="vip"))
    assert engine.claim() == ["c"]
    taken = engine.store.take_batch("c", "t")
    assert isinstance(taken, Taken)
    assert len(taken.payloads) == 1
