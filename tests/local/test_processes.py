"""The local stage finds and stops its own processes, and no others."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tools.local import processes

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STUBBORN!r}], start_new_session=True)"


@pytest.fixture
def instance() -> Iterator[str]:
    mark = uuid.uuid4().hex
    yield mark
    processes.stop(mark, grace_seconds=0)


def _start(code: str, *, instance: str, folder: Path) -> subprocess.Popen[bytes]:
    log = folder / "log"
    process = processes.start([sys.executable, "-c", code], instance=instance, log=log)
    while b"up" not in log.read_bytes():
        assert process.poll() is None
    return process


def test_a_child_in_another_session_is_found_and_stopped(instance: str, tmp_path: Path) -> None:
    process = _start(PARENT, instance=instance, folder=tmp_path)
    assert len(processes.belonging_to(instance)) == 2
    assert processes.stop(instance, grace_seconds=0.2) == 2
    assert not processes.belonging_to(instance)
    process.wait()


def test_processes_of_another_instance_are_left_alone(instance: str, tmp_path: Path) -> None:
    process = _start("import time; print('up', flush=True); time.sleep(60)", instance=instance, folder=tmp_path)
    assert processes.stop(uuid.uuid4().hex) == 0
    assert psutil.pid_exists(process.pid)
    processes.stop(instance)
    process.wait()
