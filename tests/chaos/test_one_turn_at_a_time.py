"""One turn of a conversation at a time, over kills of the consumers that poll a queue.

The emulator's FIFO queues lock a group while a message of it is in flight, hand out the messages of a group in order,
also several together, and drop repeats by group, as AWS does. So consumers compete for groups as they do there.
"""

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import NamedTuple
from uuid import uuid4

import pytest

from bufferctl.sessions import CREDENTIALS, emulator_client
from tests.support.local_stage import share_emulator
from tests.support.polling_consumer import Consumer
from tests.support.turn_record import BEGIN, MARK, TurnRecord
from tests.support.valkey_server import free_port
from tests.support.web_server import web_server
from tools.local import emulator, processes
from tools.local.stage import REGION

TICK_SECONDS = 0.05
# A consumer that polls, and does not shorten this time, would block a conversation for longer than a test has patience.
HIDDEN_BY_QUEUE_SECONDS = 1_800
# As many receives as a stage's queues allow.
MAX_RECEIVES = 20
ENTRIES_OF_A_CALL = 10


class Load(NamedTuple):
    conversations: int
    batches: int
    """The batches of each conversation. A kill after a mark adds one."""
    begin_within_seconds: float
    gap_seconds: float
    """The longest time between two batches of a conversation."""
    agent_seconds: tuple[float, float]
    failures: float
    consumers: int
    kills: int
    kill_every_seconds: float
    hidden_seconds: int
    patience_seconds: float


