"""What the window lane has to do with a batch of the main lane.

While Valkey cannot be reached, messages are held there, and for a day after that one may be in both lanes: Valkey took
it without answering, or its platform sent it again. Whoever says so first in the holding table answers for it.
"""

import json
from hashlib import blake2s
from typing import Protocol

from lambdas.shared.clock import Clock, system_clock
from lambdas.shared.errors import SendFailed
from lambdas.shared.senders.holding_table import MAIN_LANE, HoldingTable, name_of
from lambdas.shared.store.outcomes import Taken
from lambdas.shared.telemetry import Telemetry
from lambdas.shared.window import REMEMBER_MS

# How old may be what an instance knows of a fallback. A message is not emitted by the window lane for longer than that.
ASK_EVERY_MS = 2_000
# So often a batch waits for the window lane to emit what it holds of the same conversation.
MOST_WAITS = 5


class WindowFirst(Exception):
    """The window lane holds messages of this conversation: they go out before this batch."""


class SendsTriggers(Protocol):
    def send(self, conversation: str, *, delay_ms: int) -> None: ...


class OtherLane:
    def __init__(
        self,
        table: HoldingTable,
        triggers: SendsTriggers,
        telemetry: Telemetry,
        *,
        most_waits: int = MOST_WAITS,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._triggers = triggers
        self._telemetry = telemetry
        self._most_waits = most_waits
        self._clock = clock
        self._asked_at_ms = 0
        self._until_ms = 0

    def left_to_emit(self, conversation: str, taken: Taken) -> list[bytes]:
        """Of the batch's messages those that are the main lane's: the same at every attempt. Raises WindowFirst."""
        names = [_name(payload) for payload in taken.payloads]
        try:
            ours = self._journaled(conversation, taken, names)
        except SendFailed as error:
            # An outage of this table is not to be one of the main lane.
            self._telemetry.count("JournalFailures")
            self._telemetry.warn("window lane not asked", conversation=conversation, reason=str(error))
            return taken.payloads
        if left := len(names) - len(ours):
            self._telemetry.count("LeftToWindow", left)
            self._telemetry.info("left to the window lane", conversation=conversation, batch=taken.batch_id, count=left)
        return [payload for name, payload in zip(names, taken.payloads, strict=True) if name in ours]

    def _journaled(self, conversation: str, taken: Taken, names: list[str]) -> set[str]:
        if taken.attempt > 1 and (before := self._table.journaled(conversation, taken.batch_id)) is not None:
            return before
        ours = self._ours(conversation, names, attempt=taken.attempt) if self._was_used() else names
        expires_at_ms = self._clock() + REMEMBER_MS
        return self._table.journal(conversation, taken.batch_id, ours, expires_at_ms=expires_at_ms)

    def _was_used(self) -> bool:
        now_ms = self._clock()
        if not 0 <= now_ms - self._asked_at_ms < ASK_EVERY_MS:
            self._until_ms = self._table.fallback_until()
            self._asked_at_ms = now_ms
        return now_ms < self._until_ms

    def _ours(self, conversation: str, names: list[str], *, attempt: int) -> list[str]:
        # What is held is emitted first, so that it is known here which of these messages went out with it.
        if attempt <= self._most_waits and self._table.window(conversation).is_open:
            if self._table.hasten(conversation, due_at_ms=self._clock(), reason="main_lane"):
                self._triggers.send(conversation, delay_ms=0)
            self._telemetry.count("Deferred")
            raise WindowFirst
        found = self._table.find(conversation, names)
        return [name for name in names if self._is_ours(conversation, name, found.get(name))]

    def _is_ours(self, conversation: str, name: str, went: str | None) -> bool:
        if went is None or went == MAIN_LANE:
            return True
        # Held there, and nobody has said whose it is; or it was left to us just now.
        return not went and not self._table.claim_for_window(conversation, name)


def _name(payload: bytes) -> str:
    try:
        return name_of(json.loads(payload.partition(b"\n")[0]))
    except (ValueError, AttributeError):
        # No message can be read from it: it becomes a dead letter, which says so.
        return f"unreadable:{blake2s(payload).hexdigest()}"
