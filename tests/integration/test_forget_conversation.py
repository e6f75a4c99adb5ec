"""A forget erases everything of a conversation but hashes of its message ids, a page at a time."""

import pytest

from message_buffer.lanes.outcomes import Buffered, Deleted, Duplicate, Edited, Forgotten, Stale
from message_buffer.limits import MAX_IDS_HASHED_IN_A_CALL
from message_buffer.rules.layers import Rules
from tests.support.emission import Bus, emit_due, run_until_idle, take
from tests.support.engine import Engine, payload
from tests.support.invariants import assert_invariants, assert_nothing_left_behind

MANY = 2 * MAX_IDS_HASHED_IN_A_CALL + 7


def forget(engine: Engine, forget_id: str = "f", page: int = 0, *, goes_on: bool = False) -> Forgotten:
    return engine.store.forget_conversation("c", forget_id=forget_id, secret="secret", page=page, goes_on=goes_on)


def forget_all(engine: Engine) -> list[Forgotten]:
    """Call until the last page, as the lane does."""
    answers = [forget(engine)]
    while (page := answers[-1].next_page) is not None:
        answers.append(forget(engine, page=page))
    return answers


def raw_ids(engine: Engine) -> set[bytes]:
    return {each for each in engine.keys()["{b0}:seen:c"].pairs if not each.startswith(b"\xff")}


def test_waiting_messages_and_a_frozen_batch_are_gone_and_nothing_is_emitted(engine: Engine) -> None:
    engine.send("c", "m1", "a word")
    engine.clock.advance(10_000)
    engine.claim()
    take(engine, "c")
    engine.send("c", "m2", "a word")
    forgotten = forget(engine)
    assert (forgotten.waiting, forgotten.frozen) == (1, 1)
    assert forgotten.leaving_until_ms is not None
    assert_nothing_left_behind(engine)
    assert not any(b"a word" in value for key in engine.keys().values() for value in key.value)
    bus = Bus()
    run_until_idle(engine, bus)
    assert bus.events == []


