"""Report a benchmark: print its verdicts, and write one file in tools/bench/results."""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from redis import __version__ as redis_version

from tests.support.valkey_server import ValkeyServer
from tools.bench.measure import Figure

RESULTS = Path(__file__).parent / "results"


class Target(NamedTuple):
    what: str
    at_most: float
    found: Figure

    @property
    def verdict(self) -> str:
        # A target can be kept or missed even if the figure is noisy, because the whole range may be on one side of the
        # target.
        if self.found.too_noisy and self.found.low <= self.at_most < self.found.high:
            return "NOISY"
        return "PASS" if self.found.median <= self.at_most else "MISS"

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "at_most": self.at_most, "found": self.found.as_json(), "verdict": self.verdict}


def arguments(module: str, description: str | None, *, quick: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """Return what the figures depend on: the processor, the system and the versions."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text("utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
        cores = sum(line.startswith("processor") for line in lines)
        model = f"{model}, {cores} cores"
    server = ValkeyServer().start()
    try:
        valkey = server.admin().info("server")["valkey_version"]
    finally:
        server.stop()
    return {
        "processor": model,
        "system": f"{platform.system()} {platform.machine()}",
        "valkey": valkey,
        "redis-py": redis_version,
        "python": platform.python_version(),
    }


def commit() -> str:
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or "unknown"


def print_targets(targets: list[Target]) -> None:
    print()
    for target in targets:
        print(f"{target.verdict:6}{target.what}: {target.found} (at most {target.at_most:g})")


def save(name: str, result: dict[str, Any], targets: Iterable[Target] = (), *, quick: bool = False) -> None:
    """Write the results, unless the run was a quick one."""
    if quick:
        return
    head = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        # Below zero if the benchmark had a raised priority, because other programs used the machine.
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    shown = head | result | {"targets": [target.as_json() for target in targets]}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"Written to tools/bench/results/{path.name}; load {shown['load']}.")
