"""Measure the turns of one channel while the API of another one hangs: `python -m tools.bench.hanging [--quick]`.

Queues in this process imitate SQS FIFO, and threads imitate the event source mappings of the function that consumes
them.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles

from message_buffer.aws import clients
from message_buffer.clock import system_clock
from message_buffer.consumer import turns
from tests.support.fifo_queue import FakeSqs, FifoQueue
from tools.bench.measure import Figure, ratio
from tools.bench.report import Target, arguments, report

CHANNELS = HANGING, OTHER = "hanging", "other"
# As a responder by default: each mapping has so many runs at once, of up to ten conversations each.
RUNS_AT_ONCE = 10
BATCHES_A_SECOND = 20
AGENT_SECONDS, HANGING_SECONDS = 0.3, 8.0
HIDDEN_BY_LAMBDA_MS, POLL_SECONDS = 300_000, 0.01
MAX_RATIO = 1.2


class Stage:
    """The queues of the two channels, or one queue of both, and what their consumer measures."""

    def __init__(self, queues: dict[str, FifoQueue], *, hanging_seconds: float) -> None:
        self._queues = queues
        self._seconds = {HANGING: hanging_seconds, OTHER: AGENT_SECONDS}
        self._sent_at: dict[str, float] = {}
        self._over = threading.Event()
        self.late: list[float] = []
        """The seconds from a batch of the other channel to its answer."""

    def send(self, channel: str, number: int) -> None:
        """Send a batch of a new conversation."""
        batch_id = f"{channel}-{number}"
        self._sent_at[batch_id] = time.monotonic()
        body = json.dumps({"detail": {"batchId": batch_id, "channel": channel}})
        self._queues[channel].put(body, group=batch_id, deduplication_id=batch_id)

    def answer(self, turn: turns.Turn) -> None:
        channel = turn.batches[0]["channel"]
        # At the end, what still hangs need not be waited for.
        self._over.wait(self._seconds[channel])
        if channel == OTHER:
            self.late += [time.monotonic() - self._sent_at[batch["batchId"]] for batch in turn.batches]

    def consume(self, queue: FifoQueue) -> None:
        while not self._over.is_set():
            if taken := queue.take(hidden_ms=HIDDEN_BY_LAMBDA_MS):
                queue.end(taken, turns.handle(queue.event(taken), self.answer, queue_urls=[queue.url]))
            else:
                time.sleep(POLL_SECONDS)

    @contextmanager
    def consuming(self) -> Iterator[None]:
        runs = [
            threading.Thread(target=self.consume, args=(queue,))
            for queue in set(self._queues.values())
            for _ in range(RUNS_AT_ONCE)
        ]
        for run in runs:
            run.start()
        try:
            yield
        finally:
            self._over.set()
            for run in runs:
                run.join()


def p99(*, names: dict[str, str], hanging_seconds: float, seconds: float) -> float:
    """Return the 99th percentile of the other channel. `names` has the name of each channel's queue."""
    made = {name: FifoQueue(name, system_clock) for name in names.values()}
    sqs = FakeSqs(*made.values(), clock=system_clock)
    clients.client = lambda *_, **__: sqs
    stage = Stage({channel: made[name] for channel, name in names.items()}, hanging_seconds=hanging_seconds)
    began, wanted = time.monotonic(), int(seconds * BATCHES_A_SECOND)
    with stage.consuming():
        for number in range(wanted):
            time.sleep(max(began + number / BATCHES_A_SECOND - time.monotonic(), 0))
            for channel in CHANNELS:
                stage.send(channel, number)
        while len(stage.late) < wanted:
            time.sleep(POLL_SECONDS)
    return quantiles(stage.late, n=100)[-1]


APART = {HANGING: "hanging", OTHER: "other"}
TOGETHER = {HANGING: "default", OTHER: "default"}


def measure(*, rounds: int, seconds: float) -> tuple[Figure, Figure]:
    """Return the ratio of the p99 with a channel that hangs to that without, with two queues, and with one for both."""
    found: dict[str, tuple[list[float], list[float]]] = {"apart": ([], []), "together": ([], [])}
    for _ in range(rounds):
        for name, queues in (("apart", APART), ("together", TOGETHER)):
            for late, hanging_seconds in zip(found[name], (HANGING_SECONDS, AGENT_SECONDS), strict=True):
                late.append(p99(names=queues, hanging_seconds=hanging_seconds, seconds=seconds))
    return ratio(*found["apart"]), ratio(*found["together"])


def main() -> None:
    wanted = arguments("tools.bench.hanging", __doc__, quick="one short round")
    rounds, seconds = (1, 3.0) if wanted.quick else (3, 10.0)
    apart, together = measure(rounds=rounds, seconds=seconds)
    rows = [
        ["queues", "p99 of the other channel, of that without the hang"],
        ["one for each channel", apart.shown(2)],
        ["one for both", together.shown(2)],
    ]
    targets = [Target("p99 of a channel while another one hangs, of that without", MAX_RATIO, apart)]
    report("hanging", {"hanging": rows}, targets, {"apart": apart, "together": together}, quick=wanted.quick)


if __name__ == "__main__":
    main()
