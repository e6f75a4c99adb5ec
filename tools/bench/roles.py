"""Run a part of our engine or of the naive design in a process of its own: `python -m tools.bench.roles <role> <JSON>`.

`send` and `send_naive` send messages at their planned times. `process` is our processor. `execute` runs the
conversation processors that our processor starts: they take batches, work, and complete the batches. `poll` is the
naive processor. Each role prints JSON lines, with times in ms.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

from lambdas.processor.service import ConversationProcessors, Processor, Timings
from message_buffer.aws.functions import Functions
from message_buffer.lanes.outcomes import BatchCompleted, BatchTaken, MessageRefused
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.keys import script_keys
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, load_script
from message_buffer.lanes.valkey.store import Store
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.limits import MAX_QUOTA
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.timing import Timing
from message_buffer.settings import ConnectionSettings, StoreSettings
from tests.support.engine import SETTINGS
from tests.support.fakes import RecordedTelemetry
from tools.bench.contestants import NAIVE_KINDS, Naive, RecordingSender
from tools.bench.wire import Wire, encode

POLL_SECONDS = 0.5
MAX_UNDER_WAY = 200
Given = Mapping[str, Any]


def say(line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def now_ms() -> float:
    return time.time() * 1_000


def timing(delay_ms: int) -> Timing:
    """Return a timing whose wait ends `delay_ms` after the last message. A delay of 0 ends the wait at once."""
    return Timing(delay_ms or 1, delay_ms or 1, 86_400_000, 10_000, 1, "" if delay_ms else "flush_word")


def messages() -> Iterator[Given]:
    """Yield each message at its planned time."""
    for line in sys.stdin:
        message = json.loads(line)
        time.sleep(max(0.0, (message["at"] - now_ms()) / 1_000))
        yield message


def lean_store(port: int, settings: StoreSettings = SETTINGS) -> Store:
    wire = Wire(port)
    for path in LUA_DIRECTORY.glob("*.lua"):
        wire.call("SCRIPT", "LOAD", load_script(path.stem).source)
    return Store(RecordingSender(wire), settings)


def send(given: Given) -> None:
    store = lean_store(given["port"])
    charge = Charge((("bench/bench", Quota(MAX_QUOTA, MAX_QUOTA)),), is_exact=True)
    for message in messages():
        outcome = store.buffer_message(
            message["conversation"],
            message["id"],
            payload=message["body"].encode(),
            timing=timing(message["delay"]),
            charge=charge,
        )
        if not isinstance(outcome, MessageRefused) and outcome.start_id:
            say({"start": 0})


def send_naive(given: Given) -> None:
    wire = Wire(given["port"])
    naive = Naive(wire)
    for message in messages():
        naive.now_ms = int(now_ms())
        wire.ask(naive.request(message["c"], message["number"], timing(message["delay"])))


class _Pipe(Functions):
    """Stands in for Lambda. It prints each invocation, so that the process with the role `execute` can read it."""

    def prepare(self) -> None:
        return

    def start(self, function: str, payload: Mapping[str, object]) -> None:  # noqa: ARG002 - there is one function
        sys.stdout.write(json.dumps({"c": payload["conversation"], "claimed": now_ms()}) + "\n")
        sys.stdout.flush()


def process(given: Given) -> None:
    """Run the processor's deployed code and Valkey client, without Lambda and CloudWatch."""
    address = ConnectionSettings(f"valkey://127.0.0.1:{given['port']}")
    telemetry, functions = RecordedTelemetry(), _Pipe()
    processor = Processor(
        store=Store(Connection(lambda: connect(address)), SETTINGS),
        wake=Wake(lambda: connect(address), 0),
        conversation_processors=ConversationProcessors(functions, "conversation_processor"),
        starter=ProcessorStarter(functions, "processor", telemetry),
        telemetry=telemetry,
        timings=Timings(idle_ms=given["idleMs"], handover_ms=0),
        shard=0,
    )
    say({"ready": True})
    processor.run(lambda: 10**9)


def execute(given: Given) -> None:
    """Run all conversation processors in one process. Each takes its batch, works, and then completes the batch."""
    store, one_at_a_time = lean_store(given["port"]), Lock()

    def run(started: Given) -> None:
        conversation, token = started["c"], f"{started['claimed']}"
        with one_at_a_time:
            taken = store.take_batch(conversation, token)
            if not isinstance(taken, BatchTaken):
                return
            bodies = [each[:100].decode() for each in taken.payloads]
            say({"due": taken.due_at_ms, "claimed": started["claimed"], "bodies": bodies})
        time.sleep(given["workMs"] / 1_000)
        with one_at_a_time:
            completed = store.complete_batch(conversation, token)
            if isinstance(completed, BatchCompleted) and completed.start_id:
                say({"start": 0})

    with ThreadPoolExecutor(MAX_UNDER_WAY) as pool:
        for line in sys.stdin:
            shown = json.loads(line)
            if "c" not in shown:
                say(shown)
            elif given["workMs"]:
                pool.submit(run, shown)
            else:
                run(shown)


def poll(given: Given) -> None:
    """Every half second, read the due conversations, work, and delete them."""
    wire = Wire(given["port"])
    pending = script_keys(NAIVE_KINDS, 0)[-1]
    say({"ready": True})
    while True:
        began = time.monotonic()
        due = wire.call("ZRANGE", pending, "-inf", int(now_ms()), "BYSCORE", "WITHSCORES")
        claimed = now_ms()
        found = list(zip(due[::2], due[1::2], strict=True))
        for name, due_at_ms in found:
            bodies = wire.call("LRANGE", script_keys(NAIVE_KINDS, 0, name)[0], 0, -1)
            shown = [body[:100].decode() for body in reversed(bodies)]
            say({"due": int(due_at_ms), "claimed": claimed, "bodies": shown})
        if found:
            time.sleep(given["workMs"] / 1_000)
        for name, _ in found:
            *kept, pending = script_keys(NAIVE_KINDS, 0, name)
            wire.pipe([encode("DEL", *kept), encode("ZREM", pending, name)])
        time.sleep(max(0.0, POLL_SECONDS - (time.monotonic() - began)))


ROLES: dict[str, Callable[[Given], None]] = {
    "send": send, "send_naive": send_naive, "process": process, "execute": execute, "poll": poll,
}  # fmt: skip

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
