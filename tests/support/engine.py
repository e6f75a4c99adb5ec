"""The engine under test: a store on some backend, a clock that the test sets, and a view of every key."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import urandom
from pathlib import Path
from typing import Any

from message_buffer.clock import Clock
from message_buffer.lanes.outcomes import BufferCancelled, MessageBuffered, MessageDuplicate, MessageRefused
from message_buffer.lanes.valkey.connection import Client, Connection
from message_buffer.lanes.valkey.scripts import LUA_DIRECTORY, Argument, Script, load_script
from message_buffer.lanes.valkey.store import FIRST_LOOK, Store
from message_buffer.lanes.valkey.wake import Wake
from message_buffer.messages.message import Message, encode
from message_buffer.rules.rules_and_defaults import Rules
from message_buffer.settings import StoreSettings

START_OF_TIME_MS = 1_700_000_000_000
# The times of a stage without settings of its own.
SETTINGS = StoreSettings(
    shards=1,
    start_ms=4_000,
    lease_ms=5_000,
    claim_ms=10_000,
    token_ms=6_000,
    slots=10_000,
    max_waiting=5_000,
    max_waiting_bytes=32 * 1024 * 1024,
)

_DUMP_KEY = "{b0}:looked-at-by-the-test"
# Everything a server holds, in one round trip.
_DUMP = """
local all = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind = redis.call('TYPE', key)
  kind = kind.ok or kind
  local value
  if kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  else value = {redis.call('GET', key)} end
  all[#all + 1] = {key, kind, redis.call('PTTL', key), value}
end
return all
"""


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = START_OF_TIME_MS

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> int:
        self.now_ms += ms
        return self.now_ms


class Key:
    def __init__(self, kind: str, ttl_ms: int, value: list[bytes]) -> None:
        self.kind, self.ttl_ms, self.value = kind, ttl_ms, value

    @property
    def pairs(self) -> dict[bytes, bytes]:
        return dict(zip(self.value[::2], self.value[1::2], strict=True))


class Engine:
    def __init__(
        self,
        client: Client,
        admin: Any,
        *,
        settings: StoreSettings = SETTINGS,
        shebang: str = "",
        scripts: Path = LUA_DIRECTORY,
    ) -> None:
        self.clock = ManualClock()
        self.admin = admin
        self.client = client
        self.shebang = shebang
        self._scripts = scripts
        self.store = Store(Connection(lambda: client), settings, clock=self.clock, shebang=shebang, scripts=scripts)
        self.processor = "lease-1"

    def another_store(
        self,
        settings: StoreSettings | None = None,
        *,
        clock: Clock | None = None,
        new_call_id: Callable[[], str] | None = None,
        connection: Connection | None = None,
    ) -> Store:
        """Return a second store on the same server, as another host has it, with its own clock or settings."""
        client = self.client
        return Store(
            connection or Connection(lambda: client),
            settings or self.store.settings,
            clock=clock or self.clock,
            shebang=self.shebang,
            scripts=self._scripts,
            new_call_id=new_call_id or (lambda: urandom(8).hex()),
        )

    def send(
        self, conversation: str, message_id: str, text: str | None = None, *, rules: Rules | None = None
    ) -> MessageBuffered | MessageDuplicate:
        timing = (rules or Rules()).timing_of(text or "")
        return accepted(
            self.store.buffer_message(conversation, message_id, payload=payload(message_id, text), timing=timing)
        )

    def cancel(self, conversation: str) -> BufferCancelled:
        outcome = self.store.cancel_buffer(conversation)
        assert isinstance(outcome, BufferCancelled)
        return outcome

    def work(self) -> None:
        """Become the processor, so that claims are allowed."""
        self.store.acquire_lease(0, self.processor)

    def claim(self) -> list[str]:
        """Claim what is due now, as the live processor of shard 0. Return the conversations."""
        self.work()
        claimed = self.store.claim_due(0, self.processor)
        return [due.conversation for due in claimed.conversations]  # type: ignore[union-attr]

    def keys(self) -> dict[str, Key]:
        found = self.admin.execute_command("EVAL", _DUMP, 1, _DUMP_KEY)
        return {key.decode(): Key(kind.decode(), ttl, value) for key, kind, ttl, value in found}

    def settle(self) -> dict[str, tuple[str, list[bytes]]]:
        """Return the content of every key in a form that can be compared between two moments."""
        return {
            name: (key.kind, key.value if key.kind == "list" else sorted(map(bytes, key.value)))
            for name, key in self.keys().items()
        }


class InterruptedSearch(Connection):
    """A connection on which other things happen between the calls of one search for a message."""

    def __init__(self, client: Client, happens: Mapping[int, Callable[[], object]], *, is_misled: bool = False) -> None:
        """Let `happens[n]` happen after the n-th call. If `is_misled`, the search skips its guess of the position."""
        super().__init__(lambda: client)
        self._happens, self._is_misled = happens, is_misled
        self.calls = 0

    def run(self, script: Script, keys: list[bytes], args: tuple[Argument, ...]) -> list[Any]:
        if self._is_misled:
            args = tuple("before:999999" if arg == FIRST_LOOK else arg for arg in args)
        reply = super().run(script, keys, args)
        self.calls += 1
        if reply[0] == b"SEARCHING" and self.calls in self._happens:
            self._happens[self.calls]()
        return reply


def accepted(outcome: MessageBuffered | MessageDuplicate | MessageRefused) -> MessageBuffered | MessageDuplicate:
    assert not isinstance(outcome, MessageRefused)
    return outcome


def payload(
    message_id: str, text: str | None = None, *, edited_at_ms: int | None = None, queue: str | None = None
) -> bytes:
    return encode(
        Message(
            id=message_id,
            text=f"text of {message_id}" if text is None else text,
            platform="generic",
            received_at=0,
            edited_at=edited_at_ms,
            queue=queue,
        )
    )


# -- which keys a script really touched ------------------------------------------------------------

_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_EVERY_ARGUMENT_IS_A_KEY = {b"del", b"unlink"}
_TWO_KEYS = {b"rename"}
_ONE_KEY = {
    b"exists", b"hdel", b"hexists", b"hget", b"hincrby", b"hmget", b"hscan", b"hset", b"linsert", b"llen", b"lpush",
    b"lrange", b"lrem", b"lset", b"ltrim", b"persist", b"pexpire", b"rpush", b"zadd", b"zcard", b"zcount",
    b"zrange", b"zrem", b"zremrangebyrank", b"zremrangebyscore", b"zscan", b"zscore",
}  # fmt: skip


class Watch:
    """A record of MONITOR: for each script call its declared keys, and the commands that it ran."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, set[bytes], list[list[bytes]]]] = []

    def feed(self, line: bytes) -> None:
        words = _QUOTED.findall(line)
        command = words[0].lower()
        if command in {b"evalsha", b"eval"}:
            count = int(words[2])
            self.calls.append((words[1], set(words[3 : 3 + count]), []))
        elif b" lua] " in line.split(b'"', 1)[0]:
            self.calls[-1][2].append([command, *words[1:]])

    def undeclared(self) -> list[str]:
        return [
            f"{command[0].decode()} {key.decode()}"
            for _, declared, commands in self.calls
            if declared != {_DUMP_KEY.encode()}
            for command in commands
            for key in _keys_of(command)
            if key not in declared
        ]

    def commands_of(self, name: str, shebang: str) -> list[list[list[bytes]]]:
        sha = load_script(name, shebang=shebang).sha.encode()
        return [commands for called, _, commands in self.calls if called == sha]


def _keys_of(command: list[bytes]) -> list[bytes]:
    name = command[0]
    if name in _EVERY_ARGUMENT_IS_A_KEY:
        return command[1:]
    if name in _TWO_KEYS:
        return command[1:3]
    assert name in _ONE_KEY, f"say which arguments of {name!r} are keys"
    return command[1:2]


@contextmanager
def monitored(admin: Any) -> Iterator[Watch]:
    """Record MONITOR while the block runs. The record is complete when the block has ended."""
    connection = admin.connection_pool.get_connection()
    watch = Watch()
    connection.send_command("MONITOR")
    connection.read_response()
    sock = connection._sock
    try:
        yield watch
    finally:
        admin.execute_command("ECHO", "end-of-watch")
        seen = b""
        sock.settimeout(10)
        while b"end-of-watch" not in seen:
            seen += sock.recv(1 << 20)
        for line in seen.split(b"\r\n"):
            if line.startswith(b"+") and b'"' in line and b"end-of-watch" not in line:
                watch.feed(line)
        connection.disconnect()
        admin.connection_pool.release(connection)


def open_line(wake: Wake) -> None:
    """Sleep on `wake` until its connection is open, because only a sleep opens it."""
    while wake._pop is None:
        assert not wake.wait(0.001)
