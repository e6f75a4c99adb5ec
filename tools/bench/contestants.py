"""The systems that the benchmarks compare (the contestants), and the traffic for them.

Every contestant gets the same conversations, ids and payloads. All use the same server, each with its own keys. In a
wave, every conversation sends five fragments, and then its batch is removed. The Valkey lane remembers message ids for
a day. From the second day on, these are the ids of four waves, because the waves are six hours apart.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from message_buffer.lanes.outcomes import BatchCompleted, BatchTaken, ConversationsClaimed
from message_buffer.lanes.valkey.connection import Connection
from message_buffer.lanes.valkey.keys import script_keys
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, Script, load_script
from message_buffer.lanes.valkey.store import Store
from message_buffer.rules.quota import Charge, Quota
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.rules.timing import Timing
from tests.support.engine import SETTINGS
from tools.bench.measure import Cost, Meter
from tools.bench.wire import Wire, Word, encode

FRAGMENTS = 5
PAYLOAD_BYTES = 200
START_MS = 1_700_000_000_000
GAP_MS = 700
WAVE_MS = 6 * 3_600_000
WARM_UP_WAVES = 4
TIMING = Rules().timing
# The requests are charged to a quota of the default size, so that the measurements include the cost of quotas.
CHARGE = Charge(
    (("whatsapp/109876543210987", Quota(messages_per_minute=30_000_000, conversations_per_minute=3_000_000)),)
)


def conversation_id(number: int) -> str:
    return f"whatsapp:109876543210987:acme-support:{4917000000000 + number}"


def message_id(conversation: int, number: int) -> str:
    return f"wamid.HBgNNDkxNzYxMjM0NTY3OBUCABIYFjNFQjA{conversation:08X}{number:010X}A="


def payload(conversation: int, number: int, size: int = PAYLOAD_BYTES) -> bytes:
    head = f'"{message_id(conversation, number)}"\n{{"v":1,"text":"'.encode()
    tail = b'","type":"text","receivedAt":1700000000000,"platform":"whatsapp"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


class Contestant(Protocol):
    name: str

    def wave(self, conversations: int, meter: Meter) -> Cost:
        """Send one wave of traffic. Return the cost of its messages."""


class Recorder(Connection):
    """A stand-in for the store's connection that keeps the request instead of sending it."""

    def __init__(self) -> None:
        self.request = b""

    def run(self, script: Script, keys: list[bytes], args: tuple[Word, ...]) -> list[Any]:
        self.request = encode("EVALSHA", script.sha, len(keys), *keys, *args)
        return [b"DUPLICATE", 0, 0, 0, b""]


class RecordingSender(Recorder):
    """Keeps the request, as `Recorder` does, and sends it."""

    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def run(self, script: Script, keys: list[bytes], args: tuple[Word, ...]) -> list[Any]:
        super().run(script, keys, args)
        reply: list[Any] = self._wire.ask(self.request)
        return reply


class Ours:
    """Our engine. Its requests come from the product's `Store`. It also claims, takes and completes the batches."""

    name = "ours"

    def __init__(self, wire: Wire, *, offset: int = 0, payload_bytes: int = PAYLOAD_BYTES) -> None:
        self._wire = wire
        self._offset = offset
        self._payload_bytes = payload_bytes
        self.now_ms = START_MS
        self._waves = 0
        settings = SETTINGS._replace(lease_ms=10**12)
        self._recorder = Recorder()
        self._ingest = Store(self._recorder, settings, clock=lambda: self.now_ms)
        self._processor = Store(RecordingSender(wire), settings, clock=lambda: self.now_ms)
        for path in sorted(LUA_DIRECTORY.glob("*.lua")):
            wire.call("SCRIPT", "LOAD", load_script(path.stem).source)
        self._processor.acquire_lease(0, "lease")

    def request(self, conversation: int, number: int, timing: Timing = TIMING) -> bytes:
        conversation += self._offset
        self._ingest.buffer_message(
            conversation_id(conversation),
            message_id(conversation, number),
            payload=payload(conversation, number, self._payload_bytes),
            timing=timing,
            charge=CHARGE,
        )
        return self._recorder.request

    def claim(self, *, limit: int = 500) -> list[str]:
        claimed = self._processor.claim_due(0, "lease", limit=limit)
        assert isinstance(claimed, ConversationsClaimed)
        return [due.conversation for due in claimed.conversations]

    def take_and_complete(self, conversation: str) -> None:
        token = f"token-{self.now_ms}"
        taken = self._processor.take_batch(conversation, token)
        assert isinstance(taken, BatchTaken)
        completed = self._processor.complete_batch(conversation, token)
        assert isinstance(completed, BatchCompleted)

    def wave(self, conversations: int, meter: Meter) -> Cost:
        mix = Cost()
        self._waves += 1
        for fragment in range(FRAGMENTS):
            requests = [self.request(each, self._waves * 10 + fragment) for each in range(conversations)]
            with meter.costs_of(conversations) as cost:
                self._wire.ask_all(requests)
            mix += cost
            self.now_ms += GAP_MS // 2
            assert not self.claim()  # the processor checks every half second; nothing is due yet
            self.now_ms += GAP_MS // 2
        self.now_ms += TIMING.max_wait_ms
        while claimed := self.claim():
            for conversation in claimed:
                self.take_and_complete(conversation)
        self.now_ms += WAVE_MS
        return mix


