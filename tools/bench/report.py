"""Print what a benchmark found, and write it to one file in tools/bench/results: tables, verdicts and figures."""

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from redis import __version__ as redis_version

from tests.support.valkey_server import ValkeyServer
from tools.bench.measure import Figure

RESULTS = Path(__file__).parent / "results"
Table = Sequence[Sequence[str]]
"""The cells of a table by row. The first row has the heads."""


class Target(NamedTuple):
    what: str
    at_most: float
    found: Figure

    @property
    def verdict(self) -> str:
        # A target can be kept or missed even if the figure is noisy, because the whole range may be on one side of the
        # target.
        if self.found.too_noisy and self.found.low <= self.at_most < self.found.high:
            return "noisy"
        return "pass" if self.found.median <= self.at_most else "miss"


def arguments(module: str, description: str | None, *, quick: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help=f"a look, which writes nothing: {quick}")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def report(
    name: str,
    tables: Mapping[str, Table],
    targets: Sequence[Target] = (),
    figures: Mapping[str, Figure] | None = None,
    *,
    quick: bool = False,
) -> None:
    """Print the tables and the verdicts on the targets. Write the results, unless the run was a quick one."""
    for table in tables.values():
        print(f"\n{markdown(table)}")
    judged = [[each.what, f"{each.at_most:g}", each.found.shown(2), each.verdict] for each in targets]
    print("", *(" | ".join(row) for row in judged), sep="\n")
    if quick:
        return
    found = {
        "measured": f"{datetime.now(UTC).date().isoformat()}, {_commit()}",
        "machine": _machine(),
        # The priority is below zero if other programs used the machine.
        "load": f"{os.getloadavg()[0]:.1f}, nice {os.getpriority(os.PRIO_PROCESS, 0)}",
        "tables": tables,
        "targets": judged,
        "figures": {each: [round(value, 3) for value in shown] for each, shown in (figures or {}).items()},
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(as_json(found), "utf-8")


def as_json(found: Mapping[str, Any]) -> str:
    """Return JSON with one line for each row of a table."""
    text = json.dumps(found, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda row: "[" + re.sub(r",\n\s+", ", ", row[1]) + "]", text) + "\n"


def markdown(table: Table) -> str:
    heads, *rows = (f"| {' | '.join(row)} |" for row in table)
    return "\n".join([heads, f"|---{'|---:' * (len(table[0]) - 1)}|", *rows])


def _machine() -> str:
    """Return the CPU and software versions, which the figures depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor() or platform.machine()
    server = ValkeyServer().start()
    try:
        valkey = server.admin().info("server")["valkey_version"]
    finally:
        server.stop()
    versions = f"Valkey {valkey}, Python {platform.python_version()}, redis-py {redis_version}"
    return f"{model}, {os.cpu_count()} cores; {versions}"


def _commit() -> str:
    shown = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return shown.stdout.strip() or "unknown"
