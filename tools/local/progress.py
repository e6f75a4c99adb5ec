"""Shows the current step of a command, and how long each step took."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

PROGRESS_TICK_SECONDS = 0.2


class Progress:
    """Prints one line for each step. On a terminal, the line of the current step counts the seconds."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._began = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        self._stream.write(f"  {text}\n")

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show the block as a step, with its time and whether it failed."""
        began = time.monotonic()
        done = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(title, began, done), daemon=True)
        if self._stream.isatty():
            ticker.start()
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        finally:
            done.set()
            if ticker.is_alive():
                ticker.join()
            self._line(title, began, outcome, end="\n")

    def _tick(self, title: str, began: float, done: threading.Event) -> None:
        while not done.wait(PROGRESS_TICK_SECONDS):
            self._line(title, began, "…", end="")

    def _line(self, title: str, began: float, outcome: str, *, end: str) -> None:
        start = "\r" if self._stream.isatty() else ""
        self._stream.write(f"{start}  {title:<28} {time.monotonic() - began:5.1f} s  {outcome:<6}{end}")
        self._stream.flush()
