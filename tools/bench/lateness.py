"""Measure how late events are on a local stage, in each lane: `python -m tools.bench.lateness [--quick]`.

The lateness is the time from a batch's due time until its event is on the bus. The emulator causes most of it.
"""

import random
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import urllib3

from infra.settings_and_defaults import DEFAULT_SLOTS
from tests.support.local_stage import share_emulator
from tools.bench.measure import Figure
from tools.bench.report import Target, arguments, report
from tools.local.events import collect
from tools.local.outputs import Outputs
from tools.local.progress import Progress
from tools.local.stage import Stage
from tools.local.webhooks import StageResponse, Webhooks

RATES = {"valkey": (1, 10, 50), "dynamodb": (1, 10, 20, 50)}
SILENCE_MS = {"valkey": 500, "dynamodb": 1_000}
WARM_UP_SECONDS = 3.0
# Enough for the wait, and for all batches that are still in progress.
LAST_EVENT_SECONDS = 30.0
# A burst waits for up to two seconds, and its event comes within one more second. One second is a reserve.
SECONDS_UNDER_WAY = 4
SENDERS = 32
# In the DynamoDB lane, the second message of a burst comes after a random time between these two, so that the due times
# are spread over a second.
MIN_GAP_SECONDS, MAX_GAP_SECONDS = 0.1, 1.0
# The DynamoDB lane emits a batch at the next whole second after its due time.
MAX_DYNAMODB_MS = 1_200
# Lambda begins with five deliveries at a time from a queue, and adds more while messages wait. The emulator adds none,
# so the benchmark allows this many from the beginning. The emulator starts a process for each.
DELIVERIES_AT_ONCE = 10
WAKE_SECONDS, AGAIN_SECONDS = 0.05, 0.2


class Late(NamedTuple):
    rate: float
    """How many batches a second were sent."""
    p50: float
    p99: float
    most: float
    lost: int


def main() -> None:
    wanted = arguments("tools.bench.lateness", __doc__, quick="one rate for each lane")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM also stops the stage
    rows = [["lane, batches a second", "p50, ms", "p99, ms", "max, ms", "lost"]]
    targets = []
    for lane, rates in RATES.items():
        overrides = {"lane": lane, "rules": {"silenceMs": SILENCE_MS[lane], "typingInferenceMs": 0}}
        with own_stage(overrides) as outputs, _ready(outputs, lane):
            for rate in rates[:1] if wanted.quick else rates:
                # Warm up at rising rates, so that the emulator starts all processes before the measurement.
                for warm_up_rate in (rate / 4, rate / 2, rate):
                    measure(outputs, lane, warm_up_rate, WARM_UP_SECONDS)
                late = measure(outputs, lane, rate, 2.0 if wanted.quick else 6.0)
                times = (f"{each:,.0f}" for each in (late.p50, late.p99, late.most))
                rows.append([f"{lane}, {late.rate:.3g}", *times, str(late.lost)])
                if lane == "dynamodb":
                    what = f"p99 from due to event, DynamoDB lane, {late.rate:.3g} batches a second, ms"
                    targets.append(Target(what, MAX_DYNAMODB_MS, Figure(late.p99, late.p99, late.p99)))
    report("lateness", {"due_to_event": rows}, targets, quick=wanted.quick)


def measure(outputs: Outputs, lane: str, rate: float, seconds: float) -> Late:
    """Send bursts at even intervals, and return how late their batches were."""
    webhooks, due_at_ms, chance = Webhooks(outputs), dict[str, float](), random.Random(1)

    def send_burst(gaps: list[float]) -> None:
        conversation = uuid.uuid4().hex
        for part, gap in enumerate(gaps):
            time.sleep(gap)
            name = f"{conversation}-{part}"
            body = {"account": "bench", "conversation": conversation, "id": name, "text": "text"}
            (state,) = _insist(webhooks, body).json["conversations"].values()
            due_at_ms[name] = state["dueAt"] or time.time() * 1_000

    with collect(outputs) as inbox:
        began, count = time.monotonic(), max(2, int(rate * seconds))
        with ThreadPoolExecutor(SENDERS) as pool:
            for number in range(count):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                # The emulator starts a process for each call that finds none free, so without a limit a busy machine
                # would get more and more processes.
                while number - len(inbox.arrivals) > max(5, SECONDS_UNDER_WAY * rate):
                    time.sleep(0.01)
                more = chance.uniform(MIN_GAP_SECONDS, MAX_GAP_SECONDS)
                pool.submit(send_burst, [0.0, more] if lane == "dynamodb" else [0.0])
        achieved = count / (time.monotonic() - began)

        def all_came(arrivals: Any) -> bool:
            return due_at_ms.keys() <= {str(message["id"]) for each in arrivals for message in each.batch["messages"]}

        inbox.wait_until(all_came, timeout_seconds=LAST_EVENT_SECONDS)
    # A burst may become two batches on a busy machine, so look up when each batch was due.
    batches = [(each.at_ms, [str(message["id"]) for message in each.batch["messages"]]) for each in inbox.arrivals]
    late = [at_ms - max(due_at_ms[name] for name in names) for at_ms, names in batches]
    lost = due_at_ms.keys() - {name for _, names in batches for name in names}
    cuts = quantiles(late, n=100, method="inclusive")
    return Late(min(rate, achieved), cuts[49], cuts[98], max(late), len(lost))


def _insist(webhooks: Webhooks, body: dict[str, Any]) -> StageResponse:
    """Send a webhook until it succeeds, as platforms do, because requests to a busy emulator may fail."""
    while True:
        with suppress(urllib3.exceptions.HTTPError):
            response = webhooks.post("generic", body)
            if response.status == 200:
                return response
            assert response.status >= 500, response
        time.sleep(AGAIN_SECONDS)


@contextmanager
def _ready(outputs: Outputs, lane: str) -> Iterator[None]:
    """Make the emulator deliver the DynamoDB lane's triggers as AWS does.

    By default it delivers few at a time. It checks its queues only once a second, and when a message is sent, so send
    one twenty times a second.
    """
    if lane == "valkey":
        yield
        return
    functions, sqs = outputs.client("lambda"), outputs.client("sqs")
    (mapping,) = functions.list_event_source_mappings(FunctionName=outputs.Functions["dynamodb_processor"])[
        "EventSourceMappings"
    ]
    scaling = {"MaximumConcurrency": DELIVERIES_AT_ONCE}
    functions.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig=scaling)
    url, done = sqs.create_queue(QueueName=f"bench-idle-{uuid.uuid4().hex[:8]}")["QueueUrl"], threading.Event()

    def wake() -> None:
        while not done.wait(WAKE_SECONDS):
            sqs.send_message(QueueUrl=url, MessageBody="look")

    with ThreadPoolExecutor(1) as pool:
        waking = pool.submit(wake)
        try:
            yield
        finally:
            done.set()
            waking.result()
            sqs.delete_queue(QueueUrl=url)


@contextmanager
def own_stage(overrides: dict[str, Any]) -> Iterator[Outputs]:
    """Yield the outputs of a new stage. It is in a folder of its own, apart from the developer's local stage."""
    with tempfile.TemporaryDirectory(prefix="bench-stage-") as folder:
        home = Path(folder) / "home"
        share_emulator(home)
        stage = Stage(home)
        try:
            # As many as in AWS, not as few as suit a developer's machine.
            slots = {"conversation_processor": DEFAULT_SLOTS}
            yield stage.up(Progress(), overrides={"concurrency": slots, **overrides})
        finally:
            stage.down(Progress())


if __name__ == "__main__":
    main()
