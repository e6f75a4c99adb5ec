"""Passes messages from any thread to every open page."""

import asyncio
import json
import threading

from message_buffer.json_object import Json

# If this many messages wait for a slow page, the console disconnects the page, which then connects again.
MAX_WAITING_MESSAGES = 500
Reader = asyncio.Queue[bytes | None]


class Hub:
    def __init__(self) -> None:
        self._readers: dict[Reader, asyncio.AbstractEventLoop] = {}
        self._changed = threading.Condition()

    def open(self) -> Reader:
        """Return a queue of a page's messages, of which None is the last. Call this only in the server's event loop."""
        reader: Reader = asyncio.Queue()
        with self._changed:
            self._readers[reader] = asyncio.get_running_loop()
            self._changed.notify_all()
        return reader

    def close(self, reader: Reader) -> None:
        with self._changed:
            self._readers.pop(reader, None)

    def end(self) -> None:
        """Disconnect all pages before the server ends."""
        self._put(None)

    def publish(self, kind: str, data: Json) -> None:
        self._put(framed(kind, data))

    def wait_for_a_reader(self, *, timeout_seconds: float) -> bool:
        """Wait until a page is open. Return False if no page was opened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._readers), timeout_seconds)

    def _put(self, message: bytes | None) -> None:
        with self._changed:
            for reader, loop in self._readers.items():
                loop.call_soon_threadsafe(_add, reader, message)


def _add(reader: Reader, message: bytes | None) -> None:
    if reader.qsize() >= MAX_WAITING_MESSAGES:
        while not reader.empty():
            reader.get_nowait()
        message = None
    reader.put_nowait(message)


def framed(kind: str, data: Json) -> bytes:
    """Return the message in the form of server-sent events. JSON has no line breaks of its own."""
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=True, separators=(',', ':'))}\n\n".encode()
