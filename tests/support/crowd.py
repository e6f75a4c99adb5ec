"""Many real processes on one Valkey: writers, processors, conversation processors that fail and die, and a watchdog.

Each role is a function. It runs in a process of its own until `stop` is set, and puts a report into `record`.
"""

import random
import time
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from queue import Empty
from threading import Barrier
from typing import Any

from message_buffer.clock import system_clock
from message_buffer.lanes.outcomes import BatchTaken, ConversationsClaimed, LeaseAcquired, MessageBuffered
from message_buffer.lanes.valkey.connection import Connection, connect
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import ConnectionSettings
from tests.support.engine import SETTINGS as STAGE_SETTINGS
from tests.support.engine import payload

CONVERSATIONS = 1000
RULES = Rules(silence_ms=100, typing_inference_ms=200, max_wait_ms=1000, max_messages=8)
SETTINGS = STAGE_SETTINGS._replace(lease_ms=600, start_ms=300, claim_ms=600, token_ms=600)


@dataclass(frozen=True)
class Place:
    url: str
    shebang: str
    seed: int

    def store(self) -> Store:
        settings = ConnectionSettings(self.url, answer_timeout_ms=10_000)
        return Store(Connection(lambda: connect(settings)), SETTINGS, shebang=self.shebang)


def write(place: Place, writer: int, begun: Barrier, stop: Event, record: "Queue[Any]") -> None:
    """Send to random conversations as fast as possible, one message in ten twice."""
    store, chance, number = place.store(), random.Random(place.seed + writer), 0
    accepted: list[tuple[str, str]] = []
    begun.wait()
    while not stop.is_set():
        number += 1
        name, message_id = f"c{chance.randrange(CONVERSATIONS)}", f"w{writer}-{number}"
        for _ in range(2 if chance.random() < 0.1 else 1):
            outcome = store.buffer_message(name, message_id, payload=payload(message_id), timing=RULES.timing)
            if isinstance(outcome, MessageBuffered):
                accepted.append((name, message_id))
    record.put(("accepted", accepted))


def process(place: Place, stop: Event, claims: "Queue[str]", record: "Queue[Any]") -> None:
    """Acquire the lease and claim what is due. Now and then the processor dies silently, and its successor begins."""
    store, chance = place.store(), random.Random(place.seed)
    lives = recovered = 0
    while not stop.is_set():
        lives += 1
        lease = f"processor-{place.seed}-{lives}"
        acquired = store.acquire_lease(0, lease)
        if not isinstance(acquired, LeaseAcquired):
            time.sleep(0.02)
            continue
        recovered += acquired.returned
        dies_at = time.monotonic() + chance.uniform(0.5, 3)
        while not stop.is_set() and time.monotonic() < dies_at:
            store.renew_lease(0, lease)
            outcome = store.claim_due(0, lease)
            if not isinstance(outcome, ConversationsClaimed):
                break
            recovered += outcome.expired
            for due in outcome.conversations:
                for _ in range(2 if chance.random() < 0.05 else 1):  # an invocation is delivered at least once
                    if chance.random() > 0.02:  # two in a hundred invocations are lost
                        claims.put(due.conversation)
            time.sleep(0.005)
    # No process reads the claims any more, and without this call the process would wait until one does.
    claims.cancel_join_thread()
    record.put(("lives", (lives, recovered)))


def execute(place: Place, stop: Event, claims: "Queue[str]", record: "Queue[Any]") -> None:
    """Take, emit and complete batches. A run sometimes fails, stalls, or dies before or after it emits."""
    store, chance, runs = place.store(), random.Random(place.seed), 0
    emitted: list[tuple[int, str, str, list[bytes]]] = []
    while not stop.is_set():
        try:
            name = claims.get(timeout=0.05)
        except Empty:
            continue
        runs += 1
        token, fate = f"conversation_processor-{place.seed}-{runs}", chance.random()
        taken = store.take_batch(name, token)
        if not isinstance(taken, BatchTaken) or fate < 0.02:
            continue
        if fate < 0.05:
            store.retry_batch(name, token, retry_at_ms=system_clock() + 50)
            continue
        if fate < 0.06:
            time.sleep(SETTINGS.token_ms / 1000 * 1.5)
        emitted.append((time.monotonic_ns(), name, taken.batch_id, taken.payloads))
        if fate < 0.08:
            continue
        store.complete_batch(name, token)
    record.put(("emitted", emitted))
