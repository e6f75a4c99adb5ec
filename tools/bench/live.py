"""Measure systems at work: lateness, idle commands, losses and recovery: `python -m tools.bench.live [--quick]`.

Each system has its own server and processes. All systems get the same messages at the same times, and the same checker
checks their batches. The systems take turns. Lateness is the time from a batch's due time until its system begins to
handle it. For our system, that is the start of a conversation processor. For BullMQ, it is the call of the worker's
function. For the naive design, it is the poll that reads the conversation's id.
"""

import random
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from statistics import quantiles

from message_buffer.json_object import Json
from tools.bench import bullmq
from tools.bench.checker import Verdict, check
from tools.bench.measure import Figure, figure, ratio
from tools.bench.report import Target, arguments, print_targets, save
from tools.bench.systems import SYSTEMS, BullMqSystem, NaiveSystem, OurSystem, Planned, System
from tools.bench.wire import encode
from tools.bench.workload import Shape, workload

RATES = (10, 100, 1_000)
ROUNDS = 3
DELAY_MS = 1_000
WARM_UP_SECONDS = 1.0
SILENT_SECONDS = 3.0
STALLED_SECONDS = 75.0
WATCHDOG_SECONDS = 30.0


def lateness(kind: type[System], *, rate: int, seconds: float, delay_ms: int) -> Json:
    """Send one message per conversation, at even intervals, and return how late the batches are."""
    warm_up, count = int(rate * WARM_UP_SECONDS), int(rate * (WARM_UP_SECONDS + seconds))
    plan = [Planned(number * 1_000 / rate, number, 0, delay_ms) for number in range(count)]
    with kind() as system:
        system.send(plan)
        system.sent()
        system.drain(messages=count, at_most_seconds=10)
        late = [
            max(batch.claimed_ms - batch.due_ms, 0.0)
            for batch in list(system.batches)
            if any(conversation >= warm_up for conversation, _ in batch.messages)
        ]
    return _spread(late) | {"missing": count - warm_up - len(late)}


def timer(*, rate: int, seconds: float) -> Json:
    """Return how late the machine wakes a process that only sleeps. Every system's lateness includes this delay."""
    began, late = time.time(), []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        time.sleep(max(0.0, due - time.time()))
        late.append((time.time() - due) * 1_000)
    return _spread(late)


def _spread(late_ms: list[float]) -> Json:
    cuts = quantiles(late_ms, n=100, method="inclusive")
    return {
        "count": len(late_ms),
        "p50": round(cuts[49], 2),
        "p99": round(cuts[98], 2),
        "max": round(max(late_ms), 2),
    }


def idle(kind: type[System], *, seconds: float) -> Json:
    """Return how many commands a waiting worker sends a second. For our system, also count them after its exit."""
    with kind() as system:
        system.send([Planned(0, 1, 0, 60_000)])
        system.sent()
        time.sleep(1)
        found: Json = {"waiting_per_second": round(_commands(system.server.port, seconds) / seconds, 2)}
    if kind is OurSystem:
        with kind(idle_ms=1_000) as system:
            system.worker.wait(timeout=30)
            found["after_exit_per_second"] = _commands(system.server.port, seconds)
    return found


