"""When a batch is due: the formula, to the millisecond."""

import math
import random

import pytest

from message_buffer.lanes.outcomes import Buffered, Claimed, Empty, Retimed, Unmoved
from message_buffer.rules.layers import Rules
from tests.support.due_times import ADAPTIVE, FIXED, TYPING, send_at
from tests.support.emission import Bus, claim_and_take, run_until_idle
from tests.support.engine import Engine, ManualClock
from tests.support.invariants import assert_invariants
from tests.support.outcomes import same
from tests.support.states import waiting_for_retry


@pytest.mark.promise("P4")
@pytest.mark.parametrize(
    ("rules", "sent", "due"),
    [
        pytest.param(FIXED, [0], [(1000, "silence")], id="silence"),
        pytest.param(FIXED, [0, 999], [(1000, "silence"), (1999, "silence")], id="each message resets it"),
        pytest.param(FIXED, [0, 0, 0], [(1000, "silence")] * 3, id="in one millisecond"),
        pytest.param(FIXED, [0, 900, 1800, 2700, 3600, 3999], [
            (1000, "silence"), (1900, "silence"), (2800, "silence"), (3700, "silence"), (4600, "silence"),
            (4999, "silence"),
        ], id="just before max wait"),
        pytest.param(FIXED, [0, 900, 1800, 2700, 3600, 4000, 4001], [
            (1000, "silence"), (1900, "silence"), (2800, "silence"), (3700, "silence"), (4600, "silence"),
            (5000, "max_wait"), (5000, "max_wait"),
        ], id="max wait bounds it"),
        pytest.param(FIXED, [0, 1000, 1500], [(1000, "silence")] * 3, id="what is due stays due"),
        pytest.param(TYPING, [0], [(1000, "silence")], id="one message is not typing"),
        pytest.param(TYPING, [0, 999], [(1000, "silence"), (3999, "silence")], id="a short gap is typing"),
        pytest.param(
            Rules(silence_ms=2000, typing_inference_ms=500, max_wait_ms=30_000), [0, 499],
            [(2000, "silence"), (2499, "silence")], id="typing never shortens the silence",
        ),
        pytest.param(
            Rules(silence_ms=2000, typing_inference_ms=1500, max_wait_ms=30_000), [0, 1500, 2999],
            [(2000, "silence"), (3500, "silence"), (4999, "silence")],
            id="a gap as long as the inference is none",
        ),
        pytest.param(
            Rules(silence_ms=1000, typing_inference_ms=3000, max_wait_ms=3500), [0, 900],
            [(1000, "silence"), (3500, "max_wait")], id="typing is bounded by max wait",
        ),
        pytest.param(
            Rules(min_messages=3, typing_inference_ms=0, max_wait_ms=9000), [0, 100, 200],
            [(9000, "max_wait"), (9000, "max_wait"), (1200, "silence")],
            id="fewer than min wait for max wait",
        ),
        pytest.param(
            Rules(max_messages=2, typing_inference_ms=0), [0, 100, 150],
            [(1000, "silence"), (100, "max_messages"), (100, "max_messages")], id="max messages",
        ),
        pytest.param(
            Rules(min_messages=2, max_messages=2, max_wait_ms=9000), [0, 40],
            [(9000, "max_wait"), (40, "max_messages")], id="min and max at once",
        ),
        pytest.param(Rules(max_messages=1), [0], [(0, "max_messages")], id="a limit of one"),
        pytest.param(Rules(silence_ms=0), [0], [(0, "silence")], id="no silence"),
        pytest.param(Rules(priority="vip"), [0], [(0, "priority")], id="vip skips the wait"),
        pytest.param(
            Rules(priority="vip", vip_silence_ms=200), [0, 150], [(200, "silence"), (350, "silence")],
            id="vip shortens the wait, and typing does not lengthen it",
        ),
        pytest.param(
            Rules(priority="vip", vip_silence_ms=200, adaptive=True), [0, 150],
            [(200, "silence"), (350, "silence")],
            id="vip is not adaptive",
        ),
    ],
)  # fmt: skip
def test_due_is_as_the_formula_says(engine: Engine, rules: Rules, sent: list[int], due: list[tuple[int, str]]) -> None:
    assert send_at(engine, rules, *sent) == due


