"""A local stage for tests, with short times; it collects every event, and kills or reconfigures functions."""

import fcntl
import io
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import redis
from botocore.exceptions import BotoCoreError

from bufferctl.events import ArrivedEvent
from bufferctl.facts import StageFacts
from bufferctl.stage import LOCAL, find_account, find_stage
from bufferctl.stage import StageClient as AdminCalls
from tests.support.aws_proxy import Call
from tools.local import emulator
from tools.local.events import Inbox, collect
from tools.local.outputs import Outputs
from tools.local.progress import Progress
from tools.local.stage import ROOT, Stage
from tools.local.webhooks import Webhooks
from tools.local.workers import kill, workers

# The times are short, but a machine that runs other tests beside these can still keep the pace.
SILENCE_MS = 600
TYPING_MS = 1_200
MAX_WAIT_MS = 4_000
MAX_MESSAGES = 20
MAX_ATTEMPTS = 4
MAX_EVENT_BYTES = 65_536
LEASE_MS = 3_000
START_MS = 3_000
IDLE_MS = 2_500
WARM_PROCESSES = 8
WARM_UP_SECONDS = 150.0
# Tests that need the watchdog run it this often, instead of every half a minute.
PASS_SECONDS = 2.0
# A wait for something that happens in a second or two on a quiet machine.
PATIENCE_SECONDS = 60.0
DENIED = "denied-by-a-test"
WHATSAPP_TOPIC = "arn:aws:sns:us-east-1:000000000000:whatsapp"

# The time-outs of functions are those of a real stage. On a busy machine a cold start takes seconds; with a short
# time-out, the emulator would kill it, and the next start would be cold, too.
OVERRIDES: dict[str, Any] = {
    "rules": {
        "silenceMs": SILENCE_MS,
        "typingInferenceMs": TYPING_MS,
        "maxWaitMs": MAX_WAIT_MS,
        "maxMessages": MAX_MESSAGES,
    },
    "limits": {"max_attempts": MAX_ATTEMPTS, "max_event_bytes": MAX_EVENT_BYTES},
    "timings": {
        "lease_ms": LEASE_MS,
        "start_ms": START_MS,
        "processor_idle_ms": IDLE_MS,
        "processor_handover_ms": 10_000,
    },
}


