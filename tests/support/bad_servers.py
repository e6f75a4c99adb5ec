"""Servers that never answer. A client must give up on them in time."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


class BadServer:
    def __init__(self, *, hangs_up: bool) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._hangs_up = hangs_up
        self._kept: list[socket.socket] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self._hangs_up:
                client.close()
            else:
                self._kept.append(client)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for client in self._kept:
            client.close()


@contextlib.contextmanager
def black_hole() -> Iterator[BadServer]:
    """Yield a server that takes connections and requests and never answers."""
    server = BadServer(hangs_up=False)
    yield server
    server.close()


@contextlib.contextmanager
def hanging_up() -> Iterator[BadServer]:
    server = BadServer(hangs_up=True)
    yield server
    server.close()


@contextlib.contextmanager
def losing_the_first_packet() -> Iterator[int]:
    """Yield the port of a server whose next client connects only with its second packet, after a second.

    While a backlog is full, Linux drops the packets of further clients, and each client sends its own again.
    """
    with socket.socket() as server, socket.socket() as first:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        first.connect(server.getsockname())

        def make_room() -> None:
            time.sleep(0.3)
            for _ in range(2):
                server.accept()[0].close()

        thread = threading.Thread(target=make_room)
        thread.start()
        yield server.getsockname()[1]
        thread.join()
