"""Many clients in one process. Each is as simple as a `Wire`, and has at most one unanswered request.

All contestants use these clients, so that the adds per second compare the servers and not the client libraries.
"""

import select
import socket
import time
from collections.abc import Iterable, Iterator

import hiredis

from tools.bench.wire import ServerRefused, Wire


class Crowd(Wire):
    """A `Wire` whose `ask_all` shares the requests out among its clients."""

    def __init__(self, port: int, *, clients: int) -> None:
        super().__init__(port)
        self._sockets = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(clients)]
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.seconds = 0.0

    def close(self) -> None:
        super().close()
        for each in self._sockets:
            each.close()

    def ask_all(self, requests: Iterable[bytes]) -> None:
        """Send all requests, with all clients at once. Each client waits for the answer before its next request."""
        waiting = list(requests)
        share = -(-len(waiting) // len(self._sockets))
        turns = [iter(waiting[start : start + share]) for start in range(0, len(waiting), share)]
        began = time.perf_counter()
        self._drive(dict(zip(self._sockets, turns, strict=False)))
        self.seconds += time.perf_counter() - began

    @staticmethod
    def _drive(turns: dict[socket.socket, Iterator[bytes]]) -> None:
        poll = select.epoll()
        lines = {each.fileno(): (each, mine, hiredis.Reader()) for each, mine in turns.items()}
        for number, (each, mine, _) in lines.items():
            poll.register(number, select.EPOLLIN)
            each.sendall(next(mine))
        active = len(lines)
        while active:
            for number, _ in poll.poll():
                each, mine, reader = lines[number]
                reader.feed(each.recv(65536))
                reply = reader.gets()
                if reply is False:  # it came in pieces
                    continue
                if isinstance(reply, hiredis.ReplyError):
                    raise ServerRefused(str(reply))
                request = next(mine, None)
                if request is None:
                    active -= 1
                else:
                    each.sendall(request)
        poll.close()
