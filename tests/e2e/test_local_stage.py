"""The local stage from the command line, as a developer uses it, in a home of its own."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bufferctl.stage import LOCAL, StageClient, find_stage
from tests.support.local_stage import share_emulator
from tools.local.outputs import Outputs
from tools.local.processes import MARK
from tools.local.stage import slots_of
from tools.local.webhooks import Webhooks
from tools.local.workers import workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.xdist_group("local-stage")]

ROOT = Path(__file__).parents[2]


class Home:
    """A stage of its own, driven through `python -m tools.local`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs_file = folder / "outputs.json"
        self._command = [sys.executable, "-m", "tools.local", "--home", str(folder)]

    def outputs(self) -> Outputs:
        return Outputs.read(self.outputs_file)

    def admin(self) -> StageClient:
        return find_stage(LOCAL, profile=None, region=None, outputs=self.outputs_file)

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
    with _home(tmp_path) as home:
        yield home


@contextmanager
def _home(folder: Path) -> Iterator[Home]:
    home = Home(folder / "home")
    # The emulator is installed once, not once a test.
    share_emulator(home.folder)
    yield home
    home.run("down")


@pytest.fixture(scope="module")
def home_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with _home(tmp_path_factory.mktemp("local-stage")) as home:
        yield home


@pytest.fixture
def running(home_of_all: Home) -> Home:
    """Return a home whose stage is up; a test may leave it as it likes, since a start takes ten seconds."""
    if home_of_all.run("status").returncode:
        up = home_of_all.run("up")
        assert up.returncode == 0, up.stderr
    return home_of_all


def test_a_second_up_deploys_onto_the_running_stage_and_a_third_beside_it_is_refused(running: Home) -> None:
    outputs, before = running.outputs(), {process.pid for process in running.processes()}
    second = running.begin("up")
    wait_for_process(running, "aws-cdk/bin/cdk", since=before)
    third = running.run("up")
    assert (third.returncode, third.stderr.strip()) == (
        1,
        "Another `up` or `down` of this stage is running: wait until it has ended.",
    )
    _, said = second.communicate()
    assert second.returncode == 0, said
    assert running.outputs() == outputs, "the same instance, not a second one"
    assert running.run("status").returncode == 0


def test_an_interrupted_second_up_leaves_the_stage_running_and_nothing_deploying(running: Home) -> None:
    before = {process.pid for process in running.processes()}
    again = running.begin("up")
    wait_for_process(running, "aws-cdk/bin/cdk", since=before)
    again.send_signal(signal.SIGINT)
    again.communicate()
    assert again.returncode == 130
    assert not [each for each in running.processes() if each.pid not in before and runs(each, "cdk")]
    assert running.run("status").returncode == 0


@pytest.mark.nightly
def test_an_instance_whose_emulator_died_is_replaced(running: Home) -> None:
    before = running.outputs()
    (emulator,) = [each for each in running.processes() if "ministack" in each.cmdline()]
    emulator.kill()
    assert running.run("status").returncode == 1
    assert running.run("up").returncode == 0
    after = running.outputs()
    assert (after.AwsEndpointUrl, after.WebhookSecrets) == (before.AwsEndpointUrl, before.WebhookSecrets)
    assert len([each for each in running.processes() if "ministack" in each.cmdline()]) == 1


def test_down_says_what_it_drops_and_the_next_up_takes_over_the_rest(running: Home) -> None:
    before, admin = running.outputs(), running.admin()
    scope = {"scope": "tenant:kept", "rules": {"silenceMs": 40_000}}
    admin.ask("rules.set", **scope)
    admin.ask("rules.set", scope="tenant:kept-too", rules={"silenceMs": 40_000})
    admin.ask("conversation.hold", conversation="kept/generic/shop/c1", holdMs=60_000)
    message = {"tenant": "kept", "account": "shop", "conversation": "c1", "id": "m1", "text": "Hey"}
    assert Webhooks(before).post("generic", message).status == 200
    assert " Dropped 1 waiting conversation, and 2 rules, which" in running.run("down").stdout
    assert running.run("up", "--with-rules").returncode == 0
    after = running.outputs()
    assert (after.AwsEndpointUrl, after.WebhookSecrets) == (before.AwsEndpointUrl, before.WebhookSecrets)
    assert running.admin().ask("rules.get", scope="tenant:kept")["rules"] == scope["rules"]
    # Each slot has a process that waits for its first batch; the new processor starts one more.
    slots = slots_of({})
    assert slots <= len(workers(after, "conversation_processor")) <= slots + 1


def test_down_is_down_and_may_be_repeated(running: Home) -> None:
    assert running.processes()
    for _ in range(2):
        assert running.run("down").returncode == 0
        assert running.processes() == []
    assert running.run("status").returncode == 1
    assert not running.outputs_file.exists()


def test_an_interrupted_up_leaves_nothing_behind(home: Home) -> None:
    up = home.begin("up")
    while not home.processes():
        assert up.poll() is None
        time.sleep(0.05)
    up.send_signal(signal.SIGTERM)
    up.send_signal(signal.SIGTERM)
    up.communicate()
    assert up.returncode == 130
    assert home.processes() == []


def test_the_demo_shows_one_event_with_five_messages_and_cleans_up(home: Home) -> None:
    demo = home.run("demo")
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout.count('"wamid.') == 5
    assert "lateness" in demo.stdout
    assert "\x1b" not in demo.stdout, "plain lines where nobody looks at a terminal"
    assert demo.stdout.splitlines()[-1] == "One event, five messages, in order."
    assert home.processes() == []


@pytest.mark.nightly
def test_the_demo_runs_in_the_dynamodb_lane_without_valkey(home: Home) -> None:
    demo = home.run("demo", "--lane", "dynamodb")
    assert demo.returncode == 0, demo.stderr
    assert "Valkey" not in demo.stdout
    assert demo.stdout.splitlines()[-1] == "One event, five messages, in order."
    assert home.processes() == []


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
