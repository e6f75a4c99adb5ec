"""Whole systems that work in real time. Each has its own processes and its own server."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from threading import Thread
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.valkey_server import ValkeyServer
from tools.bench import bullmq
from tools.bench.checker import Message
from tools.bench.contestants import conversation_id, message_id, payload

START_IN_SECONDS = 1.5
READY_SECONDS = 30.0


class Planned(NamedTuple):
    """A message to be sent. With a delay of 0 its batch is due immediately."""

    at_ms: float
    conversation: int
    number: int
    delay_ms: int


class BenchBatch(NamedTuple):
    due_ms: float
    claimed_ms: float
    messages: list[Message]


class System:
    """A system that runs during its `with` block, and collects the batches that it emits."""

    name = ""
    worker: subprocess.Popen[bytes]

    def __init__(self, *, work_ms: int = 0, idle_ms: int = 60_000) -> None:
        self.server = ValkeyServer()
        self.work_ms, self.idle_ms = work_ms, idle_ms
        self.batches: list[BenchBatch] = []
        self._is_ready = False
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.server.start()
        self.prepare()
        self.start_worker()
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} did not start")
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self.server.stop()

    def prepare(self) -> None:
        """Start the parts that run until the system ends."""

    def start_worker(self) -> None:
        """Start the process that claims conversations, or start it again after it was killed."""
        raise NotImplementedError

    def sender(self) -> list[str]:
        raise NotImplementedError

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.wait()

    def send(self, plan: Iterable[Planned]) -> float:
        """Send the messages at their planned times. Return when the plan began, in ms of the epoch."""
        began_ms = (time.time() + START_IN_SECONDS) * 1_000
        with tempfile.TemporaryFile() as lines:
            for each in plan:
                lines.write(json.dumps(_as_line(each, began_ms)).encode() + b"\n")
            lines.seek(0)
            self._sender = self.spawn(self.sender(), stdin=lines)
        return began_ms

    def sent(self) -> None:
        assert self._sender.wait() == 0

    def drain(self, *, messages: int, at_most_seconds: float) -> None:
        """Wait until the system has emitted `messages` messages, but not longer than `at_most_seconds`."""
        deadline = time.monotonic() + at_most_seconds
        while time.monotonic() < deadline and sum(len(each.messages) for each in self.batches) < messages:
            time.sleep(0.1)

    def spawn(self, command: list[str], *, stdin: Any = None, stdout: int | None = None) -> subprocess.Popen[bytes]:
        """Start a process. Read the lines that it prints, unless `stdout` directs them elsewhere."""
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout or subprocess.PIPE)
        self._processes.append(process)
        if process.stdout:
            Thread(target=self._hear, args=(process.stdout,), daemon=True).start()
        return process

    def _hear(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            shown = json.loads(line)
            if shown == "ready" or (isinstance(shown, dict) and "ready" in shown):
                self._is_ready = True
            elif isinstance(shown, dict) and "start" in shown:
                self.start_worker()
            elif isinstance(shown, dict):
                self.batches.append(
                    BenchBatch(shown["due"], shown["claimed"], [_message(body) for body in shown["bodies"]])
                )


class OurSystem(System):
    name = "ours"

    def prepare(self) -> None:
        # Keep the pipe open here, because the conversation processors outlive the processor that writes to it.
        started, self._starts = os.pipe()
        self.spawn(_role("execute", port=self.server.port, workMs=self.work_ms), stdin=started)

    def start_worker(self) -> None:
        self.worker = self.spawn(
            _role("process", port=self.server.port, idleMs=self.idle_ms),
            stdin=subprocess.DEVNULL,
            stdout=self._starts,
        )

    def sender(self) -> list[str]:
        return _role("send", port=self.server.port)


class NaiveSystem(System):
    name = "naive"

    def start_worker(self) -> None:
        self.worker = self.spawn(_role("poll", port=self.server.port, workMs=self.work_ms))

    def sender(self) -> list[str]:
        return _role("send_naive", port=self.server.port)


class BullMqSystem(System):
    name = "bullmq"
    keep_all = False

    def start_worker(self) -> None:
        options = {"port": self.server.port, "workMs": self.work_ms, "keepAll": self.keep_all}
        self.worker = self.spawn(bullmq.command("work", **options))

    def sender(self) -> list[str]:
        return bullmq.command("send", port=self.server.port, keepAll=self.keep_all)


class BullMqKeepAll(BullMqSystem):
    name = "bullmq keep-all"
    keep_all = True


SYSTEMS: tuple[type[System], ...] = (OurSystem, NaiveSystem, BullMqSystem, BullMqKeepAll)


def _role(name: str, **options: Any) -> list[str]:
    return [sys.executable, "-m", "tools.bench.roles", name, json.dumps(options)]


def _as_line(planned: Planned, began_ms: float) -> dict[str, Any]:
    return {
        "at": began_ms + planned.at_ms,
        "c": planned.conversation,
        "conversation": conversation_id(planned.conversation),
        "id": message_id(planned.conversation, planned.number),
        "number": planned.number,
        "body": payload(planned.conversation, planned.number).decode(),
        "delay": planned.delay_ms,
    }


def _message(body: str) -> Message:
    """Return the conversation's and the message's number. The id at the beginning of the body contains both."""
    shown = json.loads(body.partition("\n")[0])
    return int(shown[-20:-12], 16), int(shown[-12:-2], 16)