@pytest.mark.promise("P4")
def test_due_is_claimed_at_its_very_millisecond_and_not_before(engine: Engine) -> None:
    rng = random.Random(4)
    for n in range(30):
        rules = Rules(silence_ms=rng.randint(1, 2000), typing_inference_ms=0, max_wait_ms=rng.randint(2500, 4000))
        gaps = [rng.randint(0, rules.silence_ms - 1) for _ in range(rng.randint(0, 4))]
        engine.send(f"c{n}", "m", rules=rules)
        first_at_ms = last_at_ms = engine.clock.now_ms
        for at, gap in enumerate(gaps):
            if engine.clock.now_ms + gap >= first_at_ms + rules.max_wait_ms:
                break
            last_at_ms = engine.clock.advance(gap)
            engine.send(f"c{n}", f"m{at}", rules=rules)
        due_at_ms = min(last_at_ms + rules.silence_ms, first_at_ms + rules.max_wait_ms)
        engine.clock.now_ms = due_at_ms - 1
        assert engine.claim() == []
        engine.clock.advance(1)
        assert engine.claim() == [f"c{n}"]


# -- adaptive --------------------------------------------------------------------------------------


def test_adaptive_waits_as_rfc_6298_computes_by_hand(engine: Engine) -> None:
    """SRTT = 7/8 SRTT + 1/8 R, RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R|, RTO = SRTT + 4 RTTVAR; first R, R/2."""
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
    """A message soon after a batch went out was part of the same thought: its gap counts."""
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


# -- rules that change while a buffer is open ------------------------------------------------------


@pytest.mark.case(32)
@pytest.mark.parametrize(
    "later",
    [
        FIXED,
        TYPING,
        pytest.param(Rules(silence_ms=3500, max_wait_ms=4000), id="max wait bounds it"),
        pytest.param(Rules(min_messages=5, max_wait_ms=9000), id="fewer than min wait for max wait"),
        pytest.param(Rules(max_messages=3), id="max messages"),
        pytest.param(Rules(priority="vip", vip_silence_ms=1500), id="vip waits"),
    ],
)
@pytest.mark.parametrize("sent", [[0], [0, 400, 800]], ids=["one message", "three messages"])
def test_new_rules_time_an_open_buffer_as_if_it_had_begun_under_them(
    engine: Engine, later: Rules, sent: list[int]
) -> None:
    """Its gaps are all alike: the mean gap, which stands for the last, is the last."""
    began_ms = engine.clock.now_ms
    *_, (after_ms, reason) = send_at(engine, later, *sent)
    engine.admin.flushall()
    patient = Rules(silence_ms=20_000, typing_inference_ms=0, max_wait_ms=60_000)
    engine.clock.now_ms = began_ms
    for n, offset_ms in enumerate(sent):
        engine.clock.now_ms = began_ms + offset_ms
        engine.send("c", f"again {n}", rules=patient)
    retimed = engine.store.retime_buffer("c", timing=later.timing)
    assert same(retimed, Retimed(began_ms + after_ms, len(sent), start_processor=False))
    assert engine.store.peek_conversation("c").flush_reason == reason
    engine.clock.now_ms = began_ms + after_ms - 1
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


def test_new_rules_that_adapt_use_the_rhythm_learnt_so_far(engine: Engine) -> None:
    learnt = send_at(engine, ADAPTIVE, 0, 400)[-1]
    assert learnt.after_ms == 400 + 1200
    lower = Rules(adaptive=True, adaptive_ceiling_ms=700)
    retimed = engine.store.retime_buffer("c", timing=lower.timing)
    assert same(retimed, Retimed(engine.clock.now_ms + 700, 2, start_processor=False))


def test_new_rules_that_do_not_wait_make_it_due_now(engine: Engine) -> None:
    engine.send("c", "m1", rules=FIXED)
    engine.clock.advance(300)
    engine.store.retime_buffer("c", timing=Rules(priority="vip").timing)
    assert claim_and_take(engine, "c").flush_reason == "priority"


def test_new_rules_under_which_the_wait_is_over_make_it_due_now(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(silence_ms=9000))
    engine.clock.advance(5000)
    retimed = engine.store.retime_buffer("c", timing=FIXED.timing)
    assert same(retimed, Retimed(engine.clock.now_ms, 1, start_processor=False))
    assert claim_and_take(engine, "c").flush_reason == "silence"