def _commands(port: int, seconds: float) -> int:
    """Return the number of commands that clients send in `seconds`. Do not count commands inside scripts."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(encode("MONITOR"))
        line.settimeout(0.1)
        seen, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                seen += line.recv(1 << 16)
            except TimeoutError:
                continue
    return sum(each.startswith(b"+1") and b" lua] " not in each.split(b'"', 1)[0] for each in seen.split(b"\r\n"))


def correctness(kind: type[System], *, conversations: int, bursts: int, seed: int) -> Verdict:
    shape = Shape()
    sent = workload(conversations=conversations, bursts=bursts, seed=seed, shape=shape)
    messages = len({(each.conversation, each.number) for each in sent})
    with kind(work_ms=50) as system:
        system.send(Planned(each.at_ms, each.conversation, each.number, shape.silence_ms) for each in sent)
        system.sent()
        # Wait after the last batch, too, because a batch may come late or twice.
        system.drain(messages=messages, at_most_seconds=5)
        time.sleep(SILENT_SECONDS)
        return check(sent, [batch.messages for batch in list(system.batches)])


def recovery(kind: type[System], *, rate: int, before: float, after: float) -> Json:
    """Kill the worker with SIGKILL while it works, and return how long batches were delayed.

    The benchmark starts the workers of other systems again at once, as a supervisor would. Our system starts its own
    worker again when the next message or the watchdog's next pass finds that none runs.
    """
    count = int(rate * (before + after))
    plan = [Planned(number * 1_000 / rate, number, 0, DELAY_MS) for number in range(count)]
    with kind(work_ms=500) as system:
        began_ms = system.send(plan)
        killed_ms = began_ms + before * 1_000
        time.sleep(max(0.0, killed_ms / 1_000 - time.time()))
        system.kill_worker()
        if not isinstance(system, OurSystem):
            system.start_worker()
        deadline = time.monotonic() + after + STALLED_SECONDS
        next_pass = time.monotonic() + random.Random(rate).uniform(0, WATCHDOG_SECONDS)
        while time.monotonic() < deadline and len(_delivered(system)) < count:
            time.sleep(0.1)
            if isinstance(system, OurSystem) and time.monotonic() > next_pass:
                next_pass += WATCHDOG_SECONDS
                system.watchdog_pass()
        batches = list(system.batches)
        resumed = min((each.claimed_ms for each in batches if each.claimed_ms > killed_ms + 5), default=None)
        late = [each.claimed_ms - each.due_ms for each in batches]
        return {
            "resumed_after_s": round((resumed - killed_ms) / 1_000, 2) if resumed else None,
            "latest_s": round(max(late) / 1_000, 2),
            "lost": count - len(_delivered(system)),
            "handled_twice": sum(len(each.messages) for each in batches) - len(_delivered(system)),
        }


def _delivered(system: System) -> set[tuple[int, int]]:
    return {message for batch in list(system.batches) for message in batch.messages}


def lateness_targets(found: list[Json]) -> list[Target]:
    def p99(name: str, what: str) -> list[float]:
        return [
            each["p99"] for each in found if (each["system"], each["what"], each["rate"]) == (name, what, RATES[-1])
        ]

    targets = []
    for what in ("timed", "immediate"):
        ours: list[float] = p99("ours", what)
        targets += [
            Target(f"p99 of lateness, {what}, 1,000 a second, ms", 5, figure(ours)),
            Target(f"p99 of lateness, {what}, 1,000 a second, of BullMQ's", 0.2, ratio(ours, p99("bullmq", what))),
            Target(f"p99 of lateness, {what}, 1,000 a second, of naive's", 0.02, ratio(ours, p99("naive", what))),
        ]
    return targets


def measure_lateness(*, rates: Iterable[int], seconds: float, seed: int) -> list[Json]:
    """Measure all systems once at each rate."""
    order = random.Random(seed)
    found = []
    for turn, rate in enumerate(rates):
        turns = [
            (kind, what, delay)
            for kind in (OurSystem, NaiveSystem, BullMqSystem)
            for what, delay in (("timed", DELAY_MS), ("immediate", 0))
        ]
        order.shuffle(turns)
        for kind, what, delay in turns:
            shown = {"system": kind.name, "rate": rate, "what": what, "round": turn}
            found.append(shown | lateness(kind, rate=rate, seconds=seconds, delay_ms=delay))
        found.append(
            {"system": "timer", "rate": rate, "what": "timed", "round": turn} | timer(rate=rate, seconds=seconds)
        )
        for shown in found[-len(turns) - 1 :]:
            print("{system:8}{what:10}{rate:>6} a second, ms: p50 {p50:8} p99 {p99:8} max {max:8}".format(**shown))
    return found


def main() -> None:
    wanted = arguments("tools.bench.live", __doc__, quick="a look: one round, fewer rates, no recovery")
    bullmq.install()
    quick = wanted.quick
    # Only the highest rate has targets, so measure only that rate more than once.
    rates = RATES[-1:] if quick else (*RATES[:-1], *RATES[-1:] * ROUNDS)
    found = measure_lateness(rates=rates, seconds=1 if quick else 2, seed=wanted.seed)
    result: Json = {
        "seed": wanted.seed,
        "lateness": found,
        "idle": {},
        "correctness": {},
        "recovery": {},
    }
    targets: list[Target] = lateness_targets(found)
    conversations, bursts, idle_seconds = (40, 1, 3) if quick else (400, 2, 5)
    with ThreadPoolExecutor(max_workers=2 * len(SYSTEMS)) as pool:
        # These measurements can run at the same time, because they mostly wait, and their results are counts or whole
        # seconds.
        aside = {"idle": {kind.name: pool.submit(idle, kind, seconds=idle_seconds) for kind in SYSTEMS}}
        if not quick:
            aside["recovery"] = {
                kind.name: pool.submit(recovery, kind, rate=20, before=5, after=20) for kind in SYSTEMS
            }
        for kind in SYSTEMS:
            verdict = correctness(kind, conversations=conversations, bursts=bursts, seed=wanted.seed)
            result["correctness"][kind.name] = asdict(verdict)
        result |= {what: {name: each.result() for name, each in of.items()} for what, of in aside.items()}
    for what in ("idle", "correctness", "recovery"):
        for name, shown in result[what].items():
            print(f"{what}, {name}: {shown}", flush=True)
    ours = result["correctness"]["ours"]
    targets += [
        Target("commands a second, waiting", 3, _exact(result["idle"]["ours"]["waiting_per_second"])),
        Target("commands a second, after the exit", 0, _exact(result["idle"]["ours"]["after_exit_per_second"])),
        Target("lost, sent twice or merged", 0, _exact(ours["lost"] + ours["sent_twice"] + ours["merged"])),
    ]
    print_targets(targets)
    save("live", result, targets, quick=quick)


def _exact(value: float) -> Figure:
    return Figure(value, value, value, 1)


if __name__ == "__main__":
    main()
