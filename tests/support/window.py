"""The DynamoDB lane on a DynamoDB in the tests' own process, with a queue and requests that the test controls.

DynamoDB is moto's. It judges conditions, reserved words, sizes and pages as the service does, answers in a
millisecond, and is empty again for the next test. The queue is a model, because a test has to decide when and how often
a trigger comes; the local stage has a real queue.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any
from unittest.mock import patch

import boto3
from moto import mock_aws

from lambdas.dynamodb_processor.service import DynamoDbProcessor
from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed
from message_buffer.events.emission import Emission, TimeLeft
from message_buffer.events.idle import IdleTable
from message_buffer.lanes.dynamodb.items import OPEN_INDEX
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.dynamodb.messages import Messages
from message_buffer.lanes.dynamodb.quotas import Quotas
from message_buffer.lanes.dynamodb.table import MessageTable
from message_buffer.lanes.dynamodb.triggers import Trigger, TriggerQueue
from message_buffer.lanes.dynamodb.window import Window
from message_buffer.lanes.dynamodb.windows import Windows
from message_buffer.lanes.outcomes import MessageBuffered, MessageDuplicate
from message_buffer.limits import MAX_TRIGGER_DELAY_MS, MAX_TRIGGER_HIDDEN_MS
from message_buffer.rules.rules_and_defaults import Rules
from tests.support.engine import ManualClock, accepted, payload
from tests.support.fakes import FakeBatchQueues, FakeBus, FakeObjects, FakeQueue, NoCounts, RecordedTelemetry
from tests.support.table_service import OURS, answering_without_http, empty
from tests.support.takeovers import FakeTakeovers

TABLE = "holding"
CONVERSATION = "default/generic/shop/ann"
WINDOW_MS = 10_000
# The queue counts in seconds, so a few messages that come at once leave within WINDOW_MS.
SILENCE_MS = WINDOW_MS - 1_000
RULES = Rules(silence_ms=SILENCE_MS, typing_inference_ms=0, max_wait_ms=60_000)
MAX_ATTEMPTS = 5
# How long the queue hides a trigger that was received.
VISIBILITY_MS = 30_000
# All retries, rests and sweeps end in this time.
ENOUGH_MS = 300_000
AMPLE = TimeLeft(lambda: 30_000)


class Killed(BaseException):
    """Lambda kills the function's process."""


class Wire:
    """Calls `before` and `after` around every request to the table, the queue and the bus."""

    def __init__(self) -> None:
        self.before: Callable[[str], None] = lambda _request: None
        self.after: Callable[[str], None] = lambda _request: None
        self.made: list[str] = []
        # A heartbeat makes requests at the same time, and moto takes one at a time.
        self._making = Lock()

    def call(self, request: str, make: Callable[[], Any]) -> Any:
        self.before(request)
        self.made.append(request)
        with self._making:
            answer = make()
        self.after(request)
        return answer

    @contextmanager
    def at(self, request: str, action: Callable[[], object], *, nth: int = 1, after: bool = False) -> Iterator[None]:
        """Call `action` once, before or after the nth request of this name. It may raise."""
        seen, done = 0, False

        def look(name: str) -> None:
            nonlocal seen, done
            seen += name == request
            if seen == nth and not done:
                done = True
                action()

        with patch.object(self, "after" if after else "before", look):
            yield
        assert done, f"there was no {request} number {nth}; there were {self.made}"

    @contextmanager
    def at_step(self, step: int, action: Callable[[], object], *, after: bool = False) -> Iterator[None]:
        """Call `action` once, before or after request number `step` from now on, counted from 1."""
        seen = 0

        def look(_name: str) -> None:
            nonlocal seen
            seen += 1
            if seen == step:
                action()

        with patch.object(self, "after" if after else "before", look):
            yield
        assert seen >= step, f"there was no request {step}; there were {self.made}"


class WiredClient:
    def __init__(self, client: Any, wire: Wire) -> None:
        self._client = client
        self._wire = wire
        self.exceptions = client.exceptions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda **request: self._wire.call(name, lambda: getattr(self._client, name)(**request))


