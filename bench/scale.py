"""What it costs to have many conversations waiting: memory, buffering one more message, claiming.

A server for each size, all alive at once, so that the sizes take turns inside each round.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench.contestants import START_MS, TIMING, Naive, Ours
from bench.measure import Cost, Figure, Meter, figure, ratio
from bench.wire import Wire
from tests.support.valkey_server import ValkeyServer

# So many wait at once only where waits are long.
PATIENT = TIMING._replace(silence_ms=3_600_000, max_wait_ms=86_400_000)
ARRIVALS_MS = 1_800_000
# The first to fall due. Each has sent a second message: the timer of most conversations has been moved.
CLAIMED_LATER = 6_100
SECOND_AFTER_MS = 60_000
INGEST_MESSAGES = 1_500
# Chunk -> conversations claimed a round. A processor that is woken for each due time finds a few at a time.
CLAIM_CHUNKS = {5: 50, 100: 200, 300: 300}


def nth(arrival: int, size: int) -> int:
    """Which conversation was the n-th to arrive: in no order of names. A prime visits each once."""
    return arrival * 2_654_435_761 % size


@dataclass
class Size:
    """One server with its conversations waiting."""

    size: int
    server: ValkeyServer = field(default_factory=lambda: ValkeyServer().start())
    bytes_each: dict[str, float] = field(default_factory=dict)
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.meter, self.wire = Meter(self.server.port, self.server.pid), Wire(self.server.port)
        self.ours, self.naive = Ours(self.wire), Naive(self.wire)
        self._number = 1

    def close(self) -> None:
        self.meter.close()
        self.wire.close()
        self.server.stop()

    def load(self) -> None:
        for contestant in (self.ours, self.naive):
            before = self.meter.used_memory()
            self.wire.pipe(self._arrivals(contestant))
            self.bytes_each[contestant.name] = (self.meter.used_memory() - before) / self.size
        self.wire.pipe(self._second_messages())
        self.ours.now_ms = self.naive.now_ms = START_MS + ARRIVALS_MS + SECOND_AFTER_MS

    def _arrivals(self, contestant: Ours | Naive) -> Iterator[bytes]:
        for arrival in range(self.size):
            contestant.now_ms = START_MS + arrival * ARRIVALS_MS // self.size
            yield contestant.request(nth(arrival, self.size), 0, PATIENT)

    def _second_messages(self) -> Iterator[bytes]:
        for arrival in range(CLAIMED_LATER):
            self.ours.now_ms = START_MS + arrival * ARRIVALS_MS // self.size + SECOND_AFTER_MS
            yield self.ours.request(nth(arrival, self.size), 1, PATIENT)

    def ingest(self, contestant: Ours | Naive, order: random.Random) -> None:
        """Another message to conversations picked at random."""
        self._number += 1
        warm_up, measured = INGEST_MESSAGES // 10, INGEST_MESSAGES
        requests = [
            contestant.request(
                nth(order.randrange(CLAIMED_LATER, self.size), self.size),
                self._number * 10_000 + each,
                PATIENT,
            )
            for each in range(warm_up + measured)
        ]
        self.wire.ask_all(requests[:warm_up])
        with self.meter.costs_of(measured) as cost:
            self.wire.ask_all(requests[warm_up:])
        self.costs.setdefault(f"ingest {contestant.name}", []).append(cost)

    def fall_due(self) -> None:
        """The clock moves on to where the first second messages' waits end."""
        self.ours.now_ms = START_MS + PATIENT.silence_ms + SECOND_AFTER_MS
        while self.ours.claim():
            pass

    def claim(self, chunk: int) -> None:
        """What falls due next, claimed `chunk` at a time, and finished as executors would."""
        cost = Cost()
        wanted = CLAIM_CHUNKS[chunk]
        step_ms = max(1, ARRIVALS_MS * chunk // self.size)
        while cost.messages < wanted:
            self.ours.now_ms += step_ms
            with self.meter.costs_of(0) as one:
                claimed = self.ours.claim(limit=chunk)
            one.messages = len(claimed)
            cost += one
            for conversation in claimed:
                self.ours.take_and_complete(conversation)
        self.costs.setdefault(f"claim {chunk}", []).append(cost)

    def values(self, what: str) -> list[float]:
        return [cost.script_us_per_message for cost in self.costs[what]]


class Scale:
    def __init__(self, sizes: list[Size]) -> None:
        self.sizes = sizes

    @property
    def kinds(self) -> list[str]:
        return list(self.sizes[0].costs)

    def cost(self, size: Size, what: str) -> Figure:
        return figure(size.values(what))

    def growth(self, what: str) -> Figure:
        return ratio(self.sizes[-1].values(what), self.sizes[0].values(what))

    def as_json(self) -> dict[str, Any]:
        return {
            "conversations": [size.size for size in self.sizes],
            "bytes_each": {
                name: [round(size.bytes_each[name]) for size in self.sizes] for name in self.sizes[0].bytes_each
            },
            "script_us": {what: [self.cost(size, what).as_json() for size in self.sizes] for what in self.kinds},
            "growth": {what: self.growth(what).as_json() for what in self.kinds},
        }


def measure_scale(sizes: list[int], *, rounds: int, seed: int, say: Callable[[str], None]) -> Scale:
    order = random.Random(seed)
    found = [Size(size) for size in sizes]
    try:
        for size in found:
            say(f"loading {size.size:,} conversations ...")
            size.load()
        turns = [(size, contestant) for size in found for contestant in (size.ours, size.naive)]
        for _ in range(rounds):
            order.shuffle(turns)
            for size, contestant in turns:
                size.ingest(contestant, order)
        for size in found:
            size.fall_due()
        chunks = [(size, chunk) for size in found for chunk in CLAIM_CHUNKS]
        for _ in range(rounds):
            order.shuffle(chunks)
            for size, chunk in chunks:
                size.claim(chunk)
        return Scale(found)
    finally:
        for size in found:
            size.close()
