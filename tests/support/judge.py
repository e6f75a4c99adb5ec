"""Records what a test sent, and judges what came out: each message once, in order, in time.

Across an outage of Valkey a few messages may come out of both lanes: see `judge_lanes`.
"""

import json
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import urllib3

from bufferctl.events import ArrivedEvent
from message_buffer.clock import system_clock
from tests.support.local_stage import LocalStage
from tools.local.webhooks import StageResponse

SCHEMA = Path(__file__).parents[2] / "docs" / "schema" / "messages.batch.ready.json"
# Every text begins with this mark, so that a test can look for texts in places where none belongs.
TEXT_MARK = "text of"


@dataclass
class Accepted:
    message_id: str
    due_at_ms: int
    """If a repeat finds its batch taken already: when that was answered, which is no earlier than it was due."""


@dataclass
class Talk:
    """A conversation that a test leads, with its accepted messages in order."""

    stage: LocalStage
    name: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex[:12]}")
    accepted: list[Accepted] = field(default_factory=list)
    unanswered: set[str] = field(default_factory=set)
    """Sent, and neither accepted nor refused: these may come out, or not."""
    sent: set[str] = field(default_factory=set)
    sent_again: set[str] = field(default_factory=set)
    conversation_id: str = ""

    def body(self, message_id: str | None = None, **fields: Any) -> dict[str, Any]:
        message_id = message_id or f"m-{uuid.uuid4().hex[:12]}"
        return {
            "account": "shop",
            "conversation": self.name,
            "id": message_id,
            "text": f"text of {message_id}",
        } | fields

    def say(self, message_id: str | None = None, **fields: Any) -> StageResponse:
        """Send a message, and note it if it was accepted."""
        body = self.body(message_id, **fields)
        (self.sent_again if body["id"] in self.sent else self.sent).add(body["id"])
        self.unanswered.add(body["id"])
        answer = self.stage.webhooks.post("generic", body)
        if answer.status < 500:
            self.unanswered.discard(body["id"])
        if answer.status == 200:
            self.note(answer, body["id"])
        return answer

    def insist(self, message_id: str | None = None, *, timeout_seconds: float = 30.0, **fields: Any) -> StageResponse:
        """Send a message again and again until it is accepted, as platforms do."""
        body = self.body(message_id, **fields)
        deadline = time.monotonic() + timeout_seconds
        while (answer := self.say(body["id"], **fields)).status != 200:
            assert answer.status >= 500, f"{answer.status} {answer.body!r}"
            assert time.monotonic() < deadline, f"never accepted: {answer.body!r}"
            time.sleep(0.1)
        return answer

    def note(self, answer: StageResponse, *message_ids: str) -> None:
        """Note that this answer accepted these messages."""
        self.note_state(answer.json["conversations"], *message_ids)

    def note_state(self, conversations: Mapping[str, Any], *message_ids: str) -> None:
        ((self.conversation_id, state),) = conversations.items()
        known = {each.message_id for each in self.accepted}
        due_at_ms = state["dueAt"] or system_clock()
        self.accepted += [Accepted(each, due_at_ms) for each in message_ids if each not in known]

    @property
    def ids(self) -> list[str]:
        return [each.message_id for each in self.accepted]

    def arrivals(self) -> list[ArrivedEvent]:
        ids = set(self.ids)
        return [arrival for arrival in self.stage.inbox.arrivals if ids & set(ids_of(arrival))]

    def batches(self) -> list[list[str]]:
        """Return the messages of each batch; a batch that came twice counts once."""
        return list({arrival.batch["batchId"]: ids_of(arrival) for arrival in self.arrivals()}.values())

    def wait_all(self, *, timeout_seconds: float = 40.0) -> list[list[str]]:
        """Wait until all accepted messages have come out, and return their batches."""
        _wait([self], timeout_seconds)
        return self.batches()


def if_quick_enough(attempt: Callable[[], bool], *, attempts: int = 4) -> None:
    """Repeat `attempt` until it returns True: only then was the machine quick enough for the test to mean anything.

    The emulator starts a process for each request that finds none free. With dozens at once an answer may take too
    long, but the processes stay, so the next attempt is quicker.
    """
    for _ in range(attempts):
        with suppress(urllib3.exceptions.TimeoutError):
            if attempt():
                return
    raise AssertionError(f"the machine was too slow {attempts} times in a row to say anything")


def ids_of(arrival: ArrivedEvent) -> list[str]:
    return [message["id"] for message in arrival.batch["messages"]]


def judge(
    talks: Sequence[Talk], *, within_ms: int, timeout_seconds: float = 30.0, quiet_seconds: float = 0.0
) -> list[ArrivedEvent]:
    """Assert that every accepted message comes out under exactly one batch id, in order, and in time.

    A batch is in time if it is on the bus at most `within_ms` after it was due. A run of a function that was started
    twice may emit when its conversation is empty already: a test of that waits for some quiet seconds.
    """
    settle(talks, timeout_seconds=timeout_seconds)
    time.sleep(quiet_seconds)
    for talk in talks:
        _judge_one(talk, within_ms)
    return [arrival for talk in talks for arrival in talk.arrivals()]


def settle(talks: Sequence[Talk], *, timeout_seconds: float, perhaps_lost: Collection[str] = ()) -> None:
    """Wait until all accepted messages have come out, and neither lane holds anything of these conversations."""
    _wait(talks, timeout_seconds, perhaps_lost)
    talks[0].stage.wait_until_settled(*(talk.conversation_id for talk in talks), timeout_seconds=timeout_seconds)


