"""Measure how long one customer can delay all others: `python -m tools.bench.editors [--quick]`.

Ten hostile clients edit messages. Meanwhile, the benchmark measures the time of another tenant's messages. For
comparison, it repeats this with ten honest clients, which send messages at the same rate. It also calls each script
with the largest allowed content, and reads the time of the longest call from the server's slow log.
"""

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from statistics import median, quantiles
from threading import Thread
from typing import Any

from redis import Redis

from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.lanes.valkey.store import FIRST_PAGE, Store
from message_buffer.messages.conversation_id import MAX_CONVERSATION_ID_BYTES
from message_buffer.messages.message import MAX_MESSAGE_BYTES
from message_buffer.messages.wire_form import id_line
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import SETTINGS, ManualClock
from tests.support.valkey_server import ValkeyServer
from tools.bench.contestants import RecordingSender, conversation_id
from tools.bench.measure import Figure, figure, ratio
from tools.bench.report import Target, arguments, print_targets, save
from tools.bench.roles import lean_store
from tools.bench.wire import Wire

CLIENTS = 10
# The rate of all clients together. The server can keep up with it, whether they send edits or messages.
REQUESTS_A_SECOND = 1_000
TENANTS_REQUESTS_A_SECOND = 500
WAITING, LARGE_BYTES, SMALL_BYTES = 1_000, 60_000, 200
HOSTILE = "hostile/generic/shop/c1"
# The waits are so long that no message becomes due while the benchmark runs.
PATIENT = Rules(silence_ms=900_000, max_wait_ms=86_400_000, max_messages=1_000).timing
HONEST, UNKNOWN, LEFT = "honest writers", "editors of unknown messages", "editors of an emitted message"
SEARCHES = {"edit_message", "delete_message", "find_message"}
# Shorter calls are not logged, because the log itself would slow them down.
LOGGED_ABOVE_US = 50


def payload(name: str, size: int) -> bytes:
    line = id_line(name)
    return line + b"x" * (size - len(line))


def fill(store: Store, conversation: str, count: int, size: int) -> None:
    for n in range(count):
        store.buffer_message(conversation, f"m{n}", payload=payload(f"m{n}", size), timing=PATIENT)


def forget(store: Store, conversation: str) -> None:
    """Buffer and delete a message, so that the lane remembers only its id. A search for such an id reads the most."""
    store.buffer_message(conversation, "left", payload=payload("left", SMALL_BYTES), timing=PATIENT)
    store.delete_message(conversation, "left")


# -- another tenant --------------------------------------------------------------------------------


class Over(Exception):
    """Raised to stop a client when its time is over."""


class Paced(RecordingSender):
    """Sends requests at an even pace. If a search makes several requests, the pace applies to each."""

    def __init__(self, wire: Wire, *, per_second: float, seconds: float) -> None:
        super().__init__(wire)
        self.sent = 0
        self._begin, self._pause, self._seconds = time.monotonic(), 1 / per_second, seconds

    def run(self, *args: Any) -> list[Any]:
        at = self.sent * self._pause
        if max(at, time.monotonic() - self._begin) >= self._seconds:
            raise Over
        time.sleep(max(0.0, self._begin + at - time.monotonic()))
        self.sent += 1
        return super().run(*args)


