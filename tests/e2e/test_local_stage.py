"""The local stage from the command line, as a developer uses it, in a home of its own."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from local.outputs import Outputs
from local.processes import MARK
from tests.support.local_stage import share_emulator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("local-stage")]

ROOT = Path(__file__).parents[2]


class Home:
    """A stage of its own, driven through `python -m local`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._command = [sys.executable, "-m", "local", "--home", str(folder)]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self._command, *arguments], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def processes(self) -> list[psutil.Process]:
        """Return the stage's processes: they have a mark, and this folder in their command line or as their cwd."""
        return [each for each in psutil.process_iter() if _is_about(each, self.folder)]


def _is_about(process: psutil.Process, folder: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return MARK in process.environ() and str(folder) in f"{process.cmdline()} {process.cwd()}"
    except psutil.Error:
        return False


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    # The emulator is installed once, not once a test.
    share_emulator(home.folder)
    yield home
    home.run("down")


def test_up_is_up_down_is_down_and_both_may_be_repeated(home: Home) -> None:
    up = home.run("up")
    assert up.returncode == 0, up.stderr
    outputs = Outputs.read(home.folder / "outputs.json")
    assert home.run("status").returncode == 0

    again = home.run("up")
    assert again.returncode == 0, again.stderr
    assert Outputs.read(home.folder / "outputs.json") == outputs, "the same instance, not a second one"

    for _ in range(2):
        assert home.run("down").returncode == 0
        assert home.processes() == []
    assert home.run("status").returncode == 1
    assert not (home.folder / "outputs.json").exists()


def test_an_instance_whose_emulator_died_is_replaced(home: Home) -> None:
    assert home.run("up").returncode == 0
    before = Outputs.read(home.folder / "outputs.json")
    (emulator,) = [each for each in home.processes() if "ministack" in each.cmdline()]
    emulator.kill()
    assert home.run("status").returncode == 1
    assert home.run("up").returncode == 0
    assert Outputs.read(home.folder / "outputs.json").AwsEndpointUrl != before.AwsEndpointUrl
    assert len([each for each in home.processes() if "ministack" in each.cmdline()]) == 1


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_up_leaves_nothing_behind(home: Home, ending: signal.Signals) -> None:
    up = home.begin("up")
    while not home.processes():
        assert up.poll() is None
        time.sleep(0.05)
    up.send_signal(ending)
    up.send_signal(ending)
    up.communicate()
    assert up.returncode == 130
    assert home.processes() == []


def test_two_ups_at_once_do_not_interfere(home: Home) -> None:
    first = home.begin("up")
    while not home.processes():
        assert first.poll() is None
        time.sleep(0.05)
    second = home.run("up")
    assert (second.returncode, second.stderr.strip()) == (
        1,
        "Another `up` or `down` of this stage is running: wait until it has ended.",
    )
    first.communicate()
    assert first.returncode == 0


def test_the_demo_shows_one_event_with_five_messages_and_cleans_up(home: Home) -> None:
    demo = home.run("demo")
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout.count('"wamid.') == 5
    assert "lateness" in demo.stdout
    assert "\x1b" not in demo.stdout, "plain lines where nobody looks at a terminal"
    assert demo.stdout.splitlines()[-1] == "One event, five messages, in order."
    assert home.processes() == []


def test_the_demo_runs_in_the_dynamodb_lane_without_valkey(home: Home) -> None:
    demo = home.run("demo", "--lane", "dynamodb")
    assert demo.returncode == 0, demo.stderr
    assert "Valkey" not in demo.stdout
    assert demo.stdout.splitlines()[-1] == "One event, five messages, in order."
    assert home.processes() == []


def test_an_interrupted_demo_leaves_nothing_behind(home: Home) -> None:
    demo = home.begin("demo")
    assert demo.stdout
    for line in demo.stdout:
        if "I have a question" in line:
            break
    demo.send_signal(signal.SIGINT)
    demo.communicate()
    assert demo.returncode == 130
    assert home.processes() == []


def test_an_interrupted_second_up_leaves_the_stage_running_and_nothing_deploying(home: Home) -> None:
    assert home.run("up").returncode == 0
    before = {process.pid for process in home.processes()}
    again = home.begin("up")
    wait_for_process(home, "aws-cdk/bin/cdk", since=before)
    again.send_signal(signal.SIGINT)
    again.communicate()
    assert again.returncode == 130
    assert not [each for each in home.processes() if each.pid not in before and runs(each, "cdk")]
    assert home.run("status").returncode == 0


def wait_for_process(home: Home, words: str, *, since: set[int]) -> None:
    deadline = time.monotonic() + 30
    while not any(runs(each, words) for each in home.processes() if each.pid not in since):
        assert time.monotonic() < deadline, f"no process with {words}"
        time.sleep(0.05)


def runs(process: psutil.Process, words: str) -> bool:
    try:
        return words in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
