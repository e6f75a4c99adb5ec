"""The clock: milliseconds since 1970. Everything that needs the time gets a Clock, so that tests control it."""

from collections.abc import Callable
from time import time_ns

Clock = Callable[[], int]


def system_clock() -> int:
    return time_ns() // 1_000_000
