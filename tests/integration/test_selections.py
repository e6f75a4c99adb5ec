"""The tests that the make targets choose: each runs in one of them."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import CHECKED

ROOT = Path(__file__).parents[2]
ALONE = ["tests/browser", "tests/chaos/test_many_processes.py"]
BESIDE_STAGES = ["-n", "$((2", "+", "2))", "--dist", "loadgroup", *(f"--ignore={each}" for each in ALONE)]


def pytest_arguments(target: str) -> list[list[str]]:
    """Return the arguments of each pytest that a make target would run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--always-make", "PYTEST_ARGS=", "JOBS=2", target]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    calls = [shlex.split(line) for line in run.stdout.splitlines() if " -m pytest" in line]
    return [call[call.index("pytest") + 1 :] for call in calls]


def test_make_check_runs_all_but_the_nightly_tests_and_make_nightly_runs_all() -> None:
    assert pytest_arguments("check") == [[*BESIDE_STAGES, "-m", "not nightly"], ALONE]
    (arguments,) = pytest_arguments("nightly")
    assert not {"-m", "-k"} & set(arguments)


def test_the_files_that_make_test_leaves_out_are_there() -> None:
    assert {path.stem for path in (ROOT / "tests").rglob("test_*.py")} >= CHECKED


def test_only_tests_on_the_stage_are_smoke_tests(request: pytest.FixtureRequest) -> None:
    """`make chaos` would leave out a marked test of another folder."""
    marked = [item for item in request.session.items if item.get_closest_marker("smoke")]
    assert [item.nodeid for item in marked if not item.get_closest_marker("stage")] == []
