"""Measure how long webhooks wait for an answer while Valkey does not reply: `python -m tools.bench.outage [--quick]`.

Each client sends signed webhooks to a local stage, one after the other. At the beginning of a round, Valkey is healthy.
Then it accepts connections but does not reply. The next round begins when all instances of ingest use Valkey again.
"""

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psutil
import redis

from message_buffer.lanes.circuit_breaker import MAX_BREAKER_PAUSE_MS
from tools.bench.lateness import own_stage
from tools.bench.measure import figure, ratio
from tools.bench.report import Target, print_targets, save
from tools.bench.stage import Send, product, step, warm_up
from tools.local.outputs import Outputs

CLIENTS = 4
# `SILENT_SECONDS` is as long as the outage in tests/chaos/test_fallback.py.
HEALTHY_SECONDS, SILENT_SECONDS = 5.0, 20.0
MOST_MS = 3_000
# No batch is due during the measurement, in either lane.
OVERRIDES = {"rules": {"silenceMs": 600_000, "maxWaitMs": 3_600_000, "maxMessages": 1_000}}


@contextmanager
def silent_valkey(outputs: Outputs) -> Iterator[None]:
    assert outputs.ValkeyUrl
    with redis.Redis.from_url(outputs.ValkeyUrl.partition("?")[0].replace("valkey://", "redis://")) as client:
        server = psutil.Process(int(client.info("server")["process_id"]))
    server.suspend()
    try:
        yield
    finally:
        server.resume()


def measure(outputs: Outputs, send: Send) -> dict[str, Any]:
    healthy = step(send, clients=CLIENTS, seconds=HEALTHY_SECONDS)
    with silent_valkey(outputs):
        silent = step(send, clients=CLIENTS, seconds=SILENT_SECONDS)
    time.sleep(MAX_BREAKER_PAUSE_MS / 1_000)
    # An instance of ingest tries Valkey again only when it gets a request, so send some requests with all clients.
    warm_up(send, CLIENTS)
    for name, found in (("healthy", healthy), ("silent", silent)):
        shown = "{per_second:>8} a second  p50 {p50_ms} ms, p99 {p99_ms} ms, slowest {most_ms} ms, errors {errors:.2%}"
        print(f"{name:8}{shown.format(**found)}", flush=True)
    return {"healthy": healthy, "silent": silent}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.outage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look: one round")
    quick = parser.parse_args().quick
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the stage is stopped then, too
    with own_stage(OVERRIDES) as outputs:
        send = product(outputs)
        warm_up(send, CLIENTS)
        rounds = [measure(outputs, send) for _ in range(1 if quick else 5)]
    p50 = {name: [each[name]["p50_ms"] for each in rounds] for name in ("healthy", "silent")}
    slower = ratio(p50["silent"], p50["healthy"])
    print(f"p50, silent {median(p50['silent'])} ms, of healthy: {slower}")
    slowest = figure([each["silent"]["most_ms"] for each in rounds])
    targets = [Target("slowest answer to a webhook while Valkey is silent, ms", MOST_MS, slowest)]
    print_targets(targets)
    result = {"clients": CLIENTS, "seconds": SILENT_SECONDS, "rounds": rounds, "slower": slower.as_json()}
    save("outage", result, targets, quick=quick)


if __name__ == "__main__":
    main()
