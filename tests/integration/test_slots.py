"""No more conversations are in flight than there are slots, and no slot stays free."""

import pytest

from message_buffer.lanes.outcomes import BatchTaken, ConversationsClaimed
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, Engine

NOW = Rules(silence_ms=0, typing_inference_ms=0)


@pytest.fixture
def few_slots(engine: Engine) -> Store:
    """Return a store with two slots, on a shard with a living processor."""
    engine.work()
    return engine.another_store(SETTINGS._replace(slots=2))


def send(engine: Engine, *names: str, rules: Rules = NOW) -> None:
    for name in names:
        engine.send(name, f"m{engine.clock.now_ms}", rules=rules)


def backlog(engine: Engine, count: int) -> None:
    """Make conversations due 1 ms before all that are sent later."""
    send(engine, *(f"c{number:03}" for number in range(count)))
    engine.clock.advance(1)


def claim(engine: Engine, store: Store | None = None) -> list[str]:
    engine.work()
    claimed = (store or engine.store).claim_due(0, engine.processor)
    assert isinstance(claimed, ConversationsClaimed)
    return [due.conversation for due in claimed.conversations]


def take(engine: Engine, name: str) -> BatchTaken:
    taken = engine.store.take_batch(name, f"token of {name}")
    assert isinstance(taken, BatchTaken)
    return taken


def woken(engine: Engine) -> bool:
    return engine.keys().get("{b0}:wake") is not None


@pytest.mark.promise("P5")
@pytest.mark.parametrize("fails", [False, True])
def test_a_freed_slot_wakes_the_processor_that_waits_for_it(engine: Engine, few_slots: Store, fails: bool) -> None:
    backlog(engine, 5)
    claim(engine, store=few_slots)
    take(engine, "c000")
    assert not woken(engine)
    if fails:
        engine.store.retry_batch("c000", "token of c000", retry_at_ms=engine.clock.now_ms + 1_000)
    else:
        engine.store.complete_batch("c000", "token of c000")
    assert woken(engine)
    assert claim(engine, store=few_slots) == ["c002"]


def test_messages_do_not_wake_a_processor_that_waits_for_a_slot(engine: Engine, few_slots: Store) -> None:
    backlog(engine, 3)
    claim(engine, store=few_slots)
    send(engine, "another")
    assert not woken(engine), "it could not claim it"
