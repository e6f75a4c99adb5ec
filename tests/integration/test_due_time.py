"""When a batch is due: the formula, to the millisecond."""

import pytest

from message_buffer.rules.rules_and_defaults import Rules
from tests.support.due_times import FIXED, TYPING, send_at
from tests.support.emission import Bus, claim_and_take, emit_due, run_until_idle
from tests.support.engine import Engine


@pytest.mark.promise("P4")
@pytest.mark.parametrize(
    ("rules", "sent", "due"),
    [
        pytest.param(FIXED, [0], [(1000, "silence")], id="silence"),
        pytest.param(FIXED, [0, 900, 1800, 2700, 3600, 4000, 4001], [
            (1000, "silence"), (1900, "silence"), (2800, "silence"), (3700, "silence"), (4600, "silence"),
            (5000, "max_wait"), (5000, "max_wait"),
        ], id="max wait bounds it"),
        pytest.param(FIXED, [0, 1000, 1500], [(1000, "silence")] * 3, id="what is due stays due"),
        pytest.param(TYPING, [0, 999], [(1000, "silence"), (3999, "silence")], id="a short gap is typing"),
        pytest.param(
            Rules(silence_ms=2000, typing_inference_ms=1500, max_wait_ms=30_000), [0, 1500, 2999],
            [(2000, "silence"), (3500, "silence"), (4999, "silence")],
            id="a gap as long as the inference is none",
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
        pytest.param(Rules(priority="vip"), [0], [(0, "priority")], id="vip skips the wait"),
        pytest.param(
            Rules(priority="vip", vip_silence_ms=200), [0, 150], [(200, "silence"), (350, "silence")],
            id="vip shortens the wait, and typing does not lengthen it",
        ),
    ],
)  # fmt: skip
def test_due_is_as_the_formula_says(engine: Engine, rules: Rules, sent: list[int], due: list[tuple[int, str]]) -> None:
    assert send_at(engine, rules, *sent) == due


@pytest.mark.case(7)
def test_a_message_every_silence_minus_one_ms_still_flushes_at_max_wait(engine: Engine) -> None:
    rules = Rules(silence_ms=1000, typing_inference_ms=0, max_wait_ms=30_000, max_messages=1000)
    bus, sent, began_ms = Bus(), 0, engine.clock.now_ms
    due_at_ms = 0
    while engine.clock.now_ms < began_ms + 10 * rules.max_wait_ms:
        if sent and engine.clock.now_ms >= due_at_ms:
            emit_due(engine, bus)
        buffered = engine.send("c", f"m{sent}", rules=rules)
        due_at_ms, sent = buffered.due_at_ms or 0, sent + 1
        engine.clock.advance(rules.silence_ms - 1)
    assert len(bus.events) >= 9
    assert {event.reason for event in bus.events} == {"max_wait"}
    assert all(len(event.ids) <= 32 for event in bus.events)
    run_until_idle(engine, bus)
    assert bus.ids("c") == [f"m{n}" for n in range(sent)]


@pytest.mark.case(8)
@pytest.mark.parametrize("before_deadline_ms", [1000, 999, 2, 1, 0, -1])
def test_near_the_deadline_due_is_never_after_first_plus_max_wait(engine: Engine, before_deadline_ms: int) -> None:
    rules = Rules(silence_ms=1000, max_wait_ms=30_000, max_messages=100)
    first_at_ms = engine.clock.now_ms
    engine.send("c", "m0", rules=rules)
    for n in range(1, 33):
        engine.clock.advance(900)
        engine.send("c", f"m{n}", rules=rules)
    engine.clock.now_ms = first_at_ms + rules.max_wait_ms - before_deadline_ms
    late = engine.send("c", "late", rules=rules)
    assert late.due_at_ms == first_at_ms + rules.max_wait_ms
    engine.clock.now_ms = max(engine.clock.now_ms, first_at_ms + rules.max_wait_ms)
    assert claim_and_take(engine, "c").flush_reason == "max_wait"


@pytest.mark.case(10)
@pytest.mark.parametrize("silence_ms", [1, 7, 250, 999])
def test_sub_second_rules_behave_to_the_millisecond(engine: Engine, silence_ms: int) -> None:
    engine.clock.now_ms += 437
    engine.send("c", "m1", rules=Rules(silence_ms=silence_ms, typing_inference_ms=0, max_wait_ms=1500))
    engine.clock.advance(silence_ms - 1)
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


@pytest.mark.case(32)
def test_the_rules_of_the_last_message_apply_to_the_open_buffer(engine: Engine) -> None:
    first_at_ms = engine.clock.now_ms
    patient = Rules(silence_ms=5000, typing_inference_ms=0, max_wait_ms=60_000)
    assert engine.send("c", "m1", rules=patient).due_at_ms == first_at_ms + 5000
    engine.clock.advance(1000)
    brisk = Rules(silence_ms=200, typing_inference_ms=0, max_wait_ms=2000)
    assert engine.send("c", "m2", rules=brisk).due_at_ms == first_at_ms + 1200
    engine.clock.advance(150)
    assert engine.send("c", "m3", rules=patient).due_at_ms == first_at_ms + 6150
    engine.clock.advance(800)
    assert engine.send("c", "m4", rules=brisk).due_at_ms == first_at_ms + brisk.max_wait_ms
    engine.clock.now_ms = first_at_ms + brisk.max_wait_ms
    assert len(claim_and_take(engine, "c").payloads) == 4


@pytest.mark.case(36)
def test_a_burst_across_any_number_of_looks_is_one_batch(engine: Engine) -> None:
    bus = Bus()
    for n in range(12):
        engine.send("c", f"m{n}")
        for _ in range(4):
            engine.clock.advance(200)
            assert emit_due(engine, bus) == []
            engine.store.recover_expired(0)
    run_until_idle(engine, bus)
    assert bus.batches("c") == [[f"m{n}" for n in range(12)]]
