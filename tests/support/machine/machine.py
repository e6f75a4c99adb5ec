"""Random interleavings of all actors of the engine, judged after every step against a model.

Actors: authors, two processors, conversation processors (each is invoked once, twice or never), a watchdog,
operators. Any actor may stop for good between two steps, be slow for minutes, have a clock that is a minute
off, or repeat a call because its answer was lost.
"""

from collections import defaultdict

from hypothesis.stateful import invariant

from tests.support.engine import payload
from tests.support.invariants import assert_agrees_with, assert_keys_hold
from tests.support.machine.base import SETTINGS, Life
from tests.support.machine.courses import Courses


class EngineMachine(Courses):
    """All actors on one shard. A subclass says on which server, by `open_engine`."""

    @invariant()
    def everything_holds(self) -> None:
        keys = self.engine.keys()
        assert_keys_hold(keys)
        assert_agrees_with(self.model, keys)

    def drain(self) -> None:
        """Kill all actors; then let a watchdog, a fresh processor and healthy conversation processors bring out all
        that is left.
        """
        self.invocations, self.runs = [], []
        self.engine.clock.advance(10_000_000)
        self.watchdog(0, False)
        for round_ in range(100):
            if all(model.is_idle for model in self.model.values()):
                return
            processor = f"drain-{round_}"
            self.engine.clock.advance(SETTINGS.lease_ms + 60_001)
            self.acquire(processor, 0, False)
            self.claim(processor, 100, 0, False, False)
            while self.invocations:
                self.take(0, False, False, 0, False)
            while self.runs:
                if not self.runs[0].done:
                    self.emit(0, False)
                self.complete(0, 0, False)
            self.watchdog(0, False)
            self.everything_holds()
        raise AssertionError("something stays in the buffer for ever")

    def check_history(self) -> None:
        """Fail unless each accepted message that was not withdrawn came out once, in order, under one batch id."""
        contents: dict[tuple[Life, str], list[bytes]] = {}
        came_out: dict[Life, list[str]] = defaultdict(list)
        for life, batch_id, payloads in self.emitted:
            assert contents.setdefault((life, batch_id), payloads) == payloads, "one batch id, two contents"
            if batch_id not in came_out[life]:
                came_out[life].append(batch_id)
        for life, accepted in self.accepted.items():
            self._check_life(life, accepted, [(batch_id, contents[life, batch_id]) for batch_id in came_out[life]])

    def _check_life(self, life: Life, accepted: list[str], batches: list[tuple[str, list[bytes]]]) -> None:
        ids = {line: message_id for message_id in accepted for line in [payload(message_id).split(b"\n")[0]]}
        batches_of: dict[str, list[str]] = defaultdict(list)
        order: list[str] = []
        for batch_id, payloads in batches:
            for text in payloads:
                message_id = ids[text.split(b"\n")[0]]
                batches_of[message_id].append(batch_id)
                if (life, batch_id) not in self.cancelled_batches:
                    order.append(message_id)
        for message_id in accepted:
            count = len(batches_of[message_id])
            assert count <= 1, f"{message_id} came out under {count} batch ids"
            if (life, message_id) in self.withdrawn:
                assert count == 0, f"{message_id} was withdrawn and came out"
        expected = [m for m in accepted if m in set(order)]
        assert order == expected, "out of order"
        missing = set(accepted) - set(order) - {m for each, m in self.withdrawn if each == life}
        assert missing <= self.cancelled_ids[life], f"lost: {missing - self.cancelled_ids[life]}"

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        self.drain()
        self.check_history()
