"""Starts, finds and stops the processes of one instance of the local stage. A variable, the mark, names the instance.

Children inherit the mark, even in another session. An unrelated process that reuses an old process id does not have the
mark.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

# A process that is still running this long after SIGTERM gets SIGKILL.
MAX_ENDING_SECONDS = 3.0
# The pause between two checks of a process.
PROCESS_POLL_SECONDS = 0.05
MARK = "MESSAGE_BUFFER_INSTANCE"

# Child processes of this command. They usually outlive the command, but it must reap those that it stops itself.
_started: list[subprocess.Popen[bytes]] = []


def start(
    command: Sequence[str],
    *,
    instance: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a marked command in a session of its own, with its output appended to `log`.

    The command inherits this process's environment, unless `environment` is given.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
            env={**(os.environ if environment is None else environment), MARK: instance},
        )
    _started.append(process)
    return process


def belonging_to(instance: str, *, program: str | None = None) -> list[psutil.Process]:
    """Return the running processes of the instance, or only those of one program."""
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARK) == instance and process.status() != psutil.STATUS_ZOMBIE
            if marked and (program is None or process.name() == program):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def stop(instance: str, *, program: str | None = None, grace_seconds: float = MAX_ENDING_SECONDS) -> int:
    """Stop all processes of the instance, or only those of one program. Return how many ran.

    Each process gets SIGTERM. If it still runs after `grace_seconds`, it gets SIGKILL.
    """
    stopped = set()
    deadline = time.monotonic() + grace_seconds
    while processes := belonging_to(instance, program=program):
        for process in processes:
            overdue = time.monotonic() > deadline
            if process.pid not in stopped or overdue:
                _signal(process, signal.SIGKILL if overdue else signal.SIGTERM)
            stopped.add(process.pid)
        psutil.wait_procs(processes, timeout=PROCESS_POLL_SECONDS)
    _started[:] = [process for process in _started if process.poll() is None]
    return len(stopped)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
