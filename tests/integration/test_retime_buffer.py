"""Rules that change while a buffer is open move its due time."""

import pytest

from message_buffer.lanes.outcomes import BufferEmpty, BufferRetimed, BufferUnmoved
from message_buffer.rules.layers import Rules
from tests.support.due_times import FIXED, TYPING, send_at
from tests.support.emission import Bus, run_until_idle
from tests.support.engine import Engine
from tests.support.outcomes import same
from tests.support.states import waiting_for_retry


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
    """Send with equal gaps, since retiming uses the mean gap in place of the last one."""
    began_ms = engine.clock.now_ms
    *_, (after_ms, reason) = send_at(engine, later, *sent)
    engine.admin.flushall()
    patient = Rules(silence_ms=20_000, typing_inference_ms=0, max_wait_ms=60_000)
    engine.clock.now_ms = began_ms
    for n, offset_ms in enumerate(sent):
        engine.clock.now_ms = began_ms + offset_ms
        engine.send("c", f"again {n}", rules=patient)
    retimed = engine.store.retime_buffer("c", timing=later.timing)
    seen = engine.store.peek_conversation("c")
    assert same(retimed, BufferRetimed(began_ms + after_ms, len(sent), seen.rule or "", start_id=None))
    assert seen.flush_reason == reason
    engine.clock.now_ms = began_ms + after_ms - 1
    assert engine.claim() == []
    engine.clock.advance(1)
    assert engine.claim() == ["c"]


def test_new_rules_do_not_postpone_what_is_due(engine: Engine) -> None:
    due_at_ms = engine.send("c", "m1", rules=FIXED).due_at_ms or 0
    patient = Rules(silence_ms=20_000, max_wait_ms=60_000).timing
    engine.clock.now_ms = due_at_ms
    assert same(
        engine.store.retime_buffer("c", timing=patient), BufferRetimed(due_at_ms, 1, "silenceMs", start_id=None)
    )
    engine.clock.advance(1)
    assert same(engine.store.retime_buffer("c", timing=patient), BufferUnmoved(due_at_ms))
    assert engine.claim() == ["c"]


def test_new_rules_neither_end_a_hold_nor_open_a_buffer(engine: Engine) -> None:
    assert same(engine.store.retime_buffer("c", timing=FIXED.timing), BufferEmpty())
    assert engine.keys() == {}
    engine.send("c", "m1", rules=FIXED)
    held_until_ms = engine.store.hold_buffer("c", holder="people", cause="operator", hold_ms=50_000).held_until_ms
    retimed = engine.store.retime_buffer("c", timing=Rules(priority="vip").timing)
    assert same(retimed, BufferRetimed(held_until_ms, 1, "hold", start_id=None))


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
    assert isinstance(retimed, BufferRetimed)
    assert (retimed.due_at_ms, retimed.count) == (engine.clock.now_ms + 1000, 1)
    assert retimed.start_id is not None
