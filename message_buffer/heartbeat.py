"""Keeps something of ours ours while work goes on: a message invisible to others, a lock from running out."""

from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType


class Heartbeat:
    """Calls `beat` again and again, in the background, from when its block is entered until it is left.

    A beat that fails is the last one. Whoever works asks `check()` before a step that only the owner may take: it
    raises what the beat raised.
    """

    def __init__(self, beat: Callable[[], None], *, every_seconds: float) -> None:
        self._beat = beat
        self._every_seconds = every_seconds
        self._left = Event()
        self._error: Exception | None = None
        # A daemon: a beat that hangs in a call must not keep the process from ending.
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        # A beat that is on its way would otherwise lengthen what is about to be given up.
        self._thread.join()

    def _run(self) -> None:
        while not self._left.wait(self._every_seconds):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - whatever it was, what it kept may be lost: `check` tells
                self._error = error
                return
