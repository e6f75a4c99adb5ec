"""Treats every signal that would end a command as Ctrl-C, so that the command can remove what it created."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def endings_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at the first signal that would end this process. Ignore further signals."""
    before = {number: signal.signal(number, _interrupt) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> NoReturn:
    # A second Ctrl-C must not interrupt the removal of what the command made.
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
