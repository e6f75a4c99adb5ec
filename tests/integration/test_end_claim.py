"""If a conversation processor is reported dead, its conversation is due again. Other runs keep their batches."""

import pytest

from message_buffer.lanes.outcomes import ClaimEnded, Completed, Retried, Stale, Taken
from message_buffer.limits import CALM_AFTER_DEATH_MS, MAX_PAUSE_AFTER_DEATH_MS
from message_buffer.rules.layers import Rules
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same

NOW = Rules(priority="vip")


def claim(engine: Engine, conversation: str = "c") -> int:
    """Claim the conversation, and return the claim's deadline."""
    assert conversation in engine.claim()
    return engine.clock.now_ms + SETTINGS.claim_ms


def take(engine: Engine, deadline_ms: int, run: str = "run") -> Taken:
    taken = engine.store.take_batch("c", f"{deadline_ms}.{run}")
    assert isinstance(taken, Taken)
    return taken


@pytest.fixture
def claimed(engine: Engine) -> int:
    engine.send("c", "m1", rules=NOW)
    return claim(engine)


def test_an_untaken_claim_is_due_again_at_once(engine: Engine, claimed: int) -> None:
    engine.clock.advance(500)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(engine.clock.now_ms))
    assert_invariants(engine)
    assert engine.claim() == ["c"]


def test_a_taken_batch_is_due_again_at_once_under_its_id_and_the_next_take_counts_the_death(
    engine: Engine, claimed: int
) -> None:
    first = take(engine, claimed)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(engine.clock.now_ms))
    assert_invariants(engine)
    engine.clock.advance(5)
    assert int(engine.keys()["{b0}:taken:c"].pairs[b"token_until"]) != 0
    again = take(engine, claim(engine))
    assert (again.batch_id, again.payloads, again.attempt) == (first.batch_id, first.payloads, 2)


def test_a_host_whose_clock_lags_takes_the_batch_at_once(engine: Engine, claimed: int) -> None:
    take(engine, claimed)
    engine.store.end_claim("c", deadline_ms=claimed)
    engine.clock.advance(5)
    deadline_ms = claim(engine)
    engine.clock.advance(-5_000)
    take(engine, deadline_ms)


def test_the_claim_of_a_processor_that_died_too_starts_another_one(engine: Engine, claimed: int) -> None:
    engine.store.hand_over(0, engine.processor)
    engine.clock.advance(SETTINGS.start_ms)
    assert engine.store.end_claim("c", deadline_ms=claimed).start_id


def test_a_living_processor_is_woken(engine: Engine, claimed: int) -> None:
    engine.store.end_claim("c", deadline_ms=claimed)
    assert engine.keys()["{b0}:wake"].value


def test_other_claims_and_forged_deadlines_are_left_alone(engine: Engine, claimed: int) -> None:
    for deadline_ms in (claimed - 1, claimed + 1, 0, -1):
        assert same(engine.store.end_claim("c", deadline_ms=deadline_ms), ClaimEnded(None))
    assert same(engine.store.end_claim("d", deadline_ms=claimed), ClaimEnded(None))
    assert take(engine, claimed).attempt == 1


def test_a_notice_that_comes_twice_or_late_leaves_the_next_claim_and_the_next_batch_alone(
    engine: Engine, claimed: int
) -> None:
    take(engine, claimed)
    engine.store.end_claim("c", deadline_ms=claimed)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(None))
    engine.clock.advance(5)
    second = claim(engine)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(None)), "claimed again, not yet taken"
    take(engine, second)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(None)), "taken again"
    engine.store.complete_batch("c", f"{second}.run")
    assert same(engine.store.end_claim("c", deadline_ms=second), ClaimEnded(None)), "completed before the run died"


def test_after_its_token_ran_out_a_batch_is_put_back_once(engine: Engine, claimed: int) -> None:
    take(engine, claimed)
    engine.clock.advance(SETTINGS.token_ms)
    engine.store.recover_expired(0)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(None))
    assert engine.claim() == ["c"]


@pytest.mark.parametrize("how", ["completes", "retries"])
def test_a_run_that_lives_on_may_still_complete_its_batch(engine: Engine, claimed: int, how: str) -> None:
    take(engine, claimed)
    engine.store.end_claim("c", deadline_ms=claimed)
    token = f"{claimed}.run"
    if how == "completes":
        assert isinstance(engine.store.complete_batch("c", token), Completed)
        assert engine.claim() == []
    else:
        assert isinstance(engine.store.retry_batch("c", token, retry_at_ms=engine.clock.now_ms), Retried)
        assert engine.claim() == ["c"]


def test_once_another_run_has_the_batch_the_one_that_lives_on_is_refused(engine: Engine, claimed: int) -> None:
    take(engine, claimed)
    engine.store.end_claim("c", deadline_ms=claimed)
    engine.clock.advance(5)
    take(engine, claim(engine))
    assert same(engine.store.complete_batch("c", f"{claimed}.run"), Stale())


