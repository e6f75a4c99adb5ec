"""A minimal client with one socket. Its requests are already encoded, and it never retries.

All contestants use the same client, so that only the server's work differs.
"""

import socket
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import hiredis

Word = bytes | str | int | float


def encode(*words: Word) -> bytes:
    """Return a request as redis-py would send it."""
    bulks = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(bulks) + b"".join([b"$%d\r\n%b\r\n" % (len(bulk), bulk) for bulk in bulks])


class ServerRefused(Exception):
    pass


class Wire:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def close(self) -> None:
        self._socket.close()

    def call(self, *words: Word) -> Any:
        return self.ask(encode(*words))

    def ask(self, request: bytes) -> Any:
        """Send one request and return its reply, in one round trip."""
        self._socket.sendall(request)
        return self._next_reply()

    def ask_all(self, requests: Iterable[bytes]) -> None:
        """Send the requests one after the other, each in a round trip of its own."""
        send, receive, reader = self._socket.sendall, self._socket.recv, self._reader
        for request in requests:
            send(request)
            reader.feed(receive(65536))
            reply = reader.gets()
            if reply is False:  # it came in pieces
                reply = self._next_reply()
            if isinstance(reply, hiredis.ReplyError):
                raise ServerRefused(str(reply))

    def pipe(self, requests: Iterable[bytes], *, at_once: int = 200) -> None:
        """Send up to `at_once` requests in a round trip. This is faster, and keeps the socket's cost out of a figure.

        The next requests are encoded while the server works.
        """
        waiting = 0
        for chunk in _chunks(iter(requests), at_once):
            packet = b"".join(chunk)
            self._drain(waiting)
            self._socket.sendall(packet)
            waiting = len(chunk)
        self._drain(waiting)

    def _drain(self, replies: int) -> None:
        for _ in range(replies):
            self._next_reply()

    def _next_reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            received = self._socket.recv(1 << 16)
            if not received:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(received)
        if isinstance(reply, hiredis.ReplyError):
            raise ServerRefused(str(reply))
        return reply


def _chunks(items: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    while chunk := list(islice(items, size)):
        yield chunk
