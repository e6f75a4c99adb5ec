"""The watchdog's look at a shard: which conversations are overdue, and whether a processor must be started."""

import pytest

from message_buffer.lanes.outcomes import (
    ShardRecovered,
)
from message_buffer.rules.layers import Rules
from tests.support.engine import SETTINGS, Engine
from tests.support.outcomes import same

PATIENT = Rules(silence_ms=200_000, max_wait_ms=400_000, typing_inference_ms=0)


LATE = Rules(silence_ms=200_000, max_wait_ms=300_000)


def test_distant_conversations_do_not_hide_an_overdue_one_from_the_watchdog(engine: Engine) -> None:
    for number in range(3):  # they look due in pending; later messages have moved them far away
        engine.send(f"patient{number}", "m1", rules=Rules(silence_ms=1000, max_wait_ms=400_000))
        engine.send(f"patient{number}", "m2", rules=PATIENT)
    engine.clock.advance(2000)
    urgent = engine.send("urgent", "m1")
    engine.clock.advance(60_000)
    health = engine.store.recover_expired(0, limit=3)
    assert health.start_id
    assert health.oldest_due_at_ms is not None
    assert health.oldest_due_at_ms <= urgent.due_at_ms  # type: ignore[operator]


@pytest.mark.promise("P8")
def test_work_beyond_the_horizon_starts_no_processor_until_it_is_near(engine: Engine) -> None:
    buffered = engine.send("c", "m1", rules=LATE)
    assert not buffered.start_id
    assert engine.keys().keys() == {"{b0}:pending", "{b0}:open", "{b0}:msgs:c", "{b0}:seen:c"}
    engine.clock.now_ms = (buffered.due_at_ms or 0) - SETTINGS.horizon_ms - 1
    assert not engine.store.recover_expired(0).start_id
    engine.clock.advance(1)
    assert engine.store.recover_expired(0).start_id


@pytest.mark.promise("P8")
def test_an_empty_shard_starts_no_processor(engine: Engine) -> None:
    recovered = engine.store.recover_expired(0)
    assert same(recovered, ShardRecovered(0, 0, None, None, start_id=None, conversations=[]))
    assert engine.keys() == {}
