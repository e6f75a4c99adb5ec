"""Valkey cannot be used for a while: webhooks are answered, and every message comes out unaided.

A message comes out twice only if Valkey's answer to it was lost, or if it was sent again.
"""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from lambdas.dynamodb_processor.service import WINDOW_LOCK_MS
from message_buffer.limits import RULE_SECONDS, WINDOW_GRACE_MS
from tests.support.judge import Talk, if_quick_enough, judge_lanes, settle
from tests.support.local_stage import LocalStage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("chaos-stage"),
    pytest.mark.usefixtures("watchdog", "many_attempts"),
]

TALKS = 10
PAUSE_SECONDS = 3.0
BEFORE_SECONDS, OUTAGE_SECONDS, AFTER_SECONDS = PAUSE_SECONDS, 10.0, PAUSE_SECONDS
# If a trigger is lost, its window has to be overdue for a minute until the sweep, which comes once a minute, sends
# another. If the run of that one is killed, its lock and its trigger come back after half a minute: twice at most.
DRAIN_SECONDS = (WINDOW_GRACE_MS + 2 * WINDOW_LOCK_MS) / 1_000 + RULE_SECONDS
ATTEMPTS, CONVERSATION_PROCESSOR_SECONDS = 20, 20
# As many messages a second as the stage bears on a small machine.
LONG_OUTAGE_SECONDS, BUSY_PAUSE_SECONDS = 180.0, 1.5

Outage = Callable[[LocalStage], AbstractContextManager[None]]


@contextmanager
def swallowing(stage: LocalStage) -> Iterator[None]:
    """Accept connections and swallow requests; make those requests when Valkey is back, long after their senders gave
    up.
    """
    server = valkey_of(stage)
    server.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send_signal(signal.SIGCONT)


@contextmanager
def killed(stage: LocalStage) -> Iterator[None]:
    """Kill Valkey with kill -9. It returns with what it had acknowledged, as a cache does whose replica takes over."""
    valkey_of(stage).kill()
    with stage.stage.without_valkey():
        yield


@contextmanager
def wiped(stage: LocalStage) -> Iterator[None]:
    """Kill Valkey. It returns empty."""
    with stage.valkey as client:
        folder = Path(client.config_get("dir")["dir"])
    valkey_of(stage).kill()
    with stage.stage.without_valkey():
        shutil.rmtree(folder / "appendonlydir")
        yield


@contextmanager
def full(stage: LocalStage) -> Iterator[None]:
    """Let Valkey refuse every script that would need memory."""
    with stage.valkey as client:
        client.config_set("maxmemory", 1)
        try:
            yield
        finally:
            client.config_set("maxmemory", 0)


def valkey_of(stage: LocalStage) -> psutil.Process:
    with stage.valkey as client:
        return psutil.Process(int(client.info("server")["process_id"]))


class Writers:
    """People who go on writing during the outage, each in a conversation of their own."""

    def __init__(self, talks: list[Talk], *, pause_seconds: float = PAUSE_SECONDS) -> None:
        self._talks = talks
        self._pause_seconds = pause_seconds
        self._done = threading.Event()

    def _write(self, talk: Talk, offset_seconds: float) -> None:
        self._done.wait(offset_seconds)
        while not self._done.is_set():
            body = talk.body()
            while not self._is_taken(talk, body["id"]):
                time.sleep(0.1)
            self._done.wait(self._pause_seconds)

    def _is_taken(self, talk: Talk, message_id: str) -> bool:
        return talk.say(message_id).status == 200

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [
            threading.Thread(
                target=self._write, args=(talk, self._pause_seconds * number / len(self._talks)), daemon=True
            )
            for number, talk in enumerate(self._talks)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join()


@pytest.fixture(scope="module")
def many_attempts(stage: LocalStage) -> Iterator[None]:
    """Allow as many attempts as on a real stage, and as long ones: many start at once, on an emulator that is slow."""
    with (
        stage.configured(
            "conversation_processor",
            timeout_seconds=CONVERSATION_PROCESSOR_SECONDS,
            settings={"emission.max_attempts": ATTEMPTS},
        ),
        stage.configured("dynamodb_processor", settings={"emission.max_attempts": ATTEMPTS}),
    ):
        yield


def warm_up(stage: LocalStage) -> None:
    """Start a process for each writer, so that the traffic does not wait for the emulator's cold starts."""
    with ThreadPoolExecutor(TALKS) as pool:
        list(pool.map(Talk.insist, [Talk(stage) for _ in range(TALKS)]))


def openings(stage: LocalStage, *, since_ms: int) -> int:
    """Return how often an instance of ingest has turned to the fallback."""
    return sum("the DynamoDB lane stands in" in line for line in stage.log("ingest", since_ms=since_ms))


def under_traffic(stage: LocalStage, outage: Outage, outage_seconds: float, *, pause_seconds: float) -> bool:
    """Let Valkey be away while people write, and judge what comes out."""
    talks = [Talk(stage) for _ in range(TALKS)]
    writers = Writers(talks, pause_seconds=pause_seconds)
    warm_up(stage)
    since_ms = int(time.time() * 1_000)
    with writers.at_work():
        time.sleep(BEFORE_SECONDS)
        with outage(stage):
            in_valkey = {message_id for talk in talks for message_id in talk.sent} if outage is wiped else set()
            time.sleep(outage_seconds)
        time.sleep(AFTER_SECONDS)
    settle(talks, timeout_seconds=DRAIN_SECONDS, perhaps_lost=in_valkey)
    found = judge_lanes(talks, openings=openings(stage, since_ms=since_ms), perhaps_lost=in_valkey)
    assert found.emitted.keys() == {"valkey", "dynamodb"}
    return True


@pytest.mark.promise("P2", "P10")
def test_valkey_is_away_under_traffic(stage: LocalStage) -> None:
    if_quick_enough(lambda: under_traffic(stage, swallowing, OUTAGE_SECONDS, pause_seconds=PAUSE_SECONDS))


@pytest.mark.nightly
@pytest.mark.promise("P2", "P10")
@pytest.mark.parametrize("outage", [swallowing, killed, wiped, full])
def test_valkey_is_away_for_three_minutes_under_heavy_traffic(stage: LocalStage, outage: Outage) -> None:
    if_quick_enough(lambda: under_traffic(stage, outage, LONG_OUTAGE_SECONDS, pause_seconds=BUSY_PAUSE_SECONDS))
