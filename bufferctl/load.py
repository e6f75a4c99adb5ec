"""Writes like many customers at a steady rate, and checks what a stage emits (`verify --load 50/s --for 10m`).

A customer writes a few fragments, and sends each after the webhook has answered the previous one. The customers begin
at fixed times, even if the stage answers slowly. A later customer may continue a conversation after its last batch has
arrived.
"""

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import quantiles
from typing import NamedTuple

from bufferctl.formatting import Pairs, counted
from bufferctl.stage import LOCAL
from lambdas.canary.burst import BATCH_READY, MAX_LATE_SECONDS, Burst, WebhookRefused, ids_of
from lambdas.canary.listening import LONG_POLL_SECONDS, ArrivedEvent
from lambdas.canary.webhook import WebhookUnreachable
from message_buffer.json_object import Json

LOAD_FRAGMENTS = 5
LOAD_PAUSE_SECONDS = 0.5
LOAD_TEXT = "Hey, could you look at order 12345? It has not arrived yet."
# Each customer who is writing has a thread. One machine can hardly sign and send more messages a second than
# MAX_LOAD_RATE.
MAX_CUSTOMERS = 200
MAX_LOAD_RATE, MAX_LOAD_SECONDS = 100, 3_600
# A second event with the same messages would be an error, and would arrive within this time after the first one.
MAX_SECOND_EVENT_SECONDS = 3.0


class LoadPlan(NamedTuple):
    messages_per_second: float
    seconds: float

    @property
    def turns(self) -> int:
        """Return how many times a customer begins to write. Each time the customer writes LOAD_FRAGMENTS fragments."""
        return max(1, round(self.messages_per_second * self.seconds / LOAD_FRAGMENTS))

    def announcement(self, stage_name: str) -> str:
        """Return what the run will send and cost."""
        messages, cost = self.turns * LOAD_FRAGMENTS, cost_of(self, stage_name)
        price = "at an unknown cost" if cost is None else f"for about ${cost:.2f} besides the stage's own cost"
        return f"Then it sends {messages:,} messages of {self.turns:,} batches in {self.seconds:,.0f} s, {price}."


def cost_of(plan: LoadPlan, stage_name: str) -> float | None:
    """Return what the run adds to the stage's bill, in dollars by the cost model. Return None for an unknown stage."""
    if stage_name == LOCAL:
        return 0.0
    from bufferctl.cost.command import cost_of_load  # noqa: PLC0415 - it would make --help slow

    return cost_of_load(
        stage_name, messages_per_second=plan.messages_per_second, seconds=plan.seconds,
        fragments_per_batch=LOAD_FRAGMENTS, text_bytes=len(LOAD_TEXT),
    )  # fmt: skip


class Emitted(NamedTuple):
    """A batch as it arrived."""

    conversation: str
    batch_id: str
    ids: Sequence[str]
    at_ms: int


@dataclass
class LoadResult:
    accepted: int
    conversations: int
    late_ms: list[int] = field(default_factory=list)
    """For each batch, the time from its due time to its arrival in the queue."""
    lost: int = 0
    emitted_twice: int = 0
    """Messages that were emitted in two batches."""
    reordered: int = 0
    """Messages that were emitted after a later one of their conversation."""
    not_accepted: Counter[str] = field(default_factory=Counter)
    """How many messages the webhook did not accept, by reason. Platforms would send these again."""
    messages_per_second: float = 0.0

    @property
    def faults(self) -> str:
        """Return what should not have happened, or an empty text."""
        counts = {"lost": self.lost, "emitted twice": self.emitted_twice, "reordered": self.reordered}
        counts["not accepted"] = self.not_accepted.total()
        return ", ".join(f"{counted(count, 'message')} {what}" for what, count in counts.items() if count)

    @property
    def lateness_ms(self) -> dict[str, int]:
        if not self.late_ms:
            return {}
        every = quantiles(self.late_ms if len(self.late_ms) > 1 else self.late_ms * 2, n=100, method="inclusive")
        shown = {"median": every[49], "p95": every[94], "p99": every[98], "max": max(self.late_ms)}
        return {name: round(value) for name, value in shown.items()}

    @property
    def json(self) -> Json:
        return {
            "accepted": self.accepted, "conversations": self.conversations, "batches": len(self.late_ms),
            "messagesPerSecond": round(self.messages_per_second, 1), "latenessMs": self.lateness_ms, "lost": self.lost,
            "emittedTwice": self.emitted_twice, "reordered": self.reordered, "notAccepted": self.not_accepted,
        }  # fmt: skip

    @property
    def block(self) -> Pairs:
        late = ", ".join(f"{name} {value:,}" for name, value in self.lateness_ms.items())
        refused = ", ".join(f"{count:,} x {reason}" for reason, count in self.not_accepted.items())
        return Pairs(self.json | {"latenessMs": late or None, "notAccepted": refused or 0})