SHORT = Load(
    conversations=40, batches=3, begin_within_seconds=5, gap_seconds=2, agent_seconds=(0.3, 1.2), failures=0.05,
    consumers=4, kills=8, kill_every_seconds=1, hidden_seconds=8, patience_seconds=100,
)  # fmt: skip
LONG = Load(
    conversations=1_000, batches=4, begin_within_seconds=120, gap_seconds=8, agent_seconds=(2, 8), failures=0.02,
    consumers=32, kills=200, kill_every_seconds=0.9, hidden_seconds=30, patience_seconds=800,
)  # fmt: skip


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start the emulator alone. Yield the variables with which a process reaches it."""
    home, mark, port = tmp_path_factory.mktemp("queues") / "home", uuid4().hex, free_port()
    share_emulator(home)
    python = emulator.ensure_installed(home / "emulator")
    try:
        emulator.start(python=python, port=port, region=REGION, folder=home / "run" / "emulator", instance=mark)
        yield {**CREDENTIALS, "AWS_REGION": REGION, "AWS_ENDPOINT_URL": emulator.url(port)}
    finally:
        processes.stop(mark)


class Queue:
    """A FIFO queue of the emulator, and its dead letters."""

    def __init__(self, endpoint_url: str) -> None:
        self._sqs = emulator_client("sqs", endpoint_url=endpoint_url, region=REGION)
        name = uuid4().hex
        self.letters_url = self._create(f"{name}-letters")
        letters = self._attributes(self.letters_url, "QueueArn")["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": letters, "maxReceiveCount": MAX_RECEIVES})
        self.url = self._create(name, RedrivePolicy=redrive)

    def send(self, batch_ids: list[str]) -> None:
        """Send these batches in this order, with the group and the id that a stage's emitter gives them."""
        entries = [
            {
                "Id": str(number),
                "MessageBody": json.dumps({"detail": {"batchId": batch_id}}),
                "MessageGroupId": batch_id.rpartition("-")[0],
                "MessageDeduplicationId": batch_id,
            }
            for number, batch_id in enumerate(batch_ids)
        ]
        sent = self._sqs.send_message_batch(QueueUrl=self.url, Entries=entries)
        assert not sent.get("Failed"), sent

    def size(self, url: str) -> int:
        names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
        return sum(map(int, self._attributes(url, *names).values()))

    def _attributes(self, url: str, *names: str) -> dict[str, str]:
        found: dict[str, str] = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names))["Attributes"]
        return found

    def _create(self, name: str, **more: str) -> str:
        attributes = {
            "FifoQueue": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
            "VisibilityTimeout": str(HIDDEN_BY_QUEUE_SECONDS),
            **more,
        }
        return str(self._sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"])


class Crowd:
    """The processes of a consumer. A killed one is replaced."""

    def __init__(self, consumer: Consumer, size: int) -> None:
        self._consumer = consumer
        # The processes are forks of one that has imported everything, so that a new one costs little.
        self._context = get_context("forkserver")
        self._context.set_forkserver_preload([Consumer.__module__])
        self._started = 0
        self._running = [self._start() for _ in range(size)]

    def _start(self) -> BaseProcess:
        self._started += 1
        process = self._context.Process(target=self._consumer.run, args=(self._started,), daemon=True)
        process.start()
        return process

    def replace_the_killed(self) -> None:
        for number, process in enumerate(self._running):
            if process.exitcode is not None:
                assert process.exitcode == -signal.SIGKILL, f"a consumer ended by itself: {process.exitcode}"
                self._running[number] = self._start()

    def end(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            process.join()


class Emissions:
    """The batches of the conversations, and when each is sent."""

    def __init__(self, load: Load, chance: random.Random) -> None:
        self.sent: Counter[str] = Counter()
        """Conversation -> how many of its batches were sent."""
        self.extra: list[str] = []
        """The conversations of which one more batch is sent at once."""
        self._due: list[tuple[float, str]] = []
        for number in range(load.conversations):
            at = chance.uniform(0, load.begin_within_seconds)
            for _ in range(load.batches):
                self._due.append((at, f"c{number}"))
                at += chance.uniform(0, load.gap_seconds)
        heapify(self._due)

    @property
    def left(self) -> int:
        return len(self._due) + len(self.extra)

    def due(self, seconds: float) -> list[str]:
        """Return the next batches, at most as many as one call sends."""
        batch_ids: list[str] = []
        while len(batch_ids) < ENTRIES_OF_A_CALL and (self.extra or (self._due and self._due[0][0] <= seconds)):
            conversation = self.extra.pop() if self.extra else heappop(self._due)[1]
            batch_ids.append(f"{conversation}-{self.sent[conversation]}")
            self.sent[conversation] += 1
        return batch_ids


@pytest.mark.promise("P3")
@pytest.mark.slow
@pytest.mark.parametrize(
    "load",
    [
        pytest.param(SHORT, id="forty", marks=pytest.mark.timeout(150)),
        pytest.param(LONG, id="thousand", marks=[pytest.mark.nightly, pytest.mark.timeout(1_000)]),
    ],
)
def test_a_conversation_has_one_turn_at_a_time_over_kills_of_the_consumers(
    environment: dict[str, str], load: Load
) -> None:
    queue, record, chance = Queue(environment["AWS_ENDPOINT_URL"]), TurnRecord(), random.Random(29)
    emissions = Emissions(load, chance)
    with web_server() as server:
        server.answer = record.serve
        consumer = Consumer(queue.url, server.url, load.agent_seconds, load.hidden_seconds, load.failures, environment)
        crowd = Crowd(consumer, load.consumers)
        try:
            _drive(load, queue, record, emissions, crowd)
        finally:
            crowd.end()

    assert record.wrong == []
    assert queue.size(queue.letters_url) == 0
    assert record.marked == emissions.sent, "a batch was not answered"
    assert record.counts["killed"] == load.kills
    for what in ("merged", "failed", "left out", "left out of a turn"):
        assert record.counts[what], f"no turn was {what}: this run proved less than it should: {record.counts}"


def _drive(load: Load, queue: Queue, record: TurnRecord, emissions: Emissions, crowd: Crowd) -> None:
    """Send the batches, kill consumers, and wait until the queue is empty."""
    chance, began, kills = random.Random(load.kills), time.monotonic(), 0
    while True:
        seconds = time.monotonic() - began
        while batch_ids := emissions.due(seconds):
            queue.send(batch_ids)
            # An emission that is repeated must not be answered again.
            queue.send(batch_ids[:1])
        if kills < load.kills and seconds > (kills + 1) * load.kill_every_seconds and not record.awaits_a_kill:
            kills += 1
            # Half of the kills happen at a chosen moment. After a mark, the same conversation gets one more batch, so
            # that the queue delivers an answered batch together with a new one.
            moment = (BEGIN, MARK, None, None)[kills % 4]
            record.kill(moment, chance, then=emissions.extra.append if moment == MARK else None)
        crowd.replace_the_killed()
        all_killed = kills == load.kills and not record.awaits_a_kill
        if all_killed and not emissions.left and not queue.size(queue.url):
            return
        assert record.wrong == []
        assert seconds < load.patience_seconds, f"not done: {queue.size(queue.url)} are left, {record.counts}"
        time.sleep(TICK_SECONDS)
