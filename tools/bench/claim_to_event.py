"""Compare, for two checkouts, the time from the claim of a batch in the Valkey lane to its event.

For each checkout, a separate process runs the deployed code of the conversation processor, already warm. The two
processes take turns. Valkey runs on this machine, and a local server answers in place of AWS, after 5 ms. The time
begins when the handler is called for a claimed conversation, and ends when PutEvents is answered. The start of the
function is not measured, because it depends only on Lambda.
"""

import os
import subprocess
import sys
from pathlib import Path

from message_buffer.settings import (
    ConnectionSettings,
    ConversationProcessorSettings,
    EmissionSettings,
    LogSettings,
    ValkeySettings,
    to_variables,
)
from tests.support.engine import SETTINGS
from tests.support.valkey_server import ValkeyServer
from tools.bench.aws import answering_as_aws
from tools.bench.handler import ENVIRONMENT
from tools.bench.measure import figure, ratio
from tools.bench.report import Target, print_targets

ROOT = Path(__file__).parents[2]
ANSWER_MS = 5
BATCHES, WARM_UP_BATCHES = 150, 10
MAX_RATIO = 0.6
LAST_EVENT_SECONDS = 10
MARK = "began"

CONVERSATION_PROCESSOR = ConversationProcessorSettings(
    log=LogSettings(level="INFO"),
    valkey=ValkeySettings(
        ConnectionSettings("its variable has the URL", connect_timeout_ms=3_200, answer_timeout_ms=800),
        iam=None, store=SETTINGS, processor_function="processor",
    ),
    emission=EmissionSettings(
        event_bus="bus", max_event_bytes=256_000, oversize_bucket="bucket", max_attempts=20,
        dead_letter_queue_url="https://queue",
    ),
)  # fmt: skip
# An older checkout reads these variables instead of SETTINGS.
WITHOUT_SETTINGS = {
    "STAGE": "bench", "SHARDS": "1", "START_MS": "4000", "CLAIM_TIMEOUT_MS": "10000", "TOKEN_MS": "6000",
    "VALKEY_CONNECT_MS": "3200", "VALKEY_ANSWER_MS": "800", "PROCESSOR_FUNCTION_NAME": "processor",
    "EVENT_BUS_NAME": "bus", "MAX_EVENT_BYTES": "256000", "OVERSIZE_BUCKET": "bucket", "MAX_ATTEMPTS": "20",
    "DEAD_LETTER_QUEUE_URL": "https://queue", "MESSAGE_TABLE": "table", "TRIGGER_QUEUE_URL": "https://queue",
}  # fmt: skip
VARIABLES = WITHOUT_SETTINGS | to_variables(CONVERSATION_PROCESSOR) | {
    "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
}  # fmt: skip
# The program stores and claims each batch with the engine of its own checkout.
PROGRAM = f"""
import os, sys, time
from types import SimpleNamespace
from lambdas.conversation_processor.handler import handler
from message_buffer.lanes.valkey.connection import ConnectionSettings, connect
from tests.support.engine import SETTINGS, Engine
client = connect(ConnectionSettings(os.environ["REDIS_URL"], 1_000, 1_000))
engine, clock = Engine(client, client), lambda: int(time.time() * 1_000)
context = SimpleNamespace(get_remaining_time_in_millis=lambda: 60_000)
for line in sys.stdin:
    conversation = line.strip()
    engine.clock.now_ms = clock() - 60_000
    engine.send(conversation, conversation)
    engine.clock.now_ms = clock()
    assert engine.claim() == [conversation]
    event = dict(conversation=conversation, shard=0, deadline=engine.clock.now_ms + SETTINGS.claim_ms)
    began = time.monotonic()
    handler(event, context)
    print("{MARK}", began, flush=True)
"""


class _Checkout:
    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TZ") if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder,
            env=kept | ENVIRONMENT | VARIABLES | variables,
        )  # fmt: skip

    def emit(self, conversation: str) -> float:
        """Make this checkout's process emit a batch. Return the time at which its handler was called."""
        assert self.process.stdin
        assert self.process.stdout
        print(conversation, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            if line.startswith(MARK):
                return float(line.split()[1])
        raise AssertionError("the conversation processor has ended")


def compare(other: Path) -> None:
    """Measure this checkout and the other one in turns. Print the ratio of their times."""
    found: dict[str, list[float]] = {"here": [], "there": []}
    server = ValkeyServer().start()
    try:
        with answering_as_aws(delay_ms=ANSWER_MS) as aws:
            variables = {**aws.addresses, "REDIS_URL": f"valkey://127.0.0.1:{server.port}"}
            checkouts = {"here": _Checkout(ROOT, variables), "there": _Checkout(other, variables)}
            try:
                for number in range(WARM_UP_BATCHES + BATCHES):
                    for name, checkout in checkouts.items():
                        began = checkout.emit(f"default/generic/bench/{name}-{number}")
                        assert aws.events.poll(LAST_EVENT_SECONDS), "the batch was not emitted"
                        found[name].append((aws.events.recv() - began) * 1_000)
            finally:
                for checkout in checkouts.values():
                    checkout.process.kill()
    finally:
        server.stop()
    here, there = (times[WARM_UP_BATCHES:] for times in found.values())
    print(f"From claim to event, ms: here {figure(here)}, there {figure(there)}")
    print_targets([Target("from claim to event, of that before", MAX_RATIO, ratio(here, there))])
