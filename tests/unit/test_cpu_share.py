"""With Lambda's share of a CPU, each function is ready in the time that others wait for its start.

Lambda gives a function CPU time in proportion to its memory. A cgroup does the same here, for which one must be root.
Lambda gives a starting function more, so the real start is shorter.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.settings_and_defaults import Role, load_stage
from tests.conftest import PROFILE
from tests.unit.test_import_budget import BUDGETS, ROOT, cold_start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(PROFILE != "nightly", reason="it needs a quiet machine, so only `make nightly` runs it"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a cgroup"),
]

# From "Configure Lambda function memory": at this memory a function has one whole CPU.
MB_OF_A_CPU = 1_769
PERIOD_US = 100_000
CGROUPS = Path("/sys/fs/cgroup")


@contextmanager
def share_of_a_cpu(share: float) -> Iterator[Path]:
    """Yield the file that takes the ids of processes which together may use this share of one CPU."""
    is_v2 = (CGROUPS / "cgroup.controllers").exists()
    group = CGROUPS / ("" if is_v2 else "cpu") / f"message-buffer-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
        if is_v2:
            (group / "cpu.max").write_text(f"{share * PERIOD_US:.0f} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(f"{share * PERIOD_US:.0f}")
    except OSError as error:
        pytest.skip(f"no cgroup can limit the CPU here: {error}")
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def seconds_of(program: str, *, share: float) -> float:
    """Return how long a new process with this share of a CPU runs the program. Let an earlier one write byte code."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["AWS_REGION"] = "us-east-1"
    command = [sys.executable, "-c", program]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    with share_of_a_cpu(share) as processes:
        began = time.monotonic()
        limited = ["sh", "-c", f'echo $$ > {processes}; exec "$@"', "sh", *command]
        subprocess.run(limited, check=True, cwd=ROOT, env=environment)
        return time.monotonic() - began


@pytest.mark.parametrize("role", BUDGETS)
def test_a_function_starts_in_time_with_its_share_of_a_cpu(role: Role) -> None:
    config = load_stage(json.loads((ROOT / "cdk.json").read_text("utf-8"))["context"]["stages"], stage="prod")
    seconds = seconds_of(cold_start(role), share=config.memory[role] / MB_OF_A_CPU)
    assert seconds * 1_000 < config.timings.start_ms


def test_a_tenth_of_a_cpu_takes_ten_times_as_long() -> None:
    assert seconds_of("import time\nwhile time.process_time() < 0.3: pass", share=0.1) > 2