class WiredTable(MessageTable):
    def __init__(self, wire: Wire) -> None:
        self.client = WiredClient(aws.client("dynamodb"), wire)
        wired = {"_client": property(lambda _: self.client)}
        self.messages = type("WiredMessages", (Messages,), wired)(TABLE)
        self.windows = type("WiredWindows", (Windows,), wired)(TABLE)
        self.quotas = type("WiredQuotas", (Quotas,), wired)(TABLE)


@dataclass
class Waiting:
    trigger: Trigger
    visible_at_ms: int


@dataclass
class Triggers(TriggerQueue):
    """The queue: it delivers each trigger when its delay is over, and again until it is deleted."""

    clock: ManualClock
    wire: Wire
    waiting: list[Waiting] = field(default_factory=list)
    sweeps_at_ms: list[int] = field(default_factory=list)
    _receipts: Iterator[int] = field(default_factory=count)

    def send(self, conversation: str, *, delay_ms: int) -> None:
        assert delay_ms >= 0

        def enqueue() -> None:
            trigger = Trigger(conversation, f"receipt-{next(self._receipts)}")
            self.waiting.append(Waiting(trigger, self.clock() + min(delay_ms, MAX_TRIGGER_DELAY_MS)))

        self.wire.call("send_message", enqueue)

    def send_sweep(self, *, delay_ms: int) -> None:
        self.wire.call("send_message", lambda: self.sweeps_at_ms.append(self.clock() + delay_ms))

    def hide(self, trigger: Trigger, *, for_ms: int) -> None:
        assert 0 < for_ms <= MAX_TRIGGER_HIDDEN_MS, "a hidden trigger is in flight"

        def hide() -> None:
            for each in self.waiting:
                if each.trigger == trigger:
                    each.visible_at_ms = self.clock() + for_ms

        self.wire.call("change_message_visibility", hide)

    def receive(self) -> Trigger | None:
        for each in self.waiting:
            if each.visible_at_ms <= self.clock():
                each.visible_at_ms = self.clock() + VISIBILITY_MS
                return each.trigger
        return None

    def delete(self, trigger: Trigger) -> None:
        self.waiting = [each for each in self.waiting if each.trigger != trigger]


class WiredBus(FakeBus):
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def publish(self, detail_type: str, detail: str) -> None:
        self._wire.call("put_events", lambda: FakeBus.publish(self, detail_type, detail))


