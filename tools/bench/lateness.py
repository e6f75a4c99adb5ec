"""Measure how late events are on a local stage, in each lane.

The lateness is the time from a batch's due time until its event is on the bus. The emulator causes a part of it, and
our code causes the rest. To separate them, the benchmark also measures how long the emulator takes for the same steps
without our code, in the same run and at the same rates. In the Valkey lane, these steps are an asynchronous invocation
of a function, and the PutEvents that the function calls. In the DynamoDB lane, they are the delivery of a queue's
message, which is delayed and then hidden once, and a PutEvents. The steps of the DynamoDB lane are measured while the
lane emits its batches.

    python -m tools.bench.lateness [--lane valkey|dynamodb] [--seconds 6] [--rates 1 10]

`--against FOLDER` names another checkout. Then the benchmark only compares the time from claim to event, as
`claim_to_event.py` describes.
"""

import argparse
import io
import json
import os
import random
import signal
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil
import urllib3

from bufferctl.events import ArrivedEvent
from tests.support.local_stage import share_emulator
from tools.bench import claim_to_event
from tools.bench.measure import figure
from tools.bench.report import Target, print_targets, save
from tools.local.events import Inbox, collect
from tools.local.outputs import Outputs
from tools.local.progress import Progress
from tools.local.stage import Stage
from tools.local.webhooks import StageResponse, Webhooks

RATES, QUEUE_RATES = (1, 10, 50), (1, 10, 20, 50)
OVERRIDES = {"rules": {"silenceMs": 500, "typingInferenceMs": 0}}
WARM_UP_SECONDS = 3.0
# Enough for the wait of half a second, and for all batches that are still in progress.
LAST_EVENT_SECONDS = 30.0
SENDERS = 4
MAX_UNDER_WAY = 5

LAMBDA = {"Service": "lambda.amazonaws.com"}
BARE_SOURCE = "bench-bare"
BARE_TYPE = "handled"
# The DynamoDB lane emits a batch at the next whole second after its due time.
MAX_DYNAMODB_MS = 1_200
SILENCE_MS = 1_000
# The second message of a burst comes after a random time between these two, so that the due times are spread over a
# second.
MIN_GAP_SECONDS, MAX_GAP_SECONDS = 0.1, 1.0
DYNAMODB_OVERRIDES = {"lane": "dynamodb", "rules": {"silenceMs": SILENCE_MS, "typingInferenceMs": 0}}
DYNAMODB_SENDERS = 8
# A burst waits for up to two seconds, and its event comes within one more second. One second is a reserve.
MAX_SECONDS_UNDER_WAY = 4
# Lambda begins with five deliveries at a time from a queue, and adds more while messages wait. The emulator adds none,
# so the benchmark allows this many from the beginning. The emulator starts a process for each.
DELIVERIES_AT_ONCE = 10
PROBES_A_BATCH, MAX_PROBES_A_SECOND = 0.2, 5
WAKE_SECONDS, AGAIN_SECONDS = 0.05, 0.2

BARE_HANDLER = f"""
import json, os, time
import boto3
events = boto3.client("events")
def handler(event, _context):
    detail = json.dumps(event | {{"began_ms": time.time() * 1000}})
    events.put_events(Entries=[{{"Source": "{BARE_SOURCE}", "DetailType": "{BARE_TYPE}", "Detail": detail,
                                "EventBusName": os.environ["BUS"]}}])
"""
BARE_QUEUE_HANDLER = f"""
import json, os, time
import boto3
events, queue = boto3.client("events"), boto3.client("sqs")
def handler(event, _context):
    (record,) = event["Records"]
    if record["attributes"]["ApproximateReceiveCount"] == "1":
        queue.change_message_visibility(QueueUrl=os.environ["QUEUE"], ReceiptHandle=record["receiptHandle"],
                                        VisibilityTimeout=1)
        return {{"batchItemFailures": [{{"itemIdentifier": record["messageId"]}}]}}
    events.put_events(Entries=[{{"Source": "{BARE_SOURCE}", "DetailType": "{BARE_TYPE}", "Detail": record["body"],
                                "EventBusName": os.environ["BUS"]}}])
"""


@dataclass(frozen=True)
class Figures:
    """The times of one measurement, in milliseconds."""

    count: int
    p50: float
    p99: float
    most: float


@dataclass(frozen=True)
class Round:
    batches_per_second: int
    achieved_per_second: float
    due_to_event: Figures
    bare_invoke: Figures
    bare_put_events: Figures
    lost: int


