"""Measure the cost of many waiting conversations: `python -m tools.bench.growth [--quick]`.

It measures the memory, the time to buffer one more message, and the time of claims. Each number of conversations has a
server of its own. All servers run at the same time, so that they can take turns in each round. A million conversations,
stored for each contestant, take 4 GB.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.support.valkey_server import ValkeyServer
from tools.bench import bullmq
from tools.bench.contestants import START_MS, TIMING, Naive, Ours, conversation_id, message_id, payload
from tools.bench.ingest import planned, recorded
from tools.bench.measure import Cost, Figure, Meter, figure, ratio
from tools.bench.report import Target, arguments, print_targets, save
from tools.bench.wire import Wire

# The waits are so long that all conversations still wait when the last one has been loaded.
PATIENT = TIMING._replace(silence_ms=3_600_000, max_wait_ms=86_400_000)
ARRIVALS_MS = 1_800_000
# The first conversations to arrive, which the benchmark claims at the end. Each of them has sent a second message, as
# most conversations do.
CLAIMED_LATER = 6_100
SECOND_AFTER_MS = 60_000
INGEST_MESSAGES = 1_500
# How many conversations one claim may return, and how many are claimed in a round. A processor that wakes at each due
# time claims only a few at a time.
CLAIM_CHUNKS = {5: 50, 100: 200, 300: 300}


class BullMqWaiting:
    """Makes all requests from one that BullMQ's own client sent. Only the ids are replaced."""

    name = "bullmq"

    def __init__(self, port: int) -> None:
        self.now_ms = START_MS
        ((self._request,),) = recorded(port, [planned(0, 0, len(payload(0, 0)))], keep_all=False)

    def request(self, conversation: int, number: int, _timing: object = None) -> bytes:
        """Return the request for another message: the recorded request with other ids of the same length."""
        named = self._request.replace(conversation_id(0).encode(), conversation_id(conversation).encode())
        return named.replace(message_id(0, 0).encode(), message_id(conversation, number).encode())


Contestant = Ours | Naive | BullMqWaiting


def nth(arrival: int, size: int) -> int:
    """Return the number of the n-th conversation to arrive. The prime factor mixes the order, and repeats no number."""
    return arrival * 2_654_435_761 % size


@dataclass
class Size:
    """One server and its waiting conversations."""

    size: int
    server: ValkeyServer = field(default_factory=lambda: ValkeyServer().start())
    bytes_each: dict[str, float] = field(default_factory=dict)
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.meter, self.wire = Meter(self.server.port, self.server.pid), Wire(self.server.port)
        self.ours = Ours(self.wire)
        self.contestants: list[Contestant] = [self.ours, Naive(self.wire), BullMqWaiting(self.server.port)]
        self._number = 1

    def close(self) -> None:
        self.meter.close()
        self.wire.close()
        self.server.stop()

    def load(self) -> None:
        for contestant in self.contestants:
            before = self.meter.used_memory()
            self.wire.pipe(self._arrivals(contestant))
            self.bytes_each[contestant.name] = (self.meter.used_memory() - before) / self.size
        self.wire.pipe(self._second_messages())
        for contestant in self.contestants:
            contestant.now_ms = START_MS + ARRIVALS_MS + SECOND_AFTER_MS

    def _arrivals(self, contestant: Contestant) -> Iterator[bytes]:
        for arrival in range(self.size):
            contestant.now_ms = START_MS + arrival * ARRIVALS_MS // self.size
            yield contestant.request(nth(arrival, self.size), 0, PATIENT)

    def _second_messages(self) -> Iterator[bytes]:
        for arrival in range(CLAIMED_LATER):
            self.ours.now_ms = START_MS + arrival * ARRIVALS_MS // self.size + SECOND_AFTER_MS
            yield self.ours.request(nth(arrival, self.size), 1, PATIENT)

    def ingest(self, contestant: Contestant, order: random.Random) -> None:
        """Send more messages to conversations that are picked at random, and add their cost to `costs`."""
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
        """Advance the clock until the first conversations are due, and claim those."""
        self.ours.now_ms = START_MS + PATIENT.silence_ms + SECOND_AFTER_MS
        while self.ours.claim():
            pass

    def claim(self, chunk: int) -> None:
        """Claim the next due conversations, `chunk` at a time, and complete their batches."""
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


class Growth:
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


def measure(sizes: list[int], *, rounds: int, seed: int) -> Growth:
    order = random.Random(seed)
    found = [Size(size) for size in sizes]
    try:
        for size in found:
            print(f"loading {size.size:,} conversations ...", flush=True)
            size.load()
        turns = [(size, contestant) for size in found for contestant in size.contestants]
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
        return Growth(found)
    finally:
        for size in found:
            size.close()


def targets(found: Growth) -> list[Target]:
    sizes = f"{found.sizes[0].size:,} to {found.sizes[-1].size:,}"
    claims = [what for what in found.kinds if what.startswith("claim")]
    return [
        Target(f"growth of buffering, {sizes} waiting", 1.6, found.growth("ingest ours")),
        *(Target(f"growth of a {what} at once, {sizes} waiting", 2.5, found.growth(what)) for what in claims),
    ]


def show(found: Growth) -> None:
    print(f"\n{'conversations waiting':22}" + "".join(f"{size.size:>26,}" for size in found.sizes) + f"{'growth':>26}")
    for name in found.sizes[0].bytes_each:
        cells = "".join(f"{size.bytes_each[name]:>26.0f}" for size in found.sizes)
        print(f"{'bytes each, ' + name:22}{cells}")
    for what in found.kinds:
        cells = "".join(f"{found.cost(size, what)!s:>26}" for size in found.sizes)
        print(f"{'µs, ' + what:22}{cells}{found.growth(what)!s:>26}")


def main() -> None:
    wanted = arguments("tools.bench.growth", __doc__, quick="a look: fewer rounds, and no million")
    bullmq.install()
    sizes, rounds = ([10_000, 50_000], 3) if wanted.quick else ([10_000, 100_000, 1_000_000], 7)
    found = measure(sizes, rounds=rounds, seed=wanted.seed)
    show(found)
    print_targets(targets(found))
    save("growth", {"seed": wanted.seed, "rounds": rounds, **found.as_json()}, targets(found), quick=wanted.quick)


if __name__ == "__main__":
    main()
