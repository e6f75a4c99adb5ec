"""The promises as users would put them. Those about time, leases and cost stand beside what they test."""

import random
from collections.abc import Callable

import pytest

from message_buffer.lanes.outcomes import Buffered, Completed, Taken
from message_buffer.rules.layers import Rules
from tests.support.emission import WATCHDOG_PASS_MS, Bus, claim_and_take, new_token, run_until_idle
from tests.support.engine import SETTINGS, Engine
from tests.support.invariants import assert_invariants, assert_nothing_left_behind
from tests.support.outcomes import changed, same

BRISK = Rules(silence_ms=200, typing_inference_ms=0, max_wait_ms=2000, max_messages=4)


class Town:
    """Some conversations, processors and conversation processors that die at any moment, and a watchdog."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.bus, self.chance = engine, Bus(), random.Random(seed)
        self.accepted: dict[str, list[str]] = {f"c{n}": [] for n in range(4)}
        self.emitting: dict[str, tuple[str, Taken]] = {}
        self.processors = 1

    def somebody_writes(self) -> None:
        conversation = self.chance.choice(list(self.accepted))
        message_id = f"m{len(self.accepted[conversation])}"
        for _ in range(self.chance.choice((1, 1, 2))):
            if isinstance(self.engine.send(conversation, message_id, rules=BRISK), Buffered):
                self.accepted[conversation].append(message_id)

    def time_passes(self) -> None:
        self.engine.clock.advance(self.chance.choice((0, 1, 199, 200, 1000, 20_000)))

    def processor_looks(self) -> None:
        for conversation in self.engine.claim():
            if self.chance.random() < 0.8:
                token = new_token()
                taken = self.engine.store.take_batch(conversation, token)
                if isinstance(taken, Taken):
                    self.emitting[conversation] = token, taken

    def conversation_processor_goes_on(self) -> None:
        if not self.emitting:
            return
        conversation = self.chance.choice(list(self.emitting))
        token, taken = self.emitting.pop(conversation)
        fate = self.chance.random()
        if fate < 0.2:
            return
        still_owner = self.engine.store.take_batch(conversation, token) == taken
        if fate < 0.4:
            self.engine.store.retry_batch(conversation, token, retry_at_ms=self.engine.clock.now_ms + 300)
        elif still_owner:
            self.bus.emit(self.engine, conversation, taken)
            if fate < 0.9:
                assert isinstance(self.engine.store.complete_batch(conversation, token), Completed)

    def processor_dies(self) -> None:
        self.processors += 1
        self.engine.processor = f"lease-{self.processors}"
        self.engine.clock.advance(SETTINGS.lease_ms)

    def watchdog_passes(self) -> None:
        self.engine.clock.advance(WATCHDOG_PASS_MS)
        self.engine.store.recover_expired(0)

    def live(self, steps: int) -> None:
        acts = (self.somebody_writes, self.time_passes, self.processor_looks, self.conversation_processor_goes_on)
        rare = (self.processor_dies, self.watchdog_passes)
        for _ in range(steps):
            self.chance.choice(rare if self.chance.random() < 0.06 else acts)()
            assert_invariants(self.engine)
        run_until_idle(self.engine, self.bus)


@pytest.mark.parametrize("seed", range(6))
def test_p1_p2_p3_whatever_dies_each_message_is_in_one_batch_under_one_id_and_in_order(
    engine: Engine, seed: int
) -> None:
    town = Town(engine, seed)
    town.live(150)
    for conversation, message_ids in town.accepted.items():
        assert town.bus.ids(conversation) == message_ids
    assert_nothing_left_behind(engine)


def test_p2_a_batch_keeps_id_and_content_whatever_happens_meanwhile(engine: Engine) -> None:
    engine.send("c", "m1")
    engine.send("c", "m2")
    engine.clock.advance(3000)
    first = claim_and_take(engine, "c", "t1")
    meanwhile: list[Callable[[], object]] = [
        lambda: engine.send("c", "m3"),
        lambda: engine.store.flush_buffer("c"),
        lambda: engine.store.edit_message("c", "m1", payload=b"changed"),
        lambda: engine.store.delete_message("c", "m2"),
        lambda: engine.store.hold_buffer("c", hold_ms=60_000),
        lambda: engine.store.extend_wait("c", extend_ms=9000, max_wait_ms=9000),
        lambda: engine.store.resume_buffer("c"),
        lambda: engine.store.retime_buffer("c", timing=Rules(priority="vip").timing),
        lambda: engine.store.delete_message("c", "m3"),
    ]
    for n, act in enumerate(meanwhile, 2):
        act()
        engine.store.retry_batch("c", f"t{n - 1}", retry_at_ms=engine.clock.now_ms)
        again = claim_and_take(engine, "c", f"t{n}")
        assert same(again, changed(first, attempt=n))


def test_p3_the_next_batch_of_a_conversation_is_not_taken_before_the_last_is_done(engine: Engine) -> None:
    engine.send("c", "m1", rules=Rules(priority="vip"))
    claim_and_take(engine, "c", "t1")
    for n in range(2, 30):
        engine.send("c", f"m{n}", rules=Rules(priority="vip"))
        engine.clock.advance(1000)
        assert engine.claim() == []
    completed = engine.store.complete_batch("c", "t1")
    assert isinstance(completed, Completed)
    assert completed.count == 28
    assert engine.claim() == ["c"]
