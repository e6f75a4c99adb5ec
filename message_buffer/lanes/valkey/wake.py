"""Lets a processor sleep until a given time, or until a script wakes it.

The processor sends a blocking pop on a connection of its own, and waits for the reply. The pop's time-out is not the
processor's timer, because the server checks time-outs only ten times a second. The time-out matters only if a processor
vanishes without closing its connection. The processor's pop would otherwise take the wake that is meant for the next
processor.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from redis import RedisError

from message_buffer.errors import StoreError
from message_buffer.lanes.valkey.connection import Client, Swallowed
from message_buffer.lanes.valkey.dial import Dial, Node
from message_buffer.lanes.valkey.keys import wake_key

# The server ends a blocking pop after this time.
POP_SECONDS = 20


class _Pop(NamedTuple):
    """A connection for one blocking pop, and its client."""

    client: Client
    line: Any  # redis-py's connection

    def close(self) -> None:
        self.line.disconnect()
        self.client.close()


class Wake:
    """Lets one run of a processor sleep until a script wakes it. The run signs in once, because a sign-in is valid for
    longer than a run."""

    def __init__(
        self,
        open_client: Callable[[], Client],
        shard: int,
        *,
        swallowed: Swallowed = lambda _: None,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._open_client = open_client
        self._key = wake_key(shard)
        self._swallowed = swallowed
        self._monotonic = monotonic
        self._sleep = sleep
        self._dial: Dial[_Pop] | None = None
        self._pop: _Pop | None = None
        self._is_popping = False

    def wait(self, seconds: float) -> bool:
        """Return whether a script woke the processor within `seconds`. This time includes opening the connection.

        If the connection fails, raise no error, but sleep for the rest of the time and return False.
        """
        deadline = self._monotonic() + seconds
        try:
            while (line := self._popping_line(deadline)) and line.can_read(self._left(deadline)):
                response = line.read_response()
                self._is_popping = False
                # None means that the pop timed out. Send the next pop and continue to wait.
                if response is not None:
                    return True
        except (RedisError, OSError, StoreError) as error:
            self._swallowed(error)
            self.close()
            self._sleep(self._left(deadline))
        return False

    def _left(self, deadline: float) -> float:
        return max(deadline - self._monotonic(), 0)

    def _popping_line(self, deadline: float) -> Any:
        """Return a connection on which a pop is waiting, or None if no connection is open before the deadline."""
        if self._pop is None:
            self._dial = self._dial or Dial(self._open)
            self._pop = self._dial.wait(self._left(deadline))
            if self._pop is None:
                return None
            self._dial = None
        if not self._is_popping:
            self._pop.line.send_command("BLPOP", self._key, POP_SECONDS)
            self._is_popping = True
        return self._pop.line

    def _open(self) -> _Pop:
        client = self._open_client()
        return _Pop(client, cast(Node, client).connection_pool.get_connection())

    def close(self) -> None:
        """Close the connection, so that the server forgets the pop.

        Otherwise that pop would take the wake meant for the next processor.
        """
        if self._pop is not None:
            self._pop.close()
        if self._dial is not None:
            self._dial.abandon()
        self._pop = self._dial = None
        self._is_popping = False
