"""Measure cold starts, and how late the first batch of an idle stage is: `python -m tools.bench.cold [--quick]`.

The first part measures the CPU time of each step of ingest's first request, in a new Python process. Valkey runs on
this machine, without TLS. A local server answers in place of AWS, over TLS.

The second part measures the CPU time of the conversation processor for a batch, without and with a queue.

The third part measures the time from a batch's due time to its event on a local stage, first when the stage is cold,
then when it is warm. The stage has the preset `assistant`: during a longer wait, the functions would
finish their cold starts before the batch is due. To make the stage cold, the benchmark changes an environment variable
of each function, because the emulator then starts new processes.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bufferctl.events import ArrivedEvent
from message_buffer.settings import ConnectionSettings, IngestSettings, LogSettings, ValkeySettings, to_variables
from tests.support.engine import SETTINGS
from tests.support.ingest_scene import SECRET, gateway
from tests.support.platforms import signed
from tests.support.valkey_server import ValkeyServer
from tools.bench.aws import answering_as_aws
from tools.bench.lateness import own_stage
from tools.bench.measure import Figure, figure
from tools.bench.report import Target, arguments, report
from tools.local.events import Inbox, collect
from tools.local.outputs import Outputs
from tools.local.webhooks import Webhooks

ROOT = Path(__file__).parents[2]
ROUNDS = 9
INGEST = IngestSettings(
    log=LogSettings(level="INFO"),
    valkey=ValkeySettings(
        ConnectionSettings("its variable has the URL", connect_timeout_ms=6_000, answer_timeout_ms=700),
        iam=None, store=SETTINGS, processor_function="processor",
    ),
    dynamodb_lane=None, time_is_required=False, event_bus="bus", rules={},
    webhook_secret_id="id",  # noqa: S106 - not the secret itself
    rules_table="rules", takeovers_table="takeovers", aliases_table="aliases",
    dead_letter_queue_url="https://dead", whatsapp_queue=None,
)  # fmt: skip
VARIABLES = to_variables(INGEST) | {
    "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none", "POWERTOOLS_SERVICE_NAME": "ingest",
    "POWERTOOLS_METRICS_NAMESPACE": "MessageBuffer",
}  # fmt: skip
# Do not measure the start of the interpreter, because our code cannot change it.
PROGRAM = """
import sys, time
began = time.process_time()
import lambdas.ingest.handler as ingest
imported = time.process_time()
import json
event = json.loads(sys.argv[1])
read = time.process_time()
answer = ingest.handler(event, None)
answered = time.process_time()
assert answer["statusCode"] == 200, print(answer, file=sys.stderr)
print(json.dumps({"import": (imported - began) * 1000, "first request": (answered - read) * 1000}))
"""


def first_request(addresses: dict[str, str]) -> dict[str, float]:
    """Run ingest's first request in a fresh interpreter. Return each step's CPU time in ms."""
    body = json.dumps({"account": "a", "conversation": "c", "id": "m", "text": "text"}).encode()
    event = gateway("generic", body, headers=signed("generic", body, SECRET, at_seconds=time.time()))
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TZ") if name in os.environ}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(event)],
        stdout=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=kept | VARIABLES | addresses,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    shown: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return shown


def emission_cpu(batches: int) -> dict[str, Figure]:
    """Return the conversation processor's CPU time for a batch in ms, without and with a queue, and their ratio."""
    server = ValkeyServer().start()
    try:
        with answering_as_aws() as addresses:
            given = json.dumps({"port": server.port, "batches": batches})
            run = subprocess.run(
                [sys.executable, "-m", "tools.bench.roles", "emit", given],
                stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=os.environ | VARIABLES | addresses,
            )  # fmt: skip
    finally:
        server.stop()
    # Do not count the first tenth, in which modules are imported and connections opened.
    without, queued = (each[batches // 10 :] for each in json.loads(run.stdout.splitlines()[-1]))
    rounds = [(sum(without[n::ROUNDS]), sum(queued[n::ROUNDS])) for n in range(ROUNDS)]
    of_one = len(without) / ROUNDS
    return {
        "CPU of emitting a batch": figure([of_bus / of_one for of_bus, _ in rounds]),
        "CPU of emitting a batch to a queue, too": figure([of_both / of_one for _, of_both in rounds]),
        "ratio of the two": figure([of_both / of_bus for of_bus, of_both in rounds]),
    }


def ingest_cpu(rounds: int) -> dict[str, Figure]:
    """Return the CPU time of each step of ingest's first request in ms."""
    found = []
    server = ValkeyServer().start()
    try:
        with answering_as_aws() as addresses:
            # Do not count the first round, because Python compiles the modules in it.
            for _ in range(rounds + 1):
                server.admin().flushall()
                found.append(first_request(addresses | {"REDIS_URL": f"valkey://127.0.0.1:{server.port}"}))
    finally:
        server.stop()
    return {f"CPU of ingest's {step}": figure([each[step] for each in found[1:]]) for step in found[0]}


FUNCTIONS = ("ingest", "processor", "conversation_processor")
# End the processor after one idle second, so that the stage is soon idle.
OVERRIDES = {"rules": {"preset": "assistant"}, "timings": {"processor_idle_ms": 1_000}}
AT_REST_SECONDS = 4.0
LAST_EVENT_SECONDS = 30.0
WARM_MESSAGES = 3


def make_cold(outputs: Outputs) -> None:
    """Change an environment variable of each function, so that the emulator stops the function's processes."""
    client = outputs.client("lambda")
    for role in FUNCTIONS:
        name = outputs.Functions[role]
        variables = client.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        variables["COLD"] = uuid.uuid4().hex
        client.update_function_configuration(FunctionName=name, Environment={"Variables": variables})


def due_to_event_ms(outputs: Outputs, inbox: Inbox) -> float:
    """Send a message, and return how many ms after its due time its event came."""
    name = uuid.uuid4().hex
    response = Webhooks(outputs).post("generic", {"account": "bench", "conversation": name, "id": name, "text": "text"})
    assert response.status == 200, response
    (state,) = response.json["conversations"].values()

    def ours(arrivals: Sequence[ArrivedEvent]) -> list[ArrivedEvent]:
        return [each for each in arrivals if name in each.batch["conversationId"]]

    assert inbox.wait_until(lambda arrivals: bool(ours(arrivals)), timeout_seconds=LAST_EVENT_SECONDS)
    return float(ours(inbox.arrivals)[0].at_ms - state["dueAt"])


def first_batches(rounds: int) -> tuple[list[float], list[float]]:
    """Return how late the batches of a cold stage were in ms, and those of the same stage when it was warm."""
    cold, warm = [], []
    with own_stage(OVERRIDES) as outputs, collect(outputs) as inbox:
        due_to_event_ms(outputs, inbox)
        for _ in range(rounds):
            time.sleep(AT_REST_SECONDS)
            make_cold(outputs)
            cold.append(due_to_event_ms(outputs, inbox))
            warm.append(median(due_to_event_ms(outputs, inbox) for _ in range(WARM_MESSAGES)))
    return cold, warm


def main() -> None:
    wanted = arguments("tools.bench.cold", __doc__, quick="fewer rounds, and no local stage")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that SIGTERM also stops the stage
    figures = ingest_cpu(5 if wanted.quick else 15)
    emission = emission_cpu(300 if wanted.quick else 3_000)
    targets = [Target("CPU of emitting a batch to the bus and a queue, of the bus alone", 1.5, emission.popitem()[1])]
    figures |= emission
    if not wanted.quick:
        cold, warm = first_batches(9)
        figures |= {"due to event, cold stage": figure(cold), "due to event, warm stage": figure(warm)}
        more = figure([one - other for one, other in zip(cold, warm, strict=True)])
        targets.append(Target("lateness of a cold stage's first batch, above a warm one's, ms", 100, more))
    rows = [["", "ms"], *([what, each.shown(2 if what in emission else 0)] for what, each in figures.items())]
    report("cold", {"cold": rows}, targets, quick=wanted.quick)


if __name__ == "__main__":
    main()
