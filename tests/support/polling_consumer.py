"""A consumer that polls a queue in a process of its own: its agent works by sleeping, and sometimes fails."""

import logging
import os
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from message_buffer.consumer import turns
from message_buffer.errors import SendFailed
from tests.support.turn_record import RecordClient

# A killed process is replaced at once, so the others need not wait long for an empty queue.
WAIT_SECONDS = 1


class AgentFailed(Exception):
    """Raised by the agent."""


@dataclass(frozen=True)
class Consumer:
    queue_url: str
    record_url: str
    seconds: tuple[float, float]
    """The agent works at least and at most so long."""
    hidden_seconds: int
    failures: float = 0.0
    """The share of turns in which the agent fails when they are delivered first. Later failures would only add to the
    time of the test, because the pauses grow."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, seed: int) -> None:
        """Answer turns until this process is killed."""
        os.environ.update(self.environment)
        logging.disable(logging.WARNING)
        turns.HIDDEN_SECONDS = self.hidden_seconds
        record, chance = RecordClient(self.record_url), random.Random(seed)

        def answer(turn: turns.Turn) -> None:
            batch_ids = [str(batch["batchId"]) for batch in turn.batches]
            record.tell("begin", batch_ids)
            try:
                time.sleep(chance.uniform(*self.seconds))
                turn.require_hidden()
                if turn.entries[0].receives == 1 and chance.random() < self.failures:
                    raise AgentFailed
            except Exception:
                record.tell("fail", batch_ids)
                raise

        while True:
            # The emulator may answer too late on a busy machine.
            with suppress(SendFailed):
                turns.poll(self.queue_url, answer, marks=record, wait_seconds=WAIT_SECONDS)
