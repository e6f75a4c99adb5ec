"""Finds and kills the processes in which the emulator runs a function."""

from contextlib import suppress

import psutil

from tools.local.outputs import Outputs
from tools.local.processes import MARK

# After SIGKILL a process ends within this time.
MAX_KILL_SECONDS = 5.0


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