def crowd(port: int, kind: str, seconds: float) -> int:
    """Send requests of one kind with all clients, and return the number of requests."""
    connections = [
        Paced(Wire(port), per_second=REQUESTS_A_SECOND / CLIENTS, seconds=seconds) for _ in range(CLIENTS)
    ]  # fmt: skip
    threads = [Thread(target=client, args=(connection, kind, n)) for n, connection in enumerate(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(connection.sent for connection in connections)


def client(connection: Connection, kind: str, number: int) -> None:
    store, nth = Store(connection, SETTINGS), 0
    try:
        while True:
            nth += 1
            name = f"{time.time_ns()}-{number}"
            if kind == HONEST:
                conversation = conversation_id(number * 1_000_000 + nth // 5)
                store.buffer_message(conversation, name, payload=payload(name, SMALL_BYTES), timing=PATIENT)
            else:
                wanted = name if kind == UNKNOWN else "left"
                store.edit_message(HOSTILE, wanted, payload=payload(wanted, SMALL_BYTES))
    except Over:
        return


def latencies_ms(store: Store, seconds: float) -> list[float]:
    """Send messages at an even pace. Return how many ms after its planned time each one was answered."""
    found, begin = [], time.monotonic()
    for nth in range(int(seconds * TENANTS_REQUESTS_A_SECOND)):
        at = begin + nth / TENANTS_REQUESTS_A_SECOND
        time.sleep(max(0.0, at - time.monotonic()))
        name = f"{time.time_ns()}"
        store.buffer_message(f"another/{nth % 50}", name, payload=payload(name, SMALL_BYTES), timing=PATIENT)
        found.append((time.monotonic() - at) * 1_000)
    return found


def beside(store: Store, port: int, kind: str, seconds: float) -> dict[str, float]:
    """Measure another tenant's messages while all clients send. Return p50, p99 in ms and the clients' rate."""
    given = json.dumps({"port": port, "kind": kind, "seconds": seconds + 1})
    with subprocess.Popen(
        [sys.executable, "-m", "tools.bench.editors", given], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(0.5)
        found = quantiles(latencies_ms(store, seconds), n=100)
        requests = int(process.stdout.readline())
    return {"p50": found[49], "p99": found[98], "requests_a_second": requests / (seconds + 1)}


def measure_neighbours(*, rounds: int, seconds: float, seed: int) -> dict[str, dict[str, list[float]]]:
    order, found = random.Random(seed), {kind: defaultdict[str, list[float]](list) for kind in (HONEST, UNKNOWN, LEFT)}
    server = ValkeyServer().start()
    try:
        store = lean_store(server.port)
        forget(store, HOSTILE)
        fill(store, HOSTILE, WAITING, LARGE_BYTES)
        kinds = list(found)
        for _ in range(rounds):
            order.shuffle(kinds)
            for kind in kinds:
                for name, value in beside(store, server.port, kind, seconds).items():
                    found[kind][name].append(value)
        return {kind: dict(values) for kind, values in found.items()}
    finally:
        server.stop()


# -- the longest calls -----------------------------------------------------------------------------


def play_all_scripts(store: Store, clock: ManualClock) -> None:
    """Fill conversations with the largest allowed content, and call each script whose time depends on that content."""
    for conversation, count, size in (
        ("large", WAITING, MAX_MESSAGE_BYTES),
        ("fits", 1_000, 4 * 1_024),
        ("cut", 1_001, 4 * 1_024),
        ("short", 1_000, 100),
    ):
        forget(store, conversation)
        fill(store, conversation, count, size)
        for name in ("unknown", "left", "m0", f"m{count // 2}"):
            store.find_message(conversation, name)
            store.edit_message(conversation, name, payload=payload(name, size))
        for name in ("unknown", "left", "m1", f"m{count // 3}"):
            store.delete_message(conversation, name)
        store.retime_buffer(conversation, timing=PATIENT)
        store.extend_wait(conversation, extend_ms=1_000, max_wait_ms=PATIENT.max_wait_ms)
        store.hold_buffer(conversation, holder="people", cause="operator", hold_ms=1_000)
        store.resume_buffer(conversation)
        store.flush_buffer(conversation)
        store.peek_conversation(conversation, limit=1_000)
        take_complete(store, clock, conversation)
        if conversation == "large":
            store.cancel_buffer(conversation)


def take_complete(store: Store, clock: ManualClock, conversation: str) -> None:
    clock.advance(1)
    store.acquire_lease(0, "lease")
    store.claim_due(0, "lease")
    store.take_batch(conversation, "first")
    store.find_message(conversation, "left")
    store.retry_batch(conversation, "first", retry_at_ms=clock.now_ms)
    store.claim_due(0, "lease")
    store.take_batch(conversation, "second")
    store.complete_batch(conversation, "second")


def play_a_full_shard(store: Store, clock: ManualClock) -> None:
    """Claim, list and recover as many conversations as one call allows, with the longest ids."""
    for n in range(3_000):
        conversation = f"{n:0{MAX_CONVERSATION_ID_BYTES}}"
        store.buffer_message(conversation, "m", payload=payload("m", SMALL_BYTES), timing=Rules(priority="vip").timing)
    for _ in range(2):
        clock.advance(1)
        store.acquire_lease(0, "lease")
        store.claim_due(0, "lease", limit=1_000)
    cursor: str | None = FIRST_PAGE
    while cursor:
        cursor = store.list_conversations(0, cursor=cursor, limit=1_000).next_cursor
    clock.advance(SETTINGS.claim_ms)
    store.recover_expired(0, limit=1_000)


def longest_calls_ms(server: ValkeyServer) -> dict[str, float]:
    """Run `play_all_scripts` and `play_a_full_shard` once. Return the time of each script's longest call."""
    admin: Redis = server.admin()
    admin.config_set("slowlog-log-slower-than", -1)
    admin.config_set("slowlog-max-len", 5_000)
    admin.slowlog_reset()
    admin.execute_command("FLUSHALL", "SYNC")
    clock, names = ManualClock(), {}
    store = lean_store(server.port)
    store._clock = clock
    for path in LUA_DIRECTORY.glob("*.lua"):
        names[load_script(path.stem).sha.encode()] = path.stem
    admin.config_set("slowlog-log-slower-than", LOGGED_ABOVE_US)
    play_all_scripts(store, clock)
    play_a_full_shard(store, clock)
    admin.config_set("slowlog-log-slower-than", -1)
    longest = dict.fromkeys(names.values(), LOGGED_ABOVE_US / 1_000)
    for entry in admin.slowlog_get(5_000):
        words = entry["command"].split(b" ")
        if words[0] == b"EVALSHA":
            name = names[words[1]]
            longest[name] = max(longest[name], entry["duration"] / 1_000)
    admin.close()
    return longest


def measure_scripts(*, rounds: int) -> dict[str, list[float]]:
    found = defaultdict(list)
    server = ValkeyServer().start()
    try:
        for _ in range(rounds):
            for name, longest in longest_calls_ms(server).items():
                found[name].append(longest)
        return dict(found)
    finally:
        server.stop()


# -- the report ------------------------------------------------------------------------------------


def targets(neighbours: dict[str, dict[str, list[float]]], scripts: dict[str, list[float]]) -> list[Target]:
    def longest(names: set[str]) -> Figure:
        return figure([max(values) for values in zip(*(scripts[name] for name in names), strict=True)])

    honest = neighbours[HONEST]["p99"]
    return [
        *(
            Target(
                f"p99 of another tenant's calls beside {kind}, divided by that beside writers",
                1.5,
                ratio(found["p99"], honest),
            )
            for kind, found in neighbours.items()
            if kind != HONEST
        ),
        Target("longest call of a script that searches for a message, ms", 1.0, longest(SEARCHES)),
        Target("longest call of another script, ms", 10.0, longest(set(scripts) - SEARCHES)),
    ]


def show(neighbours: dict[str, dict[str, list[float]]], scripts: dict[str, list[float]]) -> None:
    print("\nanother tenant's message, ms")
    for kind, found in neighbours.items():
        shown = ", ".join(f"{name} {figure(values)}" for name, values in found.items())
        print(f"  beside {kind:36}{shown}")
    print("\nlongest call, ms: the median of the rounds, and the longest of all")
    for name, values in sorted(scripts.items(), key=lambda item: -median(item[1])):
        print(f"  {name:22}{median(values):8.2f}{max(values):8.2f}")


def main() -> None:
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        given = json.loads(sys.argv[1])
        print("ready", flush=True)
        print(crowd(given["port"], given["kind"], given["seconds"]), flush=True)
        return
    wanted = arguments("tools.bench.editors", __doc__, quick="a look: fewer and shorter rounds")
    rounds, seconds = (2, 2.0) if wanted.quick else (9, 5.0)
    scripts = measure_scripts(rounds=rounds)
    neighbours = measure_neighbours(rounds=rounds, seconds=seconds, seed=wanted.seed)
    show(neighbours, scripts)
    found = targets(neighbours, scripts)
    print_targets(found)
    result = {
        "seed": wanted.seed,
        "rounds": rounds,
        "neighbours": {
            kind: {name: figure(values).as_json() for name, values in each.items()} for kind, each in neighbours.items()
        },
        "longest_call_ms": {
            name: figure(values).as_json() | {"longest": max(values)} for name, values in sorted(scripts.items())
        },
    }
    save("editors", result, found, quick=wanted.quick)


if __name__ == "__main__":
    main()