def test_if_one_copy_of_an_event_dies_the_batch_comes_again_under_its_id(engine: Engine, claimed: int) -> None:
    """A notice does not say which copy died. Here the second copy died, and only the first had the batch."""
    first = take(engine, claimed, "first-copy")
    engine.store.end_claim("c", deadline_ms=claimed)
    engine.clock.advance(5)
    assert take(engine, claim(engine)).batch_id == first.batch_id


# -- the pauses ------------------------------------------------------------------------------------


def pause(engine: Engine, deadline_ms: int) -> int:
    due_at_ms = engine.store.end_claim("c", deadline_ms=deadline_ms).due_at_ms
    assert due_at_ms is not None
    return due_at_ms - engine.clock.now_ms


def test_a_batch_whose_conversation_processors_die_waits_longer_each_time(engine: Engine, claimed: int) -> None:
    pauses, deadline_ms = [], claimed
    for _ in range(9):
        take(engine, deadline_ms)
        pauses.append(pause(engine, deadline_ms))
        engine.clock.advance(pauses[-1] + 5)
        deadline_ms = claim(engine)
    assert pauses[:5] == [0, 1_000, 2_000, 4_000, 8_000]
    assert max(pauses) == MAX_PAUSE_AFTER_DEATH_MS


def test_claims_that_die_untaken_wait_longer_each_time(engine: Engine, claimed: int) -> None:
    pauses, deadline_ms = [], claimed
    for _ in range(9):
        engine.clock.advance(700)
        pauses.append(pause(engine, deadline_ms))
        engine.clock.advance(pauses[-1])
        deadline_ms = claim(engine)
    assert pauses == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_conversation_processors_that_die_together_are_one_death(engine: Engine) -> None:
    names = [f"c{n}" for n in range(20)]
    for name in names:
        engine.send(name, "m1", rules=NOW)
    assert sorted(engine.claim()) == sorted(names)
    deadline_ms = engine.clock.now_ms + SETTINGS.claim_ms
    for name in names:
        engine.clock.advance(10)
        assert engine.store.end_claim(name, deadline_ms=deadline_ms).due_at_ms == engine.clock.now_ms


def test_the_pause_grows_with_time_and_not_with_the_number_of_conversations(engine: Engine, claimed: int) -> None:
    names = [f"c{n}" for n in range(20)]
    for name in names:
        engine.send(name, "m1", rules=NOW)
    deadlines, due_at_ms, began_ms = {"c": claimed}, [], engine.clock.now_ms
    while engine.clock.now_ms < began_ms + 10_000:
        engine.clock.advance(500)
        for name, deadline_ms in deadlines.items():
            ended = engine.store.end_claim(name, deadline_ms=deadline_ms)
            assert ended.due_at_ms is not None
            due_at_ms.append(ended.due_at_ms)
        deadlines = dict.fromkeys(engine.claim(), engine.clock.now_ms + SETTINGS.claim_ms)
    # Pauses of 0, 1, 2 and 4 s fill these ten seconds, with half a second for each start.
    assert max(due_at_ms) <= began_ms + 10_000 + 8_000


def test_a_completed_batch_ends_the_row_of_deaths(engine: Engine, claimed: int) -> None:
    engine.clock.advance(700)
    assert pause(engine, claimed) == 0
    deadline_ms = claim(engine)
    take(engine, deadline_ms)
    engine.store.complete_batch("c", f"{deadline_ms}.run")
    engine.send("c", "m2", rules=NOW)
    deadline_ms = claim(engine)
    engine.clock.advance(700)
    assert pause(engine, deadline_ms) == 0


@pytest.mark.parametrize("how", ["completes", "retries"])
def test_after_the_second_death_untaken_one_is_started_at_a_time_until_one_does_its_work(
    engine: Engine, claimed: int, how: str
) -> None:
    for _ in range(2):
        engine.clock.advance(700)
        engine.clock.advance(pause(engine, claimed))
        claimed = claim(engine)
    for name in ("d", "e", "f"):
        engine.send(name, "m1", rules=NOW)
    assert engine.claim() == []
    take(engine, claimed)
    assert engine.claim() == []
    if how == "completes":
        engine.store.complete_batch("c", f"{claimed}.run")
    else:
        engine.store.retry_batch("c", f"{claimed}.run", retry_at_ms=engine.clock.now_ms + 1_000)
    assert sorted(engine.claim()) == ["d", "e", "f"]


def test_a_death_after_a_calm_time_is_a_first_one(engine: Engine, claimed: int) -> None:
    assert pause(engine, claimed) == 0
    engine.clock.advance(CALM_AFTER_DEATH_MS)
    deadline_ms = claim(engine)
    engine.clock.advance(1)
    assert pause(engine, deadline_ms) == 0


def test_a_buffer_that_ended_on_hold_stays_on_hold(engine: Engine, claimed: int) -> None:
    held = engine.store.hold_buffer("c", hold_ms=60_000)
    assert same(engine.store.end_claim("c", deadline_ms=claimed), ClaimEnded(None))
    assert engine.claim() == []
    engine.clock.now_ms = held.held_until_ms
    assert engine.claim() == ["c"]
