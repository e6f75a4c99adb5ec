"""Measure the server's cost of some requests, and summarize figures that differ from round to round."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tools.bench.wire import Wire, encode

_STATS = encode("INFO", "commandstats")
_RESET = encode("CONFIG", "RESETSTAT")
_CPU = encode("INFO", "cpu")
_STAT = re.compile(rb"cmdstat_([^:]+):calls=(\d+),usec=(\d+)")

# A figure is too noisy to be reported if its interquartile range is larger than this share of its median.
NOISY_ABOVE = 0.15


@dataclass
class Cost:
    """The server's cost of handling some messages."""

    messages: int = 0
    cpu_ns: int = 0
    script_us: int = 0
    commands: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.messages + other.messages,
            self.cpu_ns + other.cpu_ns,
            self.script_us + other.script_us,
            self.commands + other.commands,
        )

    @property
    def cpu_us_per_message(self) -> float:
        """Return the CPU time of the whole server process, with sockets, parser and script."""
        return self.cpu_ns / 1000 / self.messages

    @property
    def script_us_per_message(self) -> float:
        """Return the time that the server itself reports for EVALSHA."""
        return self.script_us / self.messages


class Meter:
    """Reads a server's counters before and after the measured requests, on a connection of its own."""

    def __init__(self, port: int, pid: int) -> None:
        self._wire = Wire(port)
        self._pid = pid

    def close(self) -> None:
        self._wire.close()

    @contextmanager
    def costs_of(self, messages: int) -> Iterator[Cost]:
        cost = Cost(messages)
        self._wire.ask(_RESET)
        before = self.cpu_ns()
        yield cost
        cost.cpu_ns = self.cpu_ns() - before
        for name, calls, usec in _STAT.findall(self._wire.ask(_STATS)):
            if name == b"evalsha":
                cost.script_us = int(usec)
            if name not in {b"config|resetstat", b"info"}:
                cost.commands += int(calls)

    def cpu_ns(self) -> int:
        """Return user and system time of all threads of the server process."""
        tasks = list(Path(f"/proc/{self._pid}/task").glob("*/schedstat"))
        if tasks:
            # This is the sum of utime and stime in /proc/<pid>/stat, but not rounded to clock ticks of 10 ms.
            return sum(int(task.read_text("ascii").split()[0]) for task in tasks)
        seconds = re.findall(rb"used_cpu_(?:sys|user):([\d.]+)", self._wire.ask(_CPU))
        return int(sum(map(float, seconds)) * 1e9)

    def used_memory(self) -> int:
        found = re.search(rb"used_memory:(\d+)", self._wire.call("INFO", "memory"))
        assert found
        return int(found[1])


class Figure(NamedTuple):
    """The median of the rounds, and their interquartile range."""

    median: float
    low: float
    high: float

    @property
    def too_noisy(self) -> bool:
        return self.high - self.low > NOISY_ABOVE * self.median

    def shown(self, digits: int = 1) -> str:
        """Return the median, or only the interquartile range if the figure is too noisy."""
        if self.too_noisy:
            return f"noisy, {self.low:,.{digits}f}–{self.high:,.{digits}f}"
        return f"{self.median:,.{digits}f}"


def figure(values: list[float]) -> Figure:
    ordered = sorted(values)
    half = len(ordered) // 2
    return Figure(median(ordered), median(ordered[: half or 1]), median(ordered[-half or -1 :]))


def ratio(of: list[float], to: list[float]) -> Figure:
    """Return `of` / `to`. Divide round by round, because both figures of a round suffer from the same disturbances."""
    return figure([a / b for a, b in zip(of, to, strict=True)])
