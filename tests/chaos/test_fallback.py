"""Valkey cannot be reached for a while: webhooks are answered, and every message comes out once, unaided."""

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import psutil
import pytest

from bufferctl.events import Arrival
from infra.limits import SWEEP_SECONDS
from lambdas.limits import WINDOW_LOCK_MS
from message_buffer.limits import MAX_BREAKER_PAUSE_MS, WINDOW_GRACE_MS
from tests.support.judge import Talk, ids_of, if_quick_enough, judge_schema, settle
from tests.support.local_stage import LocalStage

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("chaos-stage"),
    pytest.mark.usefixtures("watchdog", "many_attempts"),
]

TALKS = 20
PAUSE_SECONDS = 3.0
BEFORE_SECONDS, OUTAGE_SECONDS, AFTER_SECONDS = PAUSE_SECONDS, 20.0, PAUSE_SECONDS
# If a trigger is lost, its window has to be overdue for a minute until the sweep, which comes once a minute, sends
# another. If the run of that one is killed, its lock and its trigger come back after half a minute: twice at most.
DRAIN_SECONDS = (WINDOW_GRACE_MS + 2 * WINDOW_LOCK_MS) / 1_000 + SWEEP_SECONDS
ATTEMPTS, CONVERSATION_PROCESSOR_SECONDS = 20, 20

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


def valkey_of(stage: LocalStage) -> psutil.Process:
    with stage.valkey as client:
        return psutil.Process(int(client.info("server")["process_id"]))


class Writers:
    """People who go on writing during the outage, each in a conversation of their own."""

    def __init__(self, talks: list[Talk]) -> None:
        self._talks = talks
        self._done = threading.Event()

    def _write(self, talk: Talk, offset_seconds: float) -> None:
        self._done.wait(offset_seconds)
        while not self._done.is_set():
            body = talk.body()
            while not self._is_taken(talk, body["id"]):
                time.sleep(0.1)
            self._done.wait(PAUSE_SECONDS)

    def _is_taken(self, talk: Talk, message_id: str) -> bool:
        return talk.say(message_id).status == 200

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [
            threading.Thread(target=self._write, args=(talk, PAUSE_SECONDS * number / len(self._talks)), daemon=True)
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


def judge_lanes(talks: list[Talk]) -> dict[str, list[Arrival]]:
    """Fail unless each accepted message is in one batch of either lane, in order within a lane; return what each
    emitted.
    """
    emitted: dict[str, list[Arrival]] = defaultdict(list)
    for talk in talks:
        known: dict[str, Arrival] = {}
        for arrival in talk.arrivals():
            judge_schema(arrival)
            first = known.setdefault(arrival.batch["batchId"], arrival)
            assert first.batch["messages"] == arrival.batch["messages"], "a batch came again with another content"
        came = [message_id for arrival in known.values() for message_id in ids_of(arrival)]
        assert sorted(came) == sorted(talk.ids), "each message in one batch"
        by_lane: dict[str, list[str]] = defaultdict(list)
        for arrival in known.values():
            by_lane[arrival.batch["lane"]] += ids_of(arrival)
            emitted[arrival.batch["lane"]].append(arrival)
        for lane, ids in by_lane.items():
            assert ids == [each for each in talk.ids if each in ids], f"in order in the {lane} lane"
    return emitted


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


def table_answered(stage: LocalStage, *, since_ms: int) -> bool:
    """Return whether the emulator's table answered: without it the lanes cannot agree, and the run proves nothing."""
    lines = stage.log("conversation_processor", since_ms=since_ms)
    return not any("DynamoDB lane not asked" in line for line in lines)


@pytest.mark.promise("P10")
@pytest.mark.parametrize("outage", [swallowing, killed])
def test_valkey_is_away_for_twenty_seconds_under_traffic(stage: LocalStage, outage: Outage) -> None:
    def attempt() -> bool:
        talks = [Talk(stage) for _ in range(TALKS)]
        writers = Writers(talks)
        warm_up(stage)
        since_ms = int(time.time() * 1_000)
        with writers.at_work():
            time.sleep(BEFORE_SECONDS)
            with outage(stage):
                time.sleep(OUTAGE_SECONDS)
            time.sleep(AFTER_SECONDS)
        settle(talks, timeout_seconds=DRAIN_SECONDS)
        if not table_answered(stage, since_ms=since_ms):
            return False
        assert judge_lanes(talks).keys() == {"valkey", "dynamodb"}
        return True

    if_quick_enough(attempt)


@pytest.mark.case(26)
@pytest.mark.promise("P10")
@pytest.mark.parametrize("outage", [swallowing, pytest.param(killed, marks=pytest.mark.smoke)])
def test_a_message_that_comes_again_across_an_outage_comes_out_once(stage: LocalStage, outage: Outage) -> None:
    def attempt() -> bool:
        talk, since_ms = Talk(stage), int(time.time() * 1_000)
        before, as_it_begins, in_it, after = (f"{talk.name}-{when}" for when in ("before", "begins", "in", "after"))
        talk.insist(before)
        talk.wait_all()
        talk.insist(as_it_begins)
        began = time.monotonic()
        with outage(stage):
            for message_id in (before, as_it_begins, in_it):
                talk.insist(message_id)
            time.sleep(1)
            talk.insist(in_it)
        # The pauses of an instance double from one second, so the last one is at most a second longer than the outage.
        time.sleep(min(MAX_BREAKER_PAUSE_MS / 1_000, time.monotonic() - began) + 1)
        for message_id in (before, as_it_begins, in_it, after):
            talk.insist(message_id)
        settle([talk], timeout_seconds=DRAIN_SECONDS)
        if not table_answered(stage, since_ms=since_ms):
            return False
        judge_lanes([talk])
        return True

    if_quick_enough(attempt)
