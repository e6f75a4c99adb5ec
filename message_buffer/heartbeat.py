"""Extends a lock, or the time for which a queue hides a message, while a function works."""

from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType


class Heartbeat:
    """Calls `beat` regularly in the background while the `with` block runs. After a beat has failed, no beats follow.
    `check()` raises that beat's error; call it before a step that only the lock's owner may take."""

    def __init__(self, beat: Callable[[], None], *, every_seconds: float) -> None:
        self._beat = beat
        self._every_seconds = every_seconds
        self._left = Event()
        self._error: Exception | None = None
        # A hanging beat must not keep the process alive.
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def check(self) -> None:
        """Raise the error of a beat that failed, if there is one."""
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        # Wait for a running beat, because it could extend the lock after its owner has released it.
        self._thread.join()

    def _run(self) -> None:
        while not self._left.wait(self._every_seconds):
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - after any error the lock may be lost; `check` raises it
                self._error = error
                return
