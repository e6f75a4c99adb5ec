"""The adaptive wait follows each author's rhythm."""

import math
import random

import pytest

from message_buffer.lanes.outcomes import Buffered
from message_buffer.rules.layers import Rules
from tests.support.due_times import ADAPTIVE, send_at
from tests.support.emission import Bus, claim_and_take, run_until_idle
from tests.support.engine import Engine


def test_adaptive_waits_as_rfc_6298_computes_by_hand(engine: Engine) -> None:
    """Use SRTT = 7/8 SRTT + 1/8 R, RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R|, RTO = SRTT + 4 RTTVAR; first R, R/2."""
    found = send_at(engine, ADAPTIVE, 0, 400, 1200, 1300)
    # R = 400: 400 + 4 × 200 = 1200.
    # R = 800: var = 0.75 × 200 + 0.25 × 400 = 250, mean = 350 + 100 = 450: 450 + 1000 = 1450.
    # R = 100: var = 0.75 × 250 + 0.25 × 350 = 275, mean = 393.75 + 12.5 = 406.25: 1506.25, up.
    assert found == [(1000, "silence"), (1600, "silence"), (2650, "silence"), (1300 + 1507, "silence")]


def test_adaptive_keeps_between_its_floor_and_its_ceiling(engine: Engine) -> None:
    assert send_at(engine, ADAPTIVE, 0, 10)[-1].after_ms == 10 + ADAPTIVE.adaptive_floor_ms
    engine.store.cancel_buffer("c")
    engine.admin.flushall()
    patient = Rules(adaptive=True, silence_ms=5000, adaptive_floor_ms=300, adaptive_ceiling_ms=4000)
    assert send_at(engine, patient, 0, 3999)[-1].after_ms == 3999 + patient.adaptive_ceiling_ms


def test_adaptive_is_bounded_by_max_wait(engine: Engine) -> None:
    rules = Rules(adaptive=True, typing_inference_ms=0, adaptive_ceiling_ms=1500, max_wait_ms=1500)
    assert send_at(engine, rules, 0, 700)[-1] == (1500, "max_wait")


def test_adaptive_learns_nothing_from_a_gap_that_ended_a_thought(engine: Engine) -> None:
    send_at(engine, ADAPTIVE, 0, 400)
    run_until_idle(engine, Bus())
    engine.clock.advance(60_000)
    engine.send("c", "much later", rules=ADAPTIVE)
    assert engine.store.peek_conversation("c").due_at_ms == engine.clock.now_ms + 1200


def test_adaptive_remembers_the_author_from_one_batch_to_the_next(engine: Engine) -> None:
    send_at(engine, ADAPTIVE, 0, 200)
    run_until_idle(engine, Bus())
    engine.clock.advance(60_000)
    assert engine.send("c", "later", rules=ADAPTIVE).due_at_ms == engine.clock.now_ms + 600


def test_a_wrong_guess_lengthens_the_next_wait(engine: Engine) -> None:
    """Send a message soon after a batch left: it belongs to the same thought, so its gap counts."""
    send_at(engine, ADAPTIVE, 0, 100, 200, 300)
    engine.clock.now_ms += 400
    claim_and_take(engine, "c", "t1")
    engine.store.complete_batch("c", "t1")
    before_ms = 400
    engine.clock.advance(300)
    late = engine.send("c", "late", rules=ADAPTIVE)
    assert isinstance(late, Buffered)
    assert late.due_at_ms - engine.clock.now_ms > before_ms


@pytest.mark.parametrize("seed", range(5))
def test_adaptive_agrees_with_the_formula_over_a_long_conversation(engine: Engine, seed: int) -> None:
    rng = random.Random(seed)
    rules = Rules(adaptive=True, max_messages=1000, max_wait_ms=600_000, adaptive_ceiling_ms=9000)
    mean = dev = None
    engine.send("c", "m", rules=rules)
    for n in range(40):
        wait_ms = (engine.store.peek_conversation("c").due_at_ms or 0) - engine.clock.now_ms
        gap_ms = min(rng.randint(1, 2500), wait_ms - 1)
        engine.clock.advance(gap_ms)
        if mean is None or dev is None:
            mean, dev = float(gap_ms), gap_ms / 2
        else:
            dev = 0.75 * dev + 0.25 * abs(mean - gap_ms)
            mean = 0.875 * mean + 0.125 * gap_ms
        expected_ms = max(rules.adaptive_floor_ms, min(rules.adaptive_ceiling_ms, math.ceil(mean + 4 * dev)))
        due_at_ms = engine.send("c", f"m{n}", rules=rules).due_at_ms or 0
        # The state is kept to a tenth of a millisecond.
        assert abs(due_at_ms - engine.clock.now_ms - expected_ms) <= 2
