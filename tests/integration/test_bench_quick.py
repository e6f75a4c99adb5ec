"""Every program of `make bench-quick` still runs, with as few rounds as it can."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench import bullmq

ROOT = Path(__file__).parents[2]
SMALLEST = {
    "ingest": "ingest.measure(size=200, clients=(1,), conversations=10, rounds=1, seed=1)",
    "live": "live.lateness(live.BullMqSystem, rate=20, seconds=0.2, delay_ms=0)",
    "growth": "growth.measure([7_000], rounds=1, seed=1)",
    "pollers": "pollers.main()",
    "hanging": "hanging.p99(names=hanging.APART, hanging_seconds=1, seconds=0.5)",
}
NEEDS_BULLMQ = ("ingest", "live")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_each_program_is_tried() -> None:
    (programs,) = re.findall(
        r"for each in ([\w ]+); do \S+ -m tools\.bench\.\$\$each --quick", (ROOT / "Makefile").read_text()
    )
    assert programs.split() == list(SMALLEST)


@pytest.mark.usefixtures("valkey")
@pytest.mark.parametrize("program", SMALLEST)
def test_a_program_runs(program: str) -> None:
    if program in NEEDS_BULLMQ:
        install_bullmq()
    run = subprocess.run(
        [sys.executable, "-c", f"from tools.bench import {program}\n{SMALLEST[program]}", "--quick"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def install_bullmq() -> None:
    """Install BullMQ. If it cannot be had, skip the test on a laptop, and fail it in CI."""
    try:
        bullmq.install()
    except subprocess.CalledProcessError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no BullMQ to measure beside: {error}")
