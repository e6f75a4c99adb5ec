"""How late an event is: from when its batch was due until it was on the bus, on the local stage.

Beside it, in the same run and at the same rates, what the emulator itself takes for the same two steps: an
asynchronous invoke of a function that does nothing, and a PutEvents of that function. The difference is ours.

    python -m bench.lateness [--seconds 6]
"""

import argparse
import io
import json
import signal
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench.report import save
from bufferctl.events import Arrival
from local.events import Inbox, collect
from local.outputs import Outputs
from local.progress import Progress
from local.stage import ROOT, Stage
from local.webhooks import Webhooks

RATES = (1, 10, 50)
OVERRIDES = {"rules": {"silenceMs": 500, "typingInferenceMs": 0}}
WARM_UP_SECONDS = 3.0
# Half a second of silence, and whatever a queue has grown to.
LAST_EVENT_SECONDS = 30.0
SENDERS = 4
MOST_UNDER_WAY = 5

LAMBDA = {"Service": "lambda.amazonaws.com"}
BARE_SOURCE = "bench-bare"
BARE_TYPE = "handled"
BARE_HANDLER = f"""
import json, os, time
import boto3
events = boto3.client("events")
def handler(event, _context):
    detail = json.dumps(event | {{"began_ms": time.time() * 1000}})
    events.put_events(Entries=[{{"Source": "{BARE_SOURCE}", "DetailType": "{BARE_TYPE}", "Detail": detail,
                                "EventBusName": os.environ["BUS"]}}])
"""


@dataclass(frozen=True)
class Figures:
    """Milliseconds."""

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each rate is kept up")
    seconds = parser.parse_args().seconds
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the stage goes down then, too
    with own_stage(OVERRIDES) as outputs:
        rounds = list(_rounds(outputs, seconds))
    save("lateness", {"seconds_per_rate": seconds, "rounds": [asdict(each) for each in rounds]})


def _rounds(outputs: Outputs, seconds: float) -> Iterator[Round]:
    print(f"{'batches/s':>9}  {'due → event':^21}  {'bare invoke':^21}  {'bare PutEvents':^21}  (p50, p99 in ms)")
    with _bare_function(outputs) as invoke_bare:
        for rate in RATES:
            # As many processes as work at the same time, before their start can be measured.
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
    """Send one message a conversation, so that each is a batch of its own."""
    webhooks, due_at_ms = Webhooks(outputs), {}

    def send(number: int) -> None:
        message_id = f"{uuid.uuid4().hex}-{number}"
        body = {"account": "bench", "conversation": message_id, "id": message_id, "text": "text"}
        answer = webhooks.post("generic", body)
        assert answer.status == 200, answer
        (state,) = answer.json["conversations"].values()
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


def _at_rate(send: Callable[[int], None], rate: float, seconds: float, *, under_way: Callable[[], int]) -> float:
    """Calls at even distances, whether or not earlier ones have been answered; says how many a second it were.

    Only when too much is under way does it hold back: the emulator starts a process for whatever finds none free,
    and on a busy machine would start ever more of them.
    """
    began = time.monotonic()
    most_under_way = max(MOST_UNDER_WAY, round(2 * rate))
    with ThreadPoolExecutor(SENDERS) as pool:
        calls = []
        for number in range(max(1, int(rate * seconds))):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            while under_way() > most_under_way:
                time.sleep(0.01)
            calls.append(pool.submit(send, number))
        for call in calls:
            call.result()
    return len(calls) / (time.monotonic() - began)


def _wait(inbox: Inbox, key: Callable[[Arrival], str], expected: set[str]) -> dict[str, Arrival]:
    def enough(arrivals: Any) -> bool:
        return expected <= {key(arrival) for arrival in arrivals}

    inbox.wait_until(enough, timeout_seconds=LAST_EVENT_SECONDS)
    return {key(arrival): arrival for arrival in reversed(inbox.arrivals) if key(arrival) in expected}


def _figures(times_ms: list[float]) -> Figures:
    cuts = quantiles(times_ms, n=100, method="inclusive")
    return Figures(len(times_ms), round(cuts[49], 1), round(cuts[98], 1), round(max(times_ms), 1))


@contextmanager
def _bare_function(outputs: Outputs) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Deploy a function that only puts one event, and yield how to invoke it."""
    with deployed_function(outputs, BARE_HANDLER, BUS=outputs.EventBusName) as function:
        client = outputs.client("lambda")

        def invoke(payload: dict[str, Any]) -> None:
            client.invoke(FunctionName=function, InvocationType="Event", Payload=json.dumps(payload))

        yield invoke


@contextmanager
def deployed_function(outputs: Outputs, source: str, **variables: str) -> Iterator[str]:
    """Deploy a function of the emulator that may do anything, and yield its ARN."""
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
    """Start a stage of its own, so that no stage in the usual place is measured."""
    with tempfile.TemporaryDirectory(prefix="bench-lateness-") as folder:
        home = Path(folder)
        installed = ROOT / ".local" / "emulator"
        installed.mkdir(parents=True, exist_ok=True)
        (home / "emulator").symlink_to(installed)
        stage = Stage(home)
        try:
            yield stage.up(Progress(), overrides=overrides)
        finally:
            stage.down(Progress())


if __name__ == "__main__":
    main()
