"""The tests that the make targets choose, and the tests that start a server."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ON_STAGES = ["tests/e2e", "tests/chaos"]
ALONE = ["tests/browser", "tests/chaos/test_many_processes.py"]
BESIDE = ["-n", "2", "--dist", "loadgroup"]


def pytest_arguments(target: str) -> list[list[str]]:
    """Return the arguments of each pytest that a make target would run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--always-make", "PYTEST_ARGS=", "JOBS=2", target]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    calls = [shlex.split(line) for line in run.stdout.splitlines() if " -m pytest" in line]
    return [call[call.index("pytest") + 1 :] for call in calls]


ENGINE_TESTS = [*BESIDE, *(f"--ignore={folder}" for folder in (*ON_STAGES, "tests/browser"))]
STAGE_TESTS = [*BESIDE, *ON_STAGES, *(f"--ignore={each}" for each in ALONE)]


def test_make_test_and_make_chaos_run_every_test_once() -> None:
    assert pytest_arguments("test") == [ENGINE_TESTS, [*STAGE_TESTS, "-m", "smoke"]]
    assert pytest_arguments("chaos") == [[*STAGE_TESTS, "-m", "not smoke"], ALONE]


def test_make_check_runs_every_test_once_and_the_smoke_tests_with_the_others() -> None:
    assert pytest_arguments("check") == [ENGINE_TESTS, STAGE_TESTS, ALONE]


def test_only_tests_on_the_stage_are_smoke_tests(request: pytest.FixtureRequest) -> None:
    """`make test` would run a marked test in another folder too, but `make chaos` would not leave it out."""
    marked = [item.nodeid for item in request.session.items if item.get_closest_marker("smoke")]
    assert [each for each in marked if not each.startswith(tuple(f"{folder}/" for folder in ON_STAGES))] == []