def judge_load(bursts: Iterable[Burst], emitted: Iterable[Emitted]) -> LoadResult:
    """Compare what was accepted with what was emitted. A conversation's bursts are in the order of sending."""
    accepted: dict[str, dict[str, int]] = {}
    for burst in bursts:
        due_at_ms = accepted.setdefault(burst.conversation, {})
        due_at_ms |= {fragment.id: fragment.due_at_ms for fragment in burst.fragments}
    # EventBridge may deliver an event twice. Recognize the second one by its batchId, as consumers do.
    firsts: dict[str, dict[str, Emitted]] = defaultdict(dict)
    for each in sorted(emitted, key=lambda each: each.at_ms):
        firsts[each.conversation].setdefault(each.batch_id, each)
    found = LoadResult(sum(map(len, accepted.values())), len(accepted))
    for conversation, due_at_ms in accepted.items():
        places, due = {message_id: place for place, message_id in enumerate(due_at_ms)}, [*due_at_ms.values()]
        seen, newest = set[int](), -1
        for batch in firsts[conversation].values():
            # Leave out messages that the webhook did not answer, because nobody knows whether the stage accepted them.
            batch_places = [places[message_id] for message_id in batch.ids if message_id in places]
            if batch_places:
                found.late_ms.append(batch.at_ms - due[max(batch_places)])
            for place in batch_places:
                found.emitted_twice += place in seen
                found.reordered += place not in seen and place < newest
                seen.add(place)
                newest = max(place, newest)
        found.lost += len(places) - len(seen)
    return found


class Load:
    """One run: each customer writes in a thread, and one more thread receives the batches."""

    def __init__(self, make_burst: Callable[[str], Burst], poll: Callable[..., list[ArrivedEvent]]) -> None:
        self._make_burst = make_burst
        self._poll = poll
        self.names: set[str] = set()
        """The ends of the names of the conversations that the run has used."""
        self._idle: deque[str] = deque()
        self._name_by_last_id: dict[str, str] = {}
        self._bursts: list[Burst] = []
        self._emitted: list[Emitted] = []
        self._not_accepted: Counter[str] = Counter()
        self._stop = threading.Event()

    def run(self, plan: LoadPlan, say: Callable[[str], None]) -> LoadResult:
        with ThreadPoolExecutor(1) as ears, ThreadPoolExecutor(MAX_CUSTOMERS) as customers:
            listening, began = ears.submit(self._listen), time.monotonic()
            try:
                talks = [self._begin(turn, customers) for turn in self._paced(plan, listening, say)]
                for talk in talks:
                    talk.result()
                took = time.monotonic() - began
                self._wait_for_the_rest(listening, say)
            finally:
                self._stop.set()
                customers.shutdown(cancel_futures=True)
            listening.result()
        result = judge_load(self._bursts, self._emitted)
        result.not_accepted = self._not_accepted
        result.messages_per_second = (result.accepted + self._not_accepted.total()) / took
        return result

    def _paced(self, plan: LoadPlan, listening: Future[None], say: Callable[[str], None]) -> Iterable[int]:
        """Yield each turn's number when the turn must begin. If the thread that listens has failed, raise its error."""
        began = time.monotonic()
        for turn in range(plan.turns):
            time.sleep(max(began + turn * LOAD_FRAGMENTS / plan.messages_per_second - time.monotonic(), 0))
            if listening.done():
                listening.result()
            say(f"{turn:,} customers wrote, {len(self._emitted):,} batches arrived")
            yield turn

    def _begin(self, turn: int, customers: ThreadPoolExecutor) -> Future[None]:
        name = self._idle.popleft() if self._idle else f"load-{len(self.names)}"
        self.names.add(name)
        burst = self._make_burst(name)
        self._bursts.append(burst)
        ids = [f"{burst.user}-{turn}-{number}" for number in range(LOAD_FRAGMENTS)]
        self._name_by_last_id[ids[-1]] = name
        return customers.submit(self._write, burst, ids)

    def _write(self, burst: Burst, ids: Sequence[str]) -> None:
        for message_id in ids:
            if self._stop.is_set():
                return
            try:
                burst.send(message_id, LOAD_TEXT)
            except (WebhookRefused, WebhookUnreachable) as error:
                self._not_accepted[str(error).partition(":")[0]] += 1
            time.sleep(LOAD_PAUSE_SECONDS if message_id != ids[-1] else 0)

    def _listen(self) -> None:
        while not self._stop.is_set():
            for arrival in self._poll(wait_seconds=LONG_POLL_SECONDS):
                if arrival.event["detail-type"] == BATCH_READY:
                    batch, ids = arrival.batch, ids_of(arrival.batch)
                    self._emitted.append(Emitted(batch["conversationId"], batch["batchId"], ids, arrival.at_ms))
                    self._idle += [name for each in ids if (name := self._name_by_last_id.pop(each, None))]

    def _wait_for_the_rest(self, listening: Future[None], say: Callable[[str], None]) -> None:
        accepted = {fragment.id: fragment.due_at_ms for burst in self._bursts for fragment in burst.fragments}
        until = max(accepted.values(), default=0) / 1_000 + MAX_LATE_SECONDS
        while time.time() < until and not listening.done():
            missing = accepted.keys() - {each for batch in list(self._emitted) for each in batch.ids}
            if not missing:
                break
            say(f"Wait for {counted(len(missing), 'message')}")
            time.sleep(1)
        time.sleep(MAX_SECOND_EVENT_SECONDS)
