"""Measure the cost of one message, and compare it with the naive design and with the minimum of any buffer."""

import random
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from tests.support.valkey_server import ValkeyServer
from tools.bench.contestants import WARM_UP_WAVES, Bare, Contestant, Naive, Ours, Ping
from tools.bench.measure import Cost, Figure, Meter, figure, ratio
from tools.bench.wire import Wire

Column = Callable[[Cost], float]
CPU: Column = attrgetter("cpu_us_per_message")
SCRIPT: Column = attrgetter("script_us_per_message")
CALLS: Column = attrgetter("redis_calls_per_message")
ROUND_TRIPS: Column = attrgetter("round_trips_per_message")


class HotPath:
    """The costs of every round, by contestant and kind of message."""

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, str], list[Cost]] = {}

    def add(self, contestant: str, costs: dict[str, Cost]) -> None:
        for kind, cost in costs.items():
            self._rounds.setdefault((contestant, kind), []).append(cost)

    def values(self, contestant: str, kind: str, column: Column) -> list[float]:
        return [column(cost) for cost in self._rounds[contestant, kind]]

    def ratio(self, of: str, to: str, column: Column, *, kind: str = "mix") -> Figure:
        return ratio(self.values(of, kind, column), self.values(to, kind, column))

    def rows(self) -> list[tuple[str, str, Figure, Figure, float]]:
        return [
            (
                contestant, kind, figure(self.values(contestant, kind, CPU)),
                figure(self.values(contestant, kind, SCRIPT)),
                figure(self.values(contestant, kind, CALLS)).median,
            )
            for contestant, kind in self._rounds
        ]  # fmt: skip

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {
                "contestant": contestant,
                "kind": kind,
                "cpu_us": cpu.as_json(),
                "script_us": script.as_json(),
                "redis_calls": round(calls, 2),
            }
            for contestant, kind, cpu, script, calls in self.rows()
        ]


def measure_hot_path(
    *, rounds: int, conversations: int, seed: int, pipelined: bool = False, against: Path | None = None
) -> HotPath:
    server = ValkeyServer().start()
    meter, wire = Meter(server.port, server.pid), Wire(server.port, pipelined=pipelined)
    try:
        contestants: list[Contestant] = [Ours(wire), Naive(wire), Bare(wire), Ping(wire)]
        if against:
            contestants.append(Ours(wire, name="against", scripts=against, offset=10_000_000))
        for _ in range(WARM_UP_WAVES):
            for contestant in contestants:
                contestant.wave(conversations, meter)
        found, order = HotPath(), random.Random(seed)
        for _ in range(rounds):
            order.shuffle(contestants)
            for contestant in contestants:
                found.add(contestant.name, contestant.wave(conversations, meter))
        return found
    finally:
        meter.close()
        wire.close()
        server.stop()
