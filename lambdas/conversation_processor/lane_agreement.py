"""What the window lane has to do with a batch of the main lane.

While Valkey cannot be reached, messages are held there, and one may be in both lanes: Valkey took it without
answering, or its platform sent it again. Whoever says so first in the holding table emits it. This lane says so for
all of a batch before it looks: from then on the window lane freezes none of these messages, and those it has frozen
by then are left out here.
"""

from hashlib import blake2s

from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.dynamodb.lane import REMEMBER_MS, SendsTriggers
from message_buffer.lanes.dynamodb.table import MAIN_LANE, HoldingTable, name_of
from message_buffer.lanes.outcomes import Taken
from message_buffer.messages.wire_form import id_of
from message_buffer.telemetry import Telemetry

# So often a batch waits for the window lane to emit what it holds of the same conversation.
MOST_WAITS = 5
# So many attempts are spent on that and on a table that does not answer. An outage of the table is not to be one of
# the main lane.
MOST_ATTEMPTS = 10


class WindowFirst(Exception):
    """The window lane holds messages of this conversation: they go out before this batch."""


class WindowUnasked(Exception):
    """The table does not answer: ask again."""


class OtherLane:
    def __init__(
        self,
        table: HoldingTable,
        triggers: SendsTriggers,
        telemetry: Telemetry,
        *,
        most_waits: int = MOST_WAITS,
        most_attempts: int = MOST_ATTEMPTS,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._triggers = triggers
        self._telemetry = telemetry
        self._most_waits = most_waits
        self._most_attempts = most_attempts
        self._clock = clock

    def left_out(self, conversation: str, taken: Taken) -> frozenset[int]:
        """Positions of the messages that are the window lane's. Raises WindowFirst, WindowUnasked."""
        names = [_name(payload) for payload in taken.payloads]
        try:
            theirs = self._theirs(conversation, taken, names)
        except SendFailed as error:
            if taken.attempt <= self._most_attempts:
                raise WindowUnasked(str(error)) from error
            self._telemetry.count("JournalFailures")
            self._telemetry.warn("window lane not asked", conversation=conversation, reason=str(error))
            return frozenset()
        if theirs:
            self._telemetry.count("LeftToWindow", len(theirs))
            self._telemetry.info(
                "left to the window lane", conversation=conversation, batch=taken.batch_id, count=len(theirs)
            )
        return frozenset(position for position, name in enumerate(names) if name in theirs)

    def _theirs(self, conversation: str, taken: Taken, names: list[str]) -> set[str]:
        if taken.attempt <= self._most_waits and self._table.window(conversation).is_open:
            self._let_window_go_first(conversation)
        self._table.journal(conversation, taken.batch_id, names, expires_at_ms=self._clock() + REMEMBER_MS)
        if not self._table.window(conversation).generation:
            return set()  # it has not been in the window lane lately, and who reads it from now on sees the journal
        # What was frozen before is theirs, and nothing of this batch is from now on.
        frozen = self._table.fence(conversation).frozen
        leaving = set(frozen.names) if frozen else set()
        found = self._table.find(conversation, list(dict.fromkeys(names)))
        return {name for name, went in found.items() if name in leaving or not self._is_ours(conversation, name, went)}

    def _let_window_go_first(self, conversation: str) -> None:
        if self._table.hasten(conversation, due_at_ms=self._clock(), reason="main_lane"):
            self._triggers.send(conversation, delay_ms=0)
        self._telemetry.count("Deferred")
        raise WindowFirst

    def _is_ours(self, conversation: str, name: str, went: str) -> bool:
        if went:
            return went == MAIN_LANE
        return self._table.leave_to_main(conversation, name, expires_at_ms=self._clock() + REMEMBER_MS)


def _name(payload: bytes) -> str:
    message_id = id_of(payload)
    # One that cannot be read becomes a dead letter, which says so.
    return f"unreadable:{blake2s(payload).hexdigest()}" if message_id is None else name_of(message_id)
