"""Which held messages are this lane's to emit, where the debounce lane may have them too.

A message can be in both: Valkey took it and its answer was lost, or its platform sent it again while Valkey was away.
Whoever says so first in the holding table answers for it; the other one drops it.
"""

import json
from typing import Protocol

from lambdas.shared.breaker import Breaker
from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import StoreError
from lambdas.shared.senders.holding_table import Contents, Held, HoldingTable
from lambdas.shared.store import outcomes as o
from lambdas.shared.telemetry import Telemetry
from lambdas.shared.window import REMEMBER_MS


class MainLane(Protocol):
    def find_message(self, conversation: str, message_id: str) -> o.Waiting | o.Frozen | o.Absent: ...

    def delete_message(self, conversation: str, message_id: str) -> o.Deleted | o.Frozen | o.Absent: ...


class Ownership:
    def __init__(
        self, table: HoldingTable, main: MainLane | None, telemetry: Telemetry, *, clock: Clock = system_clock
    ) -> None:
        self._table = table
        self._main = main
        self._telemetry = telemetry
        self._clock = clock
        self._breaker = Breaker(clock=clock)

    def ours(self, conversation: str, contents: Contents) -> list[Held]:
        return [each for each in contents.held if self._is_ours(conversation, each, contents)]

    def _is_ours(self, conversation: str, held: Held, contents: Contents) -> bool:
        if held.by_window or not self._has_main(conversation, held, contents):
            return True
        return not self._table.leave_to_main(conversation, held.name, expires_at_ms=self._clock() + REMEMBER_MS)

    def _has_main(self, conversation: str, held: Held, contents: Contents) -> bool:
        """Emitted by the debounce lane, or about to be. What still waits there is taken away from it."""
        if held.name in contents.journaled:
            return True
        if self._main is None or self._breaker.is_open:
            return False
        message_id = json.loads(held.body.partition(b"\n")[0])
        try:
            found = self._main.find_message(conversation, message_id)
            if isinstance(found, o.Waiting):
                self._table.claim_for_window(conversation, held.name)
                self._main.delete_message(conversation, message_id)
                return False
        except StoreError as error:
            # What it has of this message, it will find here when it is back.
            self._breaker.failed()
            self._telemetry.count("StoreFailures")
            self._telemetry.warn("main lane not asked", conversation=conversation, reason=str(error))
            return False
        self._breaker.succeeded()
        return isinstance(found, o.Frozen) or found.known