def test_a_conversation_processor_at_work_finds_the_batch_gone(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.clock.advance(10_000)
    engine.claim()
    engine.store.take_batch("c", "t1")
    forget(engine)
    assert engine.store.complete_batch("c", "t1") == Stale()
    assert engine.store.retry_batch("c", "t1", retry_at_ms=engine.clock.now_ms) == Stale()
    assert engine.store.take_batch("c", "t2") == Stale()


def test_every_id_of_a_long_talk_becomes_a_hash_and_remains_known(engine: Engine) -> None:
    for number in range(MANY):
        engine.send("c", f"m{number}")
        engine.clock.advance(number % 3 // 2)
    answers = forget_all(engine)
    assert len(answers) == 3
    assert {answer.waiting for answer in answers} == {MANY}
    assert raw_ids(engine) == set()
    engine.send("c", "new")
    for number in (0, 1, MAX_IDS_HASHED_IN_A_CALL, MANY - 1):
        assert isinstance(engine.send("c", f"m{number}"), Duplicate)
    assert engine.store.peek_conversation("c").count == 1


def test_messages_that_come_between_two_pages_are_kept(engine: Engine) -> None:
    for number in range(MANY):
        engine.send("c", f"m{number}")
    page: int | None = 0
    answers = 0
    while page is not None:
        page, answers = forget(engine, page=page).next_page, answers + 1
        assert isinstance(engine.send("c", f"new{answers}"), Buffered)
        assert_invariants(engine)
    assert not raw_ids(engine) & {b"m%d" % number for number in range(MANY)}
    assert engine.store.peek_conversation("c").count == answers
    bus = Bus()
    engine.clock.advance(60_000)
    emit_due(engine, bus)
    assert len(bus.events) == 1


def test_a_forget_that_ended_early_is_finished_by_the_next(engine: Engine) -> None:
    for number in range(MANY):
        engine.send("c", f"m{number}")
    forget(engine, "interrupted")
    assert raw_ids(engine)
    assert forget_all(engine)[0].waiting == 0
    assert raw_ids(engine) == set()
    assert isinstance(engine.send("c", "m3"), Duplicate)


def test_a_hash_is_remembered_for_a_day_and_the_secret_with_it(engine: Engine) -> None:
    engine.send("c", "m1")
    forget(engine)
    keys = engine.keys()
    for kind in ("conv", "seen"):
        assert 0 < keys[f"{{b0}}:{kind}:c"].ttl_ms <= engine.store.settings.seen_ms
    assert keys["{b0}:conv:c"].pairs[b"id_secret"] == b"secret"


def test_whatever_was_erased_arrived_before_whatever_comes(engine: Engine) -> None:
    """So a consumer can tell by a batch's last arrival whether it was to be forgotten."""
    ahead = engine.another_store(clock=lambda: engine.clock.now_ms + 50_000)
    ahead.buffer_message("c", "m1", payload=b'"m1"\n{}', timing=Rules().timing)
    forgotten = forget(engine)
    assert forgotten.at_ms == engine.clock.now_ms + 50_000
    engine.send("c", "m2")
    assert (engine.store.peek_conversation("c").last_at_ms or 0) > forgotten.at_ms


def test_whatever_comes_is_newer_than_what_the_other_lane_held(engine: Engine) -> None:
    at_ms = engine.clock.now_ms + 50_000
    forgotten = engine.store.forget_conversation("c", forget_id="f", secret="secret", not_before_ms=at_ms)
    assert forgotten.at_ms == at_ms
    assert forget(engine).at_ms == at_ms
    engine.send("c", "m1")
    assert (engine.store.peek_conversation("c").last_at_ms or 0) > at_ms


def test_other_conversations_keep_everything(engine: Engine) -> None:
    engine.send("d", "m1")
    before = {name: key.value for name, key in engine.keys().items() if name.endswith(":d")}
    engine.send("c", "m1")
    forget(engine)
    assert {name: key.value for name, key in engine.keys().items() if name.endswith(":d")} == before
    assert isinstance(engine.send("d", "m1"), Duplicate)
    assert isinstance(engine.send("d", "m2"), Buffered)


def test_the_mark_of_a_forget_is_not_listed(engine: Engine) -> None:
    engine.send("c", "m1")
    forget(engine)
    assert engine.store.list_conversations(0).conversations == []


@pytest.mark.parametrize("held_ms", [1, 300_000])
def test_a_hold_is_forgotten(engine: Engine, held_ms: int) -> None:
    engine.store.hold_buffer("c", hold_ms=held_ms)
    forget(engine)
    assert engine.store.peek_conversation("c").held_until_ms is None


def test_a_forget_that_goes_on_leaves_newer_ids_as_they_are(engine: Engine) -> None:
    """Otherwise a person could not delete or edit what they wrote since."""
    engine.send("c", "m1")
    forget(engine)
    engine.clock.advance(5_000)
    engine.send("c", "m2")
    forget(engine, goes_on=True)
    assert raw_ids(engine) == {b"m2"}
    assert isinstance(engine.store.edit_message("c", "m2", payload=payload("m2", "edited")), Edited)
    assert engine.store.delete_message("c", "m2") == Deleted()


def test_a_forget_that_goes_on_after_another_forget_erases_no_message(engine: Engine) -> None:
    engine.send("c", "m1")
    forget(engine, "first")
    engine.clock.advance(5_000)
    other = forget(engine, "other")
    engine.clock.advance(5_000)
    engine.send("c", "m2")
    assert forget(engine, "first", goes_on=True).at_ms == other.at_ms
    assert forget(engine, "first", page=200, goes_on=True).at_ms == other.at_ms
    assert engine.store.peek_conversation("c").count == 1
    assert_invariants(engine)


def test_a_forget_that_nobody_remembers_erases_nothing_when_it_goes_on(engine: Engine) -> None:
    engine.send("c", "m1")
    assert forget(engine, goes_on=True).at_ms == 0
    assert raw_ids(engine) == {b"m1"}
    assert engine.store.peek_conversation("c").count == 1