class AcrossLanes(NamedTuple):
    """What came out of a stage with a fallback."""

    emitted: Mapping[str, Sequence[ArrivedEvent]]
    """The batches of each lane."""
    doubled: frozenset[str]
    """The messages that came out of both lanes."""
    lost: frozenset[str]


def judge_lanes(talks: Sequence[Talk], *, openings: int, perhaps_lost: Collection[str] = ()) -> AcrossLanes:
    """Assert that every accepted message came out, in one batch of each lane at most, and in order within a lane.

    A message may be in both lanes if it was sent again, or if Valkey's answer to it was lost. The latter happens at
    most once an `opening`, in which an instance of ingest turns to the fallback. `perhaps_lost` were sent before Valkey
    was wiped.
    """
    emitted: dict[str, list[ArrivedEvent]] = defaultdict(list)
    doubled: set[str] = set()
    lost: set[str] = set()
    for talk in talks:
        known: dict[str, ArrivedEvent] = {}
        for arrival in talk.arrivals():
            judge_schema(arrival)
            first = known.setdefault(arrival.batch["batchId"], arrival)
            assert first.batch["messages"] == arrival.batch["messages"], "a batch came again with another content"
        by_lane: dict[str, list[str]] = defaultdict(list)
        for arrival in known.values():
            by_lane[arrival.batch["lane"]] += ids_of(arrival)
            emitted[arrival.batch["lane"]].append(arrival)
        for lane, ids in by_lane.items():
            assert len(set(ids)) == len(ids), f"a message in two batches of the {lane} lane"
            accepted = [each for each in ids if each not in talk.unanswered]
            assert accepted == [each for each in talk.ids if each in ids], f"in order in the {lane} lane"
        came = Counter(message_id for ids in by_lane.values() for message_id in ids)
        doubled |= {message_id for message_id, times in came.items() if times > 1}
        lost |= set(talk.ids) - came.keys()
    again = {message_id for talk in talks for message_id in talk.sent_again}
    assert lost <= set(perhaps_lost), f"lost: {lost - set(perhaps_lost)}"
    unasked = doubled - again
    assert len(unasked) <= openings, f"{len(unasked)} messages in both lanes, after {openings} openings: {unasked}"
    return AcrossLanes(emitted, frozenset(doubled), frozenset(lost))


def judge_schema(arrival: ArrivedEvent) -> None:
    _validator().validate(arrival.batch)
    assert arrival.event["source"] == "message-buffer"
    assert arrival.event["detail-type"] == "messages.batch.ready"


def _wait(talks: Sequence[Talk], timeout_seconds: float, perhaps_lost: Collection[str] = ()) -> None:
    expected = {message_id for talk in talks for message_id in talk.ids} - set(perhaps_lost)

    def all_there(arrivals: Sequence[ArrivedEvent]) -> bool:
        return expected <= {message_id for arrival in arrivals for message_id in ids_of(arrival)}

    if not talks[0].stage.inbox.wait_until(all_there, timeout_seconds=timeout_seconds):
        came = {message_id for talk in talks for arrival in talk.arrivals() for message_id in ids_of(arrival)}
        missing = sorted(expected - came)
        raise AssertionError(
            f"lost: {len(missing)} of {len(expected)} messages did not come out, such as {missing[:5]}"
        )


def _judge_one(talk: Talk, within_ms: int) -> None:
    content: dict[str, str] = {}
    first_arrivals: list[ArrivedEvent] = []
    for arrival in talk.arrivals():
        judge_schema(arrival)
        messages = json.dumps(arrival.batch["messages"], sort_keys=True)
        if arrival.batch["batchId"] not in content:
            first_arrivals.append(arrival)
        known = content.setdefault(arrival.batch["batchId"], messages)
        assert known == messages, "a batch came again with another content"
    every = [message_id for arrival in first_arrivals for message_id in ids_of(arrival)]
    assert len(set(every)) == len(every), "a message in two batches"
    due = {each.message_id: each.due_at_ms for each in talk.accepted}
    came = [message_id for message_id in every if message_id in due or message_id not in talk.unanswered]
    assert sorted(came) == sorted(talk.ids), "each message in one batch"
    assert came == talk.ids, "in order"
    for arrival in first_arrivals:
        *_, due_at_ms = (due[message_id] for message_id in ids_of(arrival) if message_id in due)
        late_ms = arrival.at_ms - due_at_ms
        assert late_ms <= within_ms, (
            f"{arrival.batch['batchId']} was on the bus {late_ms} ms after it was due, allowed are {within_ms};"
            f" it was attempt {arrival.batch['attempt']}"
        )


@cache
def _validator() -> jsonschema.Draft4Validator:
    return jsonschema.Draft4Validator(json.loads(SCHEMA.read_text()))


@contextmanager
def traffic(talks: list[Talk]) -> Iterator[None]:
    """Let each conversation write fragments during the `with` block, and repeat each message until it is accepted."""
    over = threading.Event()

    def write(talk: Talk) -> None:
        chance = random.Random(talk.name)
        while not over.is_set():
            message_id = f"{talk.name}-{len(talk.accepted)}"
            while True:
                with suppress(urllib3.exceptions.HTTPError):
                    talk.insist(message_id, timeout_seconds=120)
                    break
                time.sleep(0.2)
            over.wait(chance.choice([0.1, 0.4, 1.5]))

    with ThreadPoolExecutor(len(talks)) as writers:
        writing = [writers.submit(write, talk) for talk in talks]
        try:
            yield
        finally:
            over.set()
    for each in writing:
        each.result()
