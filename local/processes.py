"""Processes that belong to one instance of the local stage, known by a mark in their environment.

Children inherit the mark, whatever session they are in; a process that merely got an old id does not have it.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "MESSAGE_BUFFER_INSTANCE"
POLL_SECONDS = 0.05

# They outlive who started them, as a rule. Where they do not, they are reaped when they were stopped.
_started: list[subprocess.Popen[bytes]] = []


def start(
    command: Sequence[str],
    *,
    instance: str,
    log: Path,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, marked, writing to `log`.

    `environment` is all it gets to see; without one it sees ours.
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
    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARK) == instance and process.status() != psutil.STATUS_ZOMBIE
            if marked and (program is None or process.name() == program):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def stop(instance: str, *, program: str | None = None, grace_seconds: float = 3.0) -> int:
    """Stop all processes of the instance, or of one of its programs, politely at first; says how many."""
    stopped = set()
    deadline = time.monotonic() + grace_seconds
    while processes := belonging_to(instance, program=program):
        for process in processes:
            overdue = time.monotonic() > deadline
            if process.pid not in stopped or overdue:
                _signal(process, signal.SIGKILL if overdue else signal.SIGTERM)
            stopped.add(process.pid)
        psutil.wait_procs(processes, timeout=POLL_SECONDS)
    _started[:] = [process for process in _started if process.poll() is None]
    return len(stopped)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
