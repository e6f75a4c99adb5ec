"""Model how late windows are that are due at once in the DynamoDB lane: `python -m tools.bench.pollers [--quick]`.

Lambda's pollers cause this lateness: five begin to receive triggers at once, and five more each second. The benchmark
measures the CPU time of a window. For this, the processor and its clients run as deployed, with a server in this
process that answers at once. The times of a run with one window and of a cold start come from
bufferctl/cost/usage.toml.
"""

import os
import time
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from heapq import heapify, heappop, heappush
from typing import Any
from unittest.mock import patch

from bufferctl.cost.facts import used

from infra.dynamodb_lane import TRIGGERS_IN_A_RUN
from infra.settings_and_defaults import MEMORY_MB
from lambdas.dynamodb_processor.service import DynamoDbProcessor
from message_buffer.aws import clients as aws
from message_buffer.events.emission import TimeLeft, open_emission
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import Trigger, TriggerQueue
from message_buffer.settings import EmissionSettings
from message_buffer.telemetry import Telemetry
from tests.support.web_server import Answer, Request, web_server
from tests.support.window import TABLE, WindowScene, due, dynamodb, make_message_table
from tools.bench.handler import silent
from tools.bench.measure import figure
from tools.bench.model import MB_OF_A_CPU
from tools.bench.report import arguments, save

POLLERS, MS_UNTIL_THE_NEXT = 5, 200
BURSTS = (100, 1_000, 10_000)
AT_ONCE = (1, TRIGGERS_IN_A_RUN)
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1",
    "POWERTOOLS_SERVICE_NAME": "dynamodb_processor", "POWERTOOLS_METRICS_NAMESPACE": "MessageBuffer",
}  # fmt: skip


def late_ms(windows: int, *, at_once: int, run_ms: Callable[[int], float], cold_ms: float) -> list[float]:
    """Return how late each window is, in ascending order. The first run of each poller is a cold start."""
    runs = -(-windows // at_once)
    free: list[tuple[float, float]] = [(max(n + 1 - POLLERS, 0) * MS_UNTIL_THE_NEXT, cold_ms) for n in range(runs)]
    heapify(free)
    late: list[float] = []
    while len(late) < windows:
        at, start_ms = heappop(free)
        received = min(at_once, windows - len(late))
        ends = at + start_ms + run_ms(received)
        late += [ends] * received
        heappush(free, (ends, 0))
    return sorted(late)


def stored_items() -> list[dict[str, Any]]:
    """Return a due window of three messages as DynamoDB answers it."""
    with dynamodb() as client:
        make_message_table(client)
        due(WindowScene(), "m1", "m2", "m3")
        items = client.scan(TableName=TABLE)["Items"]
    in_json = {"B": lambda value: b64encode(value).decode()}
    return [
        {name: {kind: in_json.get(kind, str)(value) for kind, value in each.items()} for name, each in item.items()}
        for item in items
    ]


class Table:
    """Answers a processor's requests in place of DynamoDB. Every window contains the items of `stored_items`."""

    def __init__(self) -> None:
        self._items = stored_items()
        self._locks: dict[str, dict[str, Any]] = {}

    def answer(self, request: Request) -> Answer:
        operation, asked = request.headers["x-amz-target"].rpartition(".")[2], request.json
        values = asked.get("ExpressionAttributeValues", {})
        window = next(item for item in self._items if "open" in item)
        match operation:
            case "GetItem":
                return 200, {"Item": window}
            case "UpdateItem" if ":found" in values:
                lock = {"owner": values[":me"], "owner_until": values[":until"], "found": values[":found"]}
                self._locks[asked["Key"]["conversation"]["S"]] = lock
                return 200, {"Attributes": window | lock}
            case "Query":
                lock = self._locks[values[":id"]["S"]]
                return 200, {"Items": [item | lock if item is window else item for item in self._items]}
            case _:
                return 200, {}


def window_cpu_ms(*, rounds: int) -> list[float]:
    """Return the CPU time of a window, for each round. In a round, several threads empty one window each."""
    with ExitStack() as stack:
        table, server = Table(), stack.enter_context(web_server())
        server.answer = table.answer
        stack.enter_context(patch.dict(os.environ, ENVIRONMENT | {"AWS_ENDPOINT_URL": server.url}))
        stack.enter_context(silent())
        aws._made.cache_clear()
        telemetry = Telemetry()
        processor = DynamoDbProcessor(
            table=MessageTable("table"),
            triggers=TriggerQueue(server.url),
            emission=open_emission(EmissionSettings("bus", 256_000, "bucket", 20, server.url), telemetry),
            telemetry=telemetry,
        )

        def empty(n: int) -> float:
            began = time.thread_time_ns()
            assert processor.process(Trigger(f"default/generic/shop/c{n}", "r"), TimeLeft(lambda: 30_000))
            return (time.thread_time_ns() - began) / 1e6

        found = []
        for _ in range(rounds + 1):
            with ThreadPoolExecutor(TRIGGERS_IN_A_RUN) as threads:
                spent = list(threads.map(empty, range(TRIGGERS_IN_A_RUN)))
            telemetry.flush()
            found.append(sum(spent) / len(spent))
        aws._made.cache_clear()
        return found[1:]  # the first round opens the connections


def main() -> None:
    wanted = arguments("tools.bench.pollers", __doc__, quick="a look: writes nothing")
    cpu_ms = figure(window_cpu_ms(rounds=5 if wanted.quick else 40))
    # A noisy run has no median, so use the slow end of the interquartile range.
    one_more_ms = (cpu_ms.high if cpu_ms.too_noisy else cpu_ms.median) / (MEMORY_MB["dynamodb_processor"] / MB_OF_A_CPU)
    run_ms = {n: round(used("dynamodb_processor_ms") + (n - 1) * one_more_ms) for n in range(1, TRIGGERS_IN_A_RUN + 1)}
    rows = []
    for windows in BURSTS:
        row: dict[str, Any] = {"windows": windows}
        for at_once in AT_ONCE:
            late = late_ms(windows, at_once=at_once, run_ms=run_ms.__getitem__, cold_ms=used("cold_start_ms"))
            row[f"{at_once} at once"] = {"median_ms": round(late[windows // 2]), "last_ms": round(late[-1])}
        rows.append(row)
        print(row)
    print(f"CPU time of a window: {cpu_ms} ms; a run takes {run_ms[1]} to {run_ms[TRIGGERS_IN_A_RUN]} ms")
    save("pollers", {"cpu_ms": cpu_ms.as_json(), "run_ms": run_ms, "rows": rows}, quick=wanted.quick)


if __name__ == "__main__":
    main()
