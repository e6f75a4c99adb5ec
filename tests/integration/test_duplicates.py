"""A message id is buffered once, and remembered as long as promised."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from message_buffer.lanes.outcomes import (
    MessageBuffered,
    MessageDuplicate,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import Bus, claim_and_take, ids_of, run_until_idle
from tests.support.engine import SETTINGS, Engine, accepted

DEFAULT = Rules()


def test_ids_of_messages_that_wait_behind_a_stuck_batch_are_kept(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    engine.store.take_batch("c", "t")
    engine.send("c", "m2")
    engine.clock.advance(SETTINGS.seen_ms + 1)
    engine.store.complete_batch("c", "t")
    assert isinstance(engine.send("c", "m2"), MessageDuplicate)


def test_a_conversation_that_is_never_idle_forgets_old_ids_all_the_same(engine: Engine) -> None:
    engine.send("c", "old")
    engine.clock.advance(1000)
    assert engine.claim() == ["c"]
    engine.store.take_batch("c", "t1")
    engine.clock.advance(SETTINGS.seen_ms + 60_002)
    engine.send("c", "new")
    engine.store.complete_batch("c", "t1")
    assert isinstance(engine.send("c", "new"), MessageDuplicate)
    assert isinstance(engine.send("c", "old"), MessageBuffered)


@pytest.mark.case(27)
def test_an_id_is_remembered_across_batches_as_long_as_promised_and_no_longer(engine: Engine) -> None:
    settings = SETTINGS
    engine.send("c", "m1")
    run_until_idle(engine, Bus())
    engine.clock.advance(settings.seen_ms - 60_000)
    engine.send("c", "m2")
    assert isinstance(engine.send("c", "m1"), MessageDuplicate)
    run_until_idle(engine, Bus())
    engine.clock.advance(60_000)
    engine.send("c", "m3")
    run_until_idle(engine, Bus())
    assert isinstance(engine.send("c", "m1"), MessageBuffered)


@pytest.mark.case(25)
def test_fifty_parallel_deliveries_of_one_message_id_buffer_it_once(engine: Engine) -> None:
    line = Barrier(50)

    def deliver(_n: int) -> MessageBuffered | MessageDuplicate:
        store = engine.another_store()
        line.wait(timeout=30)
        return accepted(store.buffer_message("c", "wamid.1", payload=b'"wamid.1"\n{}', timing=DEFAULT.timing))

    with ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(deliver, range(50)))
    assert [type(outcome) for outcome in outcomes].count(MessageBuffered) == 1
    assert sum(outcome.start_id is not None for outcome in outcomes) == 1, "one of them starts the processor"
    engine.clock.advance(DEFAULT.silence_ms)
    assert ids_of(claim_and_take(engine, "c").payloads) == ["wamid.1"]
