"""Dials Valkey. A dial connects, sets up TLS and signs in, with one time limit for all three steps.

In a private network the first connection of a function's instance may take seconds, but a call on an open connection
takes milliseconds. So a dial has its own time limit and its own thread. If a caller cannot wait any longer, it gives
up, the dial continues, and a later call finds the connection open.
"""

from collections.abc import Callable
from concurrent.futures import Future
from socket import socket
from threading import Thread
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from redis import Connection, Redis, SSLConnection
from redis.exceptions import ConnectionError as LostConnection

from message_buffer.limits import MIN_SOCKET_SECONDS
from message_buffer.tls import tls_with


class BoundedConnection(Connection):
    """A connection whose dial takes at most `socket_connect_timeout`, including TLS and the sign-in.

    redis-py would apply that limit to TCP alone. It would apply `socket_timeout` to TLS, and once more to the sign-in.
    """

    _ends_at: float | None = None
    """The end of the dial that is in progress."""
    _has_dialled = False

    def _connect(self) -> Any:
        # During a call, redis-py would dial a lost connection again, even if the caller has too little time for that.
        if self._has_dialled:
            raise LostConnection("the connection was lost")
        self._has_dialled = True
        self._ends_at = monotonic() + (super().socket_connect_timeout or 0)
        return super()._connect()  # type: ignore[no-untyped-call]  # redis-py's

    def on_connect_check_health(self, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - redis-py's signature
        super().on_connect_check_health(check_health)
        if not (self.credential_provider or self.username or self.password):
            # If there is no sign-in, only this command proves that the server answers.
            self.send_command("PING", check_health=False)  # type: ignore[no-untyped-call]  # redis-py's
            self.read_response()
        self._ends_at = None
        self.update_current_socket_timeout(-1)

    # No setters are needed: redis-py sets these time-outs only if the server announces maintenance, with RESP 3.
    @property  # type: ignore[misc]
    def socket_timeout(self) -> Any:
        return super().socket_timeout if self._ends_at is None else self._left

    @property  # type: ignore[misc]
    def socket_connect_timeout(self) -> Any:
        return super().socket_connect_timeout if self._ends_at is None else self._left

    @property
    def _left(self) -> float:
        return max((self._ends_at or 0) - monotonic(), MIN_SOCKET_SECONDS)


class TlsLine(BoundedConnection, SSLConnection):
    def _wrap_socket_with_ssl(self, sock: socket) -> socket:
        # Use our own TLS settings, because redis-py would read the system's certificates for each connection.
        return tls_with(self.ca_certs).wrap_socket(sock, server_hostname=self.host)


class Node(Redis):
    """A client of one server. ElastiCache Serverless is a cluster, but shows one node that owns all slots. A cluster's
    client would dial twice, and might call the port for readers, which refuses calls."""

    def close(self) -> None:
        """Close the idle connections. A connection that another thread is using ends with that thread's call."""
        self.connection_pool.disconnect(inuse_connections=False)
        # A closed connection does not dial again, so this client needs new connections if it is used again.
        self.connection_pool.reset()


class _Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)


class Dial(Generic[C]):
    """Opens a client, or another object with a connection, in a thread."""

    def __init__(self, open_it: Callable[[], C], *, began_ms: int = 0) -> None:
        self.began_ms = began_ms
        self.took_ms = 0
        self._opened: Future[C] = Future()
        # A thread that hangs must not keep the process alive.
        Thread(target=self._run, args=(open_it,), name="dial-valkey", daemon=True).start()

    def _run(self, open_it: Callable[[], C]) -> None:
        began = monotonic()
        try:
            opened = open_it()
            self.took_ms = round((monotonic() - began) * 1_000)
            self._opened.set_result(opened)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._opened.set_exception(error)

    def wait(self, seconds: float) -> C | None:
        """Return the opened object, or None if opening takes longer than `seconds`. Raise the error if it failed."""
        try:
            return self._opened.result(max(seconds, 0))
        except TimeoutError:
            # If the dial is done, it ended just after the wait, or it failed with this TimeoutError itself.
            return self._opened.result() if self._opened.done() else None

    @property
    def is_open(self) -> bool:
        return self._opened.done() and not self._opened.exception()

    def abandon(self) -> None:
        """Close the opened object, now or as soon as it is open."""
        self._opened.add_done_callback(_close)


def _close(opened: Future[Any]) -> None:
    if not opened.exception():
        opened.result().close()
