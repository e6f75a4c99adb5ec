"""A take freezes the batch: one conversation processor at a time has it, and its id and content never change."""

import pytest

from message_buffer.lanes.outcomes import (
    BatchBusy,
    BatchCompleted,
    BatchTaken,
    RunStale,
)
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.emission import (
    Bus,
    claim_and_take,
    run_until_idle,
)
from tests.support.engine import SETTINGS, Engine, monitored
from tests.support.outcomes import same
from tests.support.valkey_server import STRICT_SHEBANG


@pytest.mark.case(2)
def test_a_late_conversation_processor_is_refused_and_the_frozen_batch_is_emitted(engine: Engine) -> None:
    bus = Bus()
    engine.send("c", "m1")
    engine.clock.advance(1000)
    slow = claim_and_take(engine, "c", "slow")
    engine.send("c", "m2")
    engine.clock.advance(SETTINGS.token_ms)
    assert engine.store.recover_expired(0).conversations == ["c"]
    fast = claim_and_take(engine, "c", "fast")
    assert (fast.batch_id, fast.payloads, fast.attempt) == (slow.batch_id, slow.payloads, 2)
    before = engine.settle()
    assert same(engine.store.complete_batch("c", "slow"), RunStale())
    assert same(engine.store.retry_batch("c", "slow", retry_at_ms=0), RunStale())
    assert isinstance(engine.store.take_batch("c", "slow"), BatchBusy)
    assert engine.settle() == before
    bus.emit(engine, "c", fast)
    assert isinstance(engine.store.complete_batch("c", "fast"), BatchCompleted)
    run_until_idle(engine, bus)
    assert bus.batches("c") == [["m1"], ["m2"]]


def test_a_batch_is_cut_whatever_the_settings_say(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch=9000))
    for number in range(1001):
        engine.send("c", f"m{number}", rules=Rules(priority="vip"))
    assert engine.claim() == ["c"]
    taken = engine.store.take_batch("c", "t")
    assert isinstance(taken, BatchTaken)
    assert len(taken.payloads) == 1000


def test_a_batch_is_cut_before_it_is_more_than_a_conversation_processor_can_carry(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch_bytes=2_500))
    for number in range(5):
        engine.send("c", f"m{number}", "x" * 1000, rules=Rules(priority="vip"))
    sizes, generations, previous = [], [], []
    for run in range(3):
        assert engine.claim() == ["c"]
        taken = engine.store.take_batch("c", f"t{run}")
        assert isinstance(taken, BatchTaken)
        sizes.append(len(taken.payloads))
        generations.append(taken.generation)
        previous.append((taken.previous_at_ms, taken.last_at_ms))
        engine.store.complete_batch("c", f"t{run}")
    assert sizes == [2, 2, 1]
    assert generations == sorted(set(generations))
    assert [before for before, _ in previous] == [None, *(at for _, at in previous[:2])], "the part before comes before"
    assert engine.claim() == []


def test_what_does_not_fit_into_a_batch_is_not_read_to_find_that_out(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch_bytes=10_500))
    engine.store.take_batch("c", "teaches the server its script")
    for number in range(200):
        engine.send("c", f"m{number}", "x" * 1000, rules=Rules(priority="vip"))
    assert engine.claim() == ["c"]
    with monitored(engine.admin) as watch:
        taken = engine.store.take_batch("c", "t")
    assert isinstance(taken, BatchTaken)
    assert len(taken.payloads) == 9
    [commands] = watch.commands_of("take_batch", STRICT_SHEBANG)
    read = [(int(end), int(begin)) for name, _, begin, end in (c for c in commands if len(c) == 4) if name == b"lrange"]
    assert sum(end - begin + 1 for end, begin in read) <= len(taken.payloads) + 8


def test_the_time_of_a_reply_costs_no_command(engine: Engine) -> None:
    engine.store.take_batch("c", "teaches the server its script")
    took = []
    for run, has_reply in enumerate((False, False, True)):
        if has_reply:
            engine.store.note_reply("c", at_ms=engine.clock.advance(1))
        engine.send("c", f"m{run}", rules=Rules(priority="vip"))
        engine.claim()
        with monitored(engine.admin) as watch:
            taken = engine.store.take_batch("c", f"t{run}")
        assert isinstance(taken, BatchTaken)
        assert taken.replied_at_ms == (engine.clock() if has_reply else None)
        took += [[command[0] for command in commands] for commands in watch.commands_of("take_batch", STRICT_SHEBANG)]
        engine.store.complete_batch("c", f"t{run}")
        engine.clock.advance(1)
    first = b"zscore hmget hget llen hmget hdel lrange rename hset persist hset hdel hset zadd hget".split()
    assert took == [first] * 3


def test_a_full_batch_takes_no_message_from_behind_the_one_that_did_not_fit(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch_bytes=2_500))
    for number in range(20):
        engine.send("c", f"m{number}", "x" * (1000 if number < 5 else 1), rules=Rules(priority="vip"))
    sizes = []
    while engine.claim() == ["c"]:
        taken = engine.store.take_batch("c", "t")
        assert isinstance(taken, BatchTaken)
        assert taken == engine.store.take_batch("c", "t"), "the frozen batch is what was answered"
        sizes.append(len(taken.payloads))
        engine.store.complete_batch("c", "t")
    assert sizes == [2, 2, 16]


def test_one_message_above_the_limit_of_bytes_is_a_batch_of_its_own(engine: Engine) -> None:
    engine.store = engine.another_store(SETTINGS._replace(max_batch_bytes=10))
    engine.send("c", "m1", rules=Rules(priority="vip"))
    assert engine.claim() == ["c"]
    taken = engine.store.take_batch("c", "t")
    assert isinstance(taken, BatchTaken)
    assert len(taken.payloads) == 1
