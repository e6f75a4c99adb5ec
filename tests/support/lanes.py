"""A lane with the functions that empty it, on a clock the test owns: the Valkey lane and the DynamoDB lane alike."""

import json
from collections.abc import Callable
from typing import Any, Protocol

from lambdas.conversation_processor.service import ConversationProcessor
from message_buffer.events.emission import Emission
from message_buffer.lanes.dynamodb.lane import DynamoDbLane
from message_buffer.lanes.outcomes import LaneName
from message_buffer.lanes.valkey.lane import ValkeyLane
from tests.support.engine import Engine, ManualClock
from tests.support.fakes import (
    FakeBatchQueues,
    FakeBus,
    FakeFunctions,
    FakeObjects,
    FakeQueue,
    NoCounts,
    RecordedTelemetry,
    valkey_lane,
)
from tests.support.takeovers import FakeTakeovers
from tests.support.window import AMPLE, WindowScene

MAX_ATTEMPTS = 5


class RunningLane(Protocol):
    name: LaneName

    @property
    def bus(self) -> FakeBus: ...
    @property
    def queues(self) -> FakeBatchQueues: ...
    @property
    def lane(self) -> ValkeyLane | DynamoDbLane: ...
    @property
    def clock(self) -> ManualClock: ...
    def pass_time(self, ms: int) -> None: ...
    def meanwhile(self, action: Callable[[], object]) -> None:
        """Call `action` once, after a function has found the conversation due and before it freezes the batch."""


class RunningValkeyLane:
    name: LaneName = "valkey"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._meanwhile: Callable[[], object] | None = None
        self.bus, telemetry, self.functions = FakeBus(), RecordedTelemetry(), FakeFunctions()
        self.lane = valkey_lane(engine.store, self.functions, telemetry)
        self.queues = FakeBatchQueues()
        destinations = (self.bus, FakeObjects(), FakeQueue())
        self._conversation_processor = ConversationProcessor(
            lane=self.lane,
            emission=Emission(
                *destinations,
                telemetry,
                queues=self.queues,
                idle=FakeTakeovers(),
                gap_counts=NoCounts(),
                max_event_bytes=256_000,
                max_attempts=MAX_ATTEMPTS,
                clock=engine.clock,
            ),
            telemetry=telemetry,
            clock=engine.clock,
            random=lambda: 0.0,
        )

    @property
    def clock(self) -> ManualClock:
        return self._engine.clock

    def pass_time(self, ms: int) -> None:
        """Let the processor look twice a second, and emit what is due."""
        until_ms = self.clock() + ms
        while True:
            for conversation in self._engine.claim():
                if self._meanwhile:
                    action, self._meanwhile = self._meanwhile, None
                    action()
                self._conversation_processor.process(conversation, AMPLE)
            if self.clock() >= until_ms:
                return
            self.clock.advance(min(500, until_ms - self.clock()))

    def meanwhile(self, action: Callable[[], object]) -> None:
        self._meanwhile = action


class RunningDynamoDbLane:
    name: LaneName = "dynamodb"

    def __init__(self, scene: WindowScene) -> None:
        self._scene = scene
        self.lane, self.bus, self.queues = scene.lane, scene.bus, scene.queues

    @property
    def clock(self) -> ManualClock:
        return self._scene.clock

    def pass_time(self, ms: int) -> None:
        self._scene.run()
        self._scene.pass_time(ms)

    def meanwhile(self, action: Callable[[], object]) -> None:
        wire = self._scene.wire
        before = wire.before

        def once(request: str) -> None:
            before(request)
            if request == "query":  # the processor has locked the window, and reads it
                wire.before = before
                action()

        wire.before = once


def events_of(running: RunningLane) -> list[dict[str, Any]]:
    return [json.loads(detail) for _, detail in running.bus.published]


def batches_of(running: RunningLane) -> list[list[str]]:
    """The batches as a consumer sees them, who knows a batch by its id."""
    by_id = {event["batchId"]: [message["id"] for message in event["messages"]] for event in events_of(running)}
    return list(by_id.values())
