"""Measure the buffering of messages from 1, 16 and 256 clients: `python -m tools.bench.ingest [--quick]`.

All contestants take turns on one server. The same simple clients send the requests of all of them. BullMQ's requests
were recorded from its own client. Compare the server's CPU time per message. The adds per second also depend on the
clients, because they run on the same machine. The benchmark also measures redis-py and BullMQ's own client, each in one
process.
"""

import base64
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.store import Store
from message_buffer.settings import ConnectionSettings
from tests.support.engine import SETTINGS
from tests.support.valkey_server import ValkeyServer
from tools.bench import bullmq
from tools.bench.contestants import (
    FRAGMENTS,
    TIMING,
    WARM_UP_WAVES,
    Bare,
    BullMq,
    Contestant,
    Naive,
    Ours,
    Ping,
    conversation_id,
    message_id,
    payload,
)  # fmt: skip
from tools.bench.crowd import Crowd
from tools.bench.measure import Cost, Figure, Meter, figure, ratio
from tools.bench.report import Target, arguments, print_targets, save
from tools.bench.wire import Wire

CLIENTS = (1, 16, 256)
SIZES = (200, 4_096)
WAIT_MS = 600_000


@dataclass
class Rounds:
    """The measurements of one contestant with one number of clients."""

    costs: list[Cost] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    client_cpu_seconds: list[float] = field(default_factory=list)

    def add(self, cost: Cost, crowd: Crowd) -> None:
        self.costs.append(cost)
        self.seconds.append(crowd.seconds)
        self.client_cpu_seconds.append(crowd.client_cpu_seconds)

    @property
    def cpu_us(self) -> list[float]:
        return [cost.cpu_us_per_message for cost in self.costs]

    @property
    def per_second(self) -> list[float]:
        return [cost.messages / seconds for cost, seconds in zip(self.costs, self.seconds, strict=True)]

    @property
    def client_us(self) -> list[float]:
        shared = zip(self.client_cpu_seconds, self.costs, strict=True)
        return [seconds * 1e6 / cost.messages for seconds, cost in shared]

    def as_json(self) -> dict[str, Any]:
        return {
            "server_cpu_us": figure(self.cpu_us).as_json(),
            "adds_per_second": figure(self.per_second).as_json(),
            "client_cpu_us": figure(self.client_us).as_json(),
            "requests": round(self.costs[0].round_trips_per_message, 2),
            "commands": round(figure([cost.commands / cost.messages for cost in self.costs]).median, 2),
        }


Found = dict[tuple[int, str], Rounds]
"""By clients and contestant."""


def measure(*, size: int, clients: tuple[int, ...], conversations: int, rounds: int, seed: int) -> Found:
    server = ValkeyServer().start()
    meter, order = Meter(server.port, server.pid), random.Random(seed)
    crowds = {number: Crowd(server.port, clients=number) for number in clients}
    try:
        of_bullmq = {name: _record(server.port, conversations, size, keep_all=keep) for name, keep in _VARIANTS}
        found: Found = defaultdict(Rounds)
        contestants: dict[int, list[Contestant]] = {
            number: [
                Ours(crowd, offset=number * 10_000_000, payload_bytes=size), Naive(crowd, payload_bytes=size),
                Bare(crowd, payload_bytes=size), Ping(crowd),
                *(BullMq(crowd, requests, name=name) for name, requests in of_bullmq.items()),
            ]
            for number, crowd in crowds.items()
        }  # fmt: skip
        turns = [(number, each) for number, all_ in contestants.items() for each in all_]
        for turn in range(-WARM_UP_WAVES, rounds):
            order.shuffle(turns)
            for number, contestant in turns:
                crowd = crowds[number]
                crowd.seconds = crowd.client_cpu_seconds = 0.0
                mix = _mix(contestant, conversations, meter)
                if turn >= 0:
                    found[number, contestant.name].add(mix, crowd)
        return found
    finally:
        for crowd in crowds.values():
            crowd.close()
        meter.close()
        server.stop()