@dataclass(frozen=True)
class QueueRound:
    """The figures of one rate in the DynamoDB lane."""

    batches_per_second: int
    achieved_per_second: float
    due_to_event: Figures
    second_to_event: Figures
    """Like `due_to_event`, but from the next whole second on, because the lane emits only at whole seconds."""
    bare_delivery: Figures
    """The same times as `Probes.deliveries`."""
    bare_request: Figures
    cpu_ms: dict[str, float]
    """The CPU time per batch, by process: emulator, ingest, DynamoDB processor. The probes use the emulator, too."""
    lost: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each rate is kept up")
    parser.add_argument("--lane", choices=("valkey", "dynamodb"), help="measure only this lane")
    parser.add_argument("--rates", type=int, nargs="+", help="batches a second; then nothing is written")
    parser.add_argument("--against", type=Path, help="the folder of another checkout, to compare from claim to event")
    given = parser.parse_args()
    if given.against:
        claim_to_event.compare(given.against)
        return
    quick = bool(given.rates)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stage goes down then, too
    if given.lane != "dynamodb":
        with own_stage(OVERRIDES) as outputs:
            rounds = [asdict(each) for each in _rounds(outputs, given.rates or RATES, given.seconds)]
        save("lateness", {"seconds_per_rate": given.seconds, "rounds": rounds}, quick=quick)
    if given.lane != "valkey":
        with own_stage(DYNAMODB_OVERRIDES) as outputs:
            load = [round(each, 1) for each in os.getloadavg()]
            found = list(_queue_rounds(outputs, given.rates or QUEUE_RATES, given.seconds))
        late = [
            Target(f"p99 from due to event, DynamoDB lane, {each.achieved_per_second:g} batches a second, ms",
                   MAX_DYNAMODB_MS, figure([each.due_to_event.p99]))
            for each in found
        ]  # fmt: skip
        print_targets(late)
        result = {
            "seconds_per_rate": given.seconds, "load_before": load, "rounds": [asdict(each) for each in found],
        }  # fmt: skip
        save("lateness_dynamodb", result, late, quick=quick)


def _rounds(outputs: Outputs, rates: Sequence[int], seconds: float) -> Iterator[Round]:
    print(f"{'batches/s':>9}  {'due → event':^21}  {'bare invoke':^21}  {'bare PutEvents':^21}  (p50, p99 in ms)")
    with _bare_function(outputs) as invoke_bare:
        for rate in rates:
            # Warm up at rising rates, so that the emulator starts all processes before the measurement.
            for warm_up_rate in (rate / 4, rate / 2, rate):
                _measure_product(outputs, warm_up_rate, WARM_UP_SECONDS)
                _measure_bare(outputs, invoke_bare, warm_up_rate, WARM_UP_SECONDS)
            late, lost, achieved = _measure_product(outputs, rate, seconds)
            invokes, puts = _measure_bare(outputs, invoke_bare, rate, seconds)
            done = Round(rate, round(achieved, 1), _figures(late), _figures(invokes), _figures(puts), lost)
            figures = (done.due_to_event, done.bare_invoke, done.bare_put_events)
            print(f"{rate:>9}  " + "  ".join(f"{each.p50:>10.1f} {each.p99:>10.1f}" for each in figures), flush=True)
            yield done


def _measure_product(outputs: Outputs, rate: float, seconds: float) -> tuple[list[float], int, float]:
    """Send messages, each as a batch of its own. Return how late the batches were, how many were lost, and the rate."""
    webhooks, due_at_ms = Webhooks(outputs), {}

    def send(number: int) -> None:
        message_id = f"{uuid.uuid4().hex}-{number}"
        body = {"account": "bench", "conversation": message_id, "id": message_id, "text": "text"}
        response = webhooks.post("generic", body)
        assert response.status == 200, response
        (state,) = response.json["conversations"].values()
        due_at_ms[message_id] = state["dueAt"]

    with collect(outputs) as inbox:
        achieved = _at_rate(send, rate, seconds, under_way=lambda: len(due_at_ms) - len(inbox.arrivals))
        arrived = _wait(inbox, lambda arrival: str(arrival.batch["messages"][0]["id"]), set(due_at_ms))
    late = [arrived[message_id].at_ms - due for message_id, due in due_at_ms.items() if message_id in arrived]
    return late, len(due_at_ms) - len(late), achieved