# The design that samples and blog posts show. Each fact about a conversation has its own string key. The messages are a
# list, and the waiting conversations are a sorted set. To be fair to this design, its twelve commands are one script,
# and all keys are in one slot. It does not drop redeliveries. Before each message, ingest must know whether a processor
# runs. So it also reads the processor's lease and heartbeat, in two more round trips.
NAIVE = b"""
local last, first = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[3])
local now, silence = tonumber(ARGV[1]), tonumber(ARGV[4])
redis.call('SET', KEYS[2], ARGV[1], 'EX', ARGV[6])
redis.call('SET', KEYS[3], ARGV[1], 'NX')
if last and now - tonumber(last) < tonumber(ARGV[5]) then silence = tonumber(ARGV[5]) end
local due = math.min(now + silence, (tonumber(first) or now) + tonumber(ARGV[7]))
redis.call('INCR', KEYS[4])
redis.call('SET', KEYS[5], due, 'EX', ARGV[6])
redis.call('LPUSH', KEYS[1], ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[6])
redis.call('EXPIRE', KEYS[3], ARGV[6])
redis.call('EXPIRE', KEYS[4], ARGV[6])
local count = redis.call('LLEN', KEYS[1])
redis.call('ZADD', KEYS[6], due, ARGV[2])
return {due, count}
"""
NAIVE_KINDS = ("n-msgs:<id>", "n-last:<id>", "n-first:<id>", "n-count:<id>", "n-due:<id>", "n-pending")


class Naive:
    name = "naive"

    def __init__(self, wire: Wire, *, payload_bytes: int = PAYLOAD_BYTES) -> None:
        self._wire = wire
        self._payload_bytes = payload_bytes
        self._sha = wire.call("SCRIPT", "LOAD", NAIVE)
        lease, heartbeat = script_keys(("n-lease", "n-heartbeat"), 0)
        wire.call("SET", lease, "0123456789abcdef", "EX", 3600)
        wire.call("SET", heartbeat, START_MS, "EX", 3600)
        self._checks = [encode("GET", lease), encode("GET", heartbeat)]
        self.now_ms = START_MS
        self._sent = 0

    def request(self, conversation: int, number: int, timing: Timing = TIMING) -> bytes:
        name = conversation_id(conversation)
        keys = script_keys(NAIVE_KINDS, 0, name.encode())
        return encode(
            "EVALSHA", self._sha, len(keys), *keys, self.now_ms, name,
            payload(conversation, number, self._payload_bytes),
            timing.silence_ms, timing.typing_ms, 3600, timing.max_wait_ms,
        )  # fmt: skip

    def wave(self, conversations: int, meter: Meter) -> Cost:
        mix = Cost()
        for _ in range(FRAGMENTS):
            self._sent += 1
            requests = [self.request(each, self._sent) for each in range(conversations)]
            with meter.costs_of(conversations) as cost:
                self._wire.ask_all(each for request in requests for each in (request, *self._checks))
            mix += cost
            self.now_ms += GAP_MS
        self._wire.pipe(self._forget(conversations))
        self.now_ms += WAVE_MS
        return mix

    def _forget(self, conversations: int) -> Iterator[bytes]:
        """Yield requests that remove the batches of a wave, as a conversation processor would."""
        for conversation in range(conversations):
            yield encode("DEL", *script_keys(NAIVE_KINDS, 0, conversation_id(conversation).encode()))


class BullMq:
    """BullMQ. Its own client has sent one wave, and our client sends the recorded requests again.

    The requests contain the times of the recording. The wait is so long that each fragment but the first replaces a job
    that is still waiting.
    """

    def __init__(self, wire: Wire, requests: list[list[list[bytes]]], *, name: str) -> None:
        self.name = name
        self._wire = wire
        self._fragments = requests

    def wave(self, conversations: int, meter: Meter) -> Cost:
        mix = Cost()
        for messages in self._fragments:
            with meter.costs_of(conversations) as cost:
                self._wire.ask_all(request for message in messages for request in message)
            mix += cost
        self._wire.pipe(self._forget())
        return mix

    def _forget(self) -> Iterator[bytes]:
        """Yield requests that remove what a worker would remove. Keep the events, the id counter and the metadata."""
        cursor, kept = b"0", {b"{bull}:bench:" + kind for kind in (b"events", b"id", b"meta")}
        while True:
            cursor, keys = self._wire.call("SCAN", cursor, "MATCH", "{bull}:*", "COUNT", 1_000)
            if gone := set(keys) - kept:
                yield encode("UNLINK", *gone)
            if cursor == b"0":
                return