class WindowScene:
    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock, self.wire = clock or ManualClock(), Wire()
        self.table = WiredTable(self.wire)
        self.triggers = Triggers(self.clock, self.wire)
        self.bus, self.objects, self.letters = WiredBus(self.wire), FakeObjects(), FakeQueue()
        self.queues = FakeBatchQueues()
        self.idle: IdleTable = FakeTakeovers()
        self.telemetry = RecordedTelemetry()
        self.lane = self.new_lane()
        self.processor = self.new_processor()

    def new_lane(self, **options: Any) -> DynamoDbLane:
        return DynamoDbLane(self.table, self.triggers, clock=self.clock, sleep=lambda _: None, **options)

    def new_processor(self, **options: Any) -> DynamoDbProcessor:
        destinations = (self.bus, self.objects, self.letters)
        return DynamoDbProcessor(
            table=self.table,
            triggers=self.triggers,
            emission=Emission(
                *destinations,
                self.telemetry,
                queues=self.queues,
                idle=self.idle,
                gap_counts=NoCounts(),
                max_event_bytes=256_000,
                max_attempts=MAX_ATTEMPTS,
                clock=self.clock,
            ),
            telemetry=self.telemetry,
            clock=self.clock,
            random=lambda: 0.0,
            **options,
        )

    def send(
        self, message_id: str, *, conversation: str = CONVERSATION, rules: Rules = RULES, text: str | None = None
    ) -> MessageBuffered | MessageDuplicate:
        body = payload(message_id, text)
        return accepted(self.lane.buffer_message(conversation, message_id, payload=body, timing=rules.timing))

    def run(self, processor: DynamoDbProcessor | None = None) -> int:
        """Let one processor process what the queue delivers now. Return the number of triggers."""
        given = 0
        while trigger := self.triggers.receive():
            given += 1
            if (processor or self.processor).process(trigger, AMPLE):
                self.triggers.delete(trigger)
        return given

    def pass_time(self, ms: int, *, step_ms: int = 1_000, sweep: bool = False) -> None:
        """Advance the clock in steps, and process what is delivered meanwhile."""
        until_ms = self.clock() + ms
        while self.clock() < until_ms:
            self.clock.advance(min(step_ms, until_ms - self.clock()))
            if sweep and self.clock() % 60_000 < step_ms:
                self.processor.sweep(AMPLE)
            self.run()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(detail) for _, detail in self.bus.published]

    def batches(self, conversation: str = CONVERSATION) -> list[list[str]]:
        """Return the messages of each batch id, and assert that no id has two contents and no message two batches."""
        seen: dict[str, list[str]] = {}
        for event in self.events():
            if event["conversationId"] != conversation:
                continue
            ids = [message["id"] for message in event["messages"]]
            assert seen.setdefault(event["batchId"], ids) == ids, "one batch id, two contents"
        every = [message_id for ids in seen.values() for message_id in ids]
        assert len(set(every)) == len(every), f"a message in two batches: {seen}"
        return list(seen.values())

    def is_idle(self, conversation: str = CONVERSATION) -> bool:
        """Return whether no message waits, no window is open or locked, and no batch is frozen."""
        contents = self.table.messages.read(conversation)
        return not (contents.stored or contents.window.is_open or contents.window.lock.owner or contents.window.frozen)


@contextmanager
def dynamodb() -> Iterator[Any]:
    """Yield the SDK's client of a DynamoDB in this process. Our own client has the same tables."""
    signed = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    with patch.dict(os.environ, signed), mock_aws(), patch.object(aws, "OURS", OURS):
        aws._made.cache_clear()
        client = boto3.client("dynamodb")
        with answering_without_http(client):
            yield client
    aws._made.cache_clear()


def make_message_table(client: Any) -> None:
    """Create the table as `infra/storage.py` defines it, empty."""
    if TABLE in client.list_tables()["TableNames"]:
        empty(client, TABLE)
        return
    names = {"conversation": "S", "item": "S", "open": "S", "due_at": "N"}
    client.create_table(
        TableName=TABLE,
        KeySchema=_keys("conversation", "item"),
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind in names.items()],
        GlobalSecondaryIndexes=[
            {
                "IndexName": OPEN_INDEX,
                "KeySchema": _keys("open", "due_at"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )


def _keys(partition: str, sort: str) -> list[dict[str, str]]:
    return [{"AttributeName": partition, "KeyType": "HASH"}, {"AttributeName": sort, "KeyType": "RANGE"}]


def failing(code: str = "ThrottlingException") -> Callable[[], None]:
    """Return an action that fails as a refused call does, or one whose answer came too late."""

    def fail() -> None:
        raise SendFailed(code)

    return fail


def killed() -> None:
    raise Killed


def due(window: WindowScene, *message_ids: str) -> None:
    """Open a window with these messages and let it end."""
    for message_id in message_ids:
        window.send(message_id)
    window.clock.advance(WINDOW_MS)


def lock(window: WindowScene, owner: str, *, until_ms: int) -> Window:
    """Lock the conversation's window as a processor does when it finds the window due."""
    seen = window.table.windows.read(CONVERSATION)
    return window.table.windows.acquire(CONVERSATION, owner, window=seen, now_ms=window.clock(), until_ms=until_ms)


def settle(window: WindowScene) -> None:
    """Let everything happen that is still under way; fail if a window or a trigger is left."""
    window.pass_time(ENOUGH_MS, step_ms=5_000, sweep=True)
    assert window.is_idle()
    assert window.triggers.waiting == []