def _measure_bare(
    outputs: Outputs, invoke: Callable[[dict[str, Any]], None], rate: float, seconds: float
) -> tuple[list[float], list[float]]:
    sent = set()

    def send(number: int) -> None:
        sent.add(str(number))
        invoke({"id": str(number), "sent_ms": time.time() * 1_000})

    with collect(outputs, pattern={"source": [BARE_SOURCE]}) as inbox:
        _at_rate(send, rate, seconds, under_way=lambda: len(sent) - len(inbox.arrivals))
        arrived = _wait(inbox, lambda arrival: str(arrival.batch["id"]), sent)
    invokes = [each.batch["began_ms"] - each.batch["sent_ms"] for each in arrived.values()]
    puts = [each.at_ms - each.batch["began_ms"] for each in arrived.values()]
    return invokes, puts


def _queue_rounds(outputs: Outputs, rates: Sequence[int], seconds: float) -> Iterator[QueueRound]:
    heads = ("due → event", "second → event", "bare delivery", "bare request")
    print(f"{'batches/s':>9}  {'  '.join(f'{head:^21}' for head in heads)}  (p50, p99 in ms)")
    deliver_at_once(outputs, outputs.Functions["dynamodb_processor"])
    with _bare_queue(outputs) as send_bare, _awake(outputs):
        for rate in rates:
            for warm_up_rate in (rate / 4, rate / 2, rate):
                with _probed(outputs, send_bare, rate):
                    _measure_bursts(outputs, warm_up_rate, WARM_UP_SECONDS)
            with _probed(outputs, send_bare, rate) as bare:
                before = _cpu_ms(outputs)
                late, whole, lost, achieved = _measure_bursts(outputs, rate, seconds)
                cpu = {part: _cpu_ms_since(before[part], now) / len(late) for part, now in _cpu_ms(outputs).items()}
            found = [_figures(each) for each in (late, whole, bare.deliveries, bare.requests)]
            print(
                f"{rate:>9}  {'  '.join(f'{each.p50:>10.1f} {each.p99:>10.1f}' for each in found)}"
                f"  {achieved:.1f} a second, {lost} lost; CPU of a batch, ms:"
                f" {', '.join(f'{part} {each:.1f}' for part, each in cpu.items())}",
                flush=True,
            )
            due, second, delivery, request = found
            cpu_ms = {part: round(each, 1) for part, each in cpu.items()}
            yield QueueRound(rate, round(achieved, 1), due, second, delivery, request, cpu_ms, lost)


def _cpu_ms(outputs: Outputs) -> dict[str, dict[int, float]]:
    """Return the CPU time in ms of the emulator's, ingest's and the processor's processes, by part and process id."""
    found: dict[str, dict[int, float]] = {"emulator": {}, "ingest": {}, "processor": {}}
    parts = {outputs.Functions["ingest"]: "ingest", outputs.Functions["dynamodb_processor"]: "processor"}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            variables, times = process.environ(), process.cpu_times()
            if variables.get("GATEWAY_PORT") == outputs.AwsEndpointUrl.rpartition(":")[2]:
                function = variables.get("AWS_LAMBDA_FUNCTION_NAME")
                part = "emulator" if function is None else parts.get(function)
                if part:
                    found[part][process.pid] = (times.user + times.system) * 1_000
    return found


def _cpu_ms_since(before: dict[int, float], now: dict[int, float]) -> float:
    return sum(each - before.get(pid, 0.0) for pid, each in now.items())


