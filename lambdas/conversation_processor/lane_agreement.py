"""Decides which lane emits a message that is in both.

While Valkey cannot be reached, the DynamoDB lane stores messages. A message may then be in both lanes, if Valkey stored
it but the reply was lost, or if the platform sent it again. The lane that first records the message in the DynamoDB
lane's table emits it. The Valkey lane records all messages of its batch, and then reads what the other lane has frozen.
From then on the DynamoDB lane freezes none of the recorded messages, and the Valkey lane leaves out the ones that the
DynamoDB lane had already frozen. The DynamoDB lane keeps its copies of the others until the batch is emitted, because
Valkey may lose the batch before that.
"""

from hashlib import blake2s
from typing import NamedTuple

from lambdas.limits import MAX_ATTEMPTS_TO_AGREE, MAX_WAITS_FOR_DYNAMODB_LANE
from message_buffer.clock import Clock, system_clock
from message_buffer.errors import SendFailed
from message_buffer.lanes.dynamodb.table import VALKEY_LANE, MessageTable, name_of
from message_buffer.lanes.dynamodb.triggers import Triggers
from message_buffer.lanes.dynamodb.window import Window
from message_buffer.lanes.outcomes import Taken
from message_buffer.limits import REMEMBERED_MS
from message_buffer.messages.wire_form import id_of
from message_buffer.rules.due_time import Due
from message_buffer.telemetry import Telemetry


class DynamoDbLaneFirst(Exception):
    """The DynamoDB lane stores messages of this conversation, and emits them before this batch. Put the batch back."""


class DynamoDbLaneUnasked(Exception):
    """The table could not be read or written. Put the batch back and ask again later."""


class Agreed(NamedTuple):
    left_out: frozenset[int]
    """Positions of the messages that the DynamoDB lane emits."""
    copies: frozenset[str]
    """Names of the other messages of which the DynamoDB lane has a copy."""


class LaneAgreement:
    def __init__(
        self,
        table: MessageTable,
        triggers: Triggers,
        telemetry: Telemetry,
        *,
        max_waits: int = MAX_WAITS_FOR_DYNAMODB_LANE,
        max_attempts_of_agreement: int = MAX_ATTEMPTS_TO_AGREE,
        clock: Clock = system_clock,
    ) -> None:
        self._table = table
        self._triggers = triggers
        self._telemetry = telemetry
        self._most_waits = max_waits
        self._most_attempts = max_attempts_of_agreement
        self._clock = clock

    def connect(self) -> None:
        self._table.connect()

    def agree(self, conversation: str, taken: Taken) -> Agreed:
        """Record the batch, and return which of its messages the DynamoDB lane has.

        Raise DynamoDbLaneFirst or DynamoDbLaneUnasked if the batch has to wait.
        """
        names = [_name(payload) for payload in taken.payloads]
        try:
            theirs, copies = self._theirs(conversation, taken, names)
        except SendFailed as error:
            if taken.unasked < self._most_attempts:
                raise DynamoDbLaneUnasked(str(error)) from error
            self._telemetry.count("JournalFailures")
            self._telemetry.warn("DynamoDB lane not asked", conversation=conversation, reason=str(error))
            return Agreed(frozenset(), frozenset())
        if theirs:
            self._telemetry.count("LeftToDynamoDbLane", len(theirs))
            self._telemetry.info(
                "left to the DynamoDB lane", conversation=conversation, batch=taken.batch_id, count=len(theirs)
            )
        left_out = frozenset(position for position, name in enumerate(names) if name in theirs)
        return Agreed(left_out, frozenset(copies))

    def drop_copies(self, conversation: str, names: frozenset[str]) -> None:
        """Replace copies with tombstones, because the batch was emitted."""
        try:
            for name in names:
                expires_at_ms = self._clock() + REMEMBERED_MS
                self._table.leave_to_valkey_lane(conversation, name, expires_at_ms=expires_at_ms)
        except SendFailed as error:
            # The remaining copies are now disputed. Valkey will answer that they were emitted.
            self._telemetry.warn("copies not dropped", conversation=conversation, reason=str(error))

    def _theirs(self, conversation: str, taken: Taken, names: list[str]) -> tuple[set[str], set[str]]:
        """Return the names of the messages that the DynamoDB lane emits, and of other messages that it stores."""
        if taken.waits < self._most_waits:
            window = self._table.window(conversation)
            # Do not wait for a disputed window, because it waits for the Valkey lane.
            if window.is_open and not window.is_disputed:
                self._let_dynamodb_lane_go_first(conversation, window)
        self._table.journal(conversation, taken.batch_id, names, expires_at_ms=self._clock() + REMEMBERED_MS)
        if not self._table.window(conversation).generation:
            # The DynamoDB lane has stored no message of the conversation lately. If its processor reads the
            # conversation from now on, the processor sees the journal.
            return set(), set()
        # The DynamoDB lane emits the messages that it has already frozen, and freezes none of this batch from now on.
        window, each_name = self._table.fence(conversation), list(dict.fromkeys(names))
        leaving = set(window.frozen.names) if window.frozen else set()
        found = self._table.find(conversation, each_name)
        # Neither lane may emit a message that was erased when its conversation was forgotten.
        erased = self._table.erased(conversation, window.id_secret, each_name) if window.id_secret else set()
        theirs = erased | {name for name, went in found.items() if name in leaving or went not in (None, VALKEY_LANE)}
        return theirs, {name for name, went in found.items() if went is None} - theirs

    def _let_dynamodb_lane_go_first(self, conversation: str, window: Window) -> None:
        now_ms = self._clock()
        is_waiting = window.due.due_at_ms > now_ms >= window.held_until_ms
        if is_waiting and self._table.hasten(conversation, window=window, due=Due(now_ms, "flush")):
            self._triggers.send(conversation, delay_ms=0)
        self._telemetry.count("Deferred")
        raise DynamoDbLaneFirst


def _name(payload: bytes) -> str:
    message_id = id_of(payload)
    # Give an unreadable message a name of its own. Emission later dead-letters the batch as unreadable.
    return f"unreadable:{blake2s(payload).hexdigest()}" if message_id is None else name_of(message_id)
