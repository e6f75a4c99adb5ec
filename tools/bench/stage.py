"""Measure the requests a second that a local stage can answer: `python -m tools.bench.stage [--quick]`.

Each client sends signed webhooks one after the other, through the API to ingest and Valkey. Each step has more clients
than the one before, until one in a hundred requests fails or takes more than a second. The benchmark also measures a
function that does nothing, behind an API of its own. This shows how much of the limit comes from the emulator and the
clients, which run on the same machine.
"""

import argparse
import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import quantiles
from typing import Any

import urllib3

from tools.bench.lateness import deployed_function, own_stage
from tools.bench.report import save
from tools.local.outputs import Outputs
from tools.local.webhooks import Webhooks

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
MOST_ERRORS = 0.01
MOST_P99_MS = 1_000
CONVERSATIONS = 200
# No buffer is due during the measurement. Otherwise the emulator would start a process for each conversation processor.
OVERRIDES = {"rules": {"silenceMs": 600_000, "maxWaitMs": 3_600_000}}
ACCOUNT = "bench"
QUOTA = {
    "operation": "rules.set", "by": "bench", "scope": f"account:generic/{ACCOUNT}",
    "rules": {"quota": {"messagesPerMinute": 8_000_000, "conversationsPerMinute": 1_000_000}},
}  # fmt: skip
WARM_UP_TRIES, WARM_UP_SECONDS = 4, 2.0
# Print a line, because on the emulator a function that writes nothing answers later.
BARE_HANDLER = """
def handler(_event, _context):
    print("answered", flush=True)
    return {"statusCode": 200, "body": "{}"}
"""
Send = Callable[[int], bool]


def step(send: Send, *, clients: int, seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds

    def work(client: int) -> list[tuple[float, bool]]:
        found, number = [], 0
        while time.monotonic() < until:
            began = time.perf_counter()
            fine = send(client * 1_000_000 + number)
            found.append(((time.perf_counter() - began) * 1_000, fine))
            number += 1
        return found

    with ThreadPoolExecutor(clients) as pool:
        began = time.monotonic()
        answers = [each for found in pool.map(work, range(clients)) for each in found]
        took = time.monotonic() - began
    cuts = quantiles([ms for ms, _ in answers], n=100, method="inclusive")
    return {
        "clients": clients,
        "per_second": round(len(answers) / took, 1),
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "most_ms": round(max(ms for ms, _ in answers), 1),
        "errors": round(sum(not fine for _, fine in answers) / len(answers), 4),
    }


def is_too_much(found: dict[str, Any]) -> bool:
    return bool(found["errors"] > MOST_ERRORS or found["p99_ms"] > MOST_P99_MS)


def ramp(sends: dict[str, Send], *, clients: tuple[int, ...], seconds: float) -> dict[str, list[dict[str, Any]]]:
    """Measure the systems in turns, with more and more clients, each until it cannot handle the load."""
    steps: dict[str, list[dict[str, Any]]] = {name: [] for name in sends}
    for number in clients:
        for name, send in sends.items():
            if steps[name] and is_too_much(steps[name][-1]):
                continue
            warm_up(send, number)
            found = step(send, clients=number, seconds=seconds)
            steps[name].append(found)
            line = "{clients:>4} clients{per_second:>8} a second  p50 {p50_ms} ms, p99 {p99_ms} ms, errors {errors:.2%}"
            print(f"{name:8}{line.format(**found)}", flush=True)
    return steps


def warm_up(send: Send, clients: int) -> None:
    """Make the emulator start its processes before the measurement, because it starts them slowly."""
    for _ in range(WARM_UP_TRIES):
        if not step(send, clients=clients, seconds=WARM_UP_SECONDS)["errors"]:
            return


def product(outputs: Outputs) -> Send:
    webhooks, run = Webhooks(outputs, connections=max(CLIENTS)), uuid.uuid4().hex[:8]

    def send(number: int) -> bool:
        body = {"account": ACCOUNT, "conversation": f"{run}-{number % CONVERSATIONS}", "id": uuid.uuid4().hex,
                "text": "Could you tell me whether this is still to be had?"}  # fmt: skip
        try:
            return webhooks.post("generic", body).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    return send


@contextmanager
def bare(outputs: Outputs) -> Iterator[Send]:
    """Deploy a function that does nothing, behind an API."""
    apis = outputs.client("apigatewayv2")
    with deployed_function(outputs, BARE_HANDLER) as function:
        outputs.client("lambda").add_permission(
            FunctionName=function, StatementId="api", Action="lambda:InvokeFunction",
            Principal="apigateway.amazonaws.com",
        )  # fmt: skip
        api = apis.create_api(Name="bench", ProtocolType="HTTP")["ApiId"]
        integration = apis.create_integration(
            ApiId=api, IntegrationType="AWS_PROXY", IntegrationUri=function, PayloadFormatVersion="2.0"
        )["IntegrationId"]
        apis.create_route(ApiId=api, RouteKey="POST /bare", Target=f"integrations/{integration}")
        apis.create_stage(ApiId=api, StageName="$default", AutoDeploy=True)
        try:
            yield _poster(f"{outputs.AwsEndpointUrl}/_aws/execute-api/{api}/$default/bare")
        finally:
            apis.delete_api(ApiId=api)


def _poster(url: str) -> Send:
    http = urllib3.PoolManager(maxsize=max(CLIENTS), retries=False, timeout=30.0)

    def send(number: int) -> bool:
        try:
            return http.request("POST", url, body=b'{"n":%d}' % number).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    return send


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.stage", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look: three steps of two seconds")
    quick = parser.parse_args().quick
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stage goes down then, too
    clients, seconds = (CLIENTS[2:5], 2.0) if quick else (CLIENTS, 2.0)
    with own_stage(OVERRIDES) as outputs, bare(outputs) as send:
        outputs.client("lambda").invoke(FunctionName=outputs.Functions["admin"], Payload=json.dumps(QUOTA))
        load = [round(each, 1) for each in os.getloadavg()]
        found = ramp({"product": product(outputs), "bare": send}, clients=clients, seconds=seconds)
        # Print the results before the stage is stopped, because the emulator needs time to stop many processes.
        for name, steps in found.items():
            fine = [each["per_second"] for each in steps if not is_too_much(each)]
            print(f"{name}: at most {max(fine, default=0):,.0f} requests a second with few errors, in time")
        save("stage", {"load_before": load, "steps": found}, quick=quick)


if __name__ == "__main__":
    main()