def test_new_rules_do_not_postpone_what_is_due(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1", rules=FIXED).due_at_ms or 0
    patient = Rules(silence_ms=20_000, max_wait_ms=60_000).timing
    engine.clock.now_ms = due_at_ms
    assert same(engine.store.retime_buffer("c", timing=patient), Retimed(due_at_ms, 1, start_processor=False))
    engine.clock.advance(1)
    assert same(engine.store.retime_buffer("c", timing=patient), Unmoved(due_at_ms))
    assert engine.claim() == ["c"]


def test_new_rules_neither_end_a_hold_nor_open_a_buffer(engine: Engine) -> None:
    assert same(engine.store.retime_buffer("c", timing=FIXED.timing), Empty())
    assert engine.keys() == {}
    engine.send("c", "m1", rules=FIXED)
    held_until_ms = engine.store.hold_buffer("c", hold_ms=50_000).held_until_ms
    retimed = engine.store.retime_buffer("c", timing=Rules(priority="vip").timing)
    assert same(retimed, Retimed(held_until_ms, 1, start_processor=False))


def test_new_rules_behind_a_frozen_batch_leave_its_retry_alone(engine: Engine) -> None:
    bus = Bus()
    waiting_for_retry(engine)
    retry_at_ms = engine.store.peek_conversation("c").scheduled_at_ms or 0
    engine.clock.now_ms = retry_at_ms - 1
    engine.send("c", "behind", rules=FIXED)
    engine.store.retime_buffer("c", timing=Rules(silence_ms=7000).timing)
    run_until_idle(engine, bus)
    assert [event.at_ms for event in bus.events] == [retry_at_ms, retry_at_ms - 1 + 7000]


def test_new_rules_ask_for_a_processor(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(silence_ms=500_000, max_wait_ms=600_000))
    retimed = engine.store.retime_buffer("c", timing=FIXED.timing)
    assert same(retimed, Retimed(engine.clock.now_ms + 1000, 1, start_processor=True))


# -- hold, extend, and clocks that run apart -------------------------------------------------------


@pytest.mark.parametrize("hold_ms", [1, 500, 999, 1000, 5000])
def test_a_hold_is_a_lower_bound_to_the_millisecond(engine: Engine, hold_ms: int) -> None:
    engine.store.hold_buffer("c", hold_ms=hold_ms)
    (found,) = send_at(engine, FIXED, 0)
    assert found == ((1000, "silence") if hold_ms <= 1000 else (hold_ms, "hold"))


def test_a_hold_may_pass_max_wait(engine: Engine) -> None:
    engine.send("c", "m", rules=FIXED)
    engine.store.hold_buffer("c", hold_ms=50_000)
    engine.clock.advance(49_999)
    assert engine.claim() == []
    engine.clock.advance(1)
    assert claim_and_take(engine, "c").flush_reason == "hold"


@pytest.mark.parametrize("times", [1, 3])
def test_an_extension_moves_due_by_the_millisecond(engine: Engine, times: int) -> None:
    engine.send("c", "m", rules=FIXED)
    for _ in range(times):
        engine.clock.advance(333)
        engine.store.extend_wait("c", extend_ms=1234, max_wait_ms=30_000)
    due_at_ms = engine.clock.now_ms + 1234
    engine.clock.now_ms = due_at_ms - 1
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


@pytest.mark.case(13)
@pytest.mark.parametrize("ahead_ms", [-60_000, -1001, -1, 1, 999, 60_000])
def test_hosts_whose_clocks_run_apart_keep_order_and_bounds(engine: Engine, ahead_ms: int) -> None:
    """The second host's clock is off. Time inside a conversation goes by the later of the two."""
    other = ManualClock()
    store = engine.another_store(clock=other)
    first_at_ms = engine.clock.now_ms
    for n in range(6):
        other.now_ms = engine.clock.now_ms + ahead_ms
        if n % 2:
            store.buffer_message("c", f"m{n}", payload=f'"m{n}"\n'.encode(), timing=TYPING.timing)
        else:
            engine.send("c", f"m{n}", rules=TYPING)
        assert_invariants(engine)
        seen = engine.store.peek_conversation("c")
        assert seen.first_at_ms is not None
        assert seen.last_at_ms is not None
        assert seen.due_at_ms is not None
        assert first_at_ms == seen.first_at_ms <= seen.last_at_ms
        assert seen.due_at_ms <= seen.first_at_ms + TYPING.max_wait_ms
        engine.clock.advance(300)
    bus = Bus()
    run_until_idle(engine, bus)
    assert bus.batches("c") == [[f"m{n}" for n in range(6)]]


@pytest.mark.case(13)
def test_a_processor_whose_clock_lags_is_late_and_loses_nothing(engine: Engine) -> None:
    lagging = ManualClock()
    store = engine.another_store(clock=lagging)
    engine.send("c", "m1", rules=FIXED)
    lagging.now_ms = engine.clock.now_ms - 60_000
    store.acquire_lease(0, "lagging")
    assert same(store.claim_due(0, "lagging"), Claimed(engine.clock.now_ms + 1000, []))
    lagging.now_ms = engine.clock.now_ms + 1000
    engine.processor = "lagging"
    bus = Bus()
    run_until_idle(engine, bus)
    assert bus.ids("c") == ["m1"]
