"""Passes messages from any thread to every open page."""

import asyncio
import json
import threading
from contextlib import suppress

from message_buffer.json_object import Json

# If this many messages wait for a slow page, the console disconnects the page, which then connects again.
MAX_WAITING_MESSAGES = 500


class Closed(Exception):
    """Raised if a page reads its messages too slowly, or if the console ends."""


class Reader:
    """The messages that wait for one page."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: asyncio.Queue[bytes] = asyncio.Queue()
        self._is_closed = False

    def put(self, message: bytes) -> None:
        self._loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: bytes) -> None:
        if self._waiting.qsize() >= MAX_WAITING_MESSAGES:
            self._is_closed = True
        else:
            self._waiting.put_nowait(message)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        self._is_closed = True
        # An empty message wakes `get`.
        self._waiting.put_nowait(b"")

    async def get(self, *, timeout_seconds: float) -> bytes | None:
        """Return the next message, or None if none came in time. Raise Closed if no more will come."""
        message = None
        if not self._is_closed:
            with suppress(TimeoutError):
                message = await asyncio.wait_for(self._waiting.get(), timeout_seconds)
        if self._is_closed:
            raise Closed
        return message


class Hub:
    def __init__(self) -> None:
        self._readers: set[Reader] = set()
        self._changed = threading.Condition()

    def open(self) -> Reader:
        """Return a reader for a page. Call this only in the server's event loop."""
        reader = Reader(asyncio.get_running_loop())
        with self._changed:
            self._readers.add(reader)
            self._changed.notify_all()
        return reader

    def close(self, reader: Reader) -> None:
        with self._changed:
            self._readers.discard(reader)

    def end(self) -> None:
        """End the streams of all pages before the server ends."""
        with self._changed:
            for reader in self._readers:
                reader.close()

    def publish(self, kind: str, data: Json) -> None:
        message = framed(kind, data)
        with self._changed:
            for reader in self._readers:
                reader.put(message)

    def wait_for_a_reader(self, *, timeout_seconds: float) -> bool:
        """Wait until a page is open. Return False if no page was opened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._readers), timeout_seconds)


def framed(kind: str, data: Json) -> bytes:
    """Return the message in the form of server-sent events. JSON has no line breaks of its own."""
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=True, separators=(',', ':'))}\n\n".encode()
