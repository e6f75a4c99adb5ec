"""The one clock: milliseconds since 1970. Everything that needs the time is given a Clock, so tests own it."""

from collections.abc import Callable
from time import time_ns

Clock = Callable[[], int]


def system_clock() -> int:
    return time_ns() // 1_000_000
