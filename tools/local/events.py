"""Collects the events that a running stage puts on its bus."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bufferctl.events import ArrivedEvent, Subscription, subscribe
from lambdas.canary.listening import LONG_POLL_SECONDS
from tools.local.outputs import Outputs

ALL_BATCHES = {"source": ["message-buffer"], "detail-type": ["messages.batch.ready"]}


class Inbox:
    """The events that have arrived so far. A background thread adds new ones."""

    def __init__(self) -> None:
        self._arrivals: list[ArrivedEvent] = []
        self._changed = threading.Condition()

    @property
    def arrivals(self) -> list[ArrivedEvent]:
        with self._changed:
            return list(self._arrivals)

    def wait_until(self, enough: Callable[[Sequence[ArrivedEvent]], bool], *, timeout_seconds: float) -> bool:
        """Wait until `enough` returns True for the events that have arrived. Return False if the time is over first."""
        with self._changed:
            return self._changed.wait_for(lambda: enough(self._arrivals), timeout_seconds)

    def put(self, arrival: ArrivedEvent) -> None:
        with self._changed:
            self._arrivals.append(arrival)
            self._changed.notify_all()


@contextmanager
def collect(outputs: Outputs, *, pattern: dict[str, Any] = ALL_BATCHES) -> Iterator[Inbox]:
    """Yield an inbox that collects the events of the bus until the block ends."""
    inbox = Inbox()
    done = threading.Event()

    def fill(subscription: Subscription) -> None:
        while not done.is_set():
            for arrival in subscription.poll(wait_seconds=LONG_POLL_SECONDS):
                inbox.put(arrival)

    with subscribe(outputs.client, outputs.EventBusName, pattern=pattern, prefix="tap") as subscription:
        filler = threading.Thread(target=fill, args=(subscription,), daemon=True)
        filler.start()
        try:
            yield inbox
        finally:
            done.set()
            filler.join()
