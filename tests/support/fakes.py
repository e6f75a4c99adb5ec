"""Replacements for AWS and for time in the tests of the services."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from message_buffer.aws.functions import Functions
from message_buffer.aws.object_store import ObjectStore
from message_buffer.errors import SendFailed
from message_buffer.events.batch_queues import BatchQueues
from message_buffer.events.dead_letters import DeadLetterQueue
from message_buffer.events.event_bus import EventBus
from message_buffer.json_object import Json
from message_buffer.lanes.valkey.lane import ValkeyLane
from message_buffer.lanes.valkey.processor_starter import ProcessorStarter
from message_buffer.lanes.valkey.store import Store
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.rules.rules_table import StoredRules
from message_buffer.telemetry import Telemetry, Value
from message_buffer.tuning.counts import GapCounts
from tests.support.engine import ManualClock

PROCESSOR = "the-processor"
CONVERSATION_PROCESSOR = "the-conversation_processor"


class RecordedTelemetry(Telemetry):
    """Keeps log lines and counts, for tests to read."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []
        self.counts: dict[str, int] = {}
        self.flushes = 0

    def info(self, decision: str, **fields: Value) -> None:
        self.lines.append(("info", decision, fields))

    debug = info

    def warn(self, decision: str, **fields: Value) -> None:
        self.lines.append(("warning", decision, fields))

    def crash(self, decision: str, error: BaseException, **fields: Value) -> None:
        self.lines.append(("error", decision, {**fields, "error": type(error).__name__}))

    def count(self, metric: str, value: int = 1) -> None:
        self.counts[metric] = self.counts.get(metric, 0) + value

    def measure_ms(self, metric: str, value: int) -> None:
        self.counts[metric] = value

    def count_by(self, metric: str, count: int = 1, /, **dimension: str) -> None:
        self.count(f"{metric} {' '.join(dimension.values())}", count)

    def flush(self) -> None:
        self.flushes += 1

    def said(self, decision: str) -> list[dict[str, Any]]:
        return [fields for _, told, fields in self.lines if told == decision]


class FakeFunctions(Functions):
    """Lambda: records which functions were started, and refuses `refusals` times."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[tuple[str, Mapping[str, object]]] = []
        self.refusals = 0
        self.prepared = False
        self.on_start: Callable[[str, Mapping[str, object]], None] = lambda _function, _payload: None

    def prepare(self) -> None:
        self.prepared = True

    def start(self, function: str, payload: Mapping[str, object]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise SendFailed("invoke: ThrottlingException")
        self.started.append((function, payload))
        self.on_start(function, payload)

    def conversations(self) -> list[str]:
        return [
            str(payload["conversation"]) for function, payload in self.started if function == CONVERSATION_PROCESSOR
        ]

    def processors(self) -> list[int]:
        return [int(str(payload["shard"])) for function, payload in self.started if function == PROCESSOR]


def valkey_lane(store: Store, functions: FakeFunctions | None = None, telemetry: Telemetry | None = None) -> ValkeyLane:
    """Return a lane with the state of this store, so that a test may change a method or a setting of either."""
    starter = ProcessorStarter(functions or FakeFunctions(), PROCESSOR, telemetry or RecordedTelemetry())
    lane = ValkeyLane(store._connection, store.settings, starter)
    lane.__dict__ = store.__dict__
    lane._starter = starter
    return lane


class FakeBus(EventBus):
    """EventBridge: records the details, and raises each of `failures` once."""

    def __init__(self) -> None:
        super().__init__("the-bus")
        self.published: list[tuple[str, str]] = []
        self.connections = 0
        self.failures: list[BaseException] = []
        self.on_publish: Callable[[], None] = lambda: None

    def connect(self) -> None:
        self.connections += 1

    def publish(self, detail_type: str, detail: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.published.append((detail_type, detail))
        self.on_publish()

    def publish_all(self, detail_type: str, details: Sequence[str]) -> None:
        for detail in details:
            self.publish(detail_type, detail)


class SentBatch(NamedTuple):
    queue: str
    detail: Json
    batch_id: str


class FakeBatchQueues(BatchQueues):
    """The stage's FIFO queues: records what is sent, and raises each of `failures` once."""

    def __init__(self, *names: str) -> None:
        super().__init__({})
        self.open(*names)
        self.sent: list[SentBatch] = []
        self.connections = 0
        self.failures: list[BaseException] = []
        self.on_send: Callable[[], None] = lambda: None

    def open(self, *names: str) -> None:
        """Give the stage these queues."""
        self._urls = {name: f"https://sqs.example.org/{name}.fifo" for name in names}

    def connect(self) -> None:
        self.connections += 1

    def send(self, name: str, detail_type: str, detail: str, *, conversation: str, batch_id: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        assert detail_type == "messages.batch.ready"
        self.sent.append(SentBatch(name, json.loads(detail), batch_id))
        assert self.sent[-1].detail["conversationId"] == conversation
        self.on_send()


class FakeObjects(ObjectStore):
    def __init__(self) -> None:
        super().__init__("the-bucket")
        self.kept: dict[str, bytes] = {}
        self.failures: list[Exception] = []

    def put(self, key: str, body: bytes) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.kept[key] = body

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.kept if key.startswith(prefix)]

    def delete(self, keys: Sequence[str]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        for key in keys:
            self.kept.pop(key, None)


class FakeQueue(DeadLetterQueue):
    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.failures: list[Exception] = []

    def put(self, body: str) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.bodies.append(body)


class NoCounts(GapCounts):
    """Counts nothing, and so leaves nothing to a conversation's next batch."""

    def __init__(self) -> None:
        pass

    def add(self, *_: Any, **__: Any) -> str:
        return ""

    def write(self, may_go_on: Callable[[], bool]) -> None:
        pass


class FakeSecrets:
    def __init__(self, text: str) -> None:
        self.text = text
        self.reads = 0
        self.failures: list[Exception] = []

    def read(self, _secret_id: str) -> str:
        self.reads += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.text


class FakeWake(Wake):
    """A sleep that takes no time: it advances the clock, unless `meanwhile` returns True."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.waits: list[float] = []
        self.closed = False
        self.meanwhile: Callable[[], bool] = lambda: False

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        if self.meanwhile():
            return True
        # Advance at least a little: a loop that never sleeps would never end the test.
        self._clock.advance(max(round(seconds * 1_000), 1))
        return False

    def close(self) -> None:
        self.closed = True


class FakeRules:
    """The rules table, as far as it is read. Each write raises its version."""

    def __init__(self) -> None:
        self.items: dict[str, StoredRules] = {}
        self.reads: list[str] = []
        self.is_away = False
        self._version = 0

    def write(self, scope: str, rules: Any) -> None:
        self._version += 1
        self.items[scope] = StoredRules(scope, rules, self._version, "op", None)

    def version(self) -> int:
        self._read("version")
        return self._version

    def read_all(self) -> list[StoredRules]:
        self._read("all")
        return list(self.items.values())

    def _read(self, what: str) -> None:
        self.reads.append(what)
        if self.is_away:
            raise SendFailed("read rules: ConnectTimeoutError")
