"""Starts, finds and kills the processes in which the emulator runs a function."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil

from tools.local.outputs import Outputs
from tools.local.processes import MARK

# After SIGKILL a process ends within this time.
MAX_KILL_SECONDS = 5.0


def warm_up(outputs: Outputs, *, slots: int, shards: int) -> None:
    """Start the functions' processes, by events that change nothing: a conversation processor for each slot."""
    # No function has this operation, so it is refused, and not logged.
    events: list[tuple[str, Any]] = [(role, {"operation": "warm-up"}) for role in ("admin", "gate", "responder")]
    events += [("processor", {"shard": shard}) for shard in range(shards)]
    events += [("conversation_processor", {"warm": True})] * slots
    events += [("dynamodb_processor", {"sweep": True})]

    def invoke(role: str, event: Any) -> None:
        if name := outputs.Functions.get(role):
            # Do not wait for a processor, which runs until it has been idle for a while.
            kind = "Event" if role == "processor" else "RequestResponse"
            outputs.client("lambda").invoke(FunctionName=name, Payload=json.dumps(event), InvocationType=kind)

    with ThreadPoolExecutor(len(events)) as pool:
        list(pool.map(invoke, *zip(*events, strict=True)))


def workers(outputs: Outputs, role: str) -> list[psutil.Process]:
    """Return the function's processes, including those that wait for an invocation."""
    name = outputs.Functions[role]
    return [each for each in psutil.process_iter() if _runs(each, name, outputs.AwsEndpointUrl)]


def kill(outputs: Outputs, *roles: str) -> int:
    """Kill the functions' processes with SIGKILL. Return their number."""
    found = [worker for role in roles for worker in workers(outputs, role)]
    for worker in found:
        with suppress(psutil.NoSuchProcess):
            worker.kill()
    psutil.wait_procs(found, timeout=MAX_KILL_SECONDS)
    return len(found)


def _runs(process: psutil.Process, function: str, endpoint_url: str) -> bool:
    try:
        environment = process.environ()
        # The mark shows that the process belongs to a local stage. The port shows to which one.
        return (
            MARK in environment
            and environment.get("AWS_LAMBDA_FUNCTION_NAME") == function
            and environment.get("GATEWAY_PORT") == endpoint_url.rpartition(":")[2]
        )
    except psutil.Error:
        return False