def install_once(name: str, requirements: Path) -> Path:
    """Install requirements in an environment of their own, once even if several workers begin at the same time.

    Return the environment's interpreter.
    """
    installed = ROOT / ".local" / name
    installed.parent.mkdir(exist_ok=True)
    with (installed.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return emulator.ensure_installed(installed, requirements)


def share_emulator(home: Path) -> None:
    """Use one installed emulator for all stages."""
    python = install_once("emulator", emulator.REQUIREMENTS)
    home.mkdir(parents=True, exist_ok=True)
    (home / "emulator").symlink_to(python.parents[1])


class LocalStage:
    """A running stage, and every batch that it has emitted since its start."""

    def __init__(self, stage: Stage, outputs: Outputs, inbox: Inbox) -> None:
        self.stage = stage
        self.outputs = outputs
        self.inbox = inbox
        self.webhooks = Webhooks(outputs)

    @cached_property
    def valkey(self) -> redis.Redis:
        assert self.outputs.ValkeyUrl, "the DynamoDB lane stands alone here"
        address = self.outputs.ValkeyUrl.removeprefix("valkey://").partition("?")[0]
        host, _, port = address.partition(":")
        return redis.Redis(host=host, port=int(port), decode_responses=True)

    @cached_property
    def admin(self) -> AdminCalls:
        return find_stage(LOCAL, profile=None, region=None, outputs=self.stage.outputs_file)

    @property
    def facts(self) -> StageFacts:
        """Return a new reader of the stage's logs, which remembers nothing of earlier ones."""
        account = find_account(LOCAL, profile=None, region=None, outputs=self.stage.outputs_file)
        return StageFacts(LOCAL, account.client, api_endpoint=account.api_endpoint)

    def warm_up(self) -> None:
        """Start some processes of each function, so that tests do not measure the emulator's cold starts.

        On a busy machine, cold conversation processors may use up a batch's few attempts before they can emit. The
        batch's conversation then gets another message.
        """
        known, deadline = len(self.inbox.arrivals), time.monotonic() + WARM_UP_SECONDS
        names = {f"warm-up-{number}" for number in range(WARM_PROCESSES)}

        def missing(arrivals: Sequence[ArrivedEvent]) -> set[str]:
            return names - {str(each.batch["conversationId"]).rpartition("/")[2] for each in arrivals[known:]}

        # If a new configuration has stopped the processor, no message starts another before its lease ends.
        passes = self.watched(every_seconds=PASS_SECONDS) if "watchdog" in self.outputs.Functions else nullcontext()
        with ThreadPoolExecutor(WARM_PROCESSES) as pool, passes:
            while left := missing(self.inbox.arrivals):
                assert time.monotonic() < deadline, f"the warm-up's batches did not come out: {left}"
                list(pool.map(self._insist, left))
                self.inbox.wait_until(lambda arrivals: not missing(arrivals), timeout_seconds=20)
        self.outputs.client("sqs").purge_queue(QueueUrl=self.outputs.DeadLetterQueueUrl)

    def _insist(self, name: str) -> None:
        """Send a message until it is accepted: an ingest that starts beside many others may not have read the rules."""
        body = {"account": "warm-up", "conversation": name, "id": uuid.uuid4().hex, "text": "warm-up"}
        deadline = time.monotonic() + WARM_UP_SECONDS
        while (answer := self.webhooks.post("generic", body)).status != 200:
            assert answer.status >= 500, f"{answer.status} {answer.body!r}"
            assert time.monotonic() < deadline, f"never accepted: {answer.body!r}"
            time.sleep(0.1)

    # -- functions ---------------------------------------------------------------------------------------------

    def invoke(self, role: str, payload: dict[str, Any] | None = None, *, wait: bool = False) -> None:
        self.outputs.client("lambda").invoke(
            FunctionName=self.outputs.Functions[role],
            InvocationType="RequestResponse" if wait else "Event",
            Payload=json.dumps(payload or {}),
        )

    def workers(self, role: str) -> list[psutil.Process]:
        """Return the processes in which a function runs, or waits for its next invocation."""
        return workers(self.outputs, role)

    def wait_until_settled(self, *conversations: str, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until conversations hold no message and no batch, and each of their events is in the inbox."""
        deadline = time.monotonic() + timeout_seconds
        for conversation in conversations:
            while not _is_idle(self.admin.ask("conversation.show", conversation=conversation)):
                assert time.monotonic() < deadline, f"{conversation} still holds something"
                time.sleep(0.05)
        self._wait_for_the_bus(timeout_seconds=timeout_seconds)

    def _wait_for_the_bus(self, *, timeout_seconds: float) -> None:
        """Publish a marker as a batch and wait for it: the inbox then has every event that was published before."""
        marker = f"marker-{uuid.uuid4().hex}"
        entry = {
            "EventBusName": self.outputs.EventBusName, "Source": "message-buffer",
            "DetailType": "messages.batch.ready", "Detail": json.dumps({"conversationId": marker, "messages": []}),
        }  # fmt: skip
        self.outputs.client("events").put_events(Entries=[entry])

        def came(arrivals: Sequence[ArrivedEvent]) -> bool:
            return any(arrival.batch["conversationId"] == marker for arrival in arrivals)

        assert self.inbox.wait_until(came, timeout_seconds=timeout_seconds), "the bus did not deliver the marker"

    def kill(self, *roles: str) -> int:
        """Kill the functions' processes with -9; return how many there were."""
        return kill(self.outputs, *roles)

    def kill_caller(self, role: str, call: Call) -> None:
        """Kill the one process that made this call with -9."""
        (worker,) = [each for each in self.workers(role) if _talks_from(each, call.caller_port)]
        worker.kill()
        psutil.wait_procs([worker], timeout=5)

    @contextmanager
    def configured(
        self,
        role: str,
        *,
        timeout_seconds: int | None = None,
        settings: Mapping[str, Any] | None = None,
        **variables: str,
    ) -> Iterator[None]:
        """Change a function's configuration for the block; its processes start again at both ends.

        `settings` has new values by their paths in SETTINGS, such as `valkey.store.claim_ms`.
        """
        client, name = self.outputs.client("lambda"), self.outputs.Functions[role]
        before = client.get_function_configuration(FunctionName=name)
        kept = before["Environment"]["Variables"]
        timeout = timeout_seconds or before["Timeout"]
        changed = kept | {"SETTINGS": _with(settings or {}, kept["SETTINGS"])} | variables
        client.update_function_configuration(FunctionName=name, Timeout=timeout, Environment={"Variables": changed})
        try:
            yield
        finally:
            client.update_function_configuration(
                FunctionName=name, Timeout=before["Timeout"], Environment={"Variables": kept}
            )

    @contextmanager
    def watched(self, *, every_seconds: float) -> Iterator[None]:
        """Run the watchdog more often than its schedule inside, so that a test need not wait half a minute."""
        done = threading.Event()

        def patrol() -> None:
            while not done.wait(every_seconds):
                # Wait for each pass, because passes at the same time would each start a process on a busy machine.
                with suppress(BotoCoreError):
                    self.invoke("watchdog", wait=True)

        patrolling = threading.Thread(target=patrol, daemon=True)
        patrolling.start()
        try:
            yield
        finally:
            done.set()
            patrolling.join()

    @contextmanager
    def without_failure_records(self) -> Iterator[None]:
        """Let Lambda's records of failed processors start no pass. At the end, delete the records that have come."""
        client, sqs = self.outputs.client("lambda"), self.outputs.client("sqs")
        found = client.list_event_source_mappings(FunctionName=self.outputs.Functions["watchdog"])[
            "EventSourceMappings"
        ]
        (mapping,) = [each for each in found if "ProcessorFailures" in each["EventSourceArn"]]
        queue_name = mapping["EventSourceArn"].rpartition(":")[2]
        client.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
        try:
            yield
        finally:
            sqs.purge_queue(QueueUrl=sqs.get_queue_url(QueueName=queue_name)["QueueUrl"])
            client.update_event_source_mapping(UUID=mapping["UUID"], Enabled=True)

    @contextmanager
    def denied(self, role: str, action: str) -> Iterator[None]:
        """Deny an action to a function's role inside, whatever its policies allow."""
        found = self.outputs.client("lambda").get_function_configuration(FunctionName=self.outputs.Functions[role])
        iam, name = self.outputs.client("iam"), str(found["Role"]).rpartition("/")[2]
        statement = {"Effect": "Deny", "Action": action, "Resource": "*"}
        denial = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_role_policy(RoleName=name, PolicyName=DENIED, PolicyDocument=denial)
        try:
            yield
        finally:
            iam.delete_role_policy(RoleName=name, PolicyName=DENIED)

    def log(self, role: str, *, since_ms: int) -> list[str]:
        """Return the lines that a function logged; those of a run appear when the run has ended."""
        pages = self.outputs.client("logs").get_paginator("filter_log_events")
        arguments = {"logGroupName": self.outputs.LogGroups[role], "startTime": since_ms}
        return [event["message"] for page in pages.paginate(**arguments) for event in page["events"]]

    # -- Valkey ------------------------------------------------------------------------------------------------

    def processor_is_there(self) -> bool:
        """Return whether a processor has the lease of the shard; a dead one has it until it runs out."""
        alive_until = self.valkey.hget("{b0}:open", "")
        return isinstance(alive_until, str) and int(alive_until[:13]) > time.time() * 1_000

    def keys(self, pattern: str) -> list[str]:
        return [str(key) for key in self.valkey.scan_iter(pattern)]

    def wait_until_busy(self, *, timeout_seconds: float = PATIENCE_SECONDS) -> float:
        """Wait until a processor has the lease; return when that was."""
        deadline = time.monotonic() + timeout_seconds
        while not self.processor_is_there():
            assert time.monotonic() < deadline, "no processor came"
            time.sleep(0.02)
        return time.time()

    def wait_until_idle(self, *, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until no processor has the lease, so that a test knows the state in which it begins."""
        deadline = time.monotonic() + timeout_seconds
        while self.processor_is_there():
            assert time.monotonic() < deadline, "the processor did not leave"
            time.sleep(0.05)


@contextmanager
def local_stage(
    home: Path,
    *,
    lane: str = "valkey",
    responder: dict[str, Any] | None = None,
    queues: dict[str, Any] | None = None,
    canary: bool = False,
    whatsapp_topic: str | None = None,
) -> Iterator[LocalStage]:
    share_emulator(home)
    stage = Stage(home)
    try:
        overrides = {**OVERRIDES, "lane": lane, "responder": responder, "queues": queues or {}, "canary": canary}
        overrides["end_user_messaging_topic"] = whatsapp_topic
        outputs = stage.up(Progress(io.StringIO()), overrides=overrides)
        with collect(outputs) as inbox:
            running = LocalStage(stage, outputs, inbox)
            if responder is None:
                # A stage that answers would answer the warm-up, too, in the middle of its tests.
                running.warm_up()
            yield running
    finally:
        stage.down(Progress(io.StringIO()))


def _is_idle(shown: dict[str, Any]) -> bool:
    return shown["state"] == "idle" and ("dynamodb" not in shown or _is_idle(shown["dynamodb"]))


def _talks_from(process: psutil.Process, port: int) -> bool:
    try:
        return any(connection.laddr.port == port for connection in process.net_connections("tcp"))
    except psutil.Error:
        return False


def _with(changes: Mapping[str, Any], settings: str) -> str:
    """Return the settings of a function, as JSON, with other values at some paths."""
    changed: dict[str, Any] = json.loads(settings)
    for path, value in changes.items():
        place = changed
        *parents, field = path.split(".")
        for parent in parents:
            place = place[parent]
        place[field] = value
    return json.dumps(changed)
