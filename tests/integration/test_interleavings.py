"""Reading a list and deleting it are one step: otherwise a message that arrives in between is lost."""

import random

import pytest

from message_buffer.lanes.outcomes import (
    BatchCompleted,
    BatchRetried,
    MessageBuffered,
)
from message_buffer.rules.layers import Rules
from tests.support.emission import (
    Bus,
    run_until_idle,
    take,
)
from tests.support.engine import Engine
from tests.support.invariants import assert_nothing_left_behind


class Author:
    """One conversation of the interleavings: a few messages, one reason to flush, one conversation processor."""

    def __init__(self, engine: Engine, bus: Bus, name: str, chance: random.Random) -> None:
        self.engine, self.bus, self.name, self.chance = engine, bus, name, chance
        self.reason = chance.choice(("silence", "max_wait", "max_messages", "priority", "flush", "resume"))
        self.to_send = [f"{name}-{n}" for n in range(chance.randint(2, 4))]
        self.rules = {
            "max_wait": Rules(silence_ms=90, typing_inference_ms=0, max_wait_ms=100, min_messages=4),
            "max_messages": Rules(max_messages=2),
            "priority": Rules(priority="vip"),
        }.get(self.reason, Rules(silence_ms=50, typing_inference_ms=0)).timing
        self.sent: list[str] = []
        self.token = ""

    def step(self) -> bool:
        """Do one thing; return False if nothing is left to do."""
        store = self.engine.store
        if self.token and (not self.to_send or self.chance.random() < 0.5):
            if self.chance.random() < 0.15:
                assert isinstance(
                    store.retry_batch(self.name, self.token, retry_at_ms=self.engine.clock.now_ms), BatchRetried
                )
            else:
                assert isinstance(store.complete_batch(self.name, self.token), BatchCompleted)
            self.token = ""
            return True
        if not self.to_send:
            return False
        message_id = self.to_send.pop(0)
        if self.reason == "resume" and not self.sent:
            store.hold_buffer(self.name, holder="people", cause="operator", hold_ms=10_000)
        assert isinstance(
            store.buffer_message(self.name, message_id, payload=f'"{message_id}"\n'.encode(), timing=self.rules),
            MessageBuffered,
        )
        self.sent.append(message_id)
        if self.reason == "flush" and self.chance.random() < 0.5:
            store.flush_buffer(self.name)
        if self.reason == "resume" and self.chance.random() < 0.5:
            store.resume_buffer(self.name)
        return True

    def execute(self) -> None:
        self.token = f"{self.name}/{self.chance.random()}"
        self.bus.emit(self.engine, self.name, take(self.engine, self.name, self.token))


@pytest.mark.case(3)
def test_ten_thousand_interleavings_of_append_with_every_flush_reason(unwatched: Engine) -> None:
    engine, chance = unwatched, random.Random(3)
    reasons = set()
    for _ in range(100):
        bus = Bus()
        authors = {f"{n}": Author(engine, bus, f"{n}", chance) for n in range(100)}
        active, claimed = list(authors.values()), list[str]()
        while active or claimed:
            if claimed and (not active or chance.random() < 0.3):
                authors[claimed.pop(chance.randrange(len(claimed)))].execute()
                active = [author for author in authors.values() if author.to_send or author.token]
            elif chance.random() < 0.1:
                engine.clock.advance(chance.choice((0, 1, 49, 50, 99)))
                claimed += engine.claim()
            else:
                author = chance.choice(active)
                if not author.step():
                    active.remove(author)
        engine.clock.advance(10_000)
        run_until_idle(engine, bus)
        for author in authors.values():
            assert bus.ids(author.name) == author.sent
        assert_nothing_left_behind(engine)
        reasons |= {event.reason for event in bus.events}
        engine.admin.flushall()
    assert reasons == {"silence", "max_wait", "max_messages", "priority", "flush", "resume", "hold"}
