"""Measure the cost of many waiting conversations: `python -m tools.bench.growth [--quick]`.

It measures the memory, the time to buffer one more message, and the time of claims. Each number of conversations has a
server of its own. All servers run at the same time, so that they can take turns in each round.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack

from tests.support.valkey_server import ValkeyServer
from tools.bench.contestants import START_MS, TIMING, Ours
from tools.bench.measure import Cost, Meter, figure, ratio
from tools.bench.report import Target, arguments, report
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
BUFFERING = "buffering a message"


def nth(arrival: int, size: int) -> int:
    """Return the number of the n-th conversation to arrive. The prime factor mixes the order, and repeats no number."""
    return arrival * 2_654_435_761 % size


class Size:
    """One server and its waiting conversations."""

    def __init__(self, size: int, stack: ExitStack) -> None:
        server = ValkeyServer().start()
        stack.callback(server.stop)
        self.size, self.script_us = size, dict[str, list[float]]()
        self._meter, self._wire = Meter(server.port, server.pid), Wire(server.port)
        stack.callback(self._meter.close)
        stack.callback(self._wire.close)
        self._ours, self._number = Ours(self._wire), 1
        before = self._meter.used_memory()
        self._wire.pipe(self._arrivals(size, 0))
        self.bytes_each = (self._meter.used_memory() - before) / size
        self._wire.pipe(self._arrivals(CLAIMED_LATER, SECOND_AFTER_MS))
        self._ours.now_ms = START_MS + ARRIVALS_MS + SECOND_AFTER_MS

    def _arrivals(self, count: int, after_ms: int) -> Iterator[bytes]:
        for arrival in range(count):
            self._ours.now_ms = START_MS + arrival * ARRIVALS_MS // self.size + after_ms
            yield self._ours.request(nth(arrival, self.size), int(after_ms > 0), PATIENT)

    def buffer(self, order: random.Random) -> None:
        """Send more messages to conversations that are picked at random."""
        self._number += 1
        warm_up, requests = INGEST_MESSAGES // 10, []
        for number in range(self._number * 10_000, self._number * 10_000 + warm_up + INGEST_MESSAGES):
            conversation = nth(order.randrange(CLAIMED_LATER, self.size), self.size)
            requests.append(self._ours.request(conversation, number, PATIENT))
        self._wire.ask_all(requests[:warm_up])
        with self._meter.costs_of(INGEST_MESSAGES) as cost:
            self._wire.ask_all(requests[warm_up:])
        self.script_us.setdefault(BUFFERING, []).append(cost.script_us_per_message)

    def fall_due(self) -> None:
        """Advance the clock until the first conversations are due, and claim those."""
        self._ours.now_ms = START_MS + PATIENT.silence_ms + SECOND_AFTER_MS
        while self._ours.claim():
            pass

    def claim(self, chunk: int) -> None:
        """Claim the next due conversations, `chunk` at a time, and complete their batches."""
        cost = Cost()
        while cost.messages < CLAIM_CHUNKS[chunk]:
            self._ours.now_ms += max(1, ARRIVALS_MS * chunk // self.size)
            with self._meter.costs_of(0) as one:
                claimed = self._ours.claim(limit=chunk)
            one.messages = len(claimed)
            cost += one
            for conversation in claimed:
                self._ours.take_and_complete(conversation)
        self.script_us.setdefault(f"claiming {chunk} at once", []).append(cost.script_us_per_message)


def measure(counts: list[int], *, rounds: int, seed: int) -> list[Size]:
    order = random.Random(seed)
    with ExitStack() as stack:
        sizes = [Size(count, stack) for count in counts]
        for _ in range(rounds):
            for size in sizes:
                size.buffer(order)
        for size in sizes:
            size.fall_due()
        turns = [(size, chunk) for size in sizes for chunk in CLAIM_CHUNKS]
        for _ in range(rounds):
            order.shuffle(turns)
            for size, chunk in turns:
                size.claim(chunk)
    return sizes


def main() -> None:
    wanted = arguments("tools.bench.growth", __doc__, quick="fewer rounds, and no million")
    counts, rounds = ([10_000, 50_000], 3) if wanted.quick else ([10_000, 100_000, 1_000_000], 7)
    sizes = measure(counts, rounds=rounds, seed=wanted.seed)
    rows, targets = [["conversations waiting", *(f"{count:,}" for count in counts), "growth"]], []
    for what in sorted(sizes[0].script_us):
        grown = ratio(sizes[-1].script_us[what], sizes[0].script_us[what])
        cells = [figure(size.script_us[what]).shown() for size in sizes]
        rows.append([f"{what}, µs of the script", *cells, grown.shown(2)])
        at_most = 1.6 if what == BUFFERING else 2.5
        targets.append(Target(f"time of {what}: growth from {counts[0]:,} to {counts[-1]:,} waiting", at_most, grown))
    rows.append(["bytes of a conversation", *(f"{size.bytes_each:,.0f}" for size in sizes), ""])
    report("growth", {"growth": rows}, targets, quick=wanted.quick)


if __name__ == "__main__":
    main()
