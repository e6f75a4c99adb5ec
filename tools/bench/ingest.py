"""Measure the buffering of messages beside BullMQ and the naive design: `python -m tools.bench.ingest [--quick]`.

All contestants take turns on one server. The same simple clients send the requests of all of them. BullMQ's requests
were recorded from its own client. Compare the server's CPU time per message. The adds per second also depend on the
clients, because they run on the same machine.
"""

import base64
import random
from collections import defaultdict
from typing import Any

from tests.support.valkey_server import ValkeyServer
from tools.bench import bullmq
from tools.bench.contestants import (
    FRAGMENTS,
    WARM_UP_WAVES,
    BullMq,
    Contestant,
    Naive,
    Ours,
    conversation_id,
    payload,
)  # fmt: skip
from tools.bench.crowd import Crowd
from tools.bench.measure import Cost, Meter, figure, ratio
from tools.bench.report import Table, Target, arguments, report
from tools.bench.wire import Wire

CLIENTS = (16, 256)
SIZES = (200, 4_096)
WAIT_MS = 600_000
NAMES = {"ours": "ours", "naive": "naive", "bullmq": "BullMQ, keeps the last", "bullmq keep-all": "BullMQ, keeps all"}
KEEP_ALL = {"bullmq": False, "bullmq keep-all": True}
# The targets: at most this share of a rival's CPU time.
SHARES = {"bullmq": 0.5, "bullmq keep-all": 0.5, "naive": 0.7}


class Rounds:
    """The measurements of one contestant with one size of message and one number of clients."""

    def __init__(self) -> None:
        self.cpu_us: list[float] = []
        self.per_second: list[float] = []
        self.commands = 0.0

    def add(self, cost: Cost, seconds: float) -> None:
        self.cpu_us.append(cost.cpu_us_per_message)
        self.per_second.append(cost.messages / seconds)
        self.commands = cost.commands / cost.messages


Found = dict[tuple[str, int, int], Rounds]
"""By contestant, size and number of clients."""


def measure(*, size: int, clients: tuple[int, ...], conversations: int, rounds: int, seed: int) -> Found:
    server = ValkeyServer().start()
    meter, order = Meter(server.port, server.pid), random.Random(seed)
    crowds = {number: Crowd(server.port, clients=number) for number in clients}
    try:
        of_bullmq = {name: _record(server.port, conversations, size, keep_all=keep) for name, keep in KEEP_ALL.items()}
        found: Found = defaultdict(Rounds)
        turns: list[tuple[int, Contestant]] = []
        for number, crowd in crowds.items():
            ours = Ours(crowd, offset=number * 10_000_000, payload_bytes=size)
            turns += [(number, ours), (number, Naive(crowd, payload_bytes=size))]
            turns += [(number, BullMq(crowd, requests, name=name)) for name, requests in of_bullmq.items()]
        for turn in range(-WARM_UP_WAVES, rounds):
            order.shuffle(turns)
            for number, contestant in turns:
                crowds[number].seconds = 0.0
                cost = contestant.wave(conversations, meter)
                if turn >= 0:
                    found[contestant.name, size, number].add(cost, crowds[number].seconds)
        return found
    finally:
        for crowd in crowds.values():
            crowd.close()
        meter.close()
        server.stop()


def _record(port: int, conversations: int, size: int, *, keep_all: bool) -> list[list[list[bytes]]]:
    """Return the requests that BullMQ's own client sends for each conversation, in one list for each fragment."""
    messages = [_planned(each, number, size) for number in range(FRAGMENTS) for each in range(conversations)]
    sent = bullmq.ask("record", messages, port=port, keepAll=keep_all)
    requests = [[base64.b64decode(request) for request in each] for each in sent]
    return [requests[start : start + conversations] for start in range(0, len(requests), conversations)]


def _planned(conversation: int, number: int, size: int) -> dict[str, Any]:
    body = payload(conversation, number, size).decode()
    return {"conversation": conversation_id(conversation), "body": body, "delay": WAIT_MS}


def bytes_waiting(name: str, conversations: int, size: int) -> int:
    """Return the bytes of memory that this contestant uses for a conversation with one waiting message."""
    server = ValkeyServer().start()
    meter, wire = Meter(server.port, server.pid), Wire(server.port)

    def fill(start: int, end: int) -> None:
        if name in KEEP_ALL:
            bodies = [_planned(each, 0, size) for each in range(start, end)]
            bullmq.ask("flood", bodies, port=server.port, clients=16, keepAll=KEEP_ALL[name])
        else:
            wire.pipe(contestant.request(each, 0) for each in range(start, end))

    try:
        contestant = (Ours if name == "ours" else Naive)(wire, payload_bytes=size)
        fill(0, conversations // 10)  # leave out fixed memory and the growth of tables
        before = meter.used_memory()
        fill(conversations // 10, conversations)
        return round((meter.used_memory() - before) / (conversations - conversations // 10))
    finally:
        meter.close()
        wire.close()
        server.stop()


def tables(found: Found, waiting: dict[tuple[str, int], int], sizes: tuple[int, ...]) -> dict[str, Table]:
    loads = [(size, number) for size in sizes for number in CLIENTS]
    named = [f"{size} B, {number} clients" for size, number in loads]
    costs = [["server CPU of a message, µs", "commands", *named]]
    adds = [["adds a second; bytes waiting", *named, *(f"waiting, {size} B" for size in sizes)]]
    shares = [["server CPU of a message, share of", "at most", *named]]
    for name, said in NAMES.items():
        rounds = [found[name, *load] for load in loads]
        costs.append([said, f"{rounds[0].commands:.2g}", *(figure(each.cpu_us).shown() for each in rounds)])
        kept = (f"{waiting[name, size]:,}" for size in sizes)
        adds.append([said, *(figure(each.per_second).shown(0) for each in rounds), *kept])
    for name, at_most in SHARES.items():
        judged = (Target("", at_most, ratio(found["ours", *load].cpu_us, found[name, *load].cpu_us)) for load in loads)
        shares.append([NAMES[name], f"{at_most:g}", *(f"{each.found.shown(2)} {each.verdict}" for each in judged)])
    return {"shares": shares, "ingest": costs, "adds": adds}


def main() -> None:
    wanted = arguments("tools.bench.ingest", __doc__, quick="fewer rounds, 200 B only")
    bullmq.install()
    rounds, conversations, sizes = (3, 100, SIZES[:1]) if wanted.quick else (7, 400, SIZES)
    found: Found = {}
    for size in sizes:
        found |= measure(size=size, clients=CLIENTS, conversations=conversations, rounds=rounds, seed=wanted.seed)
    kept = {(name, size): bytes_waiting(name, conversations * 25, size) for name in NAMES for size in sizes}
    figures = {name: figure(found[name, SIZES[0], CLIENTS[0]].cpu_us) for name in NAMES}
    report("ingest", tables(found, kept, sizes), figures=figures, quick=wanted.quick)


if __name__ == "__main__":
    main()
