"""Writes like many customers at a steady rate, and checks what a stage emits (`verify --load 50/s --for 10m`).

A customer writes a few fragments, and sends each after the webhook has answered the previous one. The customers begin
at fixed times, even if the stage answers slowly, and take turns in the conversations.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from statistics import quantiles
from typing import NamedTuple

from bufferctl.errors import Misused
from bufferctl.formatting import counted
from bufferctl.stage import LOCAL
from lambdas.canary.burst import BATCH_READY, MAX_LATE_SECONDS, Burst, WebhookRefused, ids_of
from lambdas.canary.listening import LONG_POLL_SECONDS, ArrivedEvent
from lambdas.canary.webhook import WebhookUnreachable
from message_buffer.json_object import Json
from message_buffer.limits import HOUR_MS

LOAD_FRAGMENTS = 5
LOAD_PAUSE_SECONDS = 0.5
LOAD_TEXT = "Hey, could you look at order 12345? It has not arrived yet."
# A conversation is used again after this time, in which its last batch has usually arrived.
TURN_SECONDS = 30
# One machine can hardly sign and send more messages a second. A load costs money.
MAX_LOAD_RATE, MAX_LOAD_MS = 100, HOUR_MS
# Each customer who is writing has a thread.
MAX_CUSTOMERS = 200
# A second event with the same messages would be an error, and would arrive within this time after the first one.
MAX_SECOND_EVENT_SECONDS = 3.0

Say = Callable[[str], None]


class LoadPlan(NamedTuple):
    messages_per_second: float
    seconds: float

    @property
    def turns(self) -> int:
        """Return how many times a customer begins to write. Each time the customer writes LOAD_FRAGMENTS fragments."""
        return max(1, round(self.messages_per_second * self.seconds / LOAD_FRAGMENTS))

    @property
    def names(self) -> list[str]:
        """Return the last part of each conversation's name."""
        at_once = round(self.messages_per_second * TURN_SECONDS / LOAD_FRAGMENTS)
        return [f"load-{number}" for number in range(max(1, min(self.turns, at_once)))]

    def announcement(self, stage_name: str) -> str:
        """Return what the run will send and cost."""
        messages, cost = self.turns * LOAD_FRAGMENTS, self.cost_on(stage_name)
        price = "at an unknown cost" if cost is None else f"for about ${cost:.2f} besides the stage's own cost"
        return f"Then it sends {messages:,} messages of {self.turns:,} batches in {self.seconds:,.0f} s, {price}."

    def cost_on(self, stage_name: str) -> float | None:
        """Return what the run adds to the stage's bill, in dollars by the cost model, or None for an unknown stage."""
        if stage_name == LOCAL:
            return 0.0
        from bufferctl.cost.command import cost_of_load  # noqa: PLC0415 - only this needs the cost model

        return cost_of_load(
            stage_name, messages_per_second=self.messages_per_second, seconds=self.seconds,
            fragments_per_batch=LOAD_FRAGMENTS, text_bytes=len(LOAD_TEXT),
        )  # fmt: skip


