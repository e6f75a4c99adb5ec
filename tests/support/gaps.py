"""Simulated tenants whose share of cut batches is known. `python -m tests.support.gaps` plays one on a local stage."""

import argparse
import json
import math
import random
import sys
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import NormalDist

from urllib3.exceptions import HTTPError

from bufferctl.formatting import counted
from bufferctl.stage import LOCAL_OUTPUTS
from message_buffer.json_object import Json
from message_buffer.limits import SECOND_MS
from message_buffer.tuning.curve import BINS_MS, WITHIN_MS, Counts, field
from tools.local.errors import LocalError
from tools.local.events import Inbox, collect
from tools.local.outputs import Outputs
from tools.local.webhooks import Webhooks

GOES_ON = 0.5
MEDIAN_MS, SPREAD = 4_000, 0.9
# How long an agent of the simulated tenant takes after a batch, and a customer after the agent's answer.
REPLY_MS, REACTION_MS = 4_000, 2_000
CUSTOMERS, PLAY_SECONDS = 40, 180


def gap_ms(rng: random.Random) -> float:
    """Return how long an author is silent before they go on, or infinity if they are done."""
    return rng.lognormvariate(math.log(MEDIAN_MS), SPREAD) if rng.random() < GOES_ON else math.inf


def truly_cut(silence_ms: float) -> float:
    """Return the share of the batches with this silence whose authors go on within `WITHIN_MS`."""
    return 1 - _lasts(WITHIN_MS) / _lasts(silence_ms)


def _lasts(ms: float) -> float:
    return 1 - GOES_ON * NormalDist(math.log(MEDIAN_MS), SPREAD).cdf(math.log(ms))


def counts_of(rng: random.Random, *, turns: int, silence_ms: int, reply_ms: float, last: float = 0.3) -> Counts:
    """Return what a stage would count. Its answers take about `reply_ms` after a batch, and after this share of the
    answered batches the customer never comes back."""
    counts: Counter[str] = Counter()
    for _ in range(turns):
        while (gap := gap_ms(rng)) <= silence_ms:
            counts[field("g", gap)] += 1
        counts.update({"batches": 1, "waited_ms": silence_ms, field("e", silence_ms): 1})
        answered_ms = silence_ms + rng.lognormvariate(math.log(reply_ms), 0.5)
        if gap < min(answered_ms, BINS_MS[-1]):
            counts.update({field("g", gap): 1, "resolved": 1})
        elif rng.random() > last:
            counts.update({field("c", min(answered_ms, BINS_MS[-1])): 1, "resolved": 1})
    return counts


class Play:
    """Customers who write to the local stage at once, and a consumer who answers after asking the gate."""

    def __init__(self, outputs: Outputs, inbox: Inbox, *, seconds: float) -> None:
        self._outputs, self._inbox, self._webhooks = outputs, inbox, Webhooks(outputs, connections=CUSTOMERS)
        self._gate, self._run = outputs.client("lambda"), uuid.uuid4().hex[:6]
        self._ends = time.monotonic() + seconds
        self._lock = threading.Lock()
        self.messages = self.replies = 0

    def customer(self, number: int) -> None:
        """Write until the time is over: go on after a gap, or answer the agent's reply."""
        name, rng = f"{self._run}-{number}", random.Random(number)
        time.sleep(rng.uniform(0, 10))
        while time.monotonic() < self._ends:
            wrote_at, message_id = time.monotonic(), self._write(name)
            goes_on_at = wrote_at + gap_ms(rng) / SECOND_MS
            batch = self._batch_with(message_id, until=min(goes_on_at, self._ends))
            replies_at = time.monotonic() + around(rng, REPLY_MS) if batch else math.inf
            time.sleep(max(min(replies_at, goes_on_at, self._ends) - time.monotonic(), 0))
            if batch and replies_at < min(goes_on_at, self._ends):
                self._reply(batch)
                time.sleep(around(rng, REACTION_MS))

    def _write(self, name: str) -> str:
        message = {"tenant": "acme", "agent": "sales", "account": "simulated", "conversation": name, "text": "Hey"}
        message["id"] = uuid.uuid4().hex
        while not self._is_accepted(message):
            time.sleep(1)
        with self._lock:
            self.messages += 1
        return message["id"]

    def _is_accepted(self, message: Json) -> bool:
        """Return False if the machine is too busy for the message, which a platform would send again."""
        try:
            return self._webhooks.post("generic", message).status == 200
        except HTTPError:
            return False

    def _batch_with(self, message_id: str, *, until: float) -> Json | None:
        """Return the batch with this message, or None if it is not emitted in time."""
        while True:
            for arrival in reversed(self._inbox.arrivals[-300:]):
                if any(each["id"] == message_id for each in arrival.batch["messages"]):
                    return arrival.batch
            if time.monotonic() > until:
                return None
            time.sleep(0.2)

    def _reply(self, batch: Json) -> None:
        """Ask the gate, as a consumer does right before a reply. The stage notes the reply's time."""
        asked = {"operation": "gate", "by": "simulated", "conversation": batch["conversationId"]}
        asked |= {"generation": batch["generation"], "lane": batch["lane"], "sending": True}
        self._gate.invoke(FunctionName=self._outputs.Functions["gate"], Payload=json.dumps(asked))
        with self._lock:
            self.replies += 1


def around(rng: random.Random, median_ms: float) -> float:
    """Return seconds of which the median is known."""
    return rng.lognormvariate(math.log(median_ms), 0.5) / SECOND_MS


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Play the tenant `acme`, for three minutes or the seconds given, and say what `bufferctl tune` should find."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.gaps", description=main.__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=PLAY_SECONDS)
    seconds = parser.parse_args().seconds
    try:
        outputs = Outputs.read(LOCAL_OUTPUTS)
    except LocalError as error:
        sys.exit(str(error))
    say(f"{CUSTOMERS} customers of the tenant acme write for {seconds:g} s …")
    with collect(outputs) as inbox, ThreadPoolExecutor(CUSTOMERS) as pool:
        play = Play(outputs, inbox, seconds=seconds)
        list(pool.map(play.customer, range(CUSTOMERS)))
        batches = [each.batch for each in inbox.arrivals if each.batch["tenant"] == "acme"]
    waited_ms = sum(batch["metadata"]["appliedWaitMs"] for batch in batches) / max(len(batches), 1)
    say(f"{counted(play.messages, 'message')}, {counted(len(batches), 'batch')}, {play.replies} replies.")
    say(f"A batch waited {waited_ms / SECOND_MS:.1f} s on average. Now try: bufferctl tune --tenant acme")
    say("In truth, this share of the batches is cut, by silence:")
    say(", ".join(f"{ms / SECOND_MS:g} s {truly_cut(ms):.0%}" for ms in (500, 1_000, 2_000, 3_000, 4_000, 5_000)))


if __name__ == "__main__":
    main()