_VARIANTS = (("bullmq", False), ("bullmq keep-all", True))


def _mix(contestant: Contestant, conversations: int, meter: Meter) -> Cost:
    """Measure only the fragments, and none of the other messages that a wave sends."""
    if isinstance(contestant, Ours):
        # Our wave also sends duplicates and flush words, which the other contestants do not have.
        return contestant.fragments(conversations, meter)
    return contestant.wave(conversations, meter)["mix"]


def _record(port: int, conversations: int, size: int, *, keep_all: bool) -> list[list[list[bytes]]]:
    """Return the requests that BullMQ sends for each conversation, in one list for each fragment."""
    messages = [planned(each, number, size) for number in range(FRAGMENTS) for each in range(conversations)]
    requests = recorded(port, messages, keep_all=keep_all)
    return [requests[start : start + conversations] for start in range(0, len(requests), conversations)]


def recorded(port: int, messages: list[dict[str, Any]], *, keep_all: bool) -> list[list[bytes]]:
    """Return the requests that BullMQ's own client makes for each message."""
    sent = bullmq.ask("record", messages, port=port, keepAll=keep_all)
    return [[base64.b64decode(request) for request in each] for each in sent]


def bytes_waiting(conversations: int, size: int) -> dict[str, int]:
    """Return the bytes of a conversation with one waiting message, by contestant. Each has its own server."""
    found = {}
    for name in ("ours", "naive", *(variant for variant, _ in _VARIANTS)):
        server = ValkeyServer().start()
        meter, wire = Meter(server.port, server.pid), Wire(server.port)
        try:
            fill = _filler(name, wire, server.port, size)
            fill(0, conversations // 10)  # leave out fixed memory and the growth of tables
            before = meter.used_memory()
            fill(conversations // 10, conversations)
            found[name] = round((meter.used_memory() - before) / (conversations - conversations // 10))
        finally:
            meter.close()
            wire.close()
            server.stop()
    return found


def _filler(name: str, wire: Wire, port: int, size: int) -> Callable[[int, int], None]:
    if name in ("ours", "naive"):
        contestant = (Ours if name == "ours" else Naive)(wire, payload_bytes=size)
        return lambda start, end: wire.pipe(contestant.request(each, 0) for each in range(start, end))
    keep_all = dict(_VARIANTS)[name]

    def fill(start: int, end: int) -> None:
        bodies = [planned(each, 0, size) for each in range(start, end)]
        bullmq.ask("flood", bodies, port=port, clients=16, keepAll=keep_all)

    return fill


def planned(conversation: int, number: int, size: int) -> dict[str, Any]:
    body = payload(conversation, number, size).decode()
    return {"conversation": conversation_id(conversation), "body": body, "delay": WAIT_MS}


def own_clients(messages: int, *, rounds: int) -> dict[str, dict[str, Figure]]:
    """Measure redis-py with one call at a time, as in ingest, and BullMQ's own client with one and with 256."""
    turns: dict[str, Callable[[int], tuple[float, float]]] = {
        "ours, 1": lambda port: _our_client(port, messages),
        "BullMQ, 1": lambda port: _bullmq_client(port, messages, clients=1),
        "BullMQ, 256": lambda port: _bullmq_client(port, messages, clients=256),
    }
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(rounds):
        for name, run in turns.items():
            server = ValkeyServer().start()
            try:
                found[name].append(run(server.port))
            finally:
                server.stop()
    return {
        name: {
            "adds_per_second": figure([messages / seconds for seconds, _ in each]),
            "client_cpu_us": figure([cpu * 1e6 / messages for _, cpu in each]),
        }
        for name, each in found.items()
    }


def _our_client(port: int, messages: int) -> tuple[float, float]:
    """Return the elapsed seconds, and the seconds of CPU time."""
    client = connect(ConnectionSettings(f"valkey://127.0.0.1:{port}"))
    store = Store(Connection(lambda: client), SETTINGS)
    began, cpu = time.perf_counter(), time.process_time()
    for number in range(messages):
        each = number % 1_000
        name, id_, body = conversation_id(each), message_id(each, number), payload(each, number)
        store.buffer_message(name, id_, payload=body, timing=TIMING)
    taken = time.perf_counter() - began, time.process_time() - cpu
    client.close()
    return taken


def _bullmq_client(port: int, messages: int, *, clients: int) -> tuple[float, float]:
    bodies = [planned(number % 1_000, number, SIZES[0]) for number in range(messages)]
    (shown,) = bullmq.ask("flood", bodies, port=port, clients=clients)
    return shown["ms"] / 1_000, shown["cpuUs"] / 1e6


def targets(found: Found, *, size: int) -> list[Target]:
    def of(number: int, name: str) -> Rounds:
        return found[number, name]

    return [
        target
        for number in CLIENTS[1:]
        for target in (
            Target(f"server CPU of a message of {size} B, of BullMQ's, {number} clients", 0.5,
                   ratio(of(number, "ours").cpu_us, of(number, "bullmq").cpu_us)),
            Target(f"server CPU of a message of {size} B, of BullMQ's that keeps all, {number} clients", 0.5,
                   ratio(of(number, "ours").cpu_us, of(number, "bullmq keep-all").cpu_us)),
            Target(f"server CPU of a message of {size} B, of naive's, {number} clients", 0.7,
                   ratio(of(number, "ours").cpu_us, of(number, "naive").cpu_us)),
            Target(f"time of an add of {size} B, of BullMQ's, {number} clients", 0.5,
                   ratio(of(number, "bullmq").per_second, of(number, "ours").per_second)),
        )
    ]  # fmt: skip


def show(found: Found, size: int) -> None:
    print(f"\n{f'{size} B':26}{'adds a second':>30}{'server CPU, µs':>26}{'client CPU, µs':>26}{'commands':>10}")
    for (number, name), rounds in sorted(found.items()):
        figures: list[Figure] = [figure(values) for values in (rounds.per_second, rounds.cpu_us, rounds.client_us)]
        commands = rounds.as_json()["commands"]
        print(f"{number:>4} {name:21}{figures[0]!s:>30}{figures[1]!s:>26}{figures[2]!s:>26}{commands:>10}")


def main() -> None:
    wanted = arguments("tools.bench.ingest", __doc__, quick="a look, not a figure to cite: fewer rounds, 200 B only")
    bullmq.install()
    rounds, conversations = (3, 150) if wanted.quick else (7, 400)
    all_targets, result = [], []
    for size in SIZES[:1] if wanted.quick else SIZES:
        found = measure(size=size, clients=CLIENTS, conversations=conversations, rounds=rounds, seed=wanted.seed)
        show(found, size)
        all_targets += targets(found, size=size)
        result += [
            {"bytes": size, "clients": number, "contestant": name} | each.as_json()
            for (number, name), each in sorted(found.items())
        ]
    waiting = {size: bytes_waiting(1_000 if wanted.quick else 10_000, size) for size in SIZES}
    print(f"bytes of a waiting conversation: {waiting}")
    own = own_clients(1_000 if wanted.quick else 4_000, rounds=2 if wanted.quick else 7)
    for name, each in own.items():
        print(f"own client, {name:14}{each['adds_per_second']!s:>30} a second, {each['client_cpu_us']} µs of its CPU")
    print_targets(all_targets)
    made: dict[str, Any] = {
        "seed": wanted.seed,
        "rounds": rounds,
        "contestants": result,
        "bytes_waiting": waiting,
        "own_clients": {name: {kind: found.as_json() for kind, found in each.items()} for name, each in own.items()},
    }
    save("ingest", made, all_targets, quick=wanted.quick)


if __name__ == "__main__":
    main()