def plan_of(rate: str, duration_ms: int) -> LoadPlan:
    """Return the plan for a rate like 50/s or 30/m. Raise Misused if it is beyond the bounds."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)/([sm])", rate)
    per_second = float(match[1]) / (60 if match[2] == "m" else 1) if match else 0.0
    if not 0 < per_second <= MAX_LOAD_RATE or duration_ms > MAX_LOAD_MS:
        raise Misused(f"A rate reads 50/s or 30/m and is at most {MAX_LOAD_RATE}/s; a load lasts at most 1h.")
    return LoadPlan(per_second, duration_ms / 1_000)


def judge_load(bursts: Sequence[Burst], arrivals: Iterable[ArrivedEvent]) -> Json:
    """Compare the accepted messages with the emitted ones. Return the counts."""
    late_ms, counts = list[int](), Counter[str](accepted=0, lost=0, emittedTwice=0, reordered=0)
    in_order = sorted(arrivals, key=lambda each: each.at_ms)
    for burst in bursts:
        places = {fragment.id: place for place, fragment in enumerate(burst.fragments)}
        emitted = list[int]()
        for arrival in burst.of(in_order):
            # Leave out messages that the webhook did not answer, because nobody knows whether the stage accepted them.
            batch = [places[each] for each in ids_of(arrival.batch) if each in places]
            late_ms.append(arrival.at_ms - burst.fragments[max(batch)].due_at_ms)
            emitted += batch
        firsts = list(dict.fromkeys(emitted))
        counts["accepted"] += len(places)
        counts["lost"] += len(places) - len(firsts)
        counts["emittedTwice"] += len(emitted) - len(firsts)
        # A message is reordered if a later one of its conversation was emitted before.
        counts["reordered"] += sum(
            place < newest for place, newest in zip(firsts, accumulate(firsts, max), strict=True)
        )
    return {"conversations": len(bursts), "batches": len(late_ms), **counts, "latenessMs": _percentiles(late_ms)}


def _percentiles(values: Sequence[int]) -> dict[str, int] | None:
    if not values:
        return None
    every = quantiles([*values] * (2 if len(values) == 1 else 1), n=100, method="inclusive")
    return {"median": round(every[49]), "p95": round(every[94]), "p99": round(every[98]), "max": max(values)}


def faults_of(result: Json) -> str:
    """Return text that counts each fault; empty if there is none."""
    counts = {"lost": result["lost"], "emitted twice": result["emittedTwice"], "reordered": result["reordered"]}
    counts["not accepted"] = sum(result["notAccepted"].values())
    return ", ".join(f"{counted(count, 'message')} {what}" for what, count in counts.items() if count)


def run_load(plan: LoadPlan, bursts: Sequence[Burst], poll: Callable[..., list[ArrivedEvent]], say: Say) -> Json:
    """Send by the plan in the bursts' conversations. Return the result of `judge_load`."""
    arrivals, not_accepted, stop = list[ArrivedEvent](), Counter[str](), threading.Event()

    def listen() -> None:
        is_last = False
        while not is_last:
            # Events that arrived before the end are received after it.
            is_last = stop.is_set()
            found = poll(wait_seconds=LONG_POLL_SECONDS)
            arrivals.extend(each for each in found if each.event["detail-type"] == BATCH_READY)

    def write(turn: int) -> None:
        burst = bursts[turn % len(bursts)]
        for number in range(LOAD_FRAGMENTS):
            if stop.is_set():
                return
            try:
                burst.send(f"{burst.user}-{turn}-{number}", LOAD_TEXT)
            except (WebhookRefused, WebhookUnreachable) as error:
                # Platforms would send these again.
                not_accepted[str(error).partition(":")[0]] += 1
            time.sleep(LOAD_PAUSE_SECONDS if number < LOAD_FRAGMENTS - 1 else 0)

    with ThreadPoolExecutor(1) as ears, ThreadPoolExecutor(MAX_CUSTOMERS) as customers:
        listening, began, talks = ears.submit(listen), time.monotonic(), list[Future[None]]()
        try:
            for turn in range(plan.turns):
                time.sleep(max(began + turn * LOAD_FRAGMENTS / plan.messages_per_second - time.monotonic(), 0))
                if listening.done():
                    break
                say(f"{turn:,} customers wrote, {len(arrivals):,} batches arrived")
                talks.append(customers.submit(write, turn))
            for talk in talks:
                talk.result()
            took = time.monotonic() - began
            _wait_for_all(bursts, arrivals, listening, say)
        finally:
            stop.set()
            customers.shutdown(cancel_futures=True)
        # If the thread that listens has failed, this raises its error.
        listening.result()
    result = judge_load(bursts, arrivals)
    rate = round((result["accepted"] + not_accepted.total()) / took, 1)
    return result | {"notAccepted": dict(not_accepted), "messagesPerSecond": rate}


def _wait_for_all(bursts: Sequence[Burst], arrivals: Sequence[ArrivedEvent], listening: Future[None], say: Say) -> None:
    """Wait until all messages have arrived or are too late, and then for second events."""
    due_at_ms = {fragment.id: fragment.due_at_ms for burst in bursts for fragment in burst.fragments}
    until = max(due_at_ms.values(), default=0) / 1_000 + MAX_LATE_SECONDS
    while time.time() < until and not listening.done():
        missing = due_at_ms.keys() - {each for arrival in list(arrivals) for each in ids_of(arrival.batch)}
        if not missing:
            break
        say(f"Wait for {counted(len(missing), 'message')}")
        time.sleep(1)
    time.sleep(MAX_SECOND_EVENT_SECONDS)