def _measure_bursts(outputs: Outputs, rate: float, seconds: float) -> tuple[list[float], list[float], int, float]:
    """Send bursts of two messages. Return two lists of lateness, the number of lost messages, and the rate.

    The first list counts from the due time. The second counts from the next whole second after the first message,
    because the lane emits only then.
    """
    chance, run = random.Random(1), uuid.uuid4().hex
    webhooks, begins = Webhooks(outputs), _evenly(rate, seconds)
    plan = sorted(
        (at, f"{run}-{number}", part)
        for number, begin in enumerate(begins)
        for part, at in enumerate((begin, begin + chance.uniform(MIN_GAP_SECONDS, MAX_GAP_SECONDS)))
    )
    due_at_ms: dict[str, float] = {}

    def send(number: int) -> None:
        _, conversation, part = plan[number]
        message_id = f"{conversation}-{part}"
        body = {"account": "bench", "conversation": conversation, "id": message_id, "text": "text"}
        response = _insist(webhooks, body)
        (state,) = response.json["conversations"].values()
        due_at_ms[message_id] = state["dueAt"] or time.time() * 1_000

    with collect(outputs) as inbox:

        def under_way() -> int:
            return len(due_at_ms) - sum(len(each.batch["messages"]) for each in inbox.arrivals)

        most = max(MAX_UNDER_WAY, round(2 * rate * MAX_SECONDS_UNDER_WAY))
        times = [at for at, _, _ in plan]
        took = len(times) / _at_times(send, times, senders=DYNAMODB_SENDERS, most_under_way=most, under_way=under_way)
        achieved = rate * min(1.0, times[-1] / took)
        came = inbox.wait_until(lambda _: under_way() <= 0, timeout_seconds=LAST_EVENT_SECONDS)
    lost = 0 if came else under_way()
    late: list[float] = []
    whole: list[float] = []
    # Measure batches instead of bursts, because on a busy machine a burst may become two batches.
    for batch in {str(each.batch["batchId"]): each for each in reversed(inbox.arrivals)}.values():
        due = max(due_at_ms[str(message["id"])] for message in batch.batch["messages"])
        first = batch.batch["metadata"]["firstMessageAt"]
        late.append(batch.at_ms - due)
        whole.append(batch.at_ms - (first + -(-(due - first) // 1_000) * 1_000))
    return late, whole, lost, achieved


def _insist(webhooks: Webhooks, body: dict[str, Any]) -> StageResponse:
    """Send a webhook until it succeeds, as platforms do, because requests to a busy emulator may fail."""
    while True:
        with suppress(urllib3.exceptions.HTTPError):
            response = webhooks.post("generic", body)
            if response.status == 200:
                return response
            assert response.status >= 500, response
        time.sleep(AGAIN_SECONDS)


@dataclass
class Probes:
    """The times that the emulator itself takes, in ms."""

    deliveries: list[float]
    """The times from the planned delivery of a queue's message to the event that the bare function puts."""
    requests: list[float]
    """The times of requests to the lane's table."""


@contextmanager
def _probed(outputs: Outputs, send_bare: Callable[[str], None], rate: float) -> Iterator[Probes]:
    """Probe the emulator while the block runs, so that the probes meet the same load as the lane."""
    sent: dict[str, float] = {}
    found, done, table = Probes([], []), threading.Event(), outputs.client("dynamodb")

    def probe() -> None:
        while not done.wait(1 / min(max(rate * PROBES_A_BATCH, 1), MAX_PROBES_A_SECOND)):
            began = time.time()
            table.get_item(TableName=outputs.HoldingTableName, Key={"conversation": {"S": "-"}, "item": {"S": "!"}})
            found.requests.append((time.time() - began) * 1_000)
            sent[str(len(sent))] = time.time() * 1_000
            send_bare(json.dumps({"id": str(len(sent) - 1)}))

    with collect(outputs, pattern={"source": [BARE_SOURCE]}) as inbox, ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        try:
            yield found
        finally:
            done.set()
            probing.result()
        arrived = _wait(inbox, lambda arrival: str(arrival.batch["id"]), set(sent))
    # Subtract the two seconds for which a message is first delayed and then hidden.
    found.deliveries += [each.at_ms - sent[name] - 2_000 for name, each in arrived.items()]


@contextmanager
def _awake(outputs: Outputs) -> Iterator[None]:
    """Make the emulator check its queues twenty times a second.

    By default it checks them only once a second, and when a message is sent. AWS checks them continuously.
    """
    sqs, done = outputs.client("sqs"), threading.Event()
    url = sqs.create_queue(QueueName=f"bench-idle-{uuid.uuid4().hex[:8]}")["QueueUrl"]

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


def _at_rate(send: Callable[[int], None], rate: float, seconds: float, *, under_way: Callable[[], int]) -> float:
    """Call `send` at even intervals. Return the number of calls a second."""
    most_under_way = max(MAX_UNDER_WAY, round(2 * rate))
    return _at_times(send, _evenly(rate, seconds), most_under_way=most_under_way, under_way=under_way)


def _evenly(rate: float, seconds: float) -> list[float]:
    return [number / rate for number in range(max(1, int(rate * seconds)))]


def _at_times(
    send: Callable[[int], None],
    times: Sequence[float],
    *,
    most_under_way: int,
    under_way: Callable[[], int],
    senders: int = SENDERS,
) -> float:
    """Call `send` at these times, even if earlier calls have not been answered. Return the number of calls a second.

    Pause while more than `most_under_way` messages wait for their event. The emulator starts a process for each call
    that finds none free, so without a limit a busy machine would get more and more processes.
    """
    began = time.monotonic()
    with ThreadPoolExecutor(senders) as pool:
        calls = []
        for number, at in enumerate(times):
            time.sleep(max(0.0, began + at - time.monotonic()))
            while under_way() > most_under_way:
                time.sleep(0.01)
            calls.append(pool.submit(send, number))
        for call in calls:
            call.result()
    return len(calls) / (time.monotonic() - began)


def _wait(inbox: Inbox, key: Callable[[ArrivedEvent], str], expected: set[str]) -> dict[str, ArrivedEvent]:
    def enough(arrivals: Any) -> bool:
        return expected <= {key(arrival) for arrival in arrivals}

    inbox.wait_until(enough, timeout_seconds=LAST_EVENT_SECONDS)
    return {key(arrival): arrival for arrival in reversed(inbox.arrivals) if key(arrival) in expected}


def _figures(times_ms: list[float]) -> Figures:
    cuts = quantiles(times_ms, n=100, method="inclusive")
    return Figures(len(times_ms), round(cuts[49], 1), round(cuts[98], 1), round(max(times_ms), 1))


@contextmanager
def _bare_function(outputs: Outputs) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Deploy a function that only puts one event, and yield a callable that invokes the function."""
    with deployed_function(outputs, BARE_HANDLER, BUS=outputs.EventBusName) as function:
        client = outputs.client("lambda")

        def invoke(payload: dict[str, Any]) -> None:
            client.invoke(FunctionName=function, InvocationType="Event", Payload=json.dumps(payload))

        yield invoke


@contextmanager
def _bare_queue(outputs: Outputs) -> Iterator[Callable[[str], None]]:
    """Deploy a queue whose function hides a message once, then puts an event. Yield a callable that sends one."""
    sqs, functions = outputs.client("sqs"), outputs.client("lambda")
    url = sqs.create_queue(QueueName=f"bench-{uuid.uuid4().hex[:8]}", Attributes={"VisibilityTimeout": "30"})[
        "QueueUrl"
    ]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    try:
        with deployed_function(outputs, BARE_QUEUE_HANDLER, BUS=outputs.EventBusName, QUEUE=url) as function:
            mapping = functions.create_event_source_mapping(
                EventSourceArn=arn, FunctionName=function, BatchSize=1,
                FunctionResponseTypes=["ReportBatchItemFailures"],
            )["UUID"]  # fmt: skip
            deliver_at_once(outputs, function)
            try:
                yield lambda body: sqs.send_message(QueueUrl=url, MessageBody=body, DelaySeconds=1)
            finally:
                functions.delete_event_source_mapping(UUID=mapping)
    finally:
        sqs.delete_queue(QueueUrl=url)


def deliver_at_once(outputs: Outputs, function: str) -> None:
    """Let the emulator deliver more messages to the function at a time than it does by default."""
    functions = outputs.client("lambda")
    (mapping,) = functions.list_event_source_mappings(FunctionName=function)["EventSourceMappings"]
    scaling = {"MaximumConcurrency": DELIVERIES_AT_ONCE}
    functions.update_event_source_mapping(UUID=mapping["UUID"], ScalingConfig=scaling)


@contextmanager
def deployed_function(outputs: Outputs, source: str, **variables: str) -> Iterator[str]:
    """Deploy a function with this source and all permissions, and yield its ARN."""
    packed, name = io.BytesIO(), f"bench-{uuid.uuid4().hex[:8]}"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("bare.py", source)
    roles, functions = outputs.client("iam"), outputs.client("lambda")
    role = roles.create_role(RoleName=name, AssumeRolePolicyDocument=_policy("sts:AssumeRole", Principal=LAMBDA))
    roles.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=_policy("*", Resource="*"))
    function = functions.create_function(
        FunctionName=name,
        Runtime="python3.13",
        Handler="bare.handler",
        Role=role["Role"]["Arn"],
        Code={"ZipFile": packed.getvalue()},
        Environment={"Variables": variables},
        Timeout=30,
    )
    try:
        yield function["FunctionArn"]
    finally:
        functions.delete_function(FunctionName=name)
        roles.delete_role_policy(RoleName=name, PolicyName="all")
        roles.delete_role(RoleName=name)


def _policy(action: str, **more: Any) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, **more}]})


@contextmanager
def own_stage(overrides: dict[str, Any]) -> Iterator[Outputs]:
    """Yield the outputs of a new stage. It is in a folder of its own, apart from the developer's local stage."""
    with tempfile.TemporaryDirectory(prefix="bench-lateness-") as folder:
        home = Path(folder) / "home"
        share_emulator(home)
        stage = Stage(home)
        try:
            yield stage.up(Progress(), overrides=overrides)
        finally:
            stage.down(Progress())


if __name__ == "__main__":
    main()
