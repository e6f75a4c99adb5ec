"""The time, in milliseconds since 1970. Code that needs it is given a Clock, so that tests can control the time."""

from collections.abc import Callable
from time import time_ns

Clock = Callable[[], int]


def system_clock() -> int:
    return time_ns() // 1_000_000
