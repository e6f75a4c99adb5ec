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
from statistics import quantiles

from message_buffer.json_object import Json
from tools.bench import bullmq
from tools.bench.checker import Verdict, check
from tools.bench.ingest import NAMES
from tools.bench.measure import Figure, figure, ratio
from tools.bench.report import Table, Target, arguments, report
from tools.bench.systems import SYSTEMS, BullMqKeepAll, BullMqSystem, NaiveSystem, OurSystem, Planned, System
from tools.bench.wire import encode
from tools.bench.workload import Shape, workload

RATES = (10, 100, 1_000)
ROUNDS = 3
DELAY_MS = 1_000
WARM_UP_SECONDS = 1.0
SILENT_SECONDS = 3.0
STALLED_SECONDS = 75.0
RIVALS = (NaiveSystem, BullMqSystem, BullMqKeepAll)


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


def _spread(late_ms: list[float]) -> Json:
    cuts = quantiles(late_ms, n=100, method="inclusive")
    return {
        "count": len(late_ms),
        "p50": round(cuts[49], 2),
        "p99": round(cuts[98], 2),
        "max": round(max(late_ms), 2),
    }


def idle(kind: type[System], *, seconds: float) -> Json:
    """Return how many commands a waiting worker sends a second and, for our system, how many come after its exit."""
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


def recovery(kind: type[System], *, rate: int, before: float, after: float) -> str:
    """Kill the worker with SIGKILL while it works, and start it again at once, as a supervisor would.

    Return the seconds until the next batch, and the greatest delay of any batch.
    """
    count = int(rate * (before + after))
    plan = [Planned(number * 1_000 / rate, number, 0, DELAY_MS) for number in range(count)]
    with kind(work_ms=500) as system:
        began_ms = system.send(plan)
        killed_ms = began_ms + before * 1_000
        time.sleep(max(0.0, killed_ms / 1_000 - time.time()))
        system.kill_worker()
        system.start_worker()
        system.drain(messages=count, at_most_seconds=after + STALLED_SECONDS)
        batches = list(system.batches)
        resumed = min(each.claimed_ms for each in batches if each.claimed_ms > killed_ms + 5)
        late = max(each.claimed_ms - each.due_ms for each in batches)
        return f"{(resumed - killed_ms) / 1_000:.2f} s / {late / 1_000:.2f} s"


def p99(found: list[Json], name: str, what: str) -> list[float]:
    """Return the p99 of a system's lateness in each round at the highest rate."""
    return [each["p99"] for each in found if (each["system"], each["what"], each["rate"]) == (name, what, RATES[-1])]


def lateness_targets(found: list[Json]) -> list[Target]:
    targets = []
    for what in ("timed", "immediate"):
        ours = p99(found, "ours", what)
        late = f"p99 of lateness, {what}"
        targets += [
            Target(f"{late}, ms", 5, figure(ours)),
            Target(f"{late}, share of BullMQ's", 0.2, ratio(ours, p99(found, "bullmq", what))),
            Target(f"{late}, share of naive's", 0.02, ratio(ours, p99(found, "naive", what))),
        ]
    return targets


def measure_lateness(*, rates: Iterable[int], seconds: float, seed: int) -> list[Json]:
    """Measure all systems once at each rate."""
    order = random.Random(seed)
    found = []
    for rate in rates:
        turns = [
            (kind, what, delay)
            for kind in (OurSystem, NaiveSystem, BullMqSystem)
            for what, delay in (("timed", DELAY_MS), ("immediate", 0))
        ]
        order.shuffle(turns)
        for kind, what, delay in turns:
            shown = {"system": kind.name, "rate": rate, "what": what}
            found.append(shown | lateness(kind, rate=rate, seconds=seconds, delay_ms=delay))
    return found


def lateness_table(found: list[Json]) -> Table:
    rates = sorted({each["rate"] for each in found})
    rows = [["p50 / p99 / max, ms", *(f"{rate:,} a second" for rate in rates)]]
    for what in ("timed", "immediate"):
        for name in ("ours", "bullmq", "naive"):
            row = [f"{NAMES[name].partition(',')[0]}, {what}"]
            for rate in rates:
                of = [each for each in found if (each["system"], each["what"], each["rate"]) == (name, what, rate)]
                p50, p99 = (figure([each[column] for each in of]).shown() for column in ("p50", "p99"))
                row.append(f"{p50} / {p99} / {max(each['max'] for each in of):,.0f}")
            rows.append(row)
    return rows


def systems_table(verdicts: dict[str, Verdict], idle: dict[str, Json], recoveries: dict[str, str]) -> Table:
    heads = ["", "messages", "lost", "twice", "merged", "split", "idle commands/s", "after kill -9"]
    rows = [
        [NAMES[name], f"{each.messages:,}", *map(str, (each.lost, each.sent_twice, each.merged, each.split)),
         f"{idle[name]['waiting_per_second']:g}", recoveries.get(name, "see below")]
        for name, each in verdicts.items()
    ]  # fmt: skip
    return [heads, *rows]


def main() -> None:
    wanted = arguments("tools.bench.live", __doc__, quick="one round of one rate, no recovery, losses of ours alone")
    bullmq.install()
    quick = wanted.quick
    # Only the highest rate has targets, so measure only that rate more than once.
    rates = RATES[-1:] if quick else (*RATES[:-1], *RATES[-1:] * ROUNDS)
    found = measure_lateness(rates=rates, seconds=1 if quick else 2, seed=wanted.seed)
    conversations, bursts, idle_seconds = (40, 1, 3) if quick else (400, 2, 5)
    with ThreadPoolExecutor(max_workers=2 * len(SYSTEMS)) as pool:
        # These measurements can run at the same time, because they mostly wait, and their results are counts or whole
        # seconds.
        waiting = {kind.name: pool.submit(idle, kind, seconds=idle_seconds) for kind in SYSTEMS}
        killed = (
            {} if quick else {kind.name: pool.submit(recovery, kind, rate=20, before=5, after=20) for kind in RIVALS}
        )
        verdicts = {
            kind.name: correctness(kind, conversations=conversations, bursts=bursts, seed=wanted.seed)
            for kind in (SYSTEMS[:1] if quick else SYSTEMS)
        }
        idles = {name: each.result() for name, each in waiting.items()}
        recoveries = {name: each.result() for name, each in killed.items()}
    ours = verdicts["ours"]
    targets = [
        *lateness_targets(found),
        Target("commands a second, waiting", 3, exact(idles["ours"]["waiting_per_second"])),
        Target("commands a second, after the exit", 0, exact(idles["ours"]["after_exit_per_second"])),
        Target("messages lost, sent twice or merged", 0, exact(ours.lost + ours.sent_twice + ours.merged)),
    ]
    late = {
        f"{name}, {what}": figure(p99(found, name, what))
        for what in ("timed", "immediate")
        for name in ("ours", "bullmq", "naive")
    }
    tables = {"lateness": lateness_table(found), "systems": systems_table(verdicts, idles, recoveries)}
    report("live", tables, targets, late | {"messages": exact(ours.messages)}, quick=quick)


def exact(value: float) -> Figure:
    return Figure(value, value, value)


if __name__ == "__main__":
    main()
