"""Limits how often the console asks the stage, because the stage serves customers at the same time."""

import threading
import time
from collections.abc import Callable
from typing import Any

from message_buffer.json_object import Json
from tools.console.place import ShownStage

# Polls may use only a part of these requests, because the requests of the page's reader take precedence.
MAX_REQUESTS_A_SECOND = 5
MAX_POLLS_A_SECOND = 3
PAUSE_AFTER_A_PROBLEM_SECONDS = 2.0


class Pace:
    """Lets calls begin one after another, at most `most` in a second."""

    def __init__(
        self, most: int, *, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._interval_seconds = 1 / most
        self._now = now
        self._sleep = sleep
        self._next_at = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Wait until a call may begin, and count the call."""
        with self._lock:
            if (pause := self._next_at - self._now()) > 0:
                self._sleep(pause)
            self._next_at = self._now() + self._interval_seconds


class PacedStage:
    """Asks a stage's admin function at most five times a second. At most three of these requests are polls."""

    def __init__(self, place: ShownStage) -> None:
        self._place = place
        self._all = Pace(MAX_REQUESTS_A_SECOND)
        self._polls = Pace(MAX_POLLS_A_SECOND)

    @property
    def platforms(self) -> Json:
        """Return the kinds of webhooks that can be sent to the stage, by platform."""
        return {platform: list(kinds) for platform, kinds in self._place.sender.kinds.items()}

    def ask(self, operation: str, **fields: Any) -> Json:
        """Return the response to a request of the page's reader. Raise Failed with a text for the reader."""
        self._all.wait()
        with self._place.errors():
            return self._place.stage.ask(operation, **fields)

    def poll(self, operation: str, **fields: Any) -> Json:
        """Return the response to a request that keeps the page up to date."""
        self._polls.wait()
        return self.ask(operation, **fields)
